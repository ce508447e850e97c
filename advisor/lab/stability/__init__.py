"""What changes in a report where nothing changes in the truth: recorded traces, changed in ways that say nothing else of the program."""
