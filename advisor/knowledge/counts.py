"""Counts that many modules share: of measurements that suffice, of rows that people read, of candidates that are examined. Each has a single value."""

RUNS = 3
"""Runs, or captures, of a side whose spread means something: two give a single range."""

ENOUGH = 5
"""Measurements that a mean or an interval needs: fewer hardly show their spread."""

RESAMPLES = 10_000
"""Of a bootstrap: the ends of its interval move by less than what is printed."""

PRINTED_BYTES, PRINTED_LINES = 1 << 16, 12
"""From the end of what a program printed: the end of its traceback, and the error."""
