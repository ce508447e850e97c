#!/usr/bin/env bash
# torch 2.13.0: a compiled function whose first call is counted by FlopCounterMode is never compiled, also long after the counter has gone.
# Guessed: the counter watches one call; at worst that call runs eagerly, and the next one compiles.
# Seen: torch.compile passes over a function while the counter is on, and remembers that for the function's code. The backend is never asked.
# Counted after its first call, the function leaves its finished graph too, for good. So who counts the FLOPs of a step before timing it
# times eager code, and is told nothing. torch._dynamo.reset() brings compilation back.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cd "$work" && "$work/venv/bin/python" - <<'PYTHON'
import torch
from torch.utils.flop_counter import FlopCounterMode

x = torch.ones(4, 4)

def counted(call):
    with FlopCounterMode(display=False) as counter:
        call(x)
    assert counter.get_total_flops() == 2 * 4**3, "the call is not counted"

def runs_of_the_graph(first_calls):
    runs = []

    def backend(graph, inputs):
        def run(*args):
            runs.append(graph)
            return graph(*args)
        return run

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.relu(x @ x), backend=backend)
    for call in first_calls:
        call(compiled)
    runs.clear()
    for _ in range(3):
        compiled(x)
    return len(runs)

def plain(call):
    call(x)

def reset(call):
    torch._dynamo.reset()

found = {
    "a plain call": runs_of_the_graph([plain]),
    "a counted call": runs_of_the_graph([counted]),
    "a plain and a counted call": runs_of_the_graph([plain, counted]),
    "a counted call and a reset": runs_of_the_graph([counted, reset]),
}
print(f"torch {torch.__version__}: of three more calls, how many ran compiled, by what came before: {found}")
assert list(found.values()) == [3, 0, 0, 3], "the behaviour has changed"
PYTHON
