"""Inputs that a fused attention call accepts, and its cost."""

from __future__ import annotations

from collections import Counter

import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.op_costs.fused_attention import PREFER_CUDNN
from advisor.knowledge.op_tokens import has_token
from advisor.views.patterns.attention import Attentions
from advisor.views.patterns.shared_heads import RepeatedHeads
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.program import Program


def shared_heads_taken(work: GpuWork, heads: RepeatedHeads, written: Attentions, program: Program) -> Ints:
    """Copies that repeat keys or values although the fused kernel accepts shared heads: in 16 bits, with a causal mask at most, unless cuDNN is chosen."""
    takes = np.zeros(len(work.op), bool)
    for one in written.found:
        by_cudnn = program.maker == "nvidia" and work.device_at(int(one.members[0])).compute_capability[0] in PREFER_CUDNN
        masked = (one.masked and not one.causal) or any(has_token(work.name(k), "baddbmm") for k in one.products.tolist())
        takes[one.members] = one.dtype != "float" and (by_cudnn or not masked)
    return np.array([one.at for one in heads.found if takes[one.reader].any()], int)


def planned_anew(written: Attentions, work: GpuWork) -> bool:
    """Whether each step has lengths of its own, as in decoding, so cuDNN would plan in each step."""
    sizes: dict[int, set[tuple[int, int, int]]] = {}
    for one in written.found:
        if one.dtype != "float" and work.device_at(int(one.members[0])).compute_capability[0] in PREFER_CUDNN:
            sizes.setdefault(int(work.step[one.members[0]]), set()).add(one.scores)
    steps_of = Counter(size for own in sizes.values() for size in own)
    return len(sizes) > 1 and all(min(steps_of[size] for size in own) == 1 for own in sizes.values())
