"""The extension without memory: whichever request for it is refused, MemoryError is raised and nothing is damaged."""

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

from tests.paths import ROOT, slow

ALLOCATORS = ("malloc", "calloc", "realloc")
REFUSING = """
#undef malloc
#undef calloc
#undef realloc
#include <stdlib.h>
static long left;
void refuse(long at) { left = at; }
static int refused(void) { return left > 0 && --left == 0; }
void *refusing_malloc(size_t size) { return refused() ? NULL : malloc(size); }
void *refusing_calloc(size_t count, size_t size) { return refused() ? NULL : calloc(count, size); }
void *refusing_realloc(void *old, size_t size) { return refused() ? NULL : realloc(old, size); }
"""
PROGRAM = """
import ctypes
import numpy as np
import trace_advisor_native as extension
from advisor.recordings.snapshot import Segment
from advisor.sources.kineto import native
from advisor.views.memory.allocator import Settings
from advisor.views.memory.requests import Found, Requests, _columns

refuse = ctypes.CDLL(extension.__file__).refuse
n = 300
rows, none, settings = np.arange(n), np.zeros(0, "i8"), Settings()
found = (Found(Segment(0, 1 << 20, 0, False, (0, 0), False, ()), [], [], []),)
asked = Requests(2 * n, 512 + 4000 * rows, rows % 2, rows * 0, ((0, 0),), rows, n + rows[::-1], none, found, none)
requests = _columns(asked, settings)
events = [bytes([0] * n + [2] * n), *(np.tile(rows * 512 + one, 2).tobytes() for one in (0, 512)), (rows * 0 + 512).tobytes()]
text = b",".join(b'{"ph": "X", "cat": "cpu_op", "name": "\\\\u00e9 %d", "pid": 0, "tid": 7, "ts": %d, "dur": 1}' % (i, i) for i in range(2000))
decoder = native._made()
calls = [
    lambda: extension.reserved(2 * n, *requests, -1, False),
    lambda: extension.block_sizes(*events, *[b""] * 4, -1, False),
    lambda: extension.wire_records(bytes([10, 1, 8]) * n, 0, 3 * n, 10),
    lambda: decoder.decode(text),
    lambda: native._made().decode(text),
]
for call in calls:
    expected, at, failed = call(), 0, True
    while failed:
        at += 1
        refuse(at)
        try:
            call()
            failed = False
        except (MemoryError, ValueError):  # of a schema that does not fit
            pass
        refuse(0)
        assert call() == expected
    print(at)
"""


@slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="no compiler")
def test_memory_that_is_refused(tmp_path):
    (tmp_path / "refusing.c").write_text(REFUSING)
    defined = [f"-D{name}=refusing_{name}" for name in ALLOCATORS]
    sources = [*map(str, sorted((ROOT / "native").glob("*.c"))), str(tmp_path / "refusing.c")]
    command = ["gcc", "-std=c11", "-fPIC", "-shared", "-DPy_LIMITED_API=0x030A0000", *defined, f"-I{sysconfig.get_path('include')}", *sources]
    subprocess.run([*command, "-o", str(tmp_path / "trace_advisor_native.abi3.so")], check=True)
    # Memory that nobody wrote to holds no zeros.
    variables = {**os.environ, "MALLOC_PERTURB_": "165", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.split()) == 5 and all(int(refusals) > 1 for refusals in ran.stdout.split())
