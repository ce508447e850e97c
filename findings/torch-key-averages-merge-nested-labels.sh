#!/usr/bin/env bash
# torch 2.13.0: key_averages counts a label within a label of the same name once, if the outer one holds nothing else.
# Guessed: five nested record_function("block") are five calls, as in the trace of the same profiler.
# Seen: a range whose parent has its name and no other child is dropped from events(), level by level, so five become one. With one small op
# beside it on every level all five count, and the total time holds the inner ones again and again. So wrappers of one class within each
# other (a Sequential in a Sequential), or a recursion, change their number of calls and their mean time with what stands next to them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cd "$work" && "$work/venv/bin/python" - <<'PYTHON'
import json, torch
from torch.profiler import ProfilerActivity, profile, record_function

def nested(levels, beside):
    with record_function("block"):
        if beside:
            torch.ones(1)
        if levels > 1:
            nested(levels - 1, beside)
        else:
            torch.mm(torch.ones(256, 256), torch.ones(256, 256))

def counted(beside):
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        nested(5, beside)
    prof.export_chrome_trace("trace.json")
    in_trace = sum(event["name"] == "block" for event in json.load(open("trace.json"))["traceEvents"] if event.get("cat") == "user_annotation")
    (row,) = (row for row in prof.key_averages() if row.key == "block")
    return in_trace, row.count, row.cpu_time_total / max(event.time_range.elapsed_us() for event in prof.events() if event.name == "block")

alone, with_op = counted(False), counted(True)
print(f"torch {torch.__version__}: ranges in the trace, calls in key_averages, their total time over the outermost range's:")
for name, (in_trace, count, times) in (("nothing beside", alone), ("an op beside", with_op)):
    print(f"{name}: {in_trace}, {count}, {times:.2f}")
assert alone[:2] == (5, 1) and with_op[:2] == (5, 5), "the behaviour has changed"
assert alone[2] == 1 and with_op[2] > 2, "the total time has changed"
PYTHON
