"""A module of the program, which has the name of one of Python's own."""

MINE = "my statistics"
