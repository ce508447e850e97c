"""How to record what was missing."""

RECORD_BOTH = "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
RECORD_LINES = {
    "kineto": "profile(with_stack=True), or advisor record, which records them beside a light trace",
    "nsys": "torch.profiler with with_stack=True; an export of nsys holds none, NVTX ranges name the parts",
}
"""By format: how the lines of the source get into a recording."""
RECORD_SHAPES = "profile(record_shapes=True)"
