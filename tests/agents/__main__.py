"""Tests of agents with advisor's skill and without.

python -m tests.agents build DIR        packets: recordings to choose a change for       python -m tests.agents score DIR       the table of their answers
python -m tests.agents programs DIR     programs to make faster                          python -m tests.agents measure DIR     the table of their results
"""

import sys
from pathlib import Path

from tests.agents import packets, programs

what, folder = sys.argv[1], Path(sys.argv[2])
if what in {"build", "programs"}:
    {"build": packets.build, "programs": programs.build}[what](folder)
else:
    print({"score": packets.table, "measure": programs.table}[what](folder))
