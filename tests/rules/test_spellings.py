"""Each pattern in ten spellings, recorded on a GPU: a rule that knows it sees each of them."""

import json

import pytest

from tests.analysed import analysed
from tests.paths import MANY_SAMPLES, ROOT, sampled

FOLDER = ROOT / "samples" / "spellings"
CASES = json.loads((FOLDER / "manifest.json").read_text())["cases"]
UNSEEN = {  # with the reason
    "rope_complex": "complex numbers: a compiler leaves them",
    "relu_squared": "a step of 2 ms, in which what compiled functions cost the host is taken for more than the 8 % that they spare",
    "ce_one_hot": "log_softmax is called; what is done with it is no chain of pointwise ops on the logits",
    "ce_smoothed": "as above",
    "ce_focal": "as above",
}


GAINED = [name for name, case in CASES.items() if case["fixed_ms"] < 0.95 * case["slow_ms"]]
"""Where compiling two small functions of a training step cost the host more than it spared the GPU, there is nothing to see."""


@pytest.mark.parametrize("name", sampled([name for name in GAINED if name not in UNSEEN], 1 if MANY_SAMPLES else 8))
def test_a_pattern_is_seen_however_it_is_spelt(name):
    case = CASES[name]
    wanted = [case["rule"]] if isinstance(case["rule"], str) else case["rule"]
    report = analysed(FOLDER / case["kineto"]["slow"])
    assert {finding.rule for finding in report.findings} & {*wanted}, [entry for entry in report.clear if entry.rule in wanted]
