"""Mechanisms are really off while they are switched off, everything else works, and what that moves is counted."""

import ast
import json
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest

from advisor import analyze
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.errors import UsageError
from advisor.knowledge.structs import replace
from advisor.lab import ledger, tables
from advisor.lab.ablation import run as ablation
from advisor.lab.ablation import traces as listed
from advisor.lab.ablation.mechanisms import MECHANISMS, Mechanism
from advisor.lab.ablation.reuse import Kept
from advisor.lab.ablation.run import Effect, Prediction, Tried, ablated, effect_of
from advisor.lab.ablation.shown import as_markdown, as_text, summed
from advisor.lab.ablation.switch import Number, Result, attribute, holder, home, same_values, switched_off, user, watched
from advisor.lab.ablation.traces import Fix, Trace, traces_of, unseen
from advisor.recordings.recording import Recording
from advisor.views.workspace import needs_of
from tests.build import Trace as Built
from tests.command import advisor

BY_NAME = {one.name: one for one in MECHANISMS}
NUMBERS = [(one.name, switch) for one in MECHANISMS for switch in one.switches if isinstance(switch, Number)]
RESULTS = [(one.name, switch) for one in MECHANISMS for switch in one.switches if isinstance(switch, Result)]


@pytest.fixture
def made_up():
    """A module with a constant, a function, and a class that use each other, as views do."""
    module = ModuleType("made_up")

    @dataclass
    class Sum:
        us: float

        @classmethod
        def build(cls, several: tuple[float, ...]) -> "Sum":
            return cls(sum(several, 0.0))

        @cached_property
        def doubled(self) -> float:
            return module.FACTOR * self.us

    module.FACTOR, module.Sum, module.scaled = 2.0, Sum, lambda us: module.FACTOR * us
    return module


def mechanism(*switches, name="made-up", until="2026-11-23T00:00", programs=0):
    return Mechanism(name, until, "does what a test needs", switches, programs=programs)


def test_a_number_is_off_in_a_block_and_back_after_it(made_up):
    with switched_off(mechanism(Number(made_up, "FACTOR", 1.0, "scaled"))):
        assert made_up.scaled(3.0) == 3.0
    assert made_up.scaled(3.0) == 6.0
    with pytest.raises(ZeroDivisionError), switched_off(mechanism(Number(made_up, "FACTOR", 1.0, "scaled"))):
        1 / 0  # noqa: B018
    assert made_up.scaled(3.0) == 6.0


def test_a_result_is_neutral_in_a_block_and_knows_what_it_was_called_with(made_up):
    with switched_off(mechanism(Result(made_up, "Sum.build", lambda made, several: replace(made, us=several[0])))):
        assert made_up.Sum.build((1.0, 2.0)).us == 1.0
        assert list(needs_of(made_up.Sum.build)) == ["several"], "a workspace finds the same needs"
    assert made_up.Sum.build((1.0, 2.0)).us == 3.0


def test_only_what_changes_a_result_is_seen(made_up):
    of_number, of_property = mechanism(Number(made_up, "FACTOR", 1.0, "scaled")), mechanism(Number(made_up, "FACTOR", 1.0, "Sum.doubled"), name="property")
    of_result = mechanism(Result(made_up, "Sum.build", lambda made, *_: replace(made, us=0.0)), name="result")
    with watched((of_number, of_property, of_result)) as seen:
        made_up.scaled(0.0), made_up.Sum.build(()), made_up.Sum(0.0).doubled
        assert seen == set()
        assert (made_up.scaled(1.0), made_up.Sum(1.0).doubled, made_up.Sum.build((1.0,)).us) == (2.0, 2.0, 1.0)
    assert seen == {"made-up", "property", "result"}


def test_results_are_the_same_where_all_their_values_are():
    a = replace(Fix(("x",), 1.0))
    assert same_values({"a": (np.array([1.0, np.nan]), [a])}, {"a": (np.array([1.0, np.nan]), [replace(a)])})
    assert not same_values(np.array([1]), np.array([1.0])) and not same_values((1,), (1, 2)) and not same_values(a, replace(a, measured=0.5))


