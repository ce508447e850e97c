"""Veins of a palm by photoacoustic tomography, a truck that reverses its trailer by MPPI, and a graph network that learns how grains flow
out of a silo, by an author who came from NumPy and MATLAB.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16


# Palm: a ring of sensors hears a flash of light; FISTA with positivity and total variation, by a matrix held in FP16 because of its size.


def ring_matrix(sensors: int, times: int, side: int, device: torch.device) -> Tensor:
    """One row for each sensor and sample, one column for each pixel: the bipolar pulse of a small absorber, late by its distance."""
    axis = torch.linspace(-1.0, 1.0, side, device=device)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    clock = torch.arange(times, device=device, dtype=torch.float32)[:, None]
    matrix = torch.empty(sensors * times, side * side, device=device, dtype=torch.float16)
    for n in range(sensors):
        angle = 2.0 * math.pi * n / sensors
        way = torch.sqrt((x - 1.6 * math.cos(angle)) ** 2 + (y - 1.6 * math.sin(angle)) ** 2).flatten()
        late = clock - (way - 0.1) / 3.0 * (times - 1)
        matrix[n * times : (n + 1) * times] = (late * torch.exp(-0.5 * late**2) / 16.0).half()
    return matrix


def variation_slope(image: Tensor, side: int, eps: float = 1e-2) -> Tensor:
    """The gradient of the smoothed total variation; a column for each slice."""
    u = image.T.reshape(-1, side, side)
    down, right = torch.zeros_like(u), torch.zeros_like(u)
    down[:, :-1] = u[:, 1:] - u[:, :-1]
    right[:, :, :-1] = u[:, :, 1:] - u[:, :, :-1]
    size = torch.sqrt(down**2 + right**2 + eps)
    down, right = down / size, right / size
    slope = -(down + right)
    slope[:, 1:] += down[:, :-1]
    slope[:, :, 1:] += right[:, :, :-1]
    return slope.reshape(len(u), -1).T


def palm_veins(
    s: Setup, *, half: bool = False, once: bool = False, autocast: bool = False, late: bool = False, more: int = 1
) -> Step:  # fmt: skip
    """Eight slices of a palm, eight iterations of FISTA; 128 sensors of 256 samples, 128 x 128 pixels."""
    sensors, times, side = s.size(128, 8), s.size(256, 16), s.size(128, 8)
    slices, iterations, weight = s.size(8, 2) * more, s.size(8, 3), 0.002
    stored = ring_matrix(sensors, times, side, s.device)
    with s.device:
        guess = torch.randn(side * side, 1)
        for _ in range(12):
            guess = (stored.T @ (stored @ guess.half())).float()
            largest = float(guess.norm())
            guess = guess / largest
    stride = 1.0 / (1.1 * largest + 8.0 * weight / math.sqrt(1e-2))
    recordings = []
    for _ in range(4):
        veins = F.interpolate(torch.rand(slices, 1, max(side // 8, 2), max(side // 8, 2), device=s.device), size=(side, side), mode="bilinear")
        veins = ((veins - 0.6).clamp(min=0.0) * 2.5).reshape(slices, -1).T
        heard = (stored @ veins.half()).float()
        recordings.append((heard + 0.05 * torch.randn_like(heard)).cpu().numpy())
    matrix = stored.float() if once else stored
    turn, shown = counter(), deque(maxlen=100)

    def forward(image: Tensor) -> Tensor:
        if half:
            return (matrix @ image.half()).float()
        return (matrix.float() @ image).float()

    def adjoint(sound: Tensor) -> Tensor:
        if half:
            return (matrix.T @ sound.half()).float()
        return (matrix.float().T @ sound).float()

    @torch.no_grad()
    def step() -> np.ndarray:
        torch.set_float32_matmul_precision("highest")
        heard = torch.from_numpy(recordings[next(turn) % 4]).to(s.device)
        image = torch.zeros(side * side, slices, device=s.device)
        ahead, t, misfits = image, 1.0, []
        for _ in range(iterations):
            with torch.autocast(s.device.type, BF16, enabled=autocast):
                residual = forward(ahead) - heard
                slope = adjoint(residual)
            following = (ahead - stride * (slope + weight * variation_slope(ahead, side))).clamp(min=0.0)
            after = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * t * t))
            ahead = following + (t - 1.0) / after * (following - image)
            image, t = following, after
            misfit = residual.norm() / heard.norm()
            misfits.append(misfit if late else float(misfit))
        shown.append(torch.stack(misfits).tolist() if late else misfits)  # The curve that goes below the picture.
        return image.T.reshape(slices, side, side).cpu().numpy()

    return step


# Trailer: a truck pushes its trailer backwards to a dock; the plan is MPPI, the truck itself is simulated in NumPy.

CAB, TRAILER, TICK = 3.2, 6.5, 0.1


def roll_on(slip: nn.Module, state: tuple[Tensor, ...], action: Tensor) -> tuple[Tensor, ...]:
    """x, y and yaw of the trailer, angle of the hitch, speed, steering; the tyres' slip is a small network."""
    x, y, yaw, hitch, speed, steer = state
    speed = torch.clamp(speed + TICK * action[..., 0], -2.0, 0.5)
    steer = torch.clamp(steer + TICK * action[..., 1], -0.6, 0.6)
    seen = torch.stack([speed, steer, hitch, torch.sin(yaw), torch.cos(yaw), action[..., 0], action[..., 1], speed * steer], -1)
    slips = 0.02 * slip(seen).float()
    along = speed * torch.cos(hitch) + slips[..., 0]
    turning = speed * torch.sin(hitch) / TRAILER
    x = x + TICK * along * torch.cos(yaw)
    y = y + TICK * along * torch.sin(yaw)
    yaw = yaw + TICK * (turning + slips[..., 1])
    hitch = torch.clamp(hitch + TICK * (speed * torch.tan(steer) / CAB - turning + slips[..., 2]), -1.4, 1.4)
    return x, y, yaw, hitch, speed, steer


