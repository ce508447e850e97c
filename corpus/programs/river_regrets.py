"""One iteration of CFR+ over a tree of bets, 1081 hands at each of its spots, by recursion; the game's worth is read in each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step, capture, written


@dataclass
class Spot:
    """Somebody is to act, or (`player` is None) all is over: `folded` has given up, or hands are shown."""

    player: int | None
    put: tuple[float, float]
    folded: int | None = None
    after: list[Spot] = field(default_factory=list)
    regrets: Tensor = field(default_factory=lambda: torch.zeros(0))
    average: Tensor = field(default_factory=lambda: torch.zeros(0))


def _betting(player: int, put: tuple[float, float], raises: int, sizes: tuple[float, ...], opened: bool, *, stack: float = 1200.0) -> Spot:
    spot, other = Spot(player, put), 1 - player
    owed = put[other] - put[player]
    if owed:
        spot.after += [Spot(None, put, folded=player), Spot(None, (put[other], put[other]))]
    else:
        spot.after.append(Spot(None, put) if opened else _betting(other, put, raises, sizes, True))
    if raises and put[other] < stack:
        for most in sorted({min(stack, put[other] + size * 2.0 * put[other]) for size in sizes}):
            new = (most, put[1]) if player == 0 else (put[0], most)
            spot.after.append(_betting(other, new, raises - 1, sizes, True))
    return spot


def _matching(regrets: Tensor) -> Tensor:
    """What was not done often enough is done more; hands without regrets do anything."""
    total = regrets.sum(0)
    return torch.where(total > 0, regrets / total.clamp(min=1e-12), 1.0 / len(regrets))


def _learnt(regrets: Tensor, average: Tensor, plan: Tensor, values: Tensor, reach: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value = (plan * values).sum(0)
    return value, (regrets + values - value).clamp(min=0.0), average + turn * reach * plan


class River:
    """Both players' hands, and which of them cannot be held at once."""

    def __init__(self, cards: int, sizes: tuple[float, ...], raises: int, device: torch.device, compiler: Callable[..., Any] | None) -> None:
        hands = torch.tensor(list(itertools.combinations(range(cards), 2)), device=device)
        self.hands = len(hands)
        shared = (hands[:, None, :, None] == hands[None, :, None, :]).any(-1).any(-1)
        strength = torch.randint(self.hands // 3, (self.hands,), device=device)
        self.possible = (~shared).float()
        self.beats = torch.sign(strength[:, None] - strength).float() * self.possible
        self.matching = compiler(_matching) if compiler else _matching
        self.learnt = compiler(_learnt) if compiler else _learnt
        self.turn, self.worth = torch.ones((), device=device), torch.zeros((), device=device)
        self.even = torch.full((self.hands,), 1.0 / self.hands, device=device)
        self.root = _betting(0, (50.0, 50.0), raises, sizes, False)
        self._give(self.root, device)

    def _give(self, spot: Spot, device: torch.device) -> None:
        if spot.after:
            spot.regrets, spot.average = torch.zeros(2, len(spot.after), self.hands, device=device).unbind()
        for child in spot.after:
            self._give(child, device)

    def worth_of(self, spot: Spot, me: int, mine: Tensor, theirs: Tensor) -> Tensor:
        """What each of my hands wins from here, while what I should rather have done is written down."""
        if spot.folded is not None:
            return (spot.put[spot.folded] if spot.folded != me else -spot.put[me]) * (self.possible @ theirs)
        if spot.player is None:
            return spot.put[me] * (self.beats @ theirs)
        plan = self.matching(spot.regrets)
        if spot.player != me:
            worth = [self.worth_of(child, me, mine, theirs * part) for child, part in zip(spot.after, plan, strict=True)]
            return torch.stack(worth).sum(0)
        values = torch.stack([self.worth_of(child, me, mine * part, theirs) for child, part in zip(spot.after, plan, strict=True)])
        value, regrets, average = self.learnt(spot.regrets, spot.average, plan, values, mine, self.turn)
        spot.regrets.copy_(regrets)
        spot.average.copy_(average)
        return value

    @torch.no_grad()
    def iterate(self) -> None:
        for me in (0, 1):
            value = self.worth_of(self.root, me, self.even, self.even)
            if me == 0:
                self.worth.copy_(value @ self.even)
        self.turn.add_(1.0)


def river_regrets(s: Setup, *, graphed: bool = False, compiled: bool = False, log: bool = True) -> Step:
    """One iteration of CFR+; what the game is worth to whoever acts first is logged."""
    game = River(s.size(47, 6), (0.5, 1.0, 2.0)[: s.size(3, 1)], s.size(3, 2), s.device, s.compile if compiled else None)
    iterate: Step = capture(game.iterate, s) if graphed else game.iterate
    worths: list[float] = []

    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        iterate()
        if log:
            worths.append(game.worth.item())
        return game.worth

    return step


PROGRAM = written(
    "river_regrets",
    "One iteration of CFR+ over a tree of bets, 1081 hands at each of its spots, by recursion; the game's worth is read in each.",
    "the iteration as a CUDA graph; torch.compile of regret matching and of what is learnt; the worth is not read",
    river_regrets,
    {"graph-candidate": {"graphed": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"log": False}},
)
