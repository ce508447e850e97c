"""Attention taken apart and put together faster."""
