#!/usr/bin/env bash
# torch 2.13.0: a trace of torch.profiler holds no ops and no Python frames of other threads, also of threads that began while it ran.
# Guessed: the profiler records the process, as its GPU side does; what a thread launches then stands in the trace with its op.
# Seen: only the thread that started the profiler is recorded. Three GEMMs of a thread are not there, nor is the thread's Python function.
# profile_all_threads=True of _ExperimentalConfig records them. So a loader's or a server's worker thread looks like an idle host.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cd "$work" && "$work/venv/bin/python" - <<'PYTHON'
import json, threading, torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

def worked_in_a_thread():
    for _ in range(3):
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))

def recorded(**options):
    with profile(activities=[ProfilerActivity.CPU], **options) as prof:
        thread = threading.Thread(target=worked_in_a_thread)
        thread.start()
        thread.join()
        torch.add(torch.ones(8), 1)
    prof.export_chrome_trace("trace.json")
    events = json.load(open("trace.json"))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") in ("cpu_op", "python_function")]
    return names.count("aten::mm"), names.count("aten::add"), sum("worked_in_a_thread" in name for name in names)

usual, everywhere = recorded(with_stack=True), recorded(experimental_config=_ExperimentalConfig(profile_all_threads=True))
print(f"torch {torch.__version__}: mm of the thread, add of the main thread, frames of the thread's function: {usual}; with profile_all_threads: {everywhere}")
assert usual == (0, 1, 0), "other threads are recorded now"
assert everywhere[0] == 3, "profile_all_threads records them no more"
PYTHON
