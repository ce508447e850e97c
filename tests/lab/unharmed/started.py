"""Trains in programs that it starts: one after the other with an environment of its own, or two at once."""

import os
import subprocess
import sys

if sys.argv[1] == "one":
    done = subprocess.run([sys.executable, "plain.py"], env={**os.environ, "MINE": "1"}, capture_output=True, text=True, check=True)
    print(repr(done.stdout), repr(done.stderr))
else:
    both = [subprocess.Popen([sys.executable, "seeded.py", str(seed)]) for seed in (1, 2)]
    print([one.wait() for one in both])