def price(state: tuple[Tensor, ...], action: Tensor, aim: Tensor, posts: Tensor) -> Tensor:
    """aim: x, y, yaw and speed, for each truck."""
    x, y, yaw, hitch, speed, _steer = state
    off = (x - aim[..., 0]) ** 2 + (y - aim[..., 1]) ** 2
    turned = 1.0 - torch.cos(yaw - aim[..., 2])
    folded = torch.relu(torch.abs(hitch) - 0.9) ** 2
    gap = torch.sqrt((x[..., None] - posts[:, 0]) ** 2 + (y[..., None] - posts[:, 1]) ** 2)
    hit = torch.sum(torch.relu(1.5 - gap) ** 2, -1)
    effort = torch.sum(action**2, -1)
    return off + 4.0 * turned + 60.0 * folded + 40.0 * hit + 0.5 * (speed - aim[..., 3]) ** 2 + 0.02 * effort


def trailer_reversing(
    s: Setup,
    *,
    graphed: bool = False,
    whole: bool = False,
    compiled: bool = False,
    hoisted: bool = False,
    late: bool = False,
    autocast: bool = False,
    trucks: int = 1,
) -> Step:
    """4096 plans of 20 ticks for a truck, one tick of control a step."""
    plans, horizon, length = s.size(4096, 8), s.size(20, 3), 400
    heat, hidden = 0.2, s.size(64, 8)
    with s.device:
        slip = nn.Sequential(nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 3)).eval()
        posts = torch.tensor([[-4.0, 3.5], [-9.0, -3.0], [-16.0, 5.0], [-22.0, -4.5], [-30.0, 6.0], [-36.0, 1.0]])
        width = torch.tensor([0.6, 1.6])
        mean, noted = torch.zeros(trucks, horizon, 2), torch.zeros(3)
        held_state, held_aims = torch.zeros(trucks, 6), torch.zeros(horizon, trucks, 1, 4)
    way = np.linspace(0.0, 1.0, length + horizon)
    bend = 2.0 * np.pi * way
    path = np.stack([-40.0 * way, 2.5 * np.sin(bend), np.arctan2(-5.0 * np.pi * np.cos(bend), 40.0), -np.ones_like(way)], 1)
    rng = np.random.default_rng(46)
    places = rng.integers(0, length, trucks)
    trailers = np.zeros((trucks, 6))
    trailers[:, :3] = path[places, :3]
    roll, cost_of = (s.compile(roll_on, dynamic=False), s.compile(price, dynamic=False)) if compiled else (roll_on, price)
    history: deque[object] = deque(maxlen=100)
    turn, recent = counter(), {"best": 0.0, "effective": 0.0, "average": 0.0}

    def costs_of(start: Tensor, actions: Tensor, aims: Tensor | list[list[list[list[float]]]]) -> Tensor:
        state = tuple(part[:, None].expand(trucks, plans) for part in start.unbind(1))
        total = torch.zeros(trucks, plans, device=s.device)
        for k in range(horizon):
            aim = aims[k] if isinstance(aims, Tensor) else torch.tensor(aims[k], device=s.device)
            state = roll(slip, state, actions[:, :, k])
            total = total + cost_of(state, actions[:, :, k], aim, posts)
        return total

    rollout = s.compile(costs_of, dynamic=False, mode="reduce-overhead") if whole else costs_of

    def plan(start: Tensor, aims: Tensor | list[list[list[list[float]]]]) -> tuple[Tensor, Tensor]:
        noise = torch.randn(trucks, plans, horizon, 2, device=s.device) * width
        actions = torch.clamp(mean[:, None] + noise, -2.0, 2.0)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            costs = rollout(start, actions, aims)
        best = costs.min(1, keepdim=True).values
        weights = torch.exp(-(costs - best) / heat)
        weights = weights / weights.sum(1, keepdim=True)
        better = torch.sum(weights[:, :, None, None] * actions, 1)
        mean.copy_(torch.cat([better[:, 1:], better[:, -1:]], 1))
        told = torch.stack([best.mean(), (1.0 / torch.sum(weights**2, 1)).mean(), costs.mean()])
        return better[:, 0], told

    out: list[Tensor] = []

    @torch.no_grad()
    def captured() -> None:
        out[:] = plan(held_state, held_aims)

    torch.set_float32_matmul_precision("highest")
    replay = capture(captured, s) if graphed else None

    def drive(action: np.ndarray) -> None:
        """The plant: the same truck without slip, in double precision, pushed by gusts."""
        x, y, yaw, hitch, speed, steer = trailers.T
        speed = np.clip(speed + TICK * action[:, 0], -2.0, 0.5)
        steer = np.clip(steer + TICK * action[:, 1], -0.6, 0.6)
        turning = speed * np.sin(hitch) / TRAILER
        along = TICK * speed * np.cos(hitch)
        x, y = x + along * np.cos(yaw), y + along * np.sin(yaw) + 0.005 * rng.standard_normal(trucks)
        yaw, hitch = yaw + TICK * turning, np.clip(hitch + TICK * (speed * np.tan(steer) / CAB - turning), -1.4, 1.4)
        trailers[:] = np.stack([x, y, yaw, hitch, speed, steer], 1)
        places[:] = (places + 1) % length
        lost = (places == 0) | (np.hypot(x - path[places, 0], y - path[places, 1]) > 4.0)
        trailers[lost] = 0.0
        trailers[lost, :3] = path[places[lost], :3]

    @torch.no_grad()
    def step() -> np.ndarray:
        torch.set_float32_matmul_precision("highest")
        now = next(turn)
        start = torch.tensor(trailers, dtype=torch.float32, device=s.device)
        window = path[places[None, :] + np.arange(horizon)[:, None]][:, :, None].astype(np.float32)
        # Code that is compiled as a whole, or captured, takes the aims as one tensor: numbers in it would be constants.
        aims = torch.from_numpy(window).to(s.device) if hoisted or whole or graphed else window.tolist()
        if replay:
            held_state.copy_(start)
            held_aims.copy_(aims)
            replay()
            action, told = out
        else:
            action, told = plan(start, aims)
        command = action.cpu().numpy().astype(np.float64)
        if late:
            noted.add_(told)
            if now % 50 == 49:
                recent.update(zip(recent, [value / 50 for value in noted.tolist()], strict=True))
                noted.zero_()
        else:
            recent.update(best=told[0].item(), effective=told[1].item(), average=told[2].item())
        history.append(dict(recent))
        drive(command)
        return command

    return step


