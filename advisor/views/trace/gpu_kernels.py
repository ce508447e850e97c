"""What each GPU op is: its family and the precision it computes in."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Codes, Ints
from advisor.knowledge.op_tokens.families import Family, family, precision
from advisor.recordings.columns import Categorical, row_by_row
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.views.groups import Groups
from advisor.views.trace.ops import Ops

FAMILIES = tuple(Family)
_ORDER = {f: i for i, f in enumerate(FAMILIES)}


class Kernels(msgspec.Struct, frozen=True):
    """family: (n_gpu,) position in `FAMILIES`. precision: (n_gpu,) categorical, "" if it means nothing.
    communication, copy, memset: (n_gpu,) which class of device time each op is; the rest is compute."""

    family: Codes
    precision: Categorical
    communication: np.ndarray
    copy: np.ndarray
    memset: np.ndarray

    @property
    def compute(self) -> np.ndarray:
        """(n_gpu,) neither communication nor copy nor memset."""
        return ~(self.communication | self.copy | self.memset)

    def in_families(self, *families: Family) -> np.ndarray:
        """(n_gpu,) whether an op is a kernel of one of these families."""
        wanted = np.array([family in families for family in FAMILIES], bool)
        return wanted[self.family]

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops) -> Kernels:
        frame = timeline.gpu_ops
        kind = frame["kind"]
        copy = kind == GpuKind.MEMCPY.value
        memset = kind == GpuKind.MEMSET.value
        # Names repeat, so each distinct (kernel, op, input types, collective, compiled op) is judged once.
        types = timeline.cpu_ops["types"]
        op_rows = ops.of_gpu
        unknown = np.broadcast_to(np.int64(-1), len(frame))
        keys = (
            frame["name"].codes,
            ops.codes(op_rows),
            np.where(op_rows >= 0, types.codes[op_rows], -1) if len(types) else unknown,
            frame["collective"].codes,
            _codes(timeline, "precision"),
            _codes(timeline, "family"),
        )
        groups = Groups.by_keys(*keys)
        names, collectives, inputs = (list(column.categories) for column in (frame["name"], frame["collective"], types))
        compiled, purposes = (list(timeline.compiled_ops[column].categories) for column in ("precision", "family"))
        families, precisions = [], []
        for name, op, kinds, collective, product, purpose in zip(*(key[groups.first].tolist() for key in keys), strict=True):
            op_name = ops.categories[op] if op >= 0 else ""
            told = purposes[purpose] if purpose >= 0 else ""
            families.append(_ORDER[Family(told) if told else family(names[name], op_name, collectives[collective] if collective >= 0 else "")])
            precisions.append(precision(names[name], inputs[kinds] if kinds >= 0 else "") or (compiled[product] if product >= 0 else ""))
        found = np.array(families, np.int8)[groups.of]
        found[copy] = _ORDER[Family.COPY]
        found[memset] = _ORDER[Family.FILL]
        texts = sorted({*precisions})
        codes = np.array([texts.index(text) for text in precisions], np.int64)[groups.of]
        communication = (found == _ORDER[Family.COMMUNICATION]) & ~copy & ~memset
        return cls(found, Categorical(codes, texts), communication, copy, memset)


def _codes(timeline: Timeline, column: str) -> Ints:
    """(n_gpu,) codes of the compiler's description of each op, -1 without one."""
    codes = timeline.compiled_ops[column].codes.astype(np.int64)
    return row_by_row(np.r_[codes, -1].__getitem__, timeline.gpu_ops["compiled"])
