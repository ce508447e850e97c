"""Shares that views, rules and reports call most, nearly all, little and hardly any. Each has a single value, so none is tuned for a program."""

MOST = 0.5
"""More than all else together."""

NEARLY_ALL = 0.9
"""The rest is an exception: a branch, a first or last pass, or lost events."""

VIRTUALLY_ALL = 0.95
"""The rest is the edge of the recording."""

LITTLE = 0.1
"""Less says nothing of the rest."""

HARDLY_ANY = 0.05
"""The noise of an unprofiled run hides less."""

CONSIDERABLE = 0.25
"""Less is not worth a word next to the largest."""

WELL_USED = 0.6
"""Of its peak: from there ncu calls a resource well used (`SOLBottleneck`)."""

UNUSUAL = 1.5
"""Times as much as usual: the spread of the same work does not reach as far."""

NO_DIFFERENCE = 0.02
"""Unprofiled step times repeat within about this share: a smaller gain is none, and a gain so near to an interval is inside."""

NEGLIGIBLE = 0.001
"""Less changes no printed figure."""

FAR_APART = 2.0
"""Times: two measurements of the same do not differ by as much."""

SEVERAL = 1.5
"""Per step, on average: with fewer, a step has only one."""
