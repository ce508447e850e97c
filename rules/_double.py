"""Work in FP64 that nothing asks for."""

from __future__ import annotations

from advisor.engine.rule import Found
from advisor.report.numbers import duration_of
from advisor.rules._phrases import a_step
from advisor.rules._precision import labels
from advisor.rules.fixes import for_program, known_fix
from advisor.views.kernel_work import InSteps
from advisor.views.patterns.precision import DoubleWork
from advisor.views.replay.edits import Edits, combine


def in_double(found: InSteps, min_busy_share: float) -> Found | None:
    """The finding about FP64 work, if it takes enough: NumPy arrays are FP64 by default, and so are tensors made of them."""
    work, double = found.work, DoubleWork.build(found.work, found.roofline, found.program.framework == "jax")
    share = float(work.dur_us[double.at].sum()) / max(work.busy_us, 1e-9)
    if share < min_busy_share or not len(double.at):
        return None
    # jax_enable_x64 makes every array FP64 that has no type of its own, in the whole process: nobody chose it for this kernel.
    chosen = not found.program.training and found.program.framework != "jax"
    took = f"{a_step(work.a_step(double.at), 'kernel', 'work')} on FP64, for {duration_of(work.us_a_step(double.at), work.step_us)}"
    return Found(
        title="The program computes in double precision",
        summary=f"{took}, {share:.0%} of the GPU's busy time.",
        edits=Edits(combine(), double.likely, double.best),
        removes="half of the bytes, and arithmetic at the rate of FP64",
        quiet=took,
        evidence=found.witness.of_gpu(work.rows[double.at], labels(work, found.roofline, double.at)),
        confidence=0.85,
        at_most="medium",  # some training needs it: forces, equations of physics
        status="possible" if chosen else "found",
        possible_why="a trace cannot show whether FP32 precision is sufficient" if chosen else "",
        decide_with="run it once in FP32 and compare the results" if chosen else "",
        cause="fp64",
        fix=for_program(found.program, "fp64", _SINGLE),
    )


_SINGLE = known_fix("pytorch", "single-precision")
