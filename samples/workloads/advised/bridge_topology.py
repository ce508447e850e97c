"""Topology optimisation of a bridge: where to leave material so that it is as stiff as can be with a third of the volume.

The SIMP method on a grid of bilinear square elements in double precision, after the well-known 88 lines. The deck carries a lorry that stands at
one of several places, each a load case of its own. The equilibrium is solved without a matrix, by conjugate gradients that start from the
last design's displacements; sensitivities are filtered by a cone, and the optimality criteria update the densities, with a bisection
for the multiplier of the volume. The penalty grows from 1 to 3 in the first rounds. One step is one round of the optimisation.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..base import Setup, Step, capture


def element_stiffness(poisson: float = 0.3) -> np.ndarray:
    """The 8 x 8 stiffness of a unit square in plane stress, with Young's modulus 1."""
    nu = poisson
    k = np.array([1 / 2 - nu / 6, 1 / 8 + nu / 8, -1 / 4 - nu / 12, -1 / 8 + 3 * nu / 8, -1 / 4 + nu / 12, -1 / 8 - nu / 8, nu / 6, 1 / 8 - 3 * nu / 8])
    order = [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 7, 6, 5, 4, 3, 2],
        [2, 7, 0, 5, 6, 3, 4, 1],
        [3, 6, 5, 0, 7, 2, 1, 4],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [5, 4, 3, 2, 1, 0, 7, 6],
        [6, 3, 4, 1, 2, 7, 0, 5],
        [7, 2, 1, 4, 3, 6, 5, 0],
    ]
    return k[np.array(order)] / (1 - nu**2)


class Mesh:
    """Nodes are numbered down the columns, as are elements; node n has the degrees of freedom 2n (to the right) and 2n + 1 (upwards)."""

    def __init__(self, nelx: int, nely: int, device: torch.device) -> None:
        self.nelx, self.nely, self.device = nelx, nely, device
        self.dofs = 2 * (nelx + 1) * (nely + 1)
        nodes = np.arange((nelx + 1) * (nely + 1)).reshape(nelx + 1, nely + 1)
        first = 2 * nodes[:-1, :-1].reshape(-1, 1) + 2  # the lower left corner of each element
        down = 2 * (nely + 1)
        edofs = first + np.array([0, 1, down, down + 1, down - 2, down - 1, -2, -1])
        self.edofs = torch.from_numpy(edofs).to(device)  # (elements, 8)
        self.flat = self.edofs.reshape(-1)
        self.ke = torch.from_numpy(element_stiffness()).to(device)
        self.free = torch.ones(self.dofs, dtype=torch.float64, device=device)

    def node(self, column: int, row: int) -> int:
        return column * (self.nely + 1) + row

    def fix(self, dofs: list[int]) -> None:
        self.free[torch.tensor(dofs, device=self.device)] = 0.0

    def apply(self, modulus: Tensor, u: Tensor) -> Tensor:
        """K u for displacements (cases, dofs)."""
        forces = (u[:, self.edofs] @ self.ke) * modulus[None, :, None]
        out = torch.zeros_like(u).index_add_(1, self.flat, forces.flatten(1))
        return out * self.free

    def diagonal(self, modulus: Tensor) -> Tensor:
        values = modulus[:, None] * self.ke.diagonal()[None, :]
        out = torch.zeros(self.dofs, dtype=torch.float64, device=self.device).index_add_(0, self.flat, values.flatten())
        return torch.where(self.free > 0, out, torch.ones_like(out))

    def energy(self, u: Tensor) -> Tensor:
        """Strain energy of each element at modulus 1, summed over the load cases."""
        ue = u[:, self.edofs]
        return ((ue @ self.ke) * ue).sum(dim=(0, 2))


