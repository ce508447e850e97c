"""What one run left behind: a timeline, kernels measured one by one, a snapshot of memory; data only."""
