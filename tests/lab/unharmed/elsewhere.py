"""Changes its directory and takes the old one away, under a umask of its own."""

import os
import tempfile

from loop import train

home = os.getcwd()
os.umask(0o077)
for step, loss in train():
    if step == 5:
        first = tempfile.mkdtemp(dir=".")
        os.chdir(first)
    if step == 20:
        os.rmdir(os.getcwd())
        os.chdir(home)
with open("here.txt", "w") as file:
    file.write(f"{loss.item()}\n")
print(oct(os.stat("here.txt").st_mode), os.path.basename(os.getcwd()))
