"""What is said in the words of frameworks: every option exists in the versions for which it is printed, by the names that were read out of their packages."""

from __future__ import annotations

import ast
import io
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.engine.in_words_of import switched
from advisor.engine.rule import built_in
from advisor.knowledge.framework_loops import LOOPS
from advisor.knowledge.stacks import Asked, Option, Owner, Pack, Pinned, named, number, packs, pinned
from advisor.knowledge.stacks.check import Difference, differences, not_held, pinned_from, refused
from advisor.knowledge.stacks.spelled import Archive, names_in, read_names
from advisor.report.finding import Code, Fix

SERVED = [pack for pack in packs().values() if pack.archive != "checkout"]
OPTIONS = [(pack, option) for pack in packs().values() for option in pack.options]


def called(one: object) -> str:
    return one.package if isinstance(one, Pack) else one.option if isinstance(one, Option) else str(one)


@pytest.mark.parametrize("pack", packs().values(), ids=called)
def test_every_option_that_is_printed_for_a_version_is_in_that_version(pack: Pack) -> None:
    held = pinned()[pack.package]
    assert [*not_held(pack, held)] == []
    assert all(name.rpartition(".")[0] in held.names for option in pack.options for name in option.names)
    assert pack.package in LOOPS


@pytest.mark.parametrize("pack", packs().values(), ids=called)
def test_frames_of_a_framework_name_its_module(pack: Pack) -> None:
    assert all(pack.module.partition(".")[0] in one.pattern for one in pack.seen if one.by == "frame")


@pytest.mark.parametrize("pack", SERVED, ids=called)
def test_what_took_the_place_of_an_option_is_there_from_the_version_on_in_which_that_one_ends(pack: Pack) -> None:
    held = pinned()[pack.package]
    for option in pack.options:
        assert bool(option.until) == bool(option.replaced_by), option.option
        later = [version for version in held.versions if option.until and number(version) >= number(option.until)]
        for version in later:
            assert any(option.replaced_by in names and names[option.replaced_by][held.versions.index(version)] == "1" for names in held.names.values()), (
                option.option,
                version,
            )
            # Somebody who runs that version is told the new one, for the same rule.
            others = [o for o in pack.options if o.rule == option.rule and o.when == option.when and o.in_version(version)]
            assert others and option not in others, (option.option, version)


@pytest.mark.parametrize(("pack", "option"), OPTIONS, ids=called)
def test_an_option_mends_a_rule_that_there_is_and_is_written_as_code(pack: Pack, option: Option) -> None:
    assert option.rule in {*built_in(), "graph-coverage", "padding-waste", "step-gap"}
    assert not option.loop or option.loop in pack.loops, option.loop
    assert option.url.startswith("https://") and option.does.endswith(".") and not option.default.startswith("'")
    assert option.after and option.after != option.before
    for code in (option.before, option.after):
        if not re.match(r"\{|python|\./|vllm|torchrun|#|[A-Z_]+=", code):
            ast.parse(code)


def test_servers_flags_are_those_of_the_version_that_was_recorded() -> None:
    sglang = packs()["sglang"]

    def graphs(version: str) -> str:
        option = sglang.option_for(Asked("launch-gap", kind="server", version=version))
        return option.option if option else ""

    assert graphs("0.5.13") == graphs("0.4.9") == "--cuda-graph-max-bs"
    assert graphs("0.5.14") == graphs("0.5.23") == graphs("") == "--cuda-graph-max-bs-decode"


def test_a_version_compares_by_its_numbers_with_what_is_released_behind_it() -> None:
    assert number("0.5.13") < number("0.5.13.post1") < number("0.5.14") < number("0.5.14.dev3") or number("0.5.14") == number("0.5.14.dev3")
    assert number("5.9.0") < number("5.10.0") and number("4.57") == number("4.57.0") and number("main") == ()


