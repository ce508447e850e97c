"""What the program has Python run as it starts."""

MINE = "my sitecustomize"
