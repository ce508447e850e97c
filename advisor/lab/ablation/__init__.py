"""The worth of each mechanism: analyses of programs that it was not fitted to, with it and without it."""
