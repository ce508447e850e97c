"""What pictures draw."""
