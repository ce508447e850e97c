"""Limits of any recording, in any format: a number beyond them is damage."""

DAY_NS = 86_400 * 10**9
"""Files of one run are written on the same day."""

LONGEST_NS = 7 * DAY_NS
"""No event lasts a week: that is a broken clock."""

LARGEST = 1 << 62
"""As large a time, size or count leaves room for sums in int64; in nanoseconds it is centuries."""

MOST_DEVICES = 1 << 12
"""No node has as many; traces that number processes by device give the host's larger numbers."""

LONGEST_VARINT = 10
"""Bytes of 64 bits, seven each."""

MOST_LEFT_OUT = 20
"""Kinds of events left out that are named: a message that anybody reads."""

EXACT = 2.0**53
"""A float64 holds every whole number below it."""
