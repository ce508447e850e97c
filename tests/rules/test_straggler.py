"""One rank that the others wait for."""

from __future__ import annotations

import msgspec

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.knowledge.structs import replace
from advisor.recordings.recording import Recording
from advisor.views.ranks.culprit import Culprit
from advisor.views.ranks.job import Job, RankSummaries
from tests.views.ranks.build import job_of


def found(job):
    return built_in()["straggler"].function(job, Culprit.build(job))


def test_a_rank_that_is_late_in_each_of_four_steps_is_a_straggler():
    assert found(job_of([[[5000.0, 500.0]] * 4, [[1000.0, 500.0]] * 4, [[1000.0, 500.0]] * 4])).at_most == "high"


def test_a_rank_that_is_late_once_in_a_recording_without_steps_is_low():
    marked = job_of([[[5000.0, 500.0]], [[1000.0, 500.0]], [[1000.0, 500.0]]])
    whole = Job.build(RankSummaries(tuple(replace(one, facts=msgspec.structs.replace(one.facts, basis="whole")) for one in marked.ranks)))
    late = found(whole)
    assert late.ranks == (0,) and late.at_most == "low"
    assert found(marked).at_most == "high", "a marked step stands for the others"


def test_where_ranks_are_late_by_turns_the_fix_is_of_no_rank():
    jitter = found(job_of([[[5000.0, 500.0], [1000.0, 500.0], [1000.0, 500.0]], *[[[1000.0, 500.0]] * 3] * 2]))
    assert "no single rank is the cause" in jitter.summary and "that rank" not in " ".join((jitter.fix.title, *jitter.fix.steps))
    assert "all ranks" in jitter.fix.title


def test_what_is_too_little_is_said_once():
    job = job_of([[[1010.0, 500.0]] * 4, [[1000.0, 500.0]] * 4, [[1000.0, 500.0]] * 4])
    report = run(Recording("job", "job", (RankSummaries(job.ranks),)), [built_in()["straggler"]])
    (clear,) = report.clear
    assert clear.why.startswith("no single rank delays the job. The fix would gain ") and clear.why.count("gain") == 1
