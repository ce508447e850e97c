"""Reads a GPU profile and says what makes the program slow, what to change, and what that gains."""
