"""Ranks reduced here, in shards and resumed: the same job; what is no job is refused."""

from __future__ import annotations

import gzip
import shutil

import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.engine.fleet import Judging, merged, reduced, stored
from advisor.errors import TraceError
from advisor.sources import read
from advisor.views.ranks.job import RankSummaries
from tests.paths import ROOT

JOB = ROOT / "samples" / "jobs" / "ddp_forward_host_2"
BARE = Judging(rules=())


def packed(recording):
    return [one.to_bytes() for one in recording.parts[0].ranks]


def test_shards_merge_to_the_same_job_and_are_not_made_again(tmp_path):
    whole = packed(reduced(read(JOB), BARE, executor="serial"))
    for part in (1, 2):
        reduced(read(JOB), BARE, executor="serial", kept=tmp_path, shard=(part, 2))
    assert packed(merged(stored(tmp_path), "job")) == whole
    seen = []
    reduced(read(JOB), BARE, executor="serial", kept=tmp_path, progress=lambda *done: seen.append(done))
    assert not seen  # nothing was left to do


def test_processes_give_the_same(tmp_path):
    assert packed(reduced(read(JOB), BARE, workers=2)) == packed(reduced(read(JOB), BARE, executor="serial"))


def test_a_rank_that_cannot_be_read_is_said_and_the_others_stand(tmp_path):
    shutil.copytree(JOB, tmp_path / "job")
    (tmp_path / "job" / "rank2.json.gz").write_bytes(gzip.compress(b"no trace"))
    part = reduced(read(tmp_path / "job"), BARE, executor="serial").parts[0]
    assert isinstance(part, RankSummaries) and [s.rank for s in part.ranks] == [0, 1] and part.unread[0].label == "rank2.json.gz"


def test_two_jobs_in_one_directory_are_refused(tmp_path):
    other = ROOT / "samples" / "jobs" / "ddp_even"
    shutil.copy(JOB / "rank0.json.gz", tmp_path / "rank0.json.gz")
    shutil.copy(other / "rank1.json.gz", tmp_path / "rank1.json.gz")
    with pytest.raises(TraceError, match="several jobs: some say 2 ranks, some 4"):
        reduced(read(tmp_path), BARE, executor="serial")


def test_the_commands(tmp_path):
    run = CliRunner().invoke
    assert run(app, ["shard", str(JOB), "1/1", "-o", str(tmp_path), "--executor", "serial"]).exit_code == 0
    done = run(app, ["merge", str(tmp_path), "-f", "json", "-o", "-"])
    assert done.exit_code == 0 and '"kind": "job"' in done.stdout and '"straggler"' in done.stdout
