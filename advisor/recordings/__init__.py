"""Data of a run: a timeline, separately measured kernels, or a memory snapshot."""
