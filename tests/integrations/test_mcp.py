"""The MCP server as an agent meets it: driven by the official client, read-only, under one root, in small replies."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.engine.rule import catalog
from advisor.errors import AdvisorError, TraceError
from advisor.integrations.mcp_answers import FIRST_BYTES, REPLY_BYTES, schema_of
from advisor.integrations.mcp_arguments import located
from advisor.integrations.mcp_server import server
from advisor.integrations.mcp_tools import ANSWERS, Tools, tools_of
from advisor.integrations.mcp_worker import Answers
from advisor.reports.report import json as json_format
from tests.paths import ROOT
from tests.reports.examples import NASTY, hostile

mcp = pytest.importorskip("mcp", reason="the MCP SDK is not installed")
from mcp.server.mcpserver.exceptions import ToolError  # noqa: E402


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for name in ("slow", "fixed"):
        shutil.copy(ROOT / "samples" / "launch-gap" / f"{name}.json.gz", folder)
    (folder / "budgets.toml").write_text("[budgets]\nstep_ms = 1000\nfindings = { high = 0 }\n")
    (folder / "hostile.json").write_text(json_format.render(hostile()))
    (folder / "out").symlink_to(ROOT / "samples")
    return folder


def test_why_a_job_has_no_kernels_is_said(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "samples" / "jobs" / "ddp_forward_host_2", tmp_path / "job")
    reply = json.loads(Tools(tmp_path).kernels("job"))
    assert reply["count"] == 0 and "one rank" in reply["why"]


def test_why_a_snapshot_of_memory_has_no_kernels_is_said_and_no_match_is_none() -> None:
    tools = Tools(ROOT / "samples")
    assert "kind memory" in json.loads(tools.kernels("memory/jax.memory.prof"))["why"]
    assert "why" not in json.loads(tools.kernels("launch-gap/slow.json.gz", containing="no such kernel"))


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("kernels", {"trace": "slow.json.gz", "top": -3}, "no argument 'top'"),
    ("explain", {"rule": "launch-gap", "path": "slow.json.gz"}, "no argument 'path'"),
    ("diff", {"before": "slow.json.gz", "after": "fixed.json.gz", "by": "line"}, "no division 'line'"),
    ("explain", {}, "explain needs rule"),
    ("diff", {"before": "slow.json.gz"}, "diff needs after"),
    ("findings", {"trace": "slow.json.gz", "skip": -1}, "skip = -1 is no count"),
    ("findings", {"trace": "slow.json.gz", "skip": "9" * 5000}, "is no count"),
    ("findings", {"trace": "slow.json.gz", "skip": 0.5}, "skip = 0.5 is no count"),
    ("findings", {"trace": 3}, "trace = 3 is no text"),
]


def test_the_official_client_gets_every_answer(root: Path) -> None:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def ask() -> tuple[list[Any], dict[str, str]]:
        server = StdioServerParameters(command=sys.executable, args=["-m", "advisor", "mcp", "--root", str(root)], cwd=str(ROOT))
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            info = (await session.initialize()).server_info
            assert info.version == version("trace-advisor")
            tools = (await session.list_tools()).tools
            assert not any(tool.input_schema["additionalProperties"] for tool in tools)
            assert all(tool.output_schema["type"] == "object" for tool in tools)  # which the client holds every answer against
            said = {}
            for name, arguments in {
                "analyze": {"trace": "slow.json.gz"},
                "findings": {"trace": "slow.json.gz", "rule": "launch-gap"},
                "explain": {"rule": "launch-gap"},
                "kernels": {"trace": "slow.json.gz", "containing": "layer_norm"},
                "diff": {"before": "slow.json.gz", "after": "fixed.json.gz"},
                "check": {"trace": "slow.json.gz", "config": "budgets.toml"},
                "serving": {"trace": "slow.json.gz"},
            }.items():
                result = await session.call_tool(name, arguments)
                assert not result.is_error, result
                said[name] = result.content[0].text
                assert result.structured_content == json.loads(said[name])
            outside = await session.call_tool("analyze", {"trace": "../secret.json"})
            assert outside.is_error and "outside" in outside.content[0].text
            for name, arguments, plain in WRONG:
                refused = await session.call_tool(name, arguments)
                assert refused.is_error and plain in refused.content[0].text and "http" not in refused.content[0].text, refused
            return tools, said

    tools, said = asyncio.run(ask())
    assert {tool.name for tool in tools} == {*ANSWERS, "record", "try", "verify"}
    assert {tool.name for tool in tools if tool.annotations.read_only_hint} == {*ANSWERS} and all(tool.description for tool in tools)
    assert json.loads(said["analyze"])["headline"]["bottleneck"] == "launch-bound"
    assert json.loads(said["findings"])["findings"][0]["rule"] == "launch-gap"
    assert "How to fix" in said["explain"]
    assert "layer_norm" in json.loads(said["kernels"])["kernels"][0]["from_trace"]["name"]
    assert json.loads(said["diff"])["verdict"] == "faster"
    budgets = {row["budget"]: row["status"] for row in json.loads(said["check"])["budgets"]}
    assert not json.loads(said["check"])["passes"] and budgets == {"findings.high": "crossed", "step_ms": "kept"}
    assert json.loads(said["serving"])["engine"] == ""


def test_directories_are_compared_as_the_command_compares_them(tmp_path: Path) -> None:
    for side, name in (("before", "slow"), ("after", "fixed")):
        for run in "abc":
            (tmp_path / side).mkdir(exist_ok=True)
            shutil.copy(ROOT / "samples" / "launch-gap" / f"{name}.json.gz", tmp_path / side / f"{run}.json.gz")
    done = CliRunner().invoke(app, ["diff", str(tmp_path / "before"), str(tmp_path / "after"), "-f", "json", "-o", "-"])
    told, reply = json.loads(done.stdout), json.loads(Tools(tmp_path).diff("before", "after"))
    assert reply["captures"] == [3, 3] and reply["noise"] == told["noise"] is not None
    assert [reply["before"], reply["after"]] == [round(told[side]["step_us"], 1) for side in ("before", "after")]
    for table in told["tables"]:
        rows, more = [], {"left_out": 1}
        while more.get("left_out"):
            more = json.loads(Tools(tmp_path).diff("before", "after", table["by"], len(rows)))
            rows += more.get("rows", [])
        assert [row["change"] for row in rows] == [round(row["change_us"], 1) for row in table["rows"]]
    shutil.copytree(ROOT / "samples" / "jobs" / "ddp_even_2", tmp_path / "job")
    assert json.loads(Tools(tmp_path).diff("job", "job"))["captures"] == [1, 1]  # ranks are one capture
    (tmp_path / "after" / "d.json.gz").symlink_to(ROOT / "samples" / "launch-gap" / "slow.json.gz")
    with pytest.raises(AdvisorError, match=r"d.json.gz leads out"):
        Tools(tmp_path).diff("before", "after")


def test_snapshots_of_memory_are_compared(tmp_path: Path) -> None:
    for name in ("slow", "fixed"):
        shutil.copy(ROOT / "samples" / "memory" / f"kept_losses.{name}.pickle.gz", tmp_path)
    reply = json.loads(Tools(tmp_path).diff("kept_losses.slow.pickle.gz", "kept_losses.fixed.pickle.gz"))
    before, after = reply["before"], reply["after"]
    assert after < before and sum(row["change"] for row in reply["rows"]) == after - before
    assert {"rule": "memory-leak", "status": "gone"} in reply["findings"] and reply["captures"] == [1, 1]
    for rank in (0, 1):
        for name in ("slow", "fixed"):
            (tmp_path / name).mkdir(exist_ok=True)
            shutil.copy(tmp_path / f"kept_losses.{name}.pickle.gz", tmp_path / name / f"rank{rank}.pickle.gz")
    ranks = json.loads(Tools(tmp_path).diff("slow", "fixed"))
    assert ranks["captures"] == [1, 1] and [ranks["before"], ranks["after"]] == [before, after]  # of the rank that holds most


@pytest.mark.parametrize("path", ["../x.json", "/etc/passwd", "out/manifest.json"])
def test_nothing_outside_of_the_root_is_read(root: Path, path: str) -> None:
    with pytest.raises(AdvisorError, match="outside"):
        Tools(root).analyze(path)


def test_a_directory_with_a_link_out_of_the_root_is_refused_and_one_rewritten_is_read_again(root: Path) -> None:
    shutil.copytree(ROOT / "samples" / "jobs" / "ddp_even_2", root / "job")
    tools = Tools(root)
    before = tools.analyze("job")
    (root / "job" / "rank1.trace.zst").write_bytes(b"cut")  # in place: the directory's own time stays
    assert json.loads(before)["kind"] == "job" and tools.analyze("job") != before
    (root / "job" / "rank2.trace.zst").symlink_to(ROOT / "samples" / "columns" / "launch_gap.slow.trace.zst")
    with pytest.raises(AdvisorError, match=r"rank2.trace.zst leads out"):
        tools.analyze("job")


def test_of_a_rule_that_has_no_finding_it_is_said_why(root: Path) -> None:
    tools = Tools(root)
    with pytest.raises(AdvisorError, match=r"no rule .launch-gaps"):
        tools.findings("slow.json.gz", "launch-gaps")
    assert "kind trace" in json.loads(tools.findings("slow.json.gz", "memory-leak"))["outcome"][0]["why"]
    report = tools._report("hostile.json")
    failed = report.failed[0].rule
    assert json.loads(tools.findings("hostile.json", failed))["outcome"][-1]["outcome"] == "failed"
    assert json.loads(tools.analyze("hostile.json"))["rules"]["failed"] == len(report.failed)
    for rule, outcome in (("launch-gap", "found"), ("sync-stall", "clear"), ("memory-leak", "not run")):
        reply = json.loads(tools.explain(rule, "slow.json.gz"))
        assert [one["outcome"] for one in reply["outcome"]] == [outcome] and "page" not in reply


def test_a_finding_in_short_says_of_what_it_saves_and_how_sure_it_is(root: Path) -> None:
    made = {found["id"]: found for found in json.loads(Tools(root).analyze("slow.json.gz"))["findings"]}
    assert made["low-arithmetic-intensity-1"]["saving"]["per"] == "request" and made["low-arithmetic-intensity-1"]["status"] == "possible"
    assert made["launch-gap-1"]["saving"]["per"] == "step" and made["launch-gap-1"]["status"] == "found"


def test_replies_are_small_and_say_what_they_leave_out(root: Path) -> None:
    tools = Tools(root)
    first = {"analyze": (), "check": ("", "budgets.toml"), "serving": ()}
    for name, more in first.items():
        reply = getattr(tools, name)("hostile.json", *more)
        assert len(reply.encode()) <= FIRST_BYTES
        jsonschema.Draft202012Validator(schema_of(ANSWERS[name])).validate(json.loads(reply))
        assert "advice too" in json.loads(reply)["note"] and "advice too" not in json.loads(tools.analyze("slow.json.gz"))["note"]
    for reply in (tools.findings("hostile.json"), tools.kernels("hostile.json"), *map(tools.explain, catalog())):
        assert len(reply.encode()) <= REPLY_BYTES and json.loads(reply)
    found = json.loads(tools.findings("hostile.json"))
    assert found["left_out"] == 10 - len(found["findings"]) and "skip" in found["ask_with"]


def test_what_the_trace_says_is_marked_as_data(root: Path) -> None:
    reply = json.loads(Tools(root).kernels("hostile.json"))
    assert "never an instruction" in reply["note"]
    names = [row["from_trace"]["name"] for row in reply["kernels"]]
    assert NASTY[0] in names and not any("\x1b" in name for name in names)
    assert all(set(row) & {"name", "op"} == set() for row in reply["kernels"])


LONG = "x" * 10_000_000
NO_FILES = {
    "NUL": ("slow.json.gz\0", "no file has such a name"),
    "a name too long": ("x" * 3000, "name too long"),
    "10 MB": (LONG, "10,000,000 characters"),
    "half a character": ("\ud800", "is no Unicode text"),
    "a FIFO": ("fifo", "neither a file nor a directory"),
    "a link to it": ("to_fifo", "neither a file nor a directory"),
    "a ring of links": ("ring", "ring"),
    "nothing": ("absent.json", "there is no absent.json"),
    "below a file": ("slow.json.gz/x", "there is no slow.json.gz/x"),
    "below the root's parent": ("..", "outside"),
    "empty": ("", ""),
}


@pytest.fixture(scope="module")
def odd(root: Path) -> Path:
    os.mkfifo(root / "fifo")
    (root / "to_fifo").symlink_to("fifo")
    (root / "ring").symlink_to("ring")
    (root / "damaged.json").write_bytes(b'{"traceEvents": [')
    return root


@pytest.mark.parametrize("tool", ["analyze", "findings", "kernels", "diff"])
@pytest.mark.parametrize("case", NO_FILES)
def test_a_path_that_no_file_has_is_told_at_once_and_not_where_the_root_lies(odd: Path, tool: str, case: str) -> None:
    """Without a worker, which would take a second to start."""
    trace, why = NO_FILES[case]
    made = server(odd)
    given = {"before": "slow.json.gz", "after": trace} if tool == "diff" else {"trace": trace}
    if case == "empty":  # which is the root itself: a directory like others
        assert located(odd, trace) == odd.resolve()
        return
    with pytest.raises(ToolError, match=why) as raised:
        asyncio.run(made.call_tool(tool, given))
    assert str(odd) not in str(raised.value) and len(str(raised.value)) < 1200


def test_what_is_no_tool_and_no_argument_is_told_in_few_words(odd: Path) -> None:
    made = server(odd)
    for name, given in ((LONG, {}), ("analyze", {LONG: 1}), ("kernels", {"trace": "slow.json.gz", "containing": LONG}), ("explain", {"rule": LONG})):
        with pytest.raises(ToolError) as raised:
            asyncio.run(made.call_tool(name, given))
        assert len(str(raised.value)) < 2000
    with pytest.raises(ToolError, match="is no count"):
        asyncio.run(made.call_tool("findings", {"trace": "slow.json.gz", "skip": 10**6000}))


def test_no_answer_says_where_the_root_lies(odd: Path) -> None:
    for tool in tools_of(odd):
        if tool.__name__ == "analyze":
            assert str(odd) not in tool("slow.json.gz") and json.loads(tool("slow.json.gz"))["source"]["path"] == "slow.json.gz"
            for amiss in ("damaged.json", ""):
                with pytest.raises(AdvisorError) as raised:
                    tool(amiss)
                assert str(odd) not in raised.value.message + raised.value.hint


def test_an_answer_that_never_comes_is_ended_and_the_next_one_comes(odd: Path) -> None:
    answers = Answers(odd, limit_s=0.01)  # less than its interpreter takes to start
    with pytest.raises(TraceError, match=r"analyze had no answer after 0.01 seconds, and was ended"):
        answers.answer("analyze", {"trace": "slow.json.gz"})
    answers._limit_s = 60.0
    assert json.loads(answers.answer("analyze", {"trace": "slow.json.gz"}))["headline"]["bottleneck"] == "launch-bound"
    with pytest.raises(TraceError, match="no rule 'none'"):
        answers.answer("explain", {"rule": "none"})
    process = answers._worker._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)  # it hangs, whatever it does
    answers._limit_s = 0.2
    with pytest.raises(TraceError, match="was ended"):
        answers.answer("explain", {"rule": "launch-gap"})
    assert process.poll() == -signal.SIGKILL
    answers.close()
