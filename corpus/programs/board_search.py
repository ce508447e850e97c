"""launch-gap"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


class BoardNet(nn.Module):
    def __init__(self, width: int, depth: int, squares: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
            )
            for _ in range(depth)
        )  # fmt: skip
        self.policy = nn.Sequential(nn.Conv2d(width, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * squares, squares))
        self.value = nn.Sequential(nn.Conv2d(width, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(squares, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh())

    def forward(self, board: Tensor) -> Tensor:
        x = F.relu(self.first(board))
        for block in self.blocks:
            x = F.relu(x + block(x))
        return torch.cat([self.policy(x).softmax(1), self.value(x)], 1)


class Position:
    def __init__(self, prior: Any, listed: bool) -> None:
        self.prior = prior.tolist() if listed else prior
        self.visits: Any = [0] * len(prior) if listed else np.zeros(len(prior))
        self.total: Any = [0.0] * len(prior) if listed else np.zeros(len(prior))
        self.after: dict[int, Position] = {}
        self.listed, self.seen = listed, 0

    def choose(self) -> int:
        root = math.sqrt(self.seen + 1)
        if not self.listed:
            score = self.total / np.maximum(self.visits, 1) + 1.5 * self.prior * root / (1 + self.visits)
            return int(np.where(self.prior > 0, score, -np.inf).argmax())
        best, move = -math.inf, 0
        for i, prior in enumerate(self.prior):
            if prior <= 0:
                continue
            mean = self.total[i] / self.visits[i] if self.visits[i] else 0.0
            score = mean + 1.5 * prior * root / (1 + self.visits[i])
            if score > best:
                best, move = score, i
        return move


def board_search(s: Setup, *, compiled: bool = False, listed: bool = True, autocast: bool = False) -> Step:
    side = s.size(9, 4)
    squares = side * side
    model = BoardNet(s.size(64, 8), s.size(5, 1), squares).to(s.device).eval().requires_grad_(False)
    net = s.compile(model, mode="reduce-overhead") if compiled else model
    rng, stones = np.random.default_rng(0), [np.zeros(squares, np.float32)]

    def ask(board: Any, player: float) -> tuple[Position, float]:
        planes = np.stack([board == player, board == -player, np.full(squares, player > 0)]).astype(np.float32).reshape(1, 3, side, side)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            out = net(torch.from_numpy(planes).to(s.device)).float().cpu().numpy()[0]
        prior = (out[:-1].astype(np.float64) + 1e-6) * (board == 0)
        return Position(prior / prior.sum(), listed), float(out[-1])

    @torch.no_grad()
    def step() -> int:
        if (stones[0] == 0).sum() < squares // 2:
            stones[0] = np.zeros(squares, np.float32)
        player = 1.0 if (stones[0] != 0).sum() % 2 == 0 else -1.0
        root, _ = ask(stones[0], player)
        for _ in range(s.size(24, 3)):
            node, board, turn, path = root, stones[0].copy(), player, []
            while True:
                move = node.choose()
                path.append((node, move))
                board[move], turn = turn, -turn
                if move not in node.after:
                    break
                node = node.after[move]
            if (board == 0).any():
                node.after[move], value = ask(board, turn)
            else:
                value = 0.0
            for node, move in reversed(path):
                value = -value
                node.seen += 1
                node.visits[move] += 1
                node.total[move] += value
        visits = np.asarray(root.visits, dtype=np.float64)
        chosen = int(rng.choice(squares, p=visits / visits.sum()))
        stones[0] = stones[0].copy()
        stones[0][chosen] = player
        return chosen

    return step


PROGRAM = written_pair(
    "board_search",
    "launch-gap",
    "A tree search of 24 positions, each by a small convolutional network in FP32; children are compared in a Python loop.",
    "torch.compile(mode='reduce-overhead')",
    board_search,
    {"compiled": True},
    alone={"host-bound": {"listed": False}, "precision": {"autocast": True}},
    top=("launch-gap", "graph-candidate", "sync-stall"),
)
