"""What a step holds: patterns over its ops and kernels, apart from the machine that replays it."""
