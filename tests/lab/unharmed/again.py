"""Starts itself anew in its own process, once by each of two ways, and trains in the last."""

import os
import sys

turn = int(sys.argv[1])
if turn == 0:
    os.environ["PYTHONPATH"] = "hidden"
    os.execv(sys.executable, [sys.executable, sys.argv[0], "1"])
if turn == 1:
    os.execve(sys.executable, [sys.executable, "-u", sys.argv[0], "2"], {**os.environ, "TURN": "2"})
from loop import trained

print(os.environ.get("PYTHONPATH"), os.environ["TURN"], trained())
