"""Patterns by pairs of texts, matching and not: `texts/PATTERN.txt`, read by `texts.py`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from advisor.views.patterns.attention import Attentions
from advisor.views.patterns.casts import Casts
from advisor.views.patterns.fusion import Fusion
from advisor.views.patterns.lora import Adapters
from advisor.views.patterns.norms import WrittenOut
from advisor.views.patterns.precision import WideProducts
from advisor.views.patterns.shared_heads import RepeatedHeads
from advisor.views.patterns.transfers import HostCopies
from advisor.views.patterns.transposes import RoundTrips
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from tests.build import Trace
from tests.views.patterns.texts import cases, recorded


def _spare(trace: Trace) -> list[int]:
    work = trace.get(GpuWork)
    return HostCopies(np.flatnonzero(~work.kernel), work.column("bytes"), work.pageable).spare(work, 1 << 20).tolist()


GROUPS: dict[str, Callable[[Trace], list[list[int]]]] = {
    "attention": lambda trace: [one.members.tolist() for one in trace.get(Attentions).found],
    "casts": lambda trace: [[one.position] for one in trace.get(Casts).all],
    "fusion": lambda trace: [stretch.members.tolist() for stretch in trace.get(Fusion).stretches],
    "lora": lambda trace: [one.members.tolist() for one in trace.get(Adapters).found],
    "norms": lambda trace: [one.members.tolist() for one in trace.get(WrittenOut).chains],
    "precision": lambda trace: [wide] if (wide := WideProducts.build(trace.get(GpuWork), trace.get(Roofline)).at.tolist()) else [],
    "shared_heads": lambda trace: [[one.at, *one.reader.tolist()] for one in trace.get(RepeatedHeads).found],
    "transfers": lambda trace: [spare] if (spare := _spare(trace)) else [],
    "transposes": lambda trace: [list(pair) for pair in zip(trace.get(RoundTrips).there.tolist(), trace.get(RoundTrips).back.tolist(), strict=True)],
}
"""Positions of the kernels of each group that a pattern finds: the k-th line of a text is position k."""


@pytest.mark.parametrize(
    ("pattern", "case"), [(pattern, case) for pattern in GROUPS for case in cases(pattern)], ids=lambda value: getattr(value, "why", value)
)
def test_groups(pattern, case):
    found = [[at + 1 for at in group] for group in GROUPS[pattern](recorded(case.lines))]
    assert found == case.groups, [[case.lines[k - 1] for k in group] for group in found]


@pytest.mark.parametrize("tensor", ["8y16", "8x16:fp16", "8x16@1xx"])
def test_a_tensor_that_is_none_names_its_line(tensor):
    with pytest.raises(ValueError, match=f"line 2, 'mm {tensor}'.* half, bf16"):
        recorded(["mm 8x16 16x8", f"mm {tensor}"])


def test_each_text_is_read():
    assert {path.stem for path in Path(__file__).with_name("texts").glob("*.txt")} == {*GROUPS}
    assert all({bool(case.groups) for case in cases(pattern)} == {True, False} for pattern in GROUPS), "each has what matches and what does not"
