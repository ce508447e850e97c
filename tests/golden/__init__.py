"""What the report of every sample and every trace of the corpus concludes, a row each: `python -m tests.golden` writes them anew, for you to read the diff."""
