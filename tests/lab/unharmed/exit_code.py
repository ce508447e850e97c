"""Ends with an exit code and a text of its own, and handlers at exit that print."""

import atexit
import sys

from loop import trained

atexit.register(print, "first registered")
atexit.register(lambda: print("last registered", flush=True))
print(trained())
sys.exit("no more data" if "text" in sys.argv else 7)
