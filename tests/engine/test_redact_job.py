"""Jobs to give away: the same judgement, and nothing of the machines they ran on."""

import gzip
import json
import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.engine.fleet import Kept, merged, reduce, stored, traces_of
from advisor.engine.redact_job import redact
from advisor.engine.reduce import Judging
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.errors import TraceError, UsageError
from advisor.knowledge.structs import replace
from advisor.report.finding import Clear, Evidence, Failed, Finding, Fix, Saving, Skipped, SourceLine
from advisor.report.recording import Health
from advisor.sources import load, read
from advisor.sources.stream import GZIP_MAGIC, zstd
from advisor.views.ranks.summary import RankSummary
from tests.kineto_ranks import as_json
from tests.paths import ROOT
from tests.sources.canaries import SECRETS, WORD, found_in

JOB = ROOT / "samples" / "jobs" / "ddp_forward_host_2"
RULES = [rule for rule in catalog().values() if "ranks" in rule.relies_on]


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """The job as torch names its traces: by machine and process."""
    folder = tmp_path_factory.mktemp("named")
    for rank in (0, 1):
        (folder / f"{WORD}-node{rank}_17.1712345678901234567.pt.trace.json.gz").write_bytes(as_json(JOB / f"rank{rank}.trace.zst"))
    return folder


def judged(recording):
    report = run(recording, RULES)
    return [(f.rule, f.ranks, f.cause, f.saving) for f in report.findings], report.headline.step_us, [row.nodes for row in report.collectives]


def test_a_directory_is_redacted_trace_by_trace_and_judged_the_same(named, tmp_path):
    target = tmp_path / "given"
    done = CliRunner().invoke(app, ["redact", str(named), str(target)])
    assert not done.exit_code and sorted(p.name for p in target.iterdir()) == ["host-a_0.pt.trace.json.gz", "host-b_1.pt.trace.json.gz"]
    assert not any(found_in(path.read_bytes()) for path in target.iterdir())
    before, after = (merged(reduce(traces_of(read(d)).traces, Judging(rules=()), executor="serial"), "job") for d in (named, target))
    assert judged(before) == judged(after) and set(judged(after)[2]) == {2}  # each rank says a machine of its own
    with pytest.raises(UsageError, match="is there already"):
        redact(named, target)


def secretive(summary: RankSummary) -> RankSummary:
    """The summary with secrets in each of its texts."""
    texts = [text.replace("\n", " ") for text in SECRETS.values()]
    findings = tuple(
        Finding(
            rule="memcpy", title=text, summary=text, severity="low", confidence=1.0, saving=Saving(0.0, 0.0, 0.0, "bound", text),
            evidence=(Evidence(label=text, start_us=0.0, dur_us=1.0, source=SourceLine("/home/lovelace/x.py", 3)),), fix=Fix(title="Do so", steps=(text,)),
        )
        for text in texts
    )  # fmt: skip
    health = tuple(Health(check=f"check-{i}", status="degraded", detail=text) for i, text in enumerate(texts))
    told = {
        "clear": tuple(Clear(rule="memcpy", why=text) for text in texts),
        "skipped": tuple(Skipped(rule="memcpy", why=text, record_with=text) for text in texts),
        "failed": tuple(Failed(rule="memcpy", error=text) for text in texts),
    }
    facts, whole = summary.facts, " ".join(texts)
    held = {name: tuple(f"{whole} {text}" if text else "" for text in getattr(facts, name)) for name in ("groups", "dtypes", "communicators", "splits")}
    facts = msgspec.structs.replace(
        facts, label=f"{WORD}.json", host=WORD, conflict=whole, device=whole, devices=((whole, 132),), findings=findings, health=health, **told, **held
    )
    return replace(summary, facts=facts)


def test_summaries_that_shards_left_are_redacted(tmp_path):
    left, target = tmp_path / "left", tmp_path / "given"
    reduce(traces_of(read(JOB)).traces, Judging(rules=()), executor="serial", kept=Kept(left))
    clean = judged(merged(stored(left), "job"))
    (left / "zz.unread").write_text(json.dumps({"label": f"/home/{WORD}/rank7.json", "why": f"/home/{WORD}/rank7.json is cut off"}))
    for path in left.glob("*.rank"):
        path.write_bytes(secretive(RankSummary.from_bytes(path.read_bytes())).to_bytes())
    redact(left, target)
    assert len(list(target.glob("*.rank"))) == 2 and len(list(target.glob("*.unread"))) == 1
    for path in target.iterdir():
        data = path.read_bytes() if path.suffix == ".unread" else msgspec.json.encode(RankSummary.from_bytes(path.read_bytes()).facts)
        assert not found_in(data), path
    findings, step_us, _ = judged(merged(stored(target), "job"))
    assert [f for f in findings if f[0] != "memcpy"] == clean[0] and step_us == clean[1]
    one = tmp_path / "one.rank"
    redact(next(left.glob("*.rank")), one)
    assert not found_in(msgspec.json.encode(RankSummary.from_bytes(one.read_bytes()).facts))