# Silo: a graph network learns the next acceleration of each grain from its last six places and its nearest neighbours.


class Zscore(nn.Module):
    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5)
        mean = x.mean(-1, keepdim=True)
        var = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias


def perceptron(inner: int, hidden: int, fused: bool) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inner, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), Zscore(hidden, fused))


class Grains(nn.Module):
    def __init__(self, seen: int, hidden: int, layers: int, fused: bool) -> None:
        super().__init__()
        self.kinds = nn.Embedding(4, 16)
        self.node_in, self.edge_in = perceptron(seen + 16, hidden, fused), perceptron(3, hidden, fused)
        self.edges = nn.ModuleList(perceptron(3 * hidden, hidden, fused) for _ in range(layers))
        self.nodes = nn.ModuleList(perceptron(2 * hidden, hidden, fused) for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, seen: Tensor, kind: Tensor, apart: Tensor, sender: Tensor, receiver: Tensor) -> Tensor:
        node = self.node_in(torch.cat([seen, self.kinds(kind)], 1))
        edge = self.edge_in(apart)
        for to_edge, to_node in zip(self.edges, self.nodes, strict=True):
            message = to_edge(torch.cat([edge, node[sender], node[receiver]], 1))
            heard = torch.zeros(node.shape, device=node.device).index_add(0, receiver, message.float())
            node = node + to_node(torch.cat([node, heard], 1))
            edge = edge + message
        return self.out(node).float()


