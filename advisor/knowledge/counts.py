"""Counts that many modules share: of measurements that suffice, of rows that people read, of candidates that are examined. Each has a single value."""

RUNS = 3
"""Runs, or captures, of a side whose spread means something: two give a single range."""

ENOUGH = 5
"""Measurements that a mean or an interval needs: fewer hardly show their spread."""

USUAL = 10
"""Records of a kind that show its usual time: among fewer a damaged, cold or other one decides."""

BY_CHANCE = 8
"""As few records may agree by chance, and do not tell which of them is damaged."""

EXAMINED = 64
"""Candidates that are examined one by one, the nearest or the longest first: ops, frames, pauses, lines."""

DISTINCT = 256
"""Kinds that are told apart, several times what programs have: a trace with more is artificial, and must not take long."""

SHOWN = 8
"""Rows or names of a list that people read: the rest is counted."""

FINDINGS = 12
"""Findings that anybody looks at: those after them are small."""

RESAMPLES = 10_000
"""Of a bootstrap: the ends of its interval move by less than what is printed."""

PRINTED_BYTES, PRINTED_LINES = 1 << 16, 12
"""From the end of what a program printed: the end of its traceback, and the error."""
