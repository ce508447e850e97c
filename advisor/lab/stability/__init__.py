"""Changes of reports without a change of the truth: recorded traces, changed in ways that do not concern the program."""
