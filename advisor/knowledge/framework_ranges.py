"""Which ranges frameworks open by themselves, told by their names."""

from __future__ import annotations

from advisor.knowledge.expressions import expression

BY_FRAMEWORK = expression(
    r"Optimizer\.|enumerate\(|compile_id=|dynamo_timed|## |Torch-Compiled|CompiledFxGraph|TorchDynamo|AOTDispatcher|DistributedDataParallel"
    r"|FullyShardedDataParallel|FSDP::|nccl:|gloo:|c10d::|PyTorch Profiler"
    r"|^\[\d+\] \w+:|ComputeSemaphoreAcquire|\(\w+\[[\d,]*\]\)|^\[range-[a-z]+\]"
)
"""Patterns for names of ranges that do not span a step. The last line: XLA's runtime per device or per buffer shape, and ranges renamed by `redact`.
A bracket alone is no sign: people write `step [3/10]`, and SGLang `step[DECODE bs=31]`.
"""
