"""The kernels of a recording, whoever measured them: what a rule asks that speaks of timelines and of measured kernels alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from advisor.views.kernels.measured import MeasuredKernels
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program
from advisor.views.trace.shapes import Shapes


class InSteps(msgspec.Struct, frozen=True, eq=False):
    """The kernels of a timeline, and what says how fast they could be and where they come from."""

    work: GpuWork
    roofline: Roofline
    witness: Witness
    program: Program
    shapes: Shapes


class KernelWork(msgspec.Struct, frozen=True, eq=False):
    """Kernels in a timeline's steps, or measured separately. With both, the timeline's: a gain is then a part of the step."""

    of: InSteps | MeasuredKernels

    builds: ClassVar[tuple[Callable[..., Any], ...]] = ()

    @classmethod
    def in_steps(cls, work: GpuWork, roofline: Roofline, witness: Witness, program: Program, shapes: Shapes) -> KernelWork:
        return cls(InSteps(work, roofline, witness, program, shapes))

    @classmethod
    def measured(cls, measured: MeasuredKernels) -> KernelWork:
        return cls(measured)


KernelWork.builds = (KernelWork.in_steps, KernelWork.measured)
