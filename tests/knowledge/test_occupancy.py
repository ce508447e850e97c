"""Blocks that fit on a multiprocessor: worked by hand, and as Nsight Compute says for real kernels."""

import numpy as np
import pytest

from advisor.knowledge.occupancy import fit


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "limits", "occupancy", "limiter"),
    [
        # 2048 threads, 64 warps, 32 blocks, 65536 registers, 228 KiB of shared memory on compute capability 9.0.
        (256, 32, 0, (8, 32, 8, 32), 1.0, "threads"),
        (256, 22, 4096, (10, 32, 8, 32), 1.0, "threads"),  # 768 registers a warp: 21 fit on each scheduler, 84 on all
        (256, 255, 0, (1, 32, 8, 32), 0.125, "registers"),
        (256, 16, 200 << 10, (16, 1, 8, 32), 0.125, "shared memory"),
        (32, 16, 0, (128, 32, 64, 32), 0.5, "blocks"),
        (1024, 40, 0, (1, 32, 2, 32), 0.5, "registers"),
        (100, 16, 0, (32, 32, 16, 32), 1.0, "threads"),  # four warps, the last of four threads
    ],
)
def test_what_fits_on_a_multiprocessor_of_a_hopper(threads, registers, shared, limits, occupancy, limiter):
    found = fit((9, 0), [threads], [registers], [shared])
    assert found is not None
    assert tuple(found.limits[:, 0]) == limits
    assert found.occupancy[0] == occupancy and found.limiter.tolist() == [limiter]


def test_many_kernels_at_once_are_as_each_alone():
    threads, registers, shared = np.array([64, 256, 1024]), np.array([32, 128, 64]), np.array([0, 48 << 10, 1024])
    together = fit((8, 6), threads, registers, shared)
    alone = [fit((8, 6), [t], [r], [s]) for t, r, s in zip(threads, registers, shared, strict=True)]
    assert together is not None and together.blocks.tolist() == [int(a.blocks[0]) for a in alone if a]


def test_what_shared_memory_was_configured_bounds_it():
    found = fit((9, 0), [256], [16], [4096], [100 << 10])
    assert found is not None and found.limits[1, 0] == 20


def test_an_unknown_device_is_not_guessed_at():
    assert fit((0, 0), [256], [16], [0]) is None
