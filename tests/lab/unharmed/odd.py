"""Warnings are errors here, a trace function looks on, there are no streams, and the garbage collector is off."""

import gc
import sys
import warnings

from loop import trained

warnings.simplefilter("error")
gc.disable()
calls = set()
sys.settrace(lambda frame, event, argument: calls.add(frame.f_code.co_name) if "loop" in frame.f_code.co_filename else None)
loss = trained()
sys.settrace(None)
output, sys.stdout, sys.stderr = sys.stdout, None, None
output.write(f"{loss} {sorted(calls)} {gc.isenabled()}\n")
output.flush()
