"""What to do about one kernel, or copies, that take most of a step."""

from __future__ import annotations

import re

from advisor.report.finding import Code, Fix
from advisor.report.numbers import cut
from advisor.views.trace.program import Maker

_PROFILERS = {"nvidia": "Nsight Compute", "amd": "rocprof-compute", "other": "the profiler of the device's maker"}


def decide_with(name: str, moved: bool, maker: Maker) -> str:
    if maker == "other":
        return f"{_PROFILERS[maker]}, which measures what limits it"
    if moved:
        return "rocprofv3 --hip-trace --memory-copy-trace -- PROGRAM" if maker == "amd" else "nsys profile --trace=cuda --cuda-memory-usage=true PROGRAM"
    plain = re.sub(r"^void |\(anonymous namespace\)::", "", name)
    word = re.split(r"[<(]", plain, maxsplit=1)[0].split("::")[-1].removesuffix(".kd")
    if maker == "amd":
        return f"rocprof-compute profile -n measured -k {word} -- PROGRAM"
    return f"ncu --set full --launch-count 5 --kernel-name regex:{word} PROGRAM"


_LIBRARIES = {"nvidia": "cuBLAS, cuDNN, CUB, FlashAttention", "amd": "hipBLASLt, MIOpen, Composable Kernel, AITER", "other": "of the device's maker"}


_PAGES = {
    "nvidia": "https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html",
    "amd": "https://rocm.docs.amd.com/projects/rocprofiler-compute/en/latest/",
    "other": "",
}


def measure_kernel(name: str, maker: Maker) -> Fix:
    return Fix(
        title="Measure this kernel, and hold it against a library's",
        steps=(
            f"Measure {cut(name, 70)} with {_PROFILERS[maker]}: it says whether memory, arithmetic or latency holds it up.",
            f"If it is your own: look for a library call that does the same ({_LIBRARIES[maker]}). Or look for memory accesses that do not coalesce.",
        ),
        url=_PAGES[maker],
    )


def prefetch() -> Fix:
    return Fix(
        title="Fetch the pages before the kernel runs",
        steps=(
            "Call cudaMemPrefetchAsync for each managed array before the launch, and back to the host before the host reads it. "
            "Then a single long transfer replaces a fault for each piece.",
            "Fill the arrays on the device if possible; then nothing has to migrate.",
            "If the order of accesses is known: cudaMalloc and copies from pinned memory.",
        ),
        code=Code(
            before="cudaMallocManaged(&x, bytes);\nfill(x);  // on the host\nkernel<<<grid, block>>>(x);\ncudaDeviceSynchronize();",
            after="cudaMemLocation gpu = {cudaMemLocationTypeDevice, device}, cpu = {cudaMemLocationTypeHost, 0};\n"
            "cudaMallocManaged(&x, bytes);\nfill(x);\ncudaMemPrefetchAsync(x, bytes, gpu, 0);  // before CUDA 13: (x, bytes, device)\n"
            "kernel<<<grid, block>>>(x);\ncudaMemPrefetchAsync(x, bytes, cpu, 0);  // before CUDA 13: (x, bytes, cudaCpuDeviceId)\ncudaDeviceSynchronize();",
        ),
        url="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#data-prefetching",
    )


def move_less() -> Fix:
    return Fix(
        title="Move fewer bytes, or move them while the GPU computes",
        steps=(
            "Keep repeatedly copied data on the device, such as weights that fit; offload only the rest.",
            "Halve the bytes: 8-bit weights for what must be offloaded.",
            "Copy the next piece on its own stream from pinned memory while the current piece computes.",
        ),
        url="https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#asynchronous-and-overlapping-transfers-with-computation",
    )
