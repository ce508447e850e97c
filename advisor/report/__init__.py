"""What an analysis says: data only."""
