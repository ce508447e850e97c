"""Small programs in files, as users have them."""

from pathlib import Path

TRAIN = """
import sys, torch
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print("trained")
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""

INFER = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
scale = torch.nn.Identity()
with torch.no_grad():
    for request in range(200):
        net(scale(torch.ones(4, 8)))
print("served")
"""


def written(folder: Path, text: str) -> str:
    """The path of a script with that text."""
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    return str(path)
