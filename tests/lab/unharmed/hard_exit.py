"""Ends without Python's own end: what is registered for it must not run, and what is not flushed is lost."""

import atexit
import os
import sys

from loop import trained

atexit.register(print, "never")
sys.stdout.write(f"{trained(steps=int(sys.argv[1]))}\n")
sys.stdout.flush()
os._exit(3)
