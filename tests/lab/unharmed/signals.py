"""Signals that come in the midst of steps: handled, raising, ignored, or the end of it."""

import os
import signal
import sys

from loop import train, trained

stop = False


def asked(number, frame):
    global stop
    stop = True


class Over(Exception):
    """What the alarm raises, wherever the program is."""


def alarm(number, frame):
    raise Over


kind = sys.argv[1]
if kind == "graceful":
    signal.signal(signal.SIGTERM, asked)
    for step, _ in train():
        if step == 40:
            os.kill(os.getpid(), signal.SIGTERM)
        if stop:
            print("asked to stop after", step)
            break
elif kind == "wait":  # for one from outside
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, asked)
    print(os.getpid(), flush=True)
    for step, _ in train(steps=10_000):
        if stop:
            print("asked to stop", flush=True)
            sys.exit(4)
elif kind == "alarm":  # all through the recording, and through what of ours runs in it
    trained(steps=2)  # what torch imports when it is first used would be cut off in its midst, and stay so
    signal.signal(signal.SIGALRM, alarm)
    seen = 0
    for _ in range(40):
        signal.setitimer(signal.ITIMER_REAL, 0.004 + 0.0007 * seen)
        try:
            trained(steps=10_000, pause_s=0)
        except Over:
            seen += 1
    print("alarms", seen)
else:
    for step, _ in train():
        if step == 40:
            print("now", flush=True)
            os.kill(os.getpid(), getattr(signal, kind))