def test_ranks_keep_the_numbers_that_their_names_say_and_others_get_none(tmp_path):
    whole = [as_json(JOB / f"rank{rank}.trace.zst") for rank in (0, 1)]
    packed = [("rank0.json.gz", whole[0]), (f"{WORD}.gpu-3.json.zst", zstd.compress(gzip.decompress(whole[1])))]
    for job, files, told in (
        ("gaps", packed, ["rank0.json.gz", "rank3.json.gz"]),
        ("unsaid", [("a.json.gz", whole[0]), ("b.json.gz", whole[1])], ["trace0.json.gz", "trace1.json.gz"]),
    ):
        (tmp_path / job).mkdir()
        for name, data in files:
            (tmp_path / job / name).write_bytes(data)
        redact(tmp_path / job, tmp_path / f"{job}-given")
        assert sorted(path.name for path in (tmp_path / f"{job}-given").iterdir()) == told
        assert all(path.read_bytes().startswith(GZIP_MAGIC) for path in (tmp_path / f"{job}-given").iterdir())


def test_of_a_process_that_was_recorded_twice_the_trace_that_is_judged_is_given(tmp_path):
    log = tmp_path / "log"
    log.mkdir()
    for pid, time in ((1, 1700000000000), (1, 1700000009000), (2, 1700000009000)):
        (log / f"node_{pid}.{time}.pt.trace.json.gz").write_bytes(as_json(JOB / f"rank{pid - 1}.trace.zst"))
    redact(log, tmp_path / "given")
    assert sorted(path.name for path in (tmp_path / "given").iterdir()) == ["host-a_0.pt.trace.json.gz", "host-a_1.pt.trace.json.gz"]


def test_a_summary_is_called_by_its_rank(tmp_path):
    left, target = tmp_path / "left", tmp_path / "given"
    reduce(traces_of(read(JOB)).traces[1:], Judging(rules=()), executor="serial", kept=Kept(left))
    (left / "a.unread").write_text(json.dumps({"label": "node/rank7.json", "why": "it is cut off"}))
    redact(left, target)
    found = stored(target)
    assert [RankSummary.from_bytes(data).facts.label for data in found.summaries] == ["rank1"] and found.unread[0].label == "rank7"


def test_a_recording_is_given_whole(tmp_path):
    recording, target = tmp_path / "recording", tmp_path / "given"
    recording.mkdir()
    for name, rank in (("light.json.gz", 0), ("deep.json.gz", 1)):
        (recording / name).write_bytes(as_json(JOB / f"rank{rank}.trace.zst"))
    said = {"version": 1, "unprofiled_step_us": [90.0, 91.5], "light": "light.json.gz", "deep": "deep.json.gz", "device": WORD, "notes": [WORD]}
    (recording / "recording.json").write_text(json.dumps(said))
    redact(recording, target)
    assert not any(found_in(path.read_bytes()) for path in target.iterdir())
    before, after = (read(directory).parts[0] for directory in (recording, target))
    assert after.source.unprofiled_step_us == (90.0, 91.5) and len(after.gpu_ops) == len(before.gpu_ops) > 0
    assert after.cpu_ops["dims"].tolist() == before.cpu_ops["dims"].tolist()


def test_ranks_that_were_recorded_together_are_given_as_one_job(tmp_path):
    recording, target = tmp_path / "recording", tmp_path / "given"
    rows = [{"folder": f"rank{rank}", "rank": rank, "light": "light.json.gz", "host": WORD} for rank in (0, 1)]
    for row in rows:
        folder = recording / row["folder"]
        folder.mkdir(parents=True)
        (folder / "light.json.gz").write_bytes(as_json(JOB / f"{row['folder']}.trace.zst"))
        (folder / "recording.json").write_text(json.dumps({"version": 1, "unprofiled_step_us": [90.0], "light": "light.json.gz", "notes": [WORD]}))
    (recording / "manifest.json").write_text(json.dumps({"version": 1, "recorded": "job", "processes": rows, "by": WORD}))
    redact(recording, target)
    assert not any(found_in(path.read_bytes()) for path in target.rglob("*") if path.is_file())
    before, after = (read(directory).parts[0] for directory in (recording, target))
    assert [trace.label for trace in after.traces] == [trace.label for trace in before.traces] == ["rank0", "rank1"]
    assert load(after.traces[1].path).source.unprofiled_step_us == (90.0,)


