#!/usr/bin/env bash
# torch 2.13.0: making a compiled function switches off the argument checks of torch.distributions, for the whole process.
# Guessed: torch.compile touches the function that it is given, and that when it is called.
# Seen: Distribution.set_default_validate_args(False) has run when torch.compile returns. A negative scale is accepted from then on,
# also in code that is never compiled. So a compiled program loses the checks' reads of the GPU, and the errors that they raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0
cd "$work" && "$work/venv/bin/python" - <<'PYTHON'
import torch
from torch.distributions import Distribution, Normal

def refuses_a_negative_scale():
    try:
        Normal(torch.tensor(0.0), torch.tensor(-1.0))
    except ValueError:
        return True
    return False

before = refuses_a_negative_scale()
torch.compile(lambda x: 2 * x)  # never called
after = refuses_a_negative_scale()
print(f"torch {torch.__version__}: a negative scale is refused before torch.compile: {before}; after: {after}; default now: {Distribution._validate_args}")
assert before and not after, "the behaviour has changed"
PYTHON
