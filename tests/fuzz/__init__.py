"""Random inputs with the structure of real ones, through every reader and the whole analysis: `python -m tests.fuzz --help`."""
