"""Ranks end together or not at all."""

import threading
import time

import pytest

torch = pytest.importorskip("torch")

from advisor.lab import ranks  # noqa: E402


@pytest.fixture
def group(monkeypatch):
    """Two ranks as two threads of this process, with the store of a process group between them."""
    import torch.distributed as dist

    store, ours = dist.HashStore(), threading.local()
    monkeypatch.setattr(ranks, "_has_group", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(dist, "get_rank", lambda: ours.rank)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)

    def asked(*willing):
        """What each rank is told, of (willing, after so many seconds)."""
        told = {}

        def rank(number, wants, after):
            ours.rank = number
            time.sleep(after)
            told[number] = ranks.all_stop(wants)

        threads = [threading.Thread(target=rank, args=(number, *one)) for number, one in enumerate(willing)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [told[number] for number in sorted(told)]

    return asked


def test_ranks_that_all_want_to_stop_do(group):
    assert group((True, 0.1), (True, 0.0)) == [True, True]


def test_where_one_cannot_none_stops_and_none_waits_for_it(group):
    start = time.monotonic()
    assert group((True, 0.0), (False, 0.1)) == [False, False]
    assert time.monotonic() - start < ranks.GRACE_S / 2


def test_a_rank_that_comes_too_late_finds_that_all_go_on(group, monkeypatch):
    monkeypatch.setattr(ranks, "GRACE_S", 0.05)
    assert group((True, 0.0), (True, 0.5)) == [False, False]


def test_a_process_of_its_own_decides_for_itself(monkeypatch):
    assert ranks.all_stop(True) and not ranks.all_stop(False)
    for variables, expected in (
        ({}, (0, 1)),
        ({"WORLD_SIZE": "4", "RANK": "3"}, (3, 4)),
        ({"WORLD_SIZE": "1", "RANK": "0"}, (0, 1)),
        ({"WORLD_SIZE": "x"}, (0, 1)),
    ):
        for name in ("WORLD_SIZE", "RANK"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert ranks.rank_and_world() == expected
