"""Rules of our own for advisor."""
