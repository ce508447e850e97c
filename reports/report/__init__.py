"""Formats of a report: each module here is one. A new format is one new file; nothing lists them."""
