"""Reports that were saved, read back."""

from __future__ import annotations

import msgspec

from advisor.report.saved import read_report
from tests.analysed import analysed
from tests.paths import ROOT

SAMPLE = ROOT / "samples" / "launch-gap" / "slow.json.gz"


def test_a_report_is_read_as_it_was_saved_but_for_secrets(tmp_path):
    report = analysed(SAMPLE)
    path, token = tmp_path / "report.json", "ghp_" + 36 * "a"
    path.write_bytes(report.to_json())
    assert read_report(path) == report
    path.write_bytes(msgspec.structs.replace(report, source=msgspec.structs.replace(report.source, path=f"/{token}/t.json")).to_json())
    found = read_report(path)
    assert token not in found.source.path and found.findings == report.findings
