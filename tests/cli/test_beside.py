"""What a server writes beside its trace, given by the options for it."""

import json

from tests.command import advisor
from tests.paths import ROOT

FULL = ROOT / "samples" / "serving" / "captured" / "full"
METRICS = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 16\n# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 2\n"


def test_captures_and_metrics_reach_the_report(tmp_path):
    (tmp_path / "metrics.txt").write_text(METRICS)
    trace = FULL / "trace.trace.zst"
    done = advisor("analyze", trace, "--capture", FULL / "capture_traces", "--serving", "metrics.txt", "-f", "json", "-o", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {"captures-joined", "serving-load"} <= {check["check"] for check in report["health"]}
    assert report["serving"]["load"]["running"] == 16


def test_a_folder_without_captures_is_the_users_error(tmp_path):
    done = advisor("analyze", FULL / "trace.trace.zst", "--capture", tmp_path, cwd=tmp_path)
    assert done.returncode in (2, 3) and b"Traceback" not in done.stderr
