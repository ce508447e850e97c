"""How to record what was missing."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

Missing = Literal["", "gpu-work", "shapes", "ranks", "steps", "events", "file-end", "launches", "graph-kernels", "ranges", "counters", "step-time"]
"""The missing part of a recording, if a hint names a tool of a framework or vendor; "" if the hint holds for any program."""

Tool = Literal["torch", "nvidia"]
TOOLS: dict[Missing, Tool] = {
    "gpu-work": "torch", "shapes": "torch", "ranks": "torch", "steps": "torch", "events": "torch", "file-end": "torch",
    "launches": "nvidia", "graph-kernels": "nvidia", "ranges": "nvidia", "counters": "nvidia",
}  # fmt: skip
"""The tool that the default hint names: a program that it does not see gets another hint."""


class Recipe(NamedTuple):
    """How to record by the usual tool, and the part that it records."""

    text: str
    missing: Missing = ""


RECORD_BOTH = Recipe("profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])", "gpu-work")
AS_WRITTEN = Recipe("a current version of the profiler, and give its file unchanged")
RECORD_ON_A_GPU = Recipe("advisor record, if the program uses a GPU: it records every device of the program")
RECORD_LAUNCHES = Recipe(
    "nsys profile --trace=cuda,nvtx: libraries such as TensorRT launch through the driver, which a profiler of the framework may not see", "launches"
)
RECORD_RANKS = Recipe("record every rank over the same steps: torch.profiler on each, export_chrome_trace(f'rank{rank}.json.gz')", "ranks")
RECORD_SHAPES = Recipe("profile(record_shapes=True)", "shapes")
_RECORD_LINES = {
    "kineto": "profile(with_stack=True), or advisor record, which adds them to a light trace",
    "nsys": "torch.profiler with with_stack=True; an export of nsys holds none, NVTX ranges name the parts",
}
XPLANE = "the .xplane.pb that jax.profiler.trace writes, with HLO in it (its default)"


def counters(sections: Iterable[str], page: str) -> str:
    """How to record counters of these sections of Nsight Compute. page: the page that was read; "details" shows few of them."""
    collect = f"ncu {' '.join(f'--section {section}' for section in sections)} …"
    return f"the report itself, or its raw page (ncu --import REPORT --page raw --csv); if it lacks them too: {collect}" if page == "details" else collect


def record_lines(source_format: str, framework: str, maker: str) -> str:
    """How source lines get into a recording; "" if PyTorch's profiler does not see the program, or Nsight Systems does not see its device."""
    return "" if framework == "cuda" or (maker == "amd" and source_format == "nsys") else _RECORD_LINES.get(source_format, "")
