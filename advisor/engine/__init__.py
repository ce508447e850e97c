"""Runs rules over a recording and makes a report of their results."""
