"""Separates the recordings of several processes in an nsys export: ids of calls, streams and devices are each process's own."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Ints
from advisor.recordings.columns import numbered, row_by_row
from advisor.sources.nsys.tables import Database

# Ids of CUDA fit into these many bits: correlation ids are uint32 that go up from 1, stream ids are uint32.
_CORRELATION_BITS, _STREAM_BITS = 40, 32
_NO_STREAM = np.iinfo(np.uint32).max


class Processes:
    """Maps a process's own ids to ids of the whole export."""

    def __init__(self, db: Database) -> None:
        self._physical = {
            (pid & 0xFFFFFF, cuda): gpu
            for gpu, cuda, pid in db.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
            if isinstance(gpu, int) and isinstance(cuda, int) and isinstance(pid, int)
        }
        self._order: dict[int, int] = {}
        self._stream_owner: dict[tuple[int, int], int] = {}
        self.devices: set[int] = set()
        """Devices that did something."""

    def pid(self, global_id: Ints) -> Ints:
        """nsys packs process and thread into a number: 24 bits each, below the virtual machine's. Not recorded stays so."""
        return row_by_row(lambda ids: np.where(ids >= 0, (ids >> 24) & 0xFFFFFF, -1), global_id)

    def tid(self, global_id: Ints) -> Ints:
        """The thread of a packed number."""
        return row_by_row(lambda ids: np.where(ids >= 0, ids & 0xFFFFFF, -1), global_id)

    def correlation(self, ids: Ints, pid: Ints) -> Ints:
        """Correlation ids made unique among all processes; not recorded stays so.

        Rows of an export without a process (no globalPid) count as the first process's."""
        inverse, used = numbered(pid)
        index = np.array([self._order.setdefault(int(p), len(self._order)) if p >= 0 else 0 for p in used], np.int64)
        return np.where(ids >= 0, ids + (index[inverse] << _CORRELATION_BITS), ids) if index.any() else ids

    def device(self, ids: Ints, pid: Ints) -> Ints:
        """The physical GPU, if the export maps a process's first, second, … GPU to it."""
        inverse, used = numbered(_packed(pid, ids))
        first = _first_rows(inverse, len(used))
        pairs = zip(pid[first].tolist(), ids[first].tolist(), strict=True)
        known = np.array([self._physical.get(pair, pair[1]) for pair in pairs] or [0], np.int64)
        return row_by_row(known.__getitem__, inverse)

    def stream(self, ids: Ints, device: Ints, pid: Ints) -> Ints:
        """Streams of a GPU: as CUDA numbers them, but for the second process that uses the same number on the same GPU."""
        inverse, used = numbered(_packed(_packed(pid, device), ids))
        first = _first_rows(inverse, len(used))
        made = [self._own_stream(d, s, p) for d, s, p in zip(device[first].tolist(), ids[first].tolist(), pid[first].tolist(), strict=True)]
        return row_by_row(np.array(made or [0], np.int64).__getitem__, inverse)

    def _own_stream(self, device: int, stream: int, pid: int) -> int:
        if stream < 0 or stream >= _NO_STREAM:
            return -1
        if self._stream_owner.setdefault((device, stream), pid) == pid:
            return stream
        return stream + ((1 + self._order.setdefault(pid, len(self._order))) << _STREAM_BITS)


def _packed(a: Ints, b: Ints) -> Ints:
    """A number for each pair, in as few bits as there are distinct values."""
    code_a, _ = numbered(a)
    code_b, values = numbered(b)
    return row_by_row(lambda a, b: a * max(len(values), 1) + b, code_a, code_b)


def _first_rows(inverse: Ints, n: int) -> Ints:
    """The first row of each group."""
    if n == 1:
        return np.zeros(1, np.int64)
    first = np.empty(n, np.int64)
    first[inverse[::-1]] = np.arange(len(inverse))[::-1]
    return first
