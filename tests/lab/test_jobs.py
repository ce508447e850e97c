"""Jobs judged again: what a manifest says against what is found, and the document that says it."""

import json

from advisor.lab.jobs import as_markdown, is_jobs, judged
from tests.paths import ROOT

JOBS = ROOT / "samples" / "jobs"


def test_a_job_and_its_twin_are_held_against_each_other(tmp_path):
    cases = json.loads((JOBS / "manifest.json").read_text())["cases"]
    few = {name: {**cases[name], "dir": str(JOBS / name)} for name in ("ddp_even_2", "ddp_forward_host_2")}
    (tmp_path / "manifest.json").write_text(json.dumps({"cases": few}))
    assert is_jobs(tmp_path) and not is_jobs(ROOT / "samples")
    even, slow = judged(tmp_path)
    assert even.right and slow.right and slow.culprit == 1 and slow.cause == "host" and abs(slow.predicted - slow.measured) < 0.05
    assert max(even.error, slow.error) < 0.033
    assert "2 of 2 jobs are judged right" in as_markdown([even, slow], "here")


def test_the_document_is_of_every_recorded_job():
    page = (ROOT / "docs" / "jobs-accuracy.md").read_text()
    assert all(f"| {name} |" in page for name in json.loads((JOBS / "manifest.json").read_text())["cases"])
