#!/usr/bin/env bash
# torch 2.13.0: torch.profiler with with_stack=True ends whatever Python profiler runs in its thread, and does not bring it back.
# Guessed: it sets its hook on entry, and on exit it puts back the one that it found.
# Seen: sys.getprofile() is None afterwards. The function that sys.setprofile was given hears nothing within the block nor after it, and
# cProfile (where it uses the same hook, before Python 3.12) counts 1 call of 101: no error, just a short profile. Without with_stack both
# go on.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cd "$work" && "$work/venv/bin/python" - <<'PYTHON'
import cProfile, pstats, sys
import torch
from torch.profiler import ProfilerActivity, profile

def work():
    pass

def calls_of(**options):
    work()
    with profile(activities=[ProfilerActivity.CPU], **options):
        for _ in range(50):
            work()
    for _ in range(50):
        work()

def by_hook(**options):
    heard = []

    def hook(frame, event, arg):
        if event == "call" and frame.f_code is work.__code__:
            heard.append(frame)
    sys.setprofile(hook)
    calls_of(**options)
    kept = sys.getprofile() is hook
    sys.setprofile(None)
    return len(heard), kept

def by_cprofile(**options):
    profiler = cProfile.Profile()
    profiler.runcall(calls_of, **options)
    return sum(row[0] for key, row in pstats.Stats(profiler).stats.items() if key[2] == "work")

hook, cprofile = [[count(with_stack=stack) for stack in (False, True)] for count in (by_hook, by_cprofile)]
print(f"torch {torch.__version__}, Python {sys.version.split()[0]}: of 101 calls, without with_stack and with it: "
      f"the hook heard (and is still set) {hook}, cProfile counted {cprofile}")
assert hook == [(101, True), (1, False)], "the behaviour has changed"
assert sys.version_info >= (3, 12) or cprofile == [101, 1], "cProfile's behaviour has changed"
PYTHON
