"""The step as a schedule that can be edited and run again."""
