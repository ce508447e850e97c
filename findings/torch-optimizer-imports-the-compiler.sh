#!/usr/bin/env bash
# torch 2.13.0: the first optimizer that a program makes imports torch.compile's front end (torch._dynamo, sympy), compiled code or not.
# Guessed: a program that never calls torch.compile does not load the compiler, and making an SGD costs microseconds.
# Seen: some 800 modules are loaded in the constructor of the first optimizer, for about as much CPU time as `import torch` took. In a
# short program it is a tenth of the run; timed from outside, it counts as a slow first step.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cd "$work" && "$work/venv/bin/python" - <<'PYTHON'
import sys
import time

began = time.process_time()
import torch

imported = time.process_time() - began
weight = torch.nn.Parameter(torch.ones(1))
before, loaded = len(sys.modules), "torch._dynamo" in sys.modules
times = []
for _ in range(2):
    began = time.process_time()
    torch.optim.SGD([weight], lr=0.1)
    times.append(time.process_time() - began)
new = len(sys.modules) - before
print(f"torch {torch.__version__}: import {imported:.2f} s, first SGD {times[0]:.2f} s with {new} modules, second {times[1] * 1e6:.0f} µs")
assert not loaded and "torch._dynamo" in sys.modules and "sympy" in sys.modules and new > 400, "the behaviour has changed"
PYTHON
