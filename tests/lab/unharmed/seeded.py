"""One of several programs that train side by side."""

import sys

from loop import trained

with open(f"seed{sys.argv[1]}.txt", "w") as file:
    file.write(f"{trained(seed=int(sys.argv[1]))}\n")
