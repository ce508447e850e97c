"""How long programs, ranks and their watchers wait for each other. Others import it inside of a user's program: it imports nothing."""

LOOK_S = 0.5
"""How often a watcher looks how far a program is."""

GRACE_S = 30.0
"""A program that has to end, or a rank that another waits for, may write a checkpoint or a trace, which takes seconds."""

HEARD_S = 5.0
"""For an answer that is due already."""
