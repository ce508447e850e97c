"""What the report of every sample says, kept beside the tests: `python -m tests.golden` writes it anew, for you to read the diff."""
