"""Faults of many machines: damaged ranks among many, a store that fails or changes, workers that die. The job is judged on the others and says which."""

from __future__ import annotations

import http.client
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.engine import executors
from advisor.engine.fleet import Kept, reduce, reduced, stored, traces_of
from advisor.engine.reduce import Judging
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.sources import columns, read
from tests.paths import ROOT, slow
from tests.views.ranks.build import rank_timeline

JOB = ROOT / "samples" / "jobs" / "ddp_forward_host_2"
BARE = Judging(rules=())
RULES = [rule for rule in catalog().values() if "ranks" in rule.relies_on]


class Killed(BaseException):
    """What ends a run in its middle."""


def job_with_three_damaged(job, ranks, late):
    """A job of so many ranks of which one is late, in columns; the damaged ones: an empty file, one that is no zstd, and half of one."""
    own = [[300.0, 200.0]] * 3, [[900.0, 200.0]] * 3
    even, behind = (rank_timeline(rank, own[rank], own, members=f"[0, 1, 2, ..., {ranks - 1}]") for rank in (0, 1))
    job.mkdir()
    for rank in range(ranks):
        one = behind if rank == late else even
        sizes = one.gpu_ops["group_size"]
        ops = one.gpu_ops.with_columns(group_size=np.where(sizes == 2, ranks, sizes).astype(sizes.dtype))
        data = columns.encode(replace(one, source=replace(one.source, rank=rank, world_size=ranks), gpu_ops=ops))
        (job / f"rank{rank:04}.trace.zst").write_bytes({7: b"", ranks // 2: b"\x28\xb5\x2f\xfd cut", ranks - 1: data[: len(data) // 2]}.get(rank, data))
    return [f"rank{rank:04}.trace.zst" for rank in (7, ranks // 2, ranks - 1)]


def stopped_and_run_again(folder, ranks):
    """The job's report, of a run that was stopped after a third of its ranks and of one that went on. It is `tests.engine.test_faults` by hand for 2,048."""
    late, seen = ranks // 2 + 3, []
    damaged = job_with_three_damaged(folder / "job", ranks, late)

    def progress(done, of, _label):
        seen.append(done)
        if len(seen) == ranks // 3:
            raise Killed

    kept = Kept(folder / "kept")
    with pytest.raises(Killed):
        reduced(read(folder / "job"), BARE, executor="serial", kept=kept, progress=progress)
    was_made = len([*kept.summaries.glob("*.rank")])
    assert was_made == ranks // 3 - 1, "one of the damaged ones was among them"
    seen.clear()
    report = run(reduced(read(folder / "job"), BARE, executor="serial", kept=kept, progress=lambda done, of, label: seen.append(done)), RULES)
    assert len(seen) == ranks - was_made, "what was made is not made again, and the damaged one is tried again"
    failed = [row.failed for row in report.ranks if row.failed]
    assert len(report.ranks) == ranks and len(failed) == 3 and not report.failed
    assert report.findings[0].rule == "straggler" and report.findings[0].ranks[0] == late
    assert "could not be read" not in report.headline.judged_why, "three of so many change nothing"
    said = " ".join([*failed, *(check.detail for check in report.health)])
    assert all(name in said for name in damaged), said


@slow
def test_three_damaged_ranks_are_named_and_a_run_that_was_stopped_goes_on(tmp_path):
    stopped_and_run_again(tmp_path, 96)


# --- a store ------------------------------------------------------------------------------------------------------------

FAULTS = ("fails", "slow", "half", "changes")


@pytest.fixture(scope="module")
def store():
    """A store that speaks S3, behind a proxy that makes answers of one object faulty: its address is in the environment, `faults` says what to do by name."""
    server_of, s3fs = pytest.importorskip("moto.server"), pytest.importorskip("s3fs")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    proxy = FaultyStore(server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_port}", "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("traces")
        yield proxy
        s3fs.S3FileSystem.clear_instance_cache()
    proxy.shutdown()
    server.stop()


class FaultyStore(ThreadingHTTPServer):
    """Hands requests on to a store, and its answers back, but for one object's."""

    def __init__(self, behind):
        super().__init__(("127.0.0.1", 0), Handing)
        self.behind, self.fault, self.named, self.asked = behind, "", "", 0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do(self):
        import boto3

        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        faulty = server.fault if self.command == "GET" and server.named and server.named in self.path.partition("?")[0] else ""
        if faulty:
            server.asked += 1
        if faulty == "fails":
            return self.answer(500, {}, b"<Error><Code>InternalError</Code></Error>")
        if faulty == "slow":
            time.sleep(0.2)
        if faulty == "changes":
            _, bucket, key = self.path.partition("?")[0].split("/", 2)
            boto3.client("s3", endpoint_url="http://{}:{}".format(*server.behind)).put_object(Bucket=bucket, Key=key, Body=b"another file")
        status, headers, content = self.ask(self.command, self.path, dict(self.headers), body)
        return self.answer(status, headers, content, cut=faulty == "half")

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = do

    def ask(self, method, path, headers, body):
        connection = http.client.HTTPConnection(*self.server.behind)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()

    def answer(self, status, headers, content, cut=False):
        self.send_response(status)
        kept = {name: value for name, value in headers.items() if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date")}
        length = headers.get("Content-Length") or str(len(content))
        for name, value in {**kept, "Content-Length": length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        self.close_connection = cut

    def log_message(self, *_):
        pass


@contextmanager
def faulty(store, fault, named="rank1"):
    store.fault, store.named, store.asked = fault, named, 0
    try:
        yield
        assert store.asked, "the faulty object was asked for"
    finally:
        store.fault = ""


@slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_a_store_does_not_give_is_named_and_the_others_stand(store, fault, tmp_path):
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    for path in sorted(JOB.glob("rank*")):
        s3fs.S3FileSystem().put(str(path), f"traces/{fault}/{path.name}")
    kept = Kept(tmp_path / "kept")
    with faulty(store, fault):
        made = reduced(read(f"s3://traces/{fault}"), BARE, workers=2, executor="processes", kept=kept).parts[0]
    if fault == "slow":
        assert len(made.ranks) == 2 and not made.unread
        return
    (unread,) = made.unread
    assert [one.rank for one in made.ranks] == [0] and unread.label == "rank1.trace.zst" and "cannot be read" in unread.why, unread
    with faulty(store, fault):
        done = CliRunner().invoke(app, ["analyze", f"s3://traces/{fault}/rank1.trace.zst", "-q"])
        assert isinstance(done.exception, TraceError) and "cannot be " in done.exception.message, done.exception
    # Nothing of it is kept: the same command reads what is there now.
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().put(str(JOB / "rank1.trace.zst"), f"traces/{fault}/rank1.trace.zst")
    seen = []
    again = reduced(read(f"s3://traces/{fault}"), BARE, executor="serial", kept=kept, progress=lambda done, of, label: seen.append(label)).parts[0]
    assert [one.rank for one in again.ranks] == [0, 1] and not again.unread and seen == ["rank1.trace.zst"]
    assert len(stored(kept.summaries).summaries) == 2 and not stored(kept.summaries).unread


@slow
def test_what_is_kept_of_a_file_that_changes_behind_its_reading_is_not_taken_for_what_it_holds_then(store, monkeypatch, tmp_path):
    """The summary is named by what the store said of the file before it was read."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    files, kept = s3fs.S3FileSystem(use_listings_cache=False), Kept(tmp_path / "kept")
    for path in JOB.glob("rank*"):
        files.put(str(path), f"traces/behind/{path.name}")
    whole, other = executors.tried, JOB.with_name("ddp_even_2")

    def changing(trace, judging):
        outcome = whole(trace, judging)
        files.put(str(other / trace.label), f"traces/behind/{trace.label}")
        s3fs.S3FileSystem().ls("traces/behind", refresh=True)
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(executors, "tried", changing)
        first = reduce(traces_of(read("s3://traces/behind")).traces, BARE, executor="serial", kept=kept)
    s3fs.S3FileSystem.clear_instance_cache()
    second = reduce(traces_of(read("s3://traces/behind")).traces, BARE, executor="serial", kept=kept)
    assert first.summaries != second.summaries == reduce(traces_of(read(other)).traces, BARE, executor="serial").summaries


# --- workers that die ---------------------------------------------------------------------------------------------------

DEADLY = '''
import os
from pathlib import Path
import advisor
from advisor.recordings.timeline import Timeline

@advisor.rule("team/deadly", min_saving_share=0.1)
def deadly(timeline: Timeline):
    """A rule that ends its process

    What it is
    It ends.

    Why it costs time
    It does not.

    How it is measured
    By exit codes.

    How to fix it
    Do not run it.

    When to ignore it
    Always.

    References
    None.
    """
    left = sorted(Path(HERE).glob("die*"))
    if timeline.source.rank == 1 and left:
        left[0].unlink()
        os._exit(9)
    return advisor.Clear(why="it lived")
'''


@slow
@pytest.mark.parametrize(("times", "lost"), [(1, []), (99, ["rank1.trace.zst"])])
def test_a_worker_of_a_cluster_that_dies_costs_no_other_rank_and_its_own_only_where_all_die_of_it(times, lost, tmp_path):
    distributed = pytest.importorskip("distributed")
    (tmp_path / "deadly.py").write_text(DEADLY.replace("HERE", repr(str(tmp_path))))
    for number in range(times):
        (tmp_path / f"die{number}").touch()
    judging, kept = Judging(rules=("team/deadly",), paths=(str(tmp_path / "deadly.py"),)), Kept(tmp_path / "kept")
    ranks = traces_of(read(JOB.with_name("ddp_even"))).traces
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
        made = reduce(ranks, judging, executor=cluster.scheduler_address.replace("tcp://", "dask://"), kept=kept)
    assert [one.label for one in made.unread] == lost and len(made.summaries) == 4 - len(lost)
    for path in tmp_path.glob("die*"):
        path.unlink()
    seen = []
    again = reduce(ranks, judging, executor="serial", kept=kept, progress=lambda done, of, label: seen.append(label))
    assert seen == lost and len(again.summaries) == 4


@slow
def test_a_cluster_that_goes_away_in_the_middle_leaves_what_was_made(tmp_path):
    distributed = pytest.importorskip("distributed")
    kept, ranks = Kept(tmp_path / "kept"), traces_of(read(JOB.with_name("ddp_even"))).traces
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50)
    seen = []

    def progress(done, of, label):
        seen.append(label)
        if len(seen) == 1:
            cluster.close()

    made = reduce(ranks, BARE, executor=cluster.scheduler_address.replace("tcp://", "dask://"), kept=kept, progress=progress)
    assert 1 <= len(made.summaries) < 4 and len(made.summaries) + len(made.unread) == 4 and all("cluster" in one.why for one in made.unread), made.unread
    assert len(reduce(ranks, BARE, executor="serial", kept=kept).summaries) == 4