def conjugate_gradients(mesh: Mesh, modulus: Tensor, loads: Tensor, u: Tensor, tolerance: float, limit: int) -> tuple[Tensor, int, float]:
    """Solves for all load cases at once, with Jacobi preconditioning, until the worst relative residual is below the tolerance."""
    inverse = 1.0 / mesh.diagonal(modulus)
    size = loads.norm(dim=1)
    r = loads - mesh.apply(modulus, u)
    z = inverse * r
    p = z.clone()
    rz = (r * z).sum(dim=1, keepdim=True)
    residual, iteration = (r.norm(dim=1) / size).max().item(), 0
    while residual > tolerance and iteration < limit:
        kp = mesh.apply(modulus, p)
        alpha = rz / (p * kp).sum(dim=1, keepdim=True)
        u = u + alpha * p
        r = r - alpha * kp
        z = inverse * r
        rz_new = (r * z).sum(dim=1, keepdim=True)
        p = z + (rz_new / rz) * p
        rz = rz_new
        residual = (r.norm(dim=1) / size).max().item()
        iteration += 1
    return u, iteration, residual


class ConeFilter:
    """Sigmund's filter of the sensitivities: a mean over neighbours, weighted by a cone and by their densities."""

    def __init__(self, radius: float, mesh: Mesh) -> None:
        reach = int(np.ceil(radius)) - 1
        offsets = np.arange(-reach, reach + 1)
        cone = np.maximum(0.0, radius - np.hypot(offsets[:, None], offsets[None, :]))
        self.shape = (1, 1, mesh.nelx, mesh.nely)
        self.reach = reach
        self.kernel = torch.from_numpy(cone)[None, None].to(mesh.device)
        self.total = self.convolve(torch.ones(mesh.nelx * mesh.nely, dtype=torch.float64, device=mesh.device))

    def convolve(self, values: Tensor) -> Tensor:
        return F.conv2d(values.view(self.shape), self.kernel, padding=self.reach).flatten()

    def __call__(self, x: Tensor, dc: Tensor) -> Tensor:
        return self.convolve(x * dc) / (self.total * x.clamp(min=1e-3))


def optimality_criteria(x: Tensor, dc: Tensor, solid: Tensor, volume: float, move: float = 0.2) -> Tensor:
    low, high = 0.0, 1e9
    lower, upper = (x - move).clamp(min=0.0), (x + move).clamp(max=1.0)
    new = x
    while (high - low) / (low + high) > 1e-3:
        middle = 0.5 * (low + high)
        new = torch.minimum(torch.maximum(x * torch.sqrt(-dc / middle), lower), upper)
        new = torch.where(solid, torch.ones_like(new), new)
        if new.mean() > volume:
            low = middle
        else:
            high = middle
    return new


