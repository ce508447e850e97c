"""What measures wants the machine for itself: `.ci/run` does, and `ADVISOR_MEASURE=1 python -m pytest -n 0 tests/benchmarks`."""

import os

collect_ignore = [] if os.environ.get("ADVISOR_MEASURE") else ["test_growth.py", "test_speed.py"]
