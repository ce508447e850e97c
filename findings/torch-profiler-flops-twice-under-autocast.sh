#!/usr/bin/env bash
# torch 2.13.0: under autocast the profiler counts the FLOPs of a convolution, and of some GEMMs, twice.
# Guessed: autocast casts the inputs and changes no count, so a model has the same FLOPs with it and without it.
# Seen: autocast sits before the op and calls it again, so aten::conv2d stands within aten::conv2d, and each has the FLOPs. So it is with mm,
# bmm and addmm. matmul and linear are counted once: it is the ops within them that are counted, and those autocast leaves alone. So a
# CNN's FLOPs double with mixed precision, a Transformer's may not. FlopCounterMode counts each once.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cd "$work" && "$work/venv/bin/python" - <<'PYTHON'
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

a, b, bias = torch.randn(8, 16), torch.randn(16, 4), torch.randn(4)
image, filters = torch.randn(2, 8, 16, 16), torch.randn(8, 8, 3, 3)
ops = {
    "conv2d": lambda: torch.nn.functional.conv2d(image, filters, padding=1),
    "mm": lambda: torch.mm(a, b),
    "bmm": lambda: torch.bmm(a[None], b[None]),
    "addmm": lambda: torch.addmm(bias, a, b),
    "matmul": lambda: a @ b,
    "linear": lambda: torch.nn.functional.linear(a, b.t(), bias),
}

def flops(op, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        with profile(activities=[ProfilerActivity.CPU], with_flops=True) as prof:
            op()
        with FlopCounterMode(display=False) as counter:
            op()
    return sum(event.flops for event in prof.key_averages() if event.flops), counter.get_total_flops()

print(f"torch {torch.__version__}: FLOPs under autocast, as a multiple of those without it")
ratios = {}
for name, op in ops.items():
    (by_profiler, by_counter), (cast_by_profiler, cast_by_counter) = flops(op, False), flops(op, True)
    assert by_profiler == by_counter == cast_by_counter, "FlopCounterMode sees another count, too"
    ratios[name] = cast_by_profiler / by_profiler
    print(f"{name}: profiler {ratios[name]:g}, FlopCounterMode {cast_by_counter / by_counter:g}")
assert ratios == {"conv2d": 2, "mm": 2, "bmm": 2, "addmm": 2, "matmul": 1, "linear": 1}, "the behaviour has changed"
PYTHON
