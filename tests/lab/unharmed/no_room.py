"""There is no room for anything more, from a step on: of a limit to the size of files, or since the recording's folder is gone."""

import os
import resource
import shutil
import signal
import sys

from loop import train

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
kind, at, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for step, loss in train():
    if step == at and kind == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    if step == at and kind == "gone" and os.path.isdir(folder):
        shutil.rmtree(folder)
    if step == at and kind == "closed":
        os.closerange(3, 256)
        held = [open(os.devnull, "w") for _ in range(20)]  # noqa: SIM115  numbers that others had
print(loss.item())