def test_an_option_asks_for_the_loop_the_kind_the_cause_and_the_code_that_it_stands_for() -> None:
    def option(**more: object) -> Option:
        return Option(**{"rule": "precision", "option": "x=True", "does": "Pass x.", "names": ("A.x",), "url": "https://x", **more})  # type: ignore[arg-type]

    pack = Pack(name="Own", package="accelerate", options=(option(loop="Trainer", when="training", stands_for=("autocast(",)),))
    asked = Asked("precision", code="with autocast(): ...", kind="training", loops=("Trainer",))
    assert pack.option_for(asked)
    for other in ({"loops": ()}, {"kind": "inference"}, {"code": "model.half()"}, {"cause": "fp64"}, {"rule": "launch-gap"}):
        assert pack.option_for(asked._replace(**other)) is None, other


def test_a_default_is_named_where_it_is_seen_to_be_the_cause_and_nowhere_else() -> None:
    asked = Asked("sync-stall", kind="training", loops=("Trainer",))
    assert packs()["transformers"].option_for(asked) is None
    found = packs()["transformers"].option_for(asked._replace(defaults=frozenset({"logging_nan_inf_filter=False"})))
    assert found and found.default == "True"


def test_a_framework_is_found_by_what_people_call_it() -> None:
    assert [named(text) and named(text).package for text in ("hf", "Transformers", "pytorch_lightning", "YOLO", "megatron", "trtllm", "nothing")] == [
        "transformers", "transformers", "lightning", "ultralytics", "megatron-core", "tensorrt-llm", None,
    ]  # fmt: skip


MODULE = '''
from dataclasses import dataclass, field

DEEP = "deep_key"

class Base:
    first: int = 1

@dataclass
class Settings(Base):
    """..."""
    second: bool = field(default=False, metadata={"help": "x"})
    _hidden: int = 0

    @dataclass
    class Config:
        inner: str = "default"

class Kinds:
    ONE = "one"

def build(a, b=2, *, c=None, **kwargs):
    other = kwargs.pop("taken", None)
    if "asked" in kwargs:
        pass
    if "never" in other:
        pass

def add(parser):
    parser.add_argument("--flag-one", "-f", default=3)
'''


@pytest.mark.parametrize(
    ("read", "of", "names"),
    [
        ("fields", "Settings", {"first": "1", "second": "False"}),
        ("fields", "Settings.Config", {"inner": "'default'"}),
        ("signature", "build", {"a": "", "b": "2", "c": "None"}),
        ("taken", "build", {"taken": "", "asked": ""}),
        ("arguments", "", {"--flag-one": "3"}),
        ("values", "Kinds", {"one": ""}),
        ("literals", "", {"deep_key": ""}),
        ("exports", "field", {"field": ""}),
        ("words", "inner", {"inner": ""}),
        ("words", "outer", {}),
        ("functions", "", {"Base": "", "Settings": "", "Kinds": "", "build": "", "add": ""}),
    ],
)
def test_names_are_read_out_of_the_syntax_tree(read: str, of: str, names: dict[str, str]) -> None:
    assert read_names(MODULE, Owner(files=("m.py",), read=read, of=(of,)), "m") == names  # type: ignore[arg-type]


def test_type_parameters_are_read_by_a_python_that_has_none() -> None:
    text = "type Of[T] = list[T]\ntype = 1\n\ndef scan[C, X: Callable[[int], int]](f, unroll=1) -> C: ...\nclass Kept[T]:\n    def keep(self, all=2): ...\n"
    assert read_names(text, Owner(files=("m.py",), read="signature"), "scan") == {"f": "", "unroll": "1"}
    assert read_names(text, Owner(files=("m.py",), read="methods"), "Kept") == {"keep": ""}


@pytest.mark.parametrize("pack", [pack for pack in packs().values() if pack.base], ids=called)
def test_a_base_has_an_option_in_every_version(pack: Pack) -> None:
    for option in pack.options:
        assert all(pack.option_for(Asked(option.rule, option.cause, version=version)) for version in ("", *pinned()[pack.package].versions)), option.rule


