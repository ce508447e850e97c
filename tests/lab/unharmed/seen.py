"""What a program can see of itself, before and after it imports torch."""

import os
import sys

BEFORE = sorted(name for name in sys.modules if "advisor" in name.split("."))
import sitecustomize
import statistics

import advisor

print(BEFORE, sys.argv, sys.path, sys.flags, sys.warnoptions)
print([os.path.relpath(module.__file__) for module in (advisor, statistics, sitecustomize)])


def environment():
    return {name: value for name, value in sorted(os.environ.items()) if name not in ("_", "OLDPWD", "SHLVL")}


print(environment())
start = environment()
from loop import trained

print(trained(), advisor.MINE, statistics.MINE, sitecustomize.MINE, sys.path)
print({name: value for name, value in environment().items() if start.get(name) != value}, start.keys() - environment().keys())
print([str(finder).partition(" at 0x")[0] for finder in sys.meta_path], os.getcwd() == os.path.dirname(os.path.abspath(__file__)))
