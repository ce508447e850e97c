"""A module of the program, which has the name of ours."""

MINE = "my advisor"