def test_keys_of_a_yaml_file_are_read_with_their_defaults() -> None:
    assert read_names("# about\nworkers: 8 # (int) more\ncache: # none\n  deeper: 1\n", Owner(files=("c.yaml",), read="keys"), "c") == {
        "workers": "8",
        "cache": "",
    }


def test_a_wheel_a_source_distribution_and_a_checkout_read_alike(tmp_path: Path) -> None:
    (tmp_path / "checkout" / "src" / "pkg").mkdir(parents=True)
    (tmp_path / "checkout" / "src" / "pkg" / "m.py").write_text(MODULE)
    with zipfile.ZipFile(tmp_path / "pkg-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pkg/m.py", MODULE)
        wheel.writestr("pkg/deeper/pkg/m.py", "class Settings: ...")
    with tarfile.open(tmp_path / "pkg-1.0.tar.gz", "w:gz") as sdist:
        held = tarfile.TarInfo("pkg-1.0/pkg/m.py")
        held.size = len(MODULE.encode())
        sdist.addfile(held, io.BytesIO(MODULE.encode()))
    pack = Pack(
        name="Own",
        package="accelerate",
        owners={"Settings": Owner(files=("gone.py", "pkg/m.py"), read="fields"), "Other": Owner(files=("pkg/m.py",), read="fields")},
    )
    for archive in ("checkout", "pkg-1.0-py3-none-any.whl", "pkg-1.0.tar.gz"):
        assert names_in({"accelerate": Archive(tmp_path / archive)}, pack) == {"Settings": {"first": "1", "second": "False"}}


def test_a_check_tells_what_is_gone_renamed_and_new_and_what_would_be_refused() -> None:
    option = Option(rule="precision", option="old=True", does="Pass old.", names=("A.old",), url="https://x", default="False")
    pack = Pack(name="Own", package="accelerate", options=(option,))
    before = pinned_from([("1.0", {"A": {"old": "False", "cuda_graph": "", "kept": ""}})])
    now = {"A": {"cuda_graphs": "", "kept": "", "bf16": ""}}
    assert [*differences(pack, before, now)] == [
        Difference("renamed", "A.cuda_graph", "cuda_graphs"), Difference("gone", "A.old"), Difference("new", "A.bf16"), Difference("new", "A.cuda_graphs"),
    ]  # fmt: skip
    assert refused(pack, "2.0", now) == [Difference("printed but not there", "A.old")]
    assert refused(pack, "2.0", {"A": {"old": "True"}}) == [Difference("another default", "A.old", "True")]
    assert refused(pack, "2.0", {"A": {"old": "False"}}) == []


def test_the_pinned_copy_tells_which_versions_have_a_name() -> None:
    made = pinned_from([("2.0", {"A": {"x": "", "y": ""}}), ("10.0", {"A": {"y": ""}}), ("1.0", {"A": {"x": ""}})])
    assert made == Pinned(("1.0", "2.0", "10.0"), {"A": {"x": "110", "y": "011"}})
    assert made.has_name("A.x", "2.0") and not made.has_name("A.x", "10.0") and not made.has_name("B.x", "1.0")


def printed(code: str, pack: Pack) -> Iterator[tuple[str, str]]:
    """Owner and name of each argument that a fix's code passes to what the pack has read, and of each flag of its commands, whose owner it does not say."""
    if re.match(r"python|\./|vllm|[A-Z_]+=", code):
        yield from (("", flag) for flag in re.findall(r"(?<!\S)--(?:no-)?([\w.-]+)", code) if not flag.startswith("xla_"))
    elif not code.startswith(("{", "torchrun", "#")):
        for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
            owner = ast.unparse(call.func).rpartition(".")[2]
            known = [name for name, one in pack.owners.items() if name.rpartition(".")[2] == owner and one.read in ("fields", "signature", "taken")]
            yield from ((known[0], word.arg) for word in call.keywords if known and word.arg)


HANDED_ON = [("DDPStrategy", "gradient_as_bucket_view")]
"""What its owner takes among others, and passes to torch."""


