"""What is fetched or added by index beside what is computed of it, as graph networks pass messages: a compiled kernel does both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from advisor.intervals import Ints
from advisor.views.patterns.dataflow import Dataflow


@dataclass(frozen=True, eq=False)
class ByIndex:
    """Positions of kernels. fetched: by the kernel that reads first what they make, the gathers; added: by the kernel that makes it, what adds its result by index.
    elements: of each gather what it makes, of each of the others what it adds."""

    fetched: dict[int, tuple[int, ...]]
    added: dict[int, int]
    elements: dict[int, int]

    def given(self, run: Ints) -> tuple[int, ...]:
        """Elements of each tensor that is fetched for kernels in a row."""
        return tuple(self.elements[at] for at in self._fetched_for(run))

    def taken(self, run: Ints) -> int:
        """Elements of what kernels in a row made last of what is added elsewhere, 0 where nothing is."""
        return next((self.elements[at] for at in self._adding(run)), 0)

    def beside(self, run: Ints, sizes: Iterable[int]) -> tuple[int, ...]:
        """What is fetched for kernels in a row and what adds their result, of as many elements as one of these sizes."""
        of_sizes = {*sizes}
        return tuple(at for at in (*self._fetched_for(run), *self._adding(run)) if self.elements[at] in of_sizes)

    def _fetched_for(self, run: Ints) -> Iterator[int]:
        return (at for reader in run.tolist() for at in self.fetched.get(reader, ())) if self.fetched else iter(())

    def _adding(self, run: Ints) -> Iterator[int]:
        return (self.added[maker] for maker in run[::-1].tolist() if maker in self.added) if self.added else iter(())

    @classmethod
    def build(cls, flow: Dataflow) -> ByIndex:
        found = cls({}, {}, {})
        for call in flow.calls("fetch_by_index"):
            made, reader = flow.makes(call)[0], next((edge.call for edge in flow.readers(call) if not flow.is_a(edge.call, "fetch_by_index")), -1)
            if made and reader >= 0 and flow.backward(call) == flow.backward(reader):
                at, by = flow.last(call), flow.last(reader)
                found.fetched[by] = (*found.fetched.get(by, ()), at)
                found.elements[at] = made
        for call in flow.calls("add_by_index"):
            added = flow.reads(call)[-1] if len(flow.reads(call)) > 2 else (0, "")
            maker = next((edge.call for edge in flow.sources(call) if added[0] and flow.makes(edge.call) == added), -1)
            if maker >= 0 and flow.backward(call) == flow.backward(maker):
                found.added[flow.last(maker)] = flow.last(call)
                found.elements[flow.last(call)] = added[0]
        return found