def cg_start(mesh: Mesh, modulus: Tensor, loads: Tensor, size: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    inverse = 1.0 / mesh.diagonal(modulus)
    r = loads - mesh.apply(modulus, u)
    z = inverse * r
    rz = (r * z).sum(dim=1, keepdim=True)
    return inverse, r, z, rz, (r.norm(dim=1) / size).max()


def cg_pass(
    mesh: Mesh, modulus: Tensor, inverse: Tensor, size: Tensor, u: Tensor, r: Tensor, p: Tensor, rz: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    kp = mesh.apply(modulus, p)
    alpha = rz / (p * kp).sum(dim=1, keepdim=True)
    u = u + alpha * p
    r = r - alpha * kp
    z = inverse * r
    rz_new = (r * z).sum(dim=1, keepdim=True)
    p = z + (rz_new / rz) * p
    return u, r, p, rz_new, (r.norm(dim=1) / size).max()


def cg_masked_pass(
    mesh: Mesh, modulus: Tensor, inverse: Tensor, size: Tensor, u: Tensor, r: Tensor, p: Tensor, rz: Tensor, state: Tensor, tolerance: float, limit: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As cg_pass, but once it has converged nothing changes any more. `state` holds the residual and the number of passes."""
    active = (state[0] > tolerance) & (state[1] < limit)
    new_u, r, p, rz, residual = cg_pass(mesh, modulus, inverse, size, u, r, p, rz)
    state = torch.where(active, torch.stack((residual, state[1] + 1)), state)
    return torch.where(active, new_u, u), r, p, rz, state


def oc_pass(x: Tensor, dc: Tensor, solid: Tensor, lower: Tensor, upper: Tensor, middle: Tensor, volume: float) -> tuple[Tensor, Tensor]:
    new = torch.minimum(torch.maximum(x * torch.sqrt(-dc / middle), lower), upper)
    new = torch.where(solid, torch.ones_like(new), new)
    return new, new.mean() > volume


def oc_masked_pass(
    x: Tensor, dc: Tensor, solid: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, new: Tensor, volume: float
) -> tuple[Tensor, Tensor, Tensor]:
    active = (high - low) / (low + high) > 1e-3
    middle = 0.5 * (low + high)
    candidate, above = oc_pass(x, dc, solid, lower, upper, middle, volume)
    new = torch.where(active, candidate, new)
    return torch.where(active & above, middle, low), torch.where(active & ~above, middle, high), new


def conjugate_gradients_late(
    mesh: Mesh, modulus: Tensor, loads: Tensor, u: Tensor, tolerance: float, limit: int, every: int = 16
) -> tuple[Tensor, int, float]:
    """As conjugate_gradients, but the residuals are read every so many passes; the answer is that of the first pass that was good enough."""
    size = loads.norm(dim=1)
    inverse, r, p, rz, worst = cg_start(mesh, modulus, loads, size, u)
    iteration = 0
    displacements, residuals = [u], [worst]  # of the passes that have not been looked at yet, and of the one before
    while True:
        for _ in range(min(every, limit - iteration)):
            u, r, p, rz, worst = cg_pass(mesh, modulus, inverse, size, u, r, p, rz)
            displacements.append(u)
            residuals.append(worst)
        values = torch.stack(residuals).tolist()
        first = next((n for n, value in enumerate(values) if not value > tolerance), None)
        if first is not None:
            return displacements[first], iteration + first, values[first]
        iteration += len(values) - 1
        if iteration >= limit:
            return u, iteration, values[-1]
        displacements, residuals = [u], [worst]


def optimality_criteria_late(x: Tensor, dc: Tensor, solid: Tensor, volume: float, move: float = 0.2, every: int = 12) -> Tensor:
    """As optimality_criteria, but the bisection stays on the device, and whether it is over is asked every so many passes."""
    low, high = torch.zeros((), dtype=x.dtype, device=x.device), torch.full((), 1e9, dtype=x.dtype, device=x.device)
    lower, upper = (x - move).clamp(min=0.0), (x + move).clamp(max=1.0)
    while True:
        news, lows, highs = [], [], []
        for _ in range(every):
            middle = 0.5 * (low + high)
            new, above = oc_pass(x, dc, solid, lower, upper, middle, volume)
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
            news.append(new)
            lows.append(low)
            highs.append(high)
        all_low, all_high = torch.stack(lows), torch.stack(highs)
        goes_on = ((all_high - all_low) / (all_low + all_high) > 1e-3).tolist()
        if False in goes_on:
            return news[goes_on.index(False)]


class GraphedSolvers:
    """The two loops of a round, in graphs of several passes each; the host looks between graphs only."""

    def __init__(self, s: Setup, mesh: Mesh, loads: Tensor, solid: Tensor, volume: float, tolerance: float, limit: int) -> None:
        self.tolerance, self.limit, self.volume, self.size = tolerance, limit, volume, loads.norm(dim=1)
        elements, cases = mesh.nelx * mesh.nely, len(loads)
        real = {"dtype": torch.float64, "device": s.device}
        self.mesh, self.loads = mesh, loads
        self.start, masked_pass, masked_oc = s.compile(cg_start), s.compile(cg_masked_pass), s.compile(oc_masked_pass)
        modulus, inverse, rz, state = torch.ones(elements, **real), torch.ones(mesh.dofs, **real), torch.ones(cases, 1, **real), torch.ones(2, **real)
        u, r, p = torch.zeros_like(loads), loads.clone(), loads.clone()
        self.cg = (modulus, inverse, u, r, p, rz, state)
        x, dc, lower, upper, new = (torch.full((elements,), value, **real) for value in (0.5, -1.0, 0.3, 0.7, 0.5))
        low, high = torch.zeros((), **real), torch.full((), 1e9, **real)
        self.oc = (x, dc, lower, upper, low, high, new)

        def cg_passes() -> None:
            vectors = (u, r, p, rz, state)
            for _ in range(20):
                vectors = masked_pass(mesh, modulus, inverse, self.size, *vectors, tolerance, limit)
            for kept, value in zip((u, r, p, rz, state), vectors, strict=False):
                kept.copy_(value)

        def oc_passes() -> None:
            bounds = (low, high, new)
            for _ in range(16):
                bounds = masked_oc(x, dc, solid, lower, upper, *bounds, volume)
            for kept, value in zip((low, high, new), bounds, strict=False):
                kept.copy_(value)

        with torch.no_grad():
            self.cg_passes, self.oc_passes = capture(cg_passes, s), capture(oc_passes, s)

    def conjugate_gradients(self, modulus_now: Tensor, start: Tensor) -> tuple[Tensor, int, float]:
        modulus, inverse, u, r, p, rz, state = self.cg
        modulus.copy_(modulus_now)
        first = self.start(self.mesh, modulus, self.loads, self.size, start)
        u.copy_(start)
        inverse.copy_(first[0])
        r.copy_(first[1])
        p.copy_(first[2])
        rz.copy_(first[3])
        state.zero_()
        state[0].copy_(first[4])
        while True:
            self.cg_passes()
            residual, passes = state.tolist()
            if not residual > self.tolerance or passes >= self.limit:
                return u.clone(), int(passes), residual

    def optimality_criteria(self, x_now: Tensor, dc_now: Tensor, move: float = 0.2) -> Tensor:
        x, dc, lower, upper, low, high, new = self.oc
        x.copy_(x_now)
        dc.copy_(dc_now)
        lower.copy_((x - move).clamp(min=0.0))
        upper.copy_((x + move).clamp(max=1.0))
        low.zero_()
        high.fill_(1e9)
        while True:
            self.oc_passes()
            if not (high - low) / (low + high) > 1e-3:
                return new.clone()


class CompiledSolvers:
    """The loops as they are, with each pass compiled; the numbers that change are handed in as tensors."""

    def __init__(self, s: Setup, mesh: Mesh) -> None:
        self.mesh, self.start, self.cg_pass, self.oc_pass = mesh, s.compile(cg_start), s.compile(cg_pass), s.compile(oc_pass)

    def conjugate_gradients(self, modulus: Tensor, loads: Tensor, u: Tensor, tolerance: float, limit: int) -> tuple[Tensor, int, float]:
        size = loads.norm(dim=1)
        inverse, r, p, rz, worst = self.start(self.mesh, modulus, loads, size, u)
        residual, iteration = worst.item(), 0
        while residual > tolerance and iteration < limit:
            u, r, p, rz, worst = self.cg_pass(self.mesh, modulus, inverse, size, u, r, p, rz)
            residual = worst.item()
            iteration += 1
        return u, iteration, residual

    def optimality_criteria(self, x: Tensor, dc: Tensor, solid: Tensor, volume: float, move: float = 0.2) -> Tensor:
        low, high = 0.0, 1e9
        lower, upper = (x - move).clamp(min=0.0), (x + move).clamp(max=1.0)
        new = x
        while (high - low) / (low + high) > 1e-3:
            middle = 0.5 * (low + high)
            new, above = self.oc_pass(x, dc, solid, lower, upper, torch.full((), middle, dtype=x.dtype, device=x.device), volume)
            if above:
                low = middle
            else:
                high = middle
        return new


def stiffness(x: Tensor, penalty: Tensor, stiff: float, void: float) -> Tensor:
    return void + x**penalty * (stiff - void)


def sensitivities(mesh: Mesh, smooth: ConeFilter, x: Tensor, u: Tensor, modulus: Tensor, penalty: Tensor, stiff: float, void: float) -> tuple[Tensor, Tensor]:
    energy = mesh.energy(u)
    dc = -penalty * (stiff - void) * x ** (penalty - 1) * energy
    return (modulus * energy).sum(), smooth(x, dc).clamp(max=0.0)


def summary(new: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (new - x).abs().max(), (4 * new * (1 - new)).mean(), new.mean()


def several_designs(s: Setup, mesh: Mesh, loads: Tensor, solid: Tensor, first: Tensor, volumes: list[float], smooth: ConeFilter, stiff: float, void: float) -> Step:
    """A study of several designs at once, which differ in the volume that they may use: each has its densities, and all share the mesh and the loads."""
    count, _cases = len(volumes), len(loads)
    volume = torch.tensor(volumes, dtype=torch.float64, device=s.device)
    x = torch.where(solid, 1.0, volume[:, None].expand(-1, len(first)))
    loads = loads.repeat(count, 1, 1)  # (designs, cases, dofs)
    size = loads.norm(dim=2)
    u = torch.zeros_like(loads)
    ones = torch.ones_like(first)
    tolerance, limit = 1e-5, s.size(500, 30)
    rounds = 0
    history: list[list[dict[str, float]]] = []

    def apply(modulus: Tensor, v: Tensor) -> Tensor:
        forces = (v[:, :, mesh.edofs] @ mesh.ke) * modulus[:, None, :, None]
        return torch.zeros_like(v).index_add_(2, mesh.flat, forces.flatten(2)) * mesh.free

    def solve(modulus: Tensor, v: Tensor) -> tuple[Tensor, list[int], list[float]]:
        values = modulus[:, :, None] * mesh.ke.diagonal()
        diagonal = torch.zeros(count, mesh.dofs, dtype=torch.float64, device=s.device).index_add_(1, mesh.flat, values.flatten(1))
        inverse = 1.0 / torch.where(mesh.free > 0, diagonal, torch.ones_like(diagonal))[:, None]
        r = loads - apply(modulus, v)
        z = inverse * r
        p = z.clone()
        rz = (r * z).sum(dim=2, keepdim=True)
        residuals = (r.norm(dim=2) / size).amax(dim=1).tolist()
        done, passes, left = [v[n] for n in range(count)], [0] * count, residuals
        running, iteration = [n for n in range(count) if residuals[n] > tolerance], 0
        while running and iteration < limit:
            kp = apply(modulus, p)
            alpha = rz / (p * kp).sum(dim=2, keepdim=True)
            v = v + alpha * p
            r = r - alpha * kp
            z = inverse * r
            rz_new = (r * z).sum(dim=2, keepdim=True)
            p = z + (rz_new / rz) * p
            rz = rz_new
            residuals = (r.norm(dim=2) / size).amax(dim=1).tolist()
            iteration += 1
            for n in list(running):
                if not residuals[n] > tolerance or iteration == limit:
                    done[n], passes[n], left[n] = v[n], iteration, residuals[n]
                    running.remove(n)
        return torch.stack(done), passes, left

    def update(dc: Tensor, move: float = 0.2) -> Tensor:
        low, high = [0.0] * count, [1e9] * count
        lower, upper = (x - move).clamp(min=0.0), (x + move).clamp(max=1.0)
        done = [x[n] for n in range(count)]
        running = list(range(count))
        while running:
            middle = [0.5 * (a + b) for a, b in zip(low, high, strict=False)]
            multiplier = s.pin(torch.tensor(middle, dtype=torch.float64)).to(s.device, non_blocking=True)[:, None]
            new = torch.minimum(torch.maximum(x * torch.sqrt(-dc / multiplier), lower), upper)
            new = torch.where(solid, ones, new)
            above = (new.mean(dim=1) > volume).tolist()
            for n in list(running):
                if above[n]:
                    low[n] = middle[n]
                else:
                    high[n] = middle[n]
                if not (high[n] - low[n]) / (low[n] + high[n]) > 1e-3:
                    done[n] = new[n]
                    running.remove(n)
        return torch.stack(done)

    def step() -> list[dict[str, float]]:
        nonlocal x, u, rounds
        penalty = min(1.0 + 0.05 * rounds, 3.0)
        modulus = void + x**penalty * (stiff - void)
        u, iterations, residual = solve(modulus, u)
        ue = u[:, :, mesh.edofs]
        energy = ((ue @ mesh.ke) * ue).sum(dim=(1, 3))
        compliance = (modulus * energy).sum(dim=1)
        dc = -penalty * (stiff - void) * x ** (penalty - 1) * energy
        planes = F.conv2d((x * dc).view(count, 1, mesh.nelx, mesh.nely), smooth.kernel, padding=smooth.reach).flatten(1)
        new = update((planes / (smooth.total * x.clamp(min=1e-3))).clamp(max=0.0))
        change, grey = (new - x).abs().amax(dim=1), (4 * new * (1 - new)).mean(dim=1)
        x = new
        rounds += 1
        columns = zip(compliance.tolist(), x.mean(dim=1).tolist(), change.tolist(), grey.tolist(), iterations, residual, strict=False)
        rows = [dict(zip(("compliance", "volume", "change", "grey", "iterations", "residual"), row, strict=False)) for row in columns]
        history.append(rows)
        return rows

    return step


def bridge_topology(s: Setup, *, compiled: bool = False, graphed: bool = False, late: bool = False, batched: bool = False) -> Step:
    nelx, nely = s.size(360, 36), s.size(120, 12)
    volume, stiff, void = 0.33, 1.0, 1e-6
    mesh = Mesh(nelx, nely, s.device)

    # Supports: the abutments at both ends of the deck and two footings on the ground below.
    deck = nely // 3
    fixed = []
    for column, row in [(0, deck), (nelx, deck), (nelx // 4, nely), (3 * nelx // 4, nely)]:
        for near in range(max(column - 2, 0), min(column + 3, nelx + 1)):
            fixed += [2 * mesh.node(near, row), 2 * mesh.node(near, row) + 1]
    mesh.fix(fixed)

    # Loads: the deck's own weight in every case, and the lorry's three axles at one place in each.
    places = np.linspace(0.15, 0.85, s.size(4, 2))
    force = np.zeros((len(places), mesh.dofs))
    for case, place in enumerate(places):
        for column in range(nelx + 1):
            force[case, 2 * mesh.node(column, deck) + 1] -= 0.2 / nelx
        for axle in (-0.03, 0.0, 0.03):
            force[case, 2 * mesh.node(round((place + axle) * nelx), deck) + 1] -= 1 / 3
    loads = torch.from_numpy(force).to(s.device) * mesh.free

    thickness = max(nely // 40, 1)
    solid = torch.zeros(nelx, nely, dtype=torch.bool, device=s.device)
    solid[:, deck : deck + thickness] = True
    solid = solid.flatten()
    x = torch.where(solid, 1.0, torch.full((nelx * nely,), volume, dtype=torch.float64, device=s.device))
    smooth = ConeFilter(3.5 if not s.tiny else 1.5, mesh)
    u = torch.zeros_like(loads)
    rounds = 0
    history: list[dict[str, float]] = []
    tolerance, limit = 1e-5, s.size(500, 30)

    if batched:
        return several_designs(s, mesh, loads, solid, x, [volume + 0.01 * design for design in range(8)], smooth, stiff, void)

    if compiled or graphed:
        plain = CompiledSolvers(s, mesh) if compiled else None
        graphs = GraphedSolvers(s, mesh, loads, solid, volume, tolerance, limit) if graphed else None
        stiffen, sense, sum_up = s.compile(stiffness), s.compile(sensitivities), s.compile(summary)

        def compiled_step() -> dict[str, float]:
            nonlocal x, u, rounds
            penalty = torch.full((), min(1.0 + 0.05 * rounds, 3.0), dtype=torch.float64, device=s.device)
            modulus = stiffen(x, penalty, stiff, void)
            if graphs is not None:
                u, iterations, residual = graphs.conjugate_gradients(modulus, u)
            else:
                u, iterations, residual = plain.conjugate_gradients(modulus, loads, u, tolerance, limit)
            compliance, dc = sense(mesh, smooth, x, u, modulus, penalty, stiff, void)
            new = graphs.optimality_criteria(x, dc) if graphs is not None else plain.optimality_criteria(x, dc, solid, volume)
            change, grey, mean = sum_up(new, x)
            x = new
            rounds += 1
            if graphs is not None:  # one wait for all of them
                values = torch.stack((compliance, mean, change, grey)).tolist()
            else:
                values = [compliance.item(), mean.item(), change.item(), grey.item()]
            row = dict(zip(("compliance", "volume", "change", "grey"), values, strict=False)) | {"iterations": iterations, "residual": residual}
            history.append(row)
            return row

        return compiled_step

    if late:
        pending: list[tuple[Tensor, int, float]] = []

        def late_step() -> dict[str, object]:
            nonlocal x, u, rounds
            penalty = min(1.0 + 0.05 * rounds, 3.0)
            modulus = void + x**penalty * (stiff - void)
            u, iterations, residual = conjugate_gradients_late(mesh, modulus, loads, u, tolerance, limit)
            energy = mesh.energy(u)
            compliance = (modulus * energy).sum()
            dc = -penalty * (stiff - void) * x ** (penalty - 1) * energy
            new = optimality_criteria_late(x, smooth(x, dc).clamp(max=0.0), solid, volume)
            change = (new - x).abs().max()
            grey = (4 * new * (1 - new)).mean()
            x = new
            rounds += 1
            values = torch.stack((compliance, x.mean(), change, grey))  # stays on the device, read every 10 rounds
            pending.append((values, iterations, residual))
            if len(pending) == 10:
                for read, (_, passes, left) in zip(torch.stack([entry[0] for entry in pending]).tolist(), pending, strict=False):
                    history.append(dict(zip(("compliance", "volume", "change", "grey"), read, strict=False)) | {"iterations": passes, "residual": left})
                pending.clear()
            return dict(zip(("compliance", "volume", "change", "grey"), values.unbind(), strict=False)) | {"iterations": iterations, "residual": residual}

        return late_step

    def step() -> dict[str, float]:
        nonlocal x, u, rounds
        penalty = min(1.0 + 0.05 * rounds, 3.0)
        modulus = void + x**penalty * (stiff - void)
        u, iterations, residual = conjugate_gradients(mesh, modulus, loads, u, tolerance=1e-5, limit=s.size(500, 30))
        energy = mesh.energy(u)
        compliance = (modulus * energy).sum()
        dc = -penalty * (stiff - void) * x ** (penalty - 1) * energy
        new = optimality_criteria(x, smooth(x, dc).clamp(max=0.0), solid, volume)
        change = (new - x).abs().max()
        grey = (4 * new * (1 - new)).mean()
        x = new
        rounds += 1
        row = {
            "compliance": compliance.item(),
            "volume": x.mean().item(),
            "change": change.item(),
            "grey": grey.item(),
            "iterations": iterations,
            "residual": residual,
        }
        history.append(row)
        return row

    return step
