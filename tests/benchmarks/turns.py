"""Starts a program when it is its turn on the GPU: `python turns.py LOCK PROGRAM`.

Most of a short run is Python importing torch. Here that is done before the turn, so that several programs share a GPU, of which one runs.
"""

import ast
import fcntl
import gc
import importlib
import runpy
import sys
import time
from pathlib import Path


def main() -> None:
    lock, program = sys.argv[1:]
    sys.argv = [program]
    imported: list[ast.stmt] = [node for node in ast.parse(Path(program).read_text(encoding="utf-8")).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    exec(compile(ast.Module(imported, []), program, "exec"), {})
    importlib.import_module("torch._dynamo")  # the first optimizer imports it

    file = open(lock, "w")  # noqa: SIM115  (held until the process ends)
    fcntl.flock(file, fcntl.LOCK_EX)
    for one in gc.get_objects():
        if type(one).__name__ == "Timed":  # what the program needs to begin counts from here
            one._started_s = time.perf_counter()
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
