"""Shares that views, rules and reports call most, nearly all, little and hardly any. Each has a single value, so none is tuned for a program."""

MOST = 0.5
"""More than all else together."""

NEARLY_ALL = 0.9
"""The rest is an exception: a branch, a first or last pass, or lost events."""

LITTLE = 0.1
"""What is below it says nothing of the rest."""

HARDLY_ANY = 0.05
"""An unprofiled run cannot tell it from its own noise."""