def silo_grains(
    s: Setup,
    *,
    autocast: bool = False,
    tf32: bool = False,
    norm: bool = False,
    compiled: bool = False,
    late: bool = False,
    fused: bool = False,
) -> Step:
    """Training on two scenes of 6000 grains with 12 neighbours each, eight rounds of messages, FP32."""
    scenes, grains, near, past = s.size(2, 2), s.size(6000, 20), s.size(12, 3), s.size(6, 3)
    frames, noise, radius = s.size(40, 8), 3e-4, 0.015
    rng = np.random.default_rng(64)
    # As they come from the discrete element code: doubles; frames, grains, x and y.
    starts = rng.random((4, 1, grains, 2))
    films = starts + np.cumsum(np.cumsum(1e-5 * rng.standard_normal((4, frames, grains, 2)), 1) - np.array([0.0, 4e-4]), 1)
    kinds = rng.integers(0, 4, (4, grains))
    with s.device:
        model = Grains(2 * (past - 1) + 4, s.size(128, 8), s.size(8, 2), norm).train()
        receiver = torch.arange(scenes * grains).repeat_interleave(near)
        shift = (torch.arange(scenes) * grains)[:, None, None]
        noted = torch.zeros(3)
    run = s.compile(model, dynamic=False) if compiled else model
    weights = list(model.parameters())
    optimizer = torch.optim.Adam(weights, lr=1e-4, **({"fused": True} if fused else {}))
    turn, history = counter(), deque(maxlen=100)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        film, first = rng.integers(0, 4, scenes), rng.integers(0, frames - past, scenes)
        window = np.stack([films[f, a : a + past + 1] for f, a in zip(film, first, strict=True)])
        places = torch.from_numpy(window).float().to(s.device)
        return places[:, :past], places[:, past], torch.from_numpy(kinds[film]).to(s.device).flatten()

    @torch.no_grad()
    def graph(last: Tensor) -> tuple[Tensor, Tensor]:
        far = torch.cdist(last, last)
        sender = (far.topk(near + 1, dim=-1, largest=False).indices[..., 1:] + shift).flatten()
        flat = last.flatten(0, 1)
        apart = (flat[sender] - flat[receiver]) / radius
        return sender, torch.cat([apart, torch.sqrt(torch.sum(apart**2, 1, keepdim=True))], 1)

    def step() -> object:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        now = next(turn)
        places, target, kind = batch()
        # A random walk of the velocities, as in rollouts errors add up.
        walk = torch.cumsum(torch.cumsum(noise / past**0.5 * torch.randn_like(places), 1), 1)
        places, target = places + walk, target + walk[:, -1]
        last, speeds = places[:, -1], places[:, 1:] - places[:, :-1]
        sender, apart = graph(last)
        walls = torch.clamp(torch.cat([last, 1.0 - last], -1) / radius, -1.0, 1.0)
        seen = torch.cat([speeds.transpose(1, 2).flatten(2) / 1e-3, walls], -1).flatten(0, 1)
        wanted = ((target - last - speeds[:, -1]) / noise).flatten(0, 1)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = run(seen, kind, apart, sender, receiver)
        moving = (kind != 3).float()[:, None]  # The walls' own grains stay.
        loss = torch.sum(moving * (guess - wanted) ** 2) / moving.sum()
        optimizer.zero_grad()
        loss.backward()
        norm_of = nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.param_groups[0]["lr"] = 1e-6 + 1e-4 * 0.1 ** (now / 50_000)
        optimizer.step()
        with torch.no_grad():
            error = noise * torch.sqrt(torch.mean(moving * (guess - wanted) ** 2))
        if late:
            noted.add_(torch.stack([loss.detach(), norm_of, error]))
            if now % 50 == 49:
                history.append([value / 50 for value in noted.tolist()])
                noted.zero_()
        else:
            history.append([loss.item(), norm_of.item(), error.item()])
        return history

    return step


