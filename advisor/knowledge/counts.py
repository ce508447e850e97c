"""Counts that many modules share: measurements that suffice, rows that people read, candidates to examine. Each has a single value."""

RUNS = 3
"""Minimum runs, or captures, per side to estimate noise: two give a single range."""

ENOUGH = 5
"""Minimum measurements for a mean or an interval: fewer hardly show their spread."""

USUAL = 10
"""Minimum records of a kind for its usual time: with fewer, a damaged or cold record decides."""

BY_CHANCE = 8
"""Records that may agree by chance, at most. Nor do so few show which of them is damaged."""

EXAMINED = 64
"""Candidates that are examined singly, the nearest or the longest first: ops, frames, pauses, lines."""

DISTINCT = 256
"""Distinct kinds, several times the number in any program: a trace with more is artificial, and must not take long."""

SHOWN = 8
"""Rows or names of a list that people read: the rest is counted."""

FINDINGS = 12
"""Findings that anybody looks at: those after them are small."""

RESAMPLES = 10_000
"""Draws of a bootstrap: the ends of its interval move by less than a printed digit."""

PRINTED_BYTES, PRINTED_LINES = 1 << 16, 12
"""The end of a program's output: the end of its traceback, and the error."""
