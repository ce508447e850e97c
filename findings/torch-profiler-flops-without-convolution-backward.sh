#!/usr/bin/env bash
# torch 2.13.0: the profiler's FLOPs hold a convolution's forward pass and leave its backward pass out, but count a GEMM's.
# Guessed: with_flops=True counts both passes of both, so that the FLOPs of a training step of a ResNet are about three times its inference's.
# Seen: aten::convolution_backward has no formula there and counts as 0. FlopCounterMode has one, and says three times as much.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cd "$work" && "$work/venv/bin/python" - <<'PYTHON'
import torch
from torch.nn.functional import conv2d
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

image, filters = torch.randn(2, 8, 16, 16, requires_grad=True), torch.randn(8, 8, 3, 3, requires_grad=True)
a, b = torch.randn(32, 64, requires_grad=True), torch.randn(64, 16, requires_grad=True)

def by_profiler(work):
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as prof:
        work()
    return sum(event.flops for event in prof.key_averages() if event.flops)

def by_counter(work):
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()

def convolved():
    return conv2d(image, filters, padding=1)

def multiplied():
    return a @ b

rows = {name: [count(work) for count in (by_profiler, by_counter) for work in (forward, lambda: forward().sum().backward())]
        for name, forward in (("convolution", convolved), ("GEMM", multiplied))}
print(f"torch {torch.__version__}")
for name, (forward, both, forward_too, both_too) in rows.items():
    print(f"{name}: profiler {forward:,} forward, {both:,} with backward; FlopCounterMode {forward_too:,} and {both_too:,}")
forward, both, forward_too, both_too = rows["convolution"]
assert forward == both == forward_too and both_too == 3 * forward, "the convolution's behaviour has changed"
forward, both, forward_too, both_too = rows["GEMM"]
assert forward == forward_too and both == both_too == 3 * forward, "the GEMM's behaviour has changed"
PYTHON