@pytest.mark.parametrize("one", MECHANISMS, ids=lambda one: one.name)
def test_each_mechanism_says_what_it_is_and_is_there(one):
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d", one.until) and 0 < len(one.what) <= 90 and one.switches
    assert bool(one.written_on) or not one.programs, "a fit says to what"
    for switch in one.switches:
        for owner, name in (holder(switch), user(switch)):
            assert attribute(owner, name) is not None, (switch.name, owner)


def test_no_two_have_a_name_and_every_program_came_once():
    assert len(BY_NAME) == len(MECHANISMS) > 40
    programs = [program for one in listed._sets().values() for program in one["programs"]]
    assert len({*programs}) == len(programs) == len(listed.recorded())


@pytest.mark.parametrize(("name", "switch"), NUMBERS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_each_number_is_off_wherever_it_is_used(name, switch):
    owner, held_as = holder(switch)
    value, module = vars(owner)[held_as], home(switch)
    assert value != switch.off
    users = [other for other in list(sys.modules.values()) if getattr(other, "__name__", "").startswith("advisor.") and _imports(other, module, held_as)]
    with switched_off(BY_NAME[name]):
        assert all(vars(one)[held_as] is switch.off for one in (owner, *users))
    assert all(vars(one)[held_as] is value for one in (owner, *users))
    for one in (module, *users):
        for function in ast.walk(_tree(one)):
            if isinstance(function, (ast.FunctionDef, ast.Lambda)):
                held = [n.id for d in (*function.args.defaults, *filter(None, function.args.kw_defaults)) for n in ast.walk(d) if isinstance(n, ast.Name)]
                assert held_as not in held, f"{one.__name__} holds {held_as} as a default, which no switch reaches"


@pytest.mark.parametrize(("name", "switch"), RESULTS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_each_result_is_off_wherever_it_was_imported(name, switch):
    owner, held_as = holder(switch)
    kept = attribute(owner, held_as)
    with switched_off(BY_NAME[name]):
        held = [
            module.__name__
            for module in list(sys.modules.values())
            if str(getattr(module, "__name__", "")).startswith("advisor.") and kept in _functions(module)
        ]
        assert attribute(owner, held_as) is not kept and not held
    assert attribute(owner, held_as) is kept


def _functions(module):
    return [value for value in vars(module).values() if callable(value)]


def _tree(module):
    return ast.parse(Path(module.__file__).read_text(encoding="utf-8"))


def _imports(module, of, name):
    if not getattr(module, "__file__", None) or module is of or name not in vars(module):
        return False
    return any(isinstance(n, ast.ImportFrom) and n.module == of.__name__ and name in [a.asname or a.name for a in n.names] for n in ast.walk(_tree(module)))


def chained():
    """Two steps of a product and three pointwise kernels, one of which makes BF16 of FP32."""
    trace, shape = Built(), [[4096, 4096], [4096, 4096]]
    for at in (0.0, 1000.0, 2000.0):
        trace.step(at, 1000.0)
        for k, (op, kernel) in enumerate(
            (("aten::mm", "gemm"), ("aten::mul", "elementwise_kernel"), ("aten::copy_", "elementwise_kernel"), ("aten::add", "elementwise_kernel"))
        ):
            began = at + 10 + 200 * k
            types = ["c10::BFloat16", "float"] if op == "aten::copy_" else ["float", "float"]
            trace.op(op, began, 20.0, shape, types).launch(began + 5, began + 30, began + 190, kernel)
    return trace.timeline()


def test_what_is_off_has_no_effect_and_what_is_reused_is_what_would_come_out():
    timeline = chained()
    rules = [catalog()[rule] for rule in ("dtype-casts", "precision", "unfused-elementwise")]
    recording, kept = Recording("trace", "built", (timeline,)), Kept()
    with watched(MECHANISMS) as seen, kept.filled():
        base = run(recording, rules)
    assert {"fused-chains", "casts"} <= seen and not base.failed
    for name in ("fused-chains", "casts"):
        one = BY_NAME[name]
        with switched_off(one), watched([one]) as again:
            without = run(recording, rules)
        assert not again and not without.failed, name
        with kept.reused(one), switched_off(one):
            assert run(kept.unchanged_views(one, recording), rules) == without, name
    assert run(recording, rules) == base


def test_programs_at_hand_and_the_set_that_came_next_are_seen(monkeypatch):
    sets = {"2026-11-21T00:00": {"programs": ["old"]}, "2026-11-23T06:00": {"programs": ["next"]}, "2026-11-24T00:00": {"programs": ["later"]}}
    monkeypatch.setattr(listed, "_sets", lambda: sets)
    listed.recorded.cache_clear()
    try:
        one = mechanism(until="2026-11-23T00:00")
        assert [unseen(one, program) for program in ("old", "next", "later", "somebody else's")] == [False, False, True, True]
    finally:
        listed.recorded.cache_clear()


def effects(*errors, name="made-up", flips=()):
    """One trace each: a fix that gained half of the step, predicted off by so much with and without."""
    made = [Effect(name, [Prediction("launch-gap", 0.5, 0.5 + on, 0.5 + without)], list(flips)) for on, without in errors]
    return [Tried(f"trace {at}", 0, [name], [effect]) for at, effect in enumerate(made)]


@pytest.mark.parametrize(
    ("verdict", "tried"),
    [
        ("pays", effects(*[(0.01 * k, 0.1 + 0.02 * k) for k in range(8)])),
        ("harms", effects(*[(0.1 + 0.02 * k, 0.01 * k) for k in range(8)])),
        ("moves nothing", effects(*[(0.1, 0.1)] * 12)),
        ("too few to tell", effects(*[(0.1, 0.1)] * 11)),
        ("too few to tell", effects(*[(0.1, 0.1)] * 12, flips=["launch-gap"])),
        ("too few to tell", effects(*[(0.1, 0.2)] * 4)),
        ("too few to tell", effects(*[(0.1, 0.2), (0.2, 0.1)] * 4)),
        ("too few to tell", []),
    ],
)
def test_a_verdict_takes_no_noise_for_gain(verdict, tried):
    (row,) = summed([mechanism(programs=3)], tried, "", 0).rows
    assert row.verdict == verdict and row.goes == (verdict in ("harms", "moves nothing"))
    assert (row.closer, row.further) == (
        sum(abs(p.on - p.off) > 0.005 and p.on < p.off for p in _predictions(tried)),
        sum(p.on > p.off for p in _predictions(tried)),
    )


def _predictions(tried):
    return [p for one in tried for effect in one.effects for p in effect.predictions]


def test_a_mechanism_that_is_no_fit_stays_where_it_moves_nothing():
    (row,) = summed([mechanism()], effects(*[(0.1, 0.1)] * 12), "", 0).rows
    assert row.verdict == "moves nothing" and not row.goes


def test_rows_are_sorted_by_what_they_are_worth_and_shown_alike_in_every_format():
    tried = [*effects(*[(0.1, 0.0)] * 6, name="worse"), *effects(*[(0.0, 0.1)] * 6, name="better")]
    found = summed([mechanism(name="worse"), mechanism(name="better"), mechanism(name="idle")], tried, "advisor validate x --ablate", 7)
    assert [row["mechanism"] for row in found.as_data()] == ["better", "idle", "worse"]
    assert {"mechanism", "written_on", "traces", "predictions", "closer", "further", "flips"} <= found.as_data()[0].keys()
    for text in (as_text(found), as_markdown(found)):
        assert text.index("better") < text.index("worse") and "+10.00 [+10.00, +10.00]" in text and "it harms" in text
        assert re.search(r"no unseen trace: `?idle", text, re.IGNORECASE), "it was tried on none"


def test_an_effect_counts_predictions_and_loud_findings():
    report = analyze(chained()).report
    loud = next(f for f in report.findings if f.loud)
    quiet = msgspec.structs.replace(report, findings=tuple(f for f in report.findings if f is not loud))
    made = effect_of(Trace(Path("t"), "t", (Fix((loud.rule,), 0.25),)), report, quiet, "made-up")
    assert made.flips == [loud.rule] and made.predictions[0].on == pytest.approx(loud.saving.expected / report.step_us) and made.predictions[0].off == 0.0


def test_a_run_goes_on_where_it_was_ended_and_stops_at_enough_traces(tmp_path, monkeypatch):
    asked = []

    def tried(trace, several, seed):
        asked.append((trace.program, [one.name for one in several]))
        return Tried(str(trace.path), seed, [one.name for one in several], [Effect("a", [], [])] if a in several else [])

    monkeypatch.setattr(ablation, "_tried", tried)
    a, b = mechanism(name="a"), mechanism(name="b")
    traces, kept = [Trace(Path(f"{n}.json"), n) for n in "xyz"], tmp_path / "kept.jsonl"
    ablated(traces[:1], [a], 3, kept)
    found = ablated(traces, [a, b], 3, kept, most=2)
    assert asked == [("x", ["a"]), ("x", ["b"]), ("y", ["a", "b"]), ("z", ["b"])], "a has had its two"
    assert [len(one.effects) for one in found] == [1, 1, 0]
    asked.clear()
    assert ablated(traces, [a, b], 3, kept, most=2) == found and not asked
    assert ablated(traces[:1], [a], 4, kept) and asked, "another lot changes traces in other ways"
    kept.write_text("{}\n")
    with pytest.raises(UsageError, match="holds no ablation"):
        ablated(traces, [a], 3, kept)


def _folder(path):
    """A folder of traces that nothing lists."""
    path.mkdir()
    for n in range(40):
        (path / f"{n}.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    return path


def test_traces_are_those_of_a_ledger_of_manifests_or_all(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    case = {"rule": "launch-gap", "slow_ms": 4.0, "fixed_ms": 1.0, "alone": {"sync-stall": 5.0, "memcpy/way": 2.0}, "kineto": {"slow": "t.json"}}
    (tmp_path / "manifest.json").write_text(json.dumps({"cases": {"p": case}}))
    wanted = [Trace(tmp_path / "t.json", "p", (Fix(("sync-stall",), 0.0), Fix(("launch-gap",), 0.75)))]
    assert traces_of(tmp_path) == wanted
    lot = [trace.program for trace in traces_of(_folder(tmp_path / "many"), None, 3)]
    assert [trace.program for trace in traces_of(tmp_path / "many", 5, 3)] == lot[:5] != sorted(lot)[:5]
    row = ledger.Row("p", "own", "", "launch-gap", "memcpy", "", "H200", 4.0, 2.0, 0.5, 0.0, 0.0, 0.0, 0.0, "", "t.json")
    others = replace(row, way="w"), replace(row, program="gone", trace="")
    (tmp_path / "ledger.csv").write_text(tables.as_csv([row, *others], ledger.Row))
    assert traces_of(tmp_path) == [Trace(tmp_path / "t.json", "p", (Fix(("launch-gap", "memcpy"), 0.5),))]


def test_the_command_says_what_it_does_not_know(tmp_path):
    done = advisor("validate", tmp_path, "--ablate", "--only", "fused-chain", cwd=tmp_path)
    assert done.returncode == 2 and b"fused-chains" in done.stderr
    assert advisor("validate", tmp_path, "--only", "casts", cwd=tmp_path).returncode == 2
    assert advisor("validate", tmp_path, "--ablate", cwd=tmp_path).returncode == 3


def test_what_most_mechanisms_had_seen_comes_last(tmp_path, monkeypatch):
    here = tmp_path / "t.json"
    here.write_text("{}")
    several = [Trace(here, program) for program in ("a", "encoder_infer", "b", "c")]
    monkeypatch.setattr(listed, "_of_manifests", lambda directory: several)
    for seed in range(4):
        assert traces_of(tmp_path, None, seed, [mechanism()])[-1].program == "encoder_infer"
    assert len({traces_of(tmp_path, 1, seed)[0].program for seed in range(20)}) == 4, "else the lot decides alone"
