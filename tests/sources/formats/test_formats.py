"""Whatever is given, its refusal names it and says what to give instead: the table of known formats, held against a file of each."""

from __future__ import annotations

import importlib
import pickle
import re
import sqlite3
from pathlib import Path

import pytest

from advisor import sources
from advisor.errors import TraceError
from advisor.knowledge import formats
from advisor.knowledge.data import read as read_toml
from advisor.knowledge.formats import Format, known
from advisor.recordings.captures import GraphAnnotations
from advisor.sources.sniff import SNIFF_BYTES, source_of
from advisor.sources.stream import Stream
from tests.paths import ROOT, samples

HERE = Path(__file__).parent
FILES = sorted(path for path in HERE.iterdir() if path.suffix not in (".py", ".toml") and path.is_file())
BY_ID = {one.id: one for one in known()}
UNREAD = [one for one in known() if one.read == "no"]


def of_file(path: Path) -> Format:
    """The format that a file of the corpus is of: the longest id that its name begins with."""
    return BY_ID[max((one for one in BY_ID if path.name.startswith(one)), key=len)]


def refusal(path: Path) -> TraceError:
    with pytest.raises(TraceError) as error:
        sources.read(path)
    return error.value


def check(error: TraceError, one: Format, path: Path) -> None:
    assert one.name in error.message and one.why in error.message
    assert error.hint == one.give.replace("{path}", str(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_named_by_its_content(path: Path, tmp_path: Path) -> None:
    one = of_file(path)
    if one.read == "yes":
        return
    check(refusal(path), one, path)
    renamed = tmp_path / "recording"
    renamed.write_bytes(path.read_bytes())
    check(refusal(renamed), one, renamed)


DATABASES = {
    "memory-sqlite": ["segments", "blocks"],
    "nvprof-database": ["CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", "StringTable"],
    "rocprof-database": ["HSA", "HIP", "OPS", "COPY", "KERN"],
    "ascend-database": ["CANN_API", "STRING_IDS", "TASK"],
}


@pytest.mark.parametrize("name", DATABASES)
def test_a_database_is_named_by_its_tables(name: str, tmp_path: Path) -> None:
    path = tmp_path / "export.db"
    with sqlite3.connect(path) as database:
        for table in DATABASES[name]:
            database.execute(f'create table "{table}" (id integer, start integer, end integer)')
    check(refusal(path), BY_ID[name], path)


DIRECTORIES = {
    "torch-trace-log": ["dedicated_log_torch_trace_rank_0_ab12.log"],
    "inductor-debug": ["fx_graph_readable.py", "output_code.py", "ir_pre_fusion.txt"],
    "rocprof-compute": ["pmc_perf.csv", "sysinfo.csv"],
    "ascend-database": ["ASCEND_PROFILER_OUTPUT", "PROF_000001_2026", "profiler_info_0.json"],
    "instruments": ["form.template", "Trace1.run"],
    "otf2": ["traces.otf2", "traces.def"],
    "ctf": ["metadata", "channel0_0", "index"],
    "vtune": ["r000hs.vtune"],
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_is_named_by_what_lies_in_it(name: str, tmp_path: Path) -> None:
    for entry in DIRECTORIES[name]:
        (tmp_path / entry).write_bytes(b"{}")
    check(refusal(tmp_path), BY_ID[name], tmp_path)


JUNK = bytes(range(1, 200))


@pytest.mark.parametrize(("one", "suffix"), [pytest.param(one, suffix, id=f"{one.id} {suffix}") for one in UNREAD for suffix in sorted(one.suffix)])
def test_the_name_tells_where_the_content_does_not(one: Format, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"recording{suffix}"
    path.write_bytes(JUNK)
    check(refusal(path), one, path)


def test_every_format_that_is_not_read_has_an_example() -> None:
    shown = {of_file(path).id for path in FILES} | {*DATABASES, *DIRECTORIES} | {one.id for one in UNREAD if one.suffix}
    asked_elsewhere = {"zip", "tar", "zstd-twice", "graph-annotations"}  # below, tests/sources/test_load.py and test_archive.py
    assert {one.id for one in UNREAD} - shown == asked_elsewhere
    assert len(known()) >= 100 and len({one.id for one in known()}) == len(known())


def test_what_made_each_file_is_said() -> None:
    told = read_toml(HERE / "manifest.toml")
    assert set(told) == {path.name for path in FILES}
    assert all(len(row) == 1 and (row.get("made") or row.get("after")) for row in told.values())


OF_CUDA = re.compile(r"\bCUDA\b|\bnsys\b|\bncu\b|Nsight|NVIDIA")


def test_no_device_of_another_maker_is_recorded_with_cudas_tools() -> None:
    """torch calls HIP's devices CUDA; what names NVIDIA to say whose GPUs advice is for records nothing."""
    for one in known():
        if one.group in ("accelerators", "amd"):
            said = one.give.replace("ProfilerActivity.CUDA, which is HIP", "").replace("advisor's advice is for GPUs of NVIDIA and AMD", "")
            assert not OF_CUDA.search(said), one.id
            assert "torch.profiler" not in one.give or "PyTorch program" in one.give or one.group == "amd", one.id


def test_every_next_step_is_a_command_or_names_what_to_give() -> None:
    for one in known():
        assert one.name and one.maker and one.give and (one.why or one.read == "yes"), one.id
        assert one.group in formats.GROUPS, one.id


def test_a_next_step_without_pytorch_in_its_format_is_for_other_programs_too() -> None:
    """`advisor record` steps a PyTorch program; a writer of no framework may have watched any program."""
    for one in known():
        if one.group != "torch" and "advisor record --" in one.give:
            assert (
                re.search("With PyTorch(, or JAX with marked steps)?: advisor record", one.give) or "advisor record -- python PROGRAM with PyTorch" in one.give
            ), one.id
            assert re.search("nsys profile|rocprofv3 --", one.give), one.id
        assert "{" not in one.instead("FILE").replace('{"', ""), one.id


def test_what_a_refusal_says_is_for_a_terminal_of_an_installed_user() -> None:
    """No page of the repository, and no marks of Markdown."""
    for one in known():
        said = (one.name, one.why, one.give)
        assert not any("docs/" in text or ".md" in text or "`" in text for text in said), one.id


def test_what_is_read_is_never_taken_for_something_else() -> None:
    """Nothing that a reader reads has a mark of a format that is not read."""
    wrong = []
    for path in [*samples("**/*"), *sorted((ROOT / "corpus" / "traces").rglob("*"))]:
        if not path.is_file() or path.suffix in (".py", ".md", ".json", ".toml", ".cu", ".pyc", ".csv", ".txt"):
            continue
        with path.open("rb") as file:
            head = Stream(file, path.stat().st_size).peek(formats.HEAD_BYTES)
        if source_of(head[:SNIFF_BYTES]) in ("kineto", "memory") and (one := formats.of_content(head)) and one.read == "no":
            wrong.append((path, one.id))
    assert not wrong


def test_the_page_of_inputs_is_the_table_s() -> None:
    assert importlib.import_module("docs.inputs").page() == (ROOT / "docs" / "inputs.md").read_text(), "python docs/inputs.py > docs/inputs.md"


def test_a_directory_with_a_single_file_is_that_file(tmp_path: Path) -> None:
    path = tmp_path / "massif.out.12"
    path.write_bytes(b"desc: x\ncmd: ./x\n")
    check(refusal(tmp_path), BY_ID["heap-profile"], path)


def test_a_directory_without_a_recording_names_the_one_below_it(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank0.json").write_text('{"traceEvents": [{"ph": "X"}]}')
    assert refusal(tmp_path).hint == f"Recordings lie in {tmp_path / 'ranks'}: give that."


def test_a_pickle_of_graphs_annotations_is_given_with_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "annotations.pickle"
    path.write_bytes(pickle.dumps({(7 << 32) + 1: [{"name": "attention"}], (7 << 32) + 2: ["mlp"]}))
    check(refusal(path), BY_ID["graph-annotations"], path)
    (part,) = sources.captures_at(str(path))
    assert isinstance(part, GraphAnnotations) and len(part.nodes) == 2


@pytest.mark.parametrize(("value", "said"), [({"loss": [1.0], "step": 3}, "a dict of loss, step"), ([1, 2], "a list"), ({}, "an empty dict"), ("x", "a str")])
def test_another_pickle_says_what_it_holds(value: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "results.pkl"
    path.write_bytes(pickle.dumps(value))
    error = refusal(path)
    assert error.message.endswith(f"no memory snapshot: it has no segments ({said})") and "advisor record" in error.hint
