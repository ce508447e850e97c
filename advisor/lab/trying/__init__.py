"""`advisor try`: runs a program with the fixes of its report applied from outside, and reports the gain of each."""
