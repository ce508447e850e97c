"""Where the step's time went."""
