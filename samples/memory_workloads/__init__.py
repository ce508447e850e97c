"""Programs that hold more GPU memory than they need, and their repaired twins."""

from . import allocating, training
from .base import MemoryWorkload, Setup

REGISTRY: dict[str, MemoryWorkload] = {w.name: w for w in (*training.WORKLOADS, *allocating.WORKLOADS)}

__all__ = ["REGISTRY", "MemoryWorkload", "Setup"]