def test_the_snapshots_of_ranks_are_given(tmp_path):
    (tmp_path / "ranks").mkdir()
    for rank in (0, 2):
        (tmp_path / "ranks" / f"{WORD}-rank{rank}.pickle.gz").write_bytes((ROOT / "samples/memory/out_of_memory.fixed.pickle.gz").read_bytes())
    redact(tmp_path / "ranks", tmp_path / "given")
    assert sorted(path.name for path in (tmp_path / "given").iterdir()) == ["rank0.pickle.gz", "rank2.pickle.gz"]


def log_of(root, *runs):
    """A log of JAX: a profile, and the Chrome trace made of it, a run."""
    for date in runs:
        folder = root / "plugins" / "profile" / date
        folder.mkdir(parents=True)
        (folder / f"{WORD}.xplane.pb.gz").write_bytes((ROOT / "samples/jax/attention.fixed.xplane.pb.gz").read_bytes())
        (folder / f"{WORD}.trace.json.gz").write_bytes(b"")
        (root / f"events.out.tfevents.17.{WORD}").write_bytes(b"")
    return root


@pytest.mark.parametrize(
    ("runs", "within", "given"),
    [
        (["2026_01_31_12_00_00", "2026_02_01_09_30_00"], "", ["plugins/profile/2026_01_31_12_00_00", "plugins/profile/2026_02_01_09_30_00"]),
        (["2026_01_31_12_00_00", f"{WORD}"], "", ["plugins/profile/run0000", "plugins/profile/run0001"]),
        (["2026_01_31_12_00_00"], "plugins/profile", ["profile/2026_01_31_12_00_00"]),
        (["2026_01_31_12_00_00"], "plugins/profile/2026_01_31_12_00_00", ["."]),
    ],
)
def test_every_run_of_a_log_of_jax_is_given(tmp_path, runs, within, given):
    log, target = log_of(tmp_path / "log", *runs) / within, tmp_path / "given"
    done = CliRunner().invoke(app, ["redact", str(log), str(target)])
    assert not done.exit_code, done.output
    files = sorted(path for path in target.rglob("*") if path.is_file())
    assert files == [target / run / "trace0.xplane.pb.gz" for run in given]
    assert not any(found_in(path.read_bytes()) for path in files)
    before, after = (read(directory).parts[0] for directory in (log, target))
    assert len(after.gpu_ops) == len(before.gpu_ops) > 0 and after.source.path == str(files[-1])
    with pytest.raises(UsageError, match="is there already"):
        redact(log, target)


def test_a_log_with_a_damaged_run_is_refused_whole(tmp_path):
    log = log_of(tmp_path / "log", "2026_01_31_12_00_00", "2026_02_01_09_30_00")
    (damaged,) = (log / "plugins/profile/2026_02_01_09_30_00").glob("*.pb.gz")
    damaged.write_bytes(damaged.read_bytes()[:2000])
    with pytest.raises(TraceError, match=re.escape(str(damaged))):
        redact(log, tmp_path / "given")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_all_runs_and_hosts_of_a_log_are_given_wherever_they_lie_and_none_by_its_number(tmp_path):
    log = log_of(tmp_path / "log", "2026_01_31_12_00_00", "2026_02_01_09_30_00")
    data = (ROOT / "samples/jax/attention.fixed.xplane.pb.gz").read_bytes()
    (log / "old").mkdir()
    (log / "old" / f"{WORD}-gpu0423.xplane.pb.gz").write_bytes(data)
    (log / "plugins/profile/2026_02_01_09_30_00/z.xplane.pb").write_bytes(gzip.decompress(data))
    redact(log, tmp_path / "given")
    given = sorted(str(path.relative_to(tmp_path / "given")) for path in (tmp_path / "given").rglob("*.pb*"))
    below = "plugins/profile/run000"
    assert given == [f"{below}1/trace0.xplane.pb.gz", f"{below}2/trace0.xplane.pb.gz", f"{below}2/trace1.xplane.pb", "run0000/trace0.xplane.pb.gz"]


def test_a_log_of_chrome_traces_is_given_from_within(tmp_path, monkeypatch):
    run = tmp_path / "plugins/profile/2026_01_31_12_00_00"
    run.mkdir(parents=True)
    head = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}}]
    head += [{"ph": "M", "pid": 1, "tid": 14, "name": "thread_name", "args": {"name": "Stream #14(Compute)"}}]
    events = [*head, {"ph": "X", "pid": 1, "tid": 14, "ts": 2.5, "dur": 1.0, "name": "loop_add_fusion"}]
    (run / f"{WORD}.trace.json.gz").write_bytes(gzip.compress(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}).encode()))
    monkeypatch.chdir(run.parent)
    redact(Path("."), tmp_path / "given")
    assert len(load(tmp_path / "given").gpu_ops) == 1 and (tmp_path / "given/profile" / run.name / "trace0.trace.json.gz").is_file()
