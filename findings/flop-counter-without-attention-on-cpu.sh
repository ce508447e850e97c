#!/usr/bin/env bash
# torch 2.13.0: FlopCounterMode counts scaled_dot_product_attention as 0 FLOPs where it runs on a CPU; so does the profiler.
# Guessed: the counter has formulas of attention, so the count does not depend on the device.
# Seen: its formulas are of the GPU's ops. The CPU's, aten::_scaled_dot_product_flash_attention_for_cpu, has none. The same attention
# written out as two products is counted. A model counted on a laptop's CPU lacks its attention.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cd "$work" && "$work/venv/bin/python" - <<'PYTHON'
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

q, k, v = (torch.randn(2, 4, 64, 32, requires_grad=True) for _ in range(3))

def fused():
    return scaled_dot_product_attention(q, k, v)

def written_out():
    return torch.softmax(q @ k.transpose(-2, -1) / 32**0.5, -1) @ v

def counted(work):
    with FlopCounterMode(display=False) as counter:
        work()
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as prof:
        work()
    return counter.get_total_flops(), sum(event.flops for event in prof.key_averages() if event.flops)

assert torch.allclose(fused(), written_out(), atol=1e-5)
by_op, by_hand = counted(fused), counted(written_out)
print(f"torch {torch.__version__}: FLOPs by FlopCounterMode and by the profiler: fused {by_op}, written out {by_hand}")
expected = 2 * 2 * 4 * 64 * 64 * 32 * 2
assert by_op == (0, 0) and by_hand == (expected, expected), "the behaviour has changed"
PYTHON