WORKLOADS = (
    written(
        "palm_veins",
        "Photoacoustic tomography of eight slices by FISTA, eight iterations; a matrix of 32768 x 16384 in FP16, made FP32 for each product.",
        "products in FP16; a matrix in FP32 from the start; bf16 autocast; misfits read once at the end; 32 slices a step",
        palm_veins,
        {
            "dtype-casts": {"half": True}, "dtype-casts/once": {"once": True}, "precision": {"autocast": True},
            "sync-stall": {"late": True}, "low-arithmetic-intensity": {"more": 4},
        },
        shared={"low-arithmetic-intensity": 4.0},
    ),
    written(
        "trailer_reversing",
        "MPPI for a truck with a trailer: 4096 plans of 20 ticks by small ops and a small network, aims copied at each tick; plant in NumPy.",
        "CUDA graph of a plan; torch.compile of all ticks into CUDA graphs; torch.compile of one tick; aims copied at once; "
        "numbers read every 50 steps; bf16 autocast; eight trucks a step",
        trailer_reversing,
        {
            "graph-candidate": {"graphed": True}, "launch-gap": {"whole": True}, "unfused-elementwise": {"compiled": True},
            "memcpy": {"hoisted": True}, "sync-stall": {"late": True}, "precision": {"autocast": True}, "low-arithmetic-intensity": {"trucks": 8},
        },
        shared={"low-arithmetic-intensity": 8.0},
    ),
    written(
        "silo_grains",
        "A graph network in training on 12,000 grains and 144,000 edges, FP32, norms written out; losses read in each step.",
        "bf16 autocast; TF32; layer_norm; torch.compile of the model; losses read every 50 steps; fused Adam",
        silo_grains,
        {
            "precision": {"autocast": True}, "precision/tf32": {"tf32": True}, "unfused-norm": {"norm": True},
            "unfused-elementwise": {"compiled": True}, "sync-stall": {"late": True}, "optimizer-foreach": {"fused": True},
        },
    ),
)  # fmt: skip
