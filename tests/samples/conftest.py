"""The scripts in samples/ are run from there, so their imports start there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "samples"))
