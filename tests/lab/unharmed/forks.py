"""Forks after torch is imported, and trains in the child, in the parent too, or in a child of multiprocessing."""

import multiprocessing
import os
import sys

from loop import train, trained


def work(answers):
    answers.put(trained(seed=3))


if sys.argv[1] == "child":
    child = os.fork()
    if not child:
        trained(seed=1)
        os._exit(5)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
elif sys.argv[1] == "midway":  # while the parent is recorded, whatever it is at
    ended = []
    for step, _ in train():
        if step % 3 == 0:
            child = os.fork()
            if not child:
                trained(steps=3, pause_s=0)
                # Python's own end takes a second after a fork: torch's modules are copied as they are taken apart.
                (os._exit if step % 4 else sys.exit)(step)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(ended)
else:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=work, args=(answers,))
    process.start()
    print(answers.get())
    process.join()
    print(process.exitcode)
