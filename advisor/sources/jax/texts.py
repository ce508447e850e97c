"""Distinct texts by number, so that columns of them are columns of integers."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Ints
from advisor.recordings.columns import Categorical, numbered


class Texts:
    """Texts, each with the number at which it first came."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The number of a text, assigned at its first occurrence."""
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self.all)
            self.all.append(text)
        return found

    def column(self, codes: Ints) -> Categorical:
        """Codes as a column of text with no categories but those that are in it."""
        used = np.zeros(len(self.all), bool)
        used[codes] = True
        chosen = np.flatnonzero(used)
        place = np.zeros(len(self.all), np.int32)
        place[chosen] = np.arange(len(chosen))
        return Categorical(place[codes], categories=[self.all[i] for i in chosen])


def distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """Rows that represent each distinct combination of some columns' values, and for each row the position of its own among them."""
    group = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, uniques = numbered(column)
        group = numbered(group * max(len(uniques), 1) + values)[0]
    count = int(group.max(initial=-1)) + 1
    first = np.zeros(count, np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]  # of several writes to one place the last stays
    return first, group
