"""Trains in the workers of a pool, whose answers are waited for."""

import concurrent.futures
import multiprocessing
import sys

from loop import trained


def work(seed):
    return trained(steps=40, seed=seed, pause_s=0.03)


if __name__ == "__main__":
    if sys.argv[1] == "pool":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(work, [1, 2]))
    else:
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            print(list(pool.map(work, [1])))
