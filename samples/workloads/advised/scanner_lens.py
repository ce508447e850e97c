"""Designing the lens of a film scanner: rays traced through a double Gauss, whose shape is improved by gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..base import Setup, Step

# radius, thickness behind it, n_d, Abbe number, half the clear diameter (mm); n_d = 1 is air
PRESCRIPTION = [
    (56.20238, 8.75, 1.6223, 53.2, 31.0),
    (152.28580, 0.50, 1.0, math.inf, 30.0),
    (37.68262, 12.50, 1.6074, 56.7, 26.0),
    (math.inf, 3.80, 1.5927, 35.5, 23.0),
    (24.23130, 16.369445, 1.0, math.inf, 17.0),
    (math.inf, 13.747957, 1.0, math.inf, 13.0),  # the stop
    (-28.37731, 3.80, 1.6034, 38.0, 16.0),
    (math.inf, 11.00, 1.6204, 60.3, 20.0),
    (-37.92546, 0.50, 1.0, math.inf, 22.0),
    (177.41176, 7.00, 1.6204, 60.3, 27.0),
    (-79.41143, 61.487536, 1.0, math.inf, 28.0),
]
STOP = 5
WAVELENGTHS = (0.4358, 0.4861, 0.5461, 0.5876, 0.6563)
WEIGHTS = (0.4, 0.8, 1.0, 1.0, 0.6)
FOCAL_LENGTH, F_NUMBER, HALF_ANGLE = 100.0, 3.2, 14.0
NEWTON_TOLERANCE, NEWTON_STEPS = 1e-4, 10


def indices(wavelengths: Tensor) -> Tensor:
    """Cauchy's formula through n_d and the Abbe number: (surfaces + 1, wavelengths), air in front."""
    rows = [torch.ones_like(wavelengths)]
    for _, _, n, abbe, _ in PRESCRIPTION:
        b = (n - 1) / abbe / (1 / 0.4861**2 - 1 / 0.6563**2)
        rows.append(n + b * (1 / wavelengths**2 - 1 / 0.5876**2))
    return torch.stack(rows)


def entrance_pupil() -> tuple[float, float]:
    """Where the picture of the stop lies, and how much larger than the stop it is (paraxial, backwards from the stop)."""
    height, slope = 0.0, 1.0
    for i in reversed(range(STOP)):
        radius, thickness, n, _, _ = PRESCRIPTION[i]
        before = PRESCRIPTION[i - 1][2] if i else 1.0
        height -= slope * thickness
        slope = (n * slope + height * (n - before) / radius) / before
    return -height / slope, 1.0 / slope


Shape = tuple[Tensor, Tensor, tuple[Tensor, ...]]  # curvature, conic constant, aspheric terms


@dataclass
class Rays:
    o: Tensor  # (fields, wavelengths, rays, 3)
    d: Tensor
    valid: Tensor


