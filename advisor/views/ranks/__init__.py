"""Jobs of many ranks: each rank's trace reduced to a summary, the summaries matched, timed against each other and replayed."""
