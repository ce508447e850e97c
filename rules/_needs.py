"""What rules need to be recorded, and how to record it."""

from advisor.report.model import Skipped

RECORD_BOTH = "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
RECORD_SHAPES = "profile(record_shapes=True)"

NO_GPU_WORK = Skipped(why="the trace holds no GPU work", record_with=RECORD_BOTH)