class Lens(nn.Module):
    def __init__(self, aspheres: tuple[int, ...] = (0, 5, 10)) -> None:
        super().__init__()
        rows = torch.tensor([row[:2] for row in PRESCRIPTION], dtype=torch.float64)
        self.curvature = nn.Parameter(1 / rows[:, 0])
        self.thickness = nn.Parameter(rows[:, 1].clone())
        self.conic = nn.Parameter(torch.zeros(len(PRESCRIPTION), dtype=torch.float64))
        self.asphere = nn.Parameter(torch.zeros(len(PRESCRIPTION), 2, dtype=torch.float64))
        may_bend = torch.tensor([row[0] != math.inf for row in PRESCRIPTION])
        is_asphere = torch.tensor([i in aspheres and i != STOP for i in range(len(PRESCRIPTION))])
        self.register_buffer("may_bend", may_bend)
        self.register_buffer("is_asphere", is_asphere)
        self.register_buffer("n", indices(torch.tensor(WAVELENGTHS, dtype=torch.float64)))
        self.register_buffer("first_thickness", rows[:, 1].clone())
        self.half2: list[float] | tuple[Tensor, ...] = [row[4] ** 2 for row in PRESCRIPTION]
        self.patience = 0  # after how many passes the host asks whether all rays have arrived; 0: after each, as it comes
        self.newton_pass = self.newton_step

    def sag(self, shape: Shape, r2: Tensor) -> tuple[Tensor, Tensor]:
        """Height of a surface at a squared radius, and its derivative by the squared radius."""
        c, k, a = shape
        root = torch.sqrt(torch.clamp(1 - (1 + k) * c**2 * r2, min=1e-6))
        q = r2 * 1e-3
        height = c * r2 / (1 + root) + q**2 * (a[0] + q * a[1])
        slope = c / (2 * root) + 1e-3 * q * (2 * a[0] + 3 * q * a[1])
        return height, slope

    def newton_step(self, shape: Shape, o: Tensor, d: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        x, y, z = (o + t.unsqueeze(-1) * d).unbind(-1)
        dx, dy, dz = d.unbind(-1)
        height, slope = self.sag(shape, x**2 + y**2)
        residual = z - height
        return t - residual / (dz - 2 * slope * (x * dx + y * dy)), residual

    @torch.no_grad()
    def seek(self, shape: Shape | None, rays: Rays) -> Tensor | None:
        """Newton without gradients up to the tolerance; planes need none."""
        if shape is None:
            return None
        t = -rays.o[..., 2] / rays.d[..., 2]
        if self.patience:
            return self.settle(shape, rays, t)
        for _ in range(NEWTON_STEPS):
            t, residual = self.newton_pass(shape, rays.o, rays.d, t)
            if not (residual[rays.valid].abs() > NEWTON_TOLERANCE).any():
                break
        return t

    def settle(self, shape: Shape, rays: Rays, t: Tensor) -> Tensor:
        """The same, but what ends it stays on the device: later passes change nothing."""
        going = torch.ones((), dtype=torch.bool, device=t.device)
        for i in range(1, NEWTON_STEPS + 1):
            further, residual = self.newton_step(shape, rays.o, rays.d, t)
            t = torch.where(going, further, t)
            going = going & ((residual.abs() > NEWTON_TOLERANCE) & rays.valid).any()
            if i % self.patience == 0 and i < NEWTON_STEPS and not going:
                break
        return t

    def intersect(self, shape: Shape | None, rays: Rays, t: Tensor | None) -> tuple[Tensor, Tensor]:
        """One step of Newton's with gradients from where it has arrived; planes need none."""
        if shape is None:
            t = -rays.o[..., 2] / rays.d[..., 2]
            normal = torch.zeros_like(rays.o)
            normal[..., 2] = 1.0
            return rays.o + t.unsqueeze(-1) * rays.d, normal
        t, _ = self.newton_step(shape, rays.o, rays.d, t)
        p = rays.o + t.unsqueeze(-1) * rays.d
        x, y, _ = p.unbind(-1)
        _, slope = self.sag(shape, x**2 + y**2)
        normal = torch.stack([-2 * slope * x, -2 * slope * y, torch.ones_like(slope)], dim=-1)
        return p, nn.functional.normalize(normal, dim=-1)

    def refract(self, d: Tensor, normal: Tensor, eta: Tensor) -> tuple[Tensor, Tensor]:
        """Snell's law; rays that are totally reflected become invalid."""
        cos_i = (d * normal).sum(-1)
        under = 1 - eta**2 * (1 - cos_i**2)
        cos_t = torch.sqrt(torch.clamp(under, min=1e-6))
        bent = eta.unsqueeze(-1) * d + (cos_t - eta * cos_i).unsqueeze(-1) * normal
        return bent, under > 0

    def surface(self, shape: Shape | None, o: Tensor, d: Tensor, valid: Tensor, t: Tensor | None, half2: float | Tensor, eta: Tensor | None, gap: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Through one surface, up to the next one's vertex; no eta at the stop."""
        p, normal = self.intersect(shape, Rays(o, d, valid), t)
        inside = (p[..., :2] ** 2).sum(-1) < half2
        passes = inside
        if eta is not None:
            d, passes = self.refract(d, normal, eta)
        return p - gap, d, valid & passes & inside

    def advance(self, shape: Shape | None, o: Tensor, d: Tensor, valid: Tensor, half2: float | Tensor, eta: Tensor | None, gap: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = self.seek(shape, Rays(o, d, valid))
        return self.surface(shape, o, d, valid, t, half2, eta, gap)

    def forward(self, rays: Rays) -> Rays:
        """Traces rays that start in coordinates of the first surface's vertex down to the sensor."""
        shapes = zip(self.curvature.unbind(), self.conic.unbind(), [a.unbind() for a in self.asphere.unbind()], strict=False)
        ratios = (self.n[:-1] / self.n[1:])[:, None, :, None]
        gaps = nn.functional.pad(self.thickness[:, None], (2, 0)).unbind()
        for i, (shape, (radius, _, _, _, _)) in enumerate(zip(shapes, PRESCRIPTION, strict=False)):
            curved, eta = shape if radius != math.inf else None, ratios[i] if i != STOP else None
            rays = Rays(*self.advance(curved, rays.o, rays.d, rays.valid, self.half2[i], eta, gaps[i]))
        t = -rays.o[..., 2] / rays.d[..., 2]
        return Rays(rays.o + t.unsqueeze(-1) * rays.d, rays.d, rays.valid)

    def focal_length(self) -> Tensor:
        """Paraxial, at 546 nm."""
        n = self.n[:, WAVELENGTHS.index(0.5461)]
        height, slope = torch.ones_like(n[0]), torch.zeros_like(n[0])
        for i, (c, gap) in enumerate(zip(self.curvature.unbind(), self.thickness.unbind(), strict=False)):
            slope = (n[i] * slope - height * c * (n[i + 1] - n[i])) / n[i + 1]
            height = height + slope * gap
        return -1 / slope


def bundle(fields: int, across: int, device: torch.device) -> tuple[Rays, Tensor]:
    """Parallel light from each field through a square grid in the entrance pupil, and the fields' tangents."""
    z, _ = entrance_pupil()
    line = torch.linspace(-1, 1, across, dtype=torch.float64, device=device)
    x, y = torch.meshgrid(line, line, indexing="xy")
    disc = x**2 + y**2 <= 1
    radius = FOCAL_LENGTH / F_NUMBER / 2
    pupil = torch.stack([x[disc] * radius, y[disc] * radius, torch.full_like(x[disc], z)], dim=-1)
    angle = torch.linspace(0, math.radians(HALF_ANGLE), fields, dtype=torch.float64, device=device)
    d = torch.stack([torch.zeros_like(angle), torch.sin(angle), torch.cos(angle)], dim=-1)[:, None, None, :]
    d = d.expand(fields, len(WAVELENGTHS), len(pupil), 3)
    o = pupil - (pupil[:, 2:] + 20) / d[..., 2:] * d
    return Rays(o, d, torch.ones(o.shape[:-1], dtype=torch.bool, device=device)), torch.tan(angle)


def scanner_lens(s: Setup, *, compiled: bool = False, resident: bool = False, late: bool = False) -> Step:
    """One step of Adam on all curvatures, gaps and aspheric terms."""
    rays, tangents = bundle(s.size(7, 3), s.size(128, 12), s.device)
    lens = Lens().to(s.device)
    weights = torch.tensor(WEIGHTS, dtype=torch.float64, device=s.device)
    weights = weights / weights.sum()
    optimizer = torch.optim.Adam(
        [
            {"params": [lens.curvature], "lr": 2e-6},
            {"params": [lens.thickness], "lr": 2e-3},
            {"params": [lens.conic], "lr": 1e-4},
            {"params": [lens.asphere], "lr": 2e-4},
        ],
        fused=True if resident else None,
    )
    thinnest = torch.clamp(0.8 * lens.first_thickness, min=0.4)

    def merit(image: Rays) -> tuple[Tensor, dict[str, Tensor]]:
        valid = image.valid.unsqueeze(-1)
        count = valid.sum(2).clamp(min=1)
        xy = torch.where(valid, image.o[..., :2], 0.0)
        centre = xy.sum(2) / count  # (fields, wavelengths, 2)
        reference = centre[:, 2:4].mean(1)
        off = torch.where(valid, xy - reference[:, None, None], 0.0)
        spot = (off**2).sum(-1).sum(2) / count[..., 0]
        spot_loss = (spot * weights).sum(1).mean()
        focal = lens.focal_length()
        ideal = focal * tangents
        distortion = ((reference[1:, 1] - ideal[1:]) / ideal[1:]) ** 2
        glass = torch.relu(thinnest - lens.thickness).sum()
        loss = spot_loss + 2.0 * distortion.mean() + 0.05 * (focal - FOCAL_LENGTH) ** 2 + glass
        return loss, {"spot_um": 1e3 * spot_loss.sqrt(), "focal": focal, "vignetted": 1 - image.valid.double().mean()}

    if compiled or resident:
        # one code for all surfaces: what differs is handed in as tensors
        lens.half2 = torch.tensor(lens.half2, dtype=torch.float64, device=s.device).unbind()
        merit = s.compile(merit, dynamic=False)
    if compiled:  # the end of Newton's loop is asked on the host, so the passes and what follows are compiled apart
        lens.newton_pass = s.compile(lens.newton_step, dynamic=False)
        lens.surface = s.compile(lens.surface, dynamic=False)
    if resident:
        lens.patience = NEWTON_STEPS
        lens.advance = s.compile(lens.advance, dynamic=False)
    if late:
        lens.patience = 4

    def step() -> dict[str, float | Tensor]:
        optimizer.zero_grad()
        loss, figures = merit(lens(rays))
        loss.backward()
        lens.curvature.grad.mul_(lens.may_bend)
        lens.conic.grad.mul_(lens.is_asphere)
        lens.asphere.grad.mul_(lens.is_asphere[:, None])
        torch.nn.utils.clip_grad_norm_([lens.asphere, lens.conic], 10.0)
        optimizer.step()
        with torch.no_grad():
            lens.thickness.clamp_(min=0.3)
        if late:
            return {"loss": loss.detach(), **{name: value.detach() for name, value in figures.items()}}
        return {"loss": loss.item(), **{name: value.item() for name, value in figures.items()}}

    return step
