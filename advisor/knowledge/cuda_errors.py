"""Error codes of CUDA calls: their meaning, and a remedy."""

from __future__ import annotations

from functools import cache

import msgspec

from advisor.knowledge.data import load

NOT_READY = 600
"""cudaErrorNotReady: what was asked about still runs. An answer, no failure."""


class CudaError(msgspec.Struct, frozen=True):
    """code: as a call returns it. name: of the runtime's enum, "" if the code is not known. means, fix: in a sentence each."""

    code: int
    name: str = ""
    means: str = ""
    fix: str = ""

    def __str__(self) -> str:
        """`CUDA error 700, cudaErrorIllegalAddress (a kernel …)`."""
        return f"CUDA error {self.code}" + (f", {self.name} ({self.means})" if self.name else "")


@cache
def _known() -> dict[int, CudaError]:
    return {row["code"]: CudaError(**row) for row in load("cuda_errors")["error"]}


def cuda_error(code: int) -> CudaError:
    """The error of that code; nameless if no table lists it."""
    return _known().get(code, CudaError(code, fix="Look the code up in CUDA's list of cudaError, and find the first call that returned it."))
