#!/usr/bin/env bash
# torch 2.13.0: torch.autograd.profiler.profile(use_kineto=False) writes a trace of Kineto.
# Guessed: without Kineto the profiler before it writes its list of events, whose processes are called "CPU functions" and "CUDA functions".
# Seen: export_chrome_trace writes an object with schemaVersion, deviceProperties and traceEvents, categories and process ids, as with use_kineto=True.
# So a tool that tells the old format by the option, or by the class that wrote it, takes one format for the other.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cd "$work" && "$work/venv/bin/python" - <<'PYTHON'
import json, warnings
import torch
warnings.simplefilter("ignore")

def written(**options):
    with torch.autograd.profiler.profile(**options) as prof:
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    prof.export_chrome_trace("trace.json")
    value = json.load(open("trace.json"))
    return sorted(set(value) & {"schemaVersion", "traceEvents"}) if isinstance(value, dict) else "a list of events"

found = {use: written(use_kineto=use) for use in (False, True)}
print(f"torch {torch.__version__}: members of the trace, by use_kineto: {found}")
assert found[False] == found[True] == ["schemaVersion", "traceEvents"], "use_kineto=False writes another format now"
PYTHON
