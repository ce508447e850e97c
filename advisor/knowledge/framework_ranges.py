"""Which ranges frameworks open by themselves, told by their names."""

from __future__ import annotations

from advisor.knowledge.expressions import expression

BY_FRAMEWORK = expression(
    r"Optimizer\.|enumerate\(|compile_id=|dynamo_timed|## |Torch-Compiled|CompiledFxGraph|TorchDynamo|AOTDispatcher|DistributedDataParallel"
    r"|FullyShardedDataParallel|FSDP::|nccl:|gloo:|c10d::|PyTorch Profiler"
    r"|^\[\d+\] \w+:|ComputeSemaphoreAcquire|\(\w+\[[\d,]*\]\)|^\[range-[a-z]+\]"
)
"""Found anywhere in the name of a range that does not span a step of the program. The last line: XLA's runtime on one of its devices, and on a buffer of
some shape; a framework's range that `redact` renamed. A bracket alone tells nothing: people write `step [3/10]`, and SGLang `step[DECODE bs=31]`."""
