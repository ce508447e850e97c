"""python -m tests.agents build DIR writes the packets; python -m tests.agents score DIR prints the table of the answers in them."""

import sys
from pathlib import Path

from tests.agents.packets import build, table

what, folder = sys.argv[1], Path(sys.argv[2])
if what == "build":
    build(folder)
else:
    print(table(folder))