@pytest.mark.parametrize(("pack", "option"), OPTIONS, ids=called)
def test_all_that_a_fix_passes_is_accepted_by_each_version_for_which_it_is_printed(pack: Pack, option: Option) -> None:
    held = pinned()[pack.package]
    for owner, name in {*printed(option.after, pack)} - {*printed(option.before, pack), *HANDED_ON}:
        for version in (version for version in held.versions if option.in_version(version)):
            spelled = {name, f"--{name}", name.replace("-", "_"), name.rpartition(".")[2]}
            # A class may take what its base takes, which stands in another file.
            assert any(held.has_name(f"{one}.{text}", version) for one in held.names for text in spelled), (owner, name, version)


@pytest.mark.parametrize(("pack", "option"), OPTIONS, ids=called)
def test_what_a_fix_calls_first_is_imported_where_it_is_pasted(pack: Pack, option: Option) -> None:
    if re.match(r"\{|python|\./|vllm|torchrun|#|[A-Z_]+=", option.after):
        return
    tree, before = ast.parse(option.after), option.before
    imported = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}
    classes = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id[0].isupper()}
    assert {name for name in classes - imported if not re.search(rf"\b{name}\b", before)} == set()


WITHOUT_GRAPHS = {"deepspeed", "diffusers"}
"""Frameworks that compile, but have no switch for graphs: ZeRO's hooks launch between the parts, and blocks that are compiled alone overwrite each other's results."""


@pytest.mark.parametrize("pack", [pack for pack in packs().values() if pack.of == "torch"], ids=called)
def test_a_framework_that_compiles_has_a_switch_for_graphs_too(pack: Pack) -> None:
    compiles = any(option.rule == "launch-gap" and option.seen is None for option in pack.options)
    graphs = any(option.rule == "graph-candidate" for option in pack.options)
    assert graphs or not compiles or pack.package in WITHOUT_GRAPHS


def test_the_code_of_a_framework_keeps_the_lines_that_stay_beside_it() -> None:
    accelerate = packs()["accelerate"]
    option = accelerate.option_for(Asked("graph-candidate", code="model = torch.compile(model)", kind="training", loops=("Accelerator",)))
    assert option and 'mode="reduce-overhead"' in option.after and "before prepare" in option.does
    plain = Fix("Compile", ("Compile.",), Code("optimizer = torch.optim.Adam(p)", "model = torch.compile(model)\noptimizer = torch.optim.Adam(p, fused=True)"))
    code = switched(plain, accelerate, "", option).code
    assert code and code.before.endswith("torch.optim.Adam(p)") and code.after.endswith("fused=True)") and "torch.compile(" not in code.after


NOTE = "keep your other arguments"


def replaced(before: str, after: str) -> set[str]:
    """What is called on both sides with other arguments by name: constructors of the user's, whose other arguments have to stay."""
    sides = [{}, {}]  # type: list[dict[str, set[str]]]
    for made, code in zip(sides, (before, after), strict=True):
        for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
            made[ast.unparse(call.func)] = {str(word.arg) for word in call.keywords}
            assert not any(isinstance(word.value, ast.Constant) and word.value.value is ... for word in call.keywords), "an argument that is pasted as Ellipsis"
    return {name for name in sides[0].keys() & sides[1].keys() if sides[0][name] != sides[1][name]}


@pytest.mark.parametrize(("pack", "option"), [(pack, option) for pack, option in OPTIONS if pack.of == "torch"], ids=called)
def test_code_that_replaces_a_call_keeps_the_user_s_other_arguments(pack: Pack, option: Option) -> None:
    if any(re.match(r"\{|python|\./|vllm|torchrun|#|[A-Z_]+=", code) for code in (option.before, option.after)):
        return
    made = {name for name in replaced(option.before, option.after) if name.rpartition(".")[2][0].isupper() or name.endswith("from_pretrained")}
    assert not made or NOTE in option.after or ("..." not in option.before and made <= SHORT), made


SHORT = {"TorchDynamoPlugin", "DistributedDataParallelKwargs"}
"""Parts of a constructor's arguments, which the user reads as parts."""
