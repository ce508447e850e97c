"""How to record what was missing."""

from collections.abc import Iterable

RECORD_BOTH = "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
RECORD_ON_A_GPU = "advisor record, where the program works on a GPU: it records every device that the program uses"
RECORD_LAUNCHES = "nsys profile --trace=cuda,nvtx: libraries such as TensorRT launch through the driver, which a profiler of the framework may not see"
RECORD_LINES = {
    "kineto": "profile(with_stack=True), or advisor record, which records them beside a light trace",
    "nsys": "torch.profiler with with_stack=True; an export of nsys holds none, NVTX ranges name the parts",
}
"""By format: how the lines of the source get into a recording."""
RECORD_SHAPES = "profile(record_shapes=True)"
XPLANE = "the .xplane.pb that jax.profiler.trace writes, with HLO in it (its default)"


def counters(sections: Iterable[str], page: str) -> str:
    """How counters of these sections of Nsight Compute get into what is read. page: the one that was, "details" shows few of them."""
    collect = f"ncu {' '.join(f'--section {section}' for section in sections)} …"
    return f"the report itself, or its raw page (ncu --import REPORT --page raw --csv); if it lacks them too: {collect}" if page == "details" else collect
