"""What rules need to be recorded, and how to record it."""

from advisor.knowledge.how_to_record import RECORD_BOTH, RECORD_SHAPES
from advisor.report.model import Skipped

__all__ = ["NO_GPU_WORK", "RECORD_BOTH", "RECORD_SHAPES"]

NO_GPU_WORK = Skipped(why="the trace holds no GPU work", record_with=RECORD_BOTH)
