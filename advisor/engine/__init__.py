"""Runs rules over a recording and makes one report of what they say."""
