"""Which ranges frameworks open by themselves, told by their names."""

from __future__ import annotations

import re

BY_FRAMEWORK = re.compile(
    r"Optimizer\.|enumerate\(|compile_id=|dynamo_timed|## |Torch-Compiled|CompiledFxGraph|TorchDynamo|AOTDispatcher|DistributedDataParallel"
    r"|FullyShardedDataParallel|FSDP::|nccl:|gloo:|c10d::|PyTorch Profiler|\["
)
"""Found anywhere in the name of a range that does not span a step of the program."""
