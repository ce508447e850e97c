"""What a TPU did: its steps, and where the time of each core goes."""
