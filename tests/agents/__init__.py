"""Agents with the kit and without: the share of known gains that they reach, and their false claims. Outside of CI, for it takes an agent."""
