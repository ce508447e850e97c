"""A TPU's steps, and the time of each core."""
