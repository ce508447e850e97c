"""What was recorded, linked: launches, ops, modules, steps, source lines."""
