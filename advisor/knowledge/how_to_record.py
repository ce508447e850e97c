"""How to record what was missing."""

RECORD_BOTH = "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
RECORD_SHAPES = "profile(record_shapes=True)"
