"""Scratches in enamel by a memory of patches, crops of lichens for a student and its teacher, and knees as meshes.

By an author who writes augmentation and postprocessing as tensor code of his own around models of timm and torch_geometric.
"""

from __future__ import annotations

import copy
import math
import random
from collections import deque
from itertools import count as counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, _timm
from .public_models_4 import _public

# Enamel: four cameras look at each sign that leaves the kiln; patches far from all good patches are scratches.


def enamel(views: int, side: int, scratches: int) -> Tensor:
    """Pictures of the cameras: a pattern that is each camera's own, grain, and bright scratches."""
    y, x = torch.meshgrid(torch.arange(side).float(), torch.arange(side).float(), indexing="ij")
    pictures = []
    for view in range(views):
        wave = 110.0 + 40.0 * torch.sin(x * 6.0 * (1 + view % 4) / side) * torch.cos(y * 9.0 / side)
        picture = wave + 6.0 * torch.randn(3, side, side)
        for at in torch.rand(scratches, 4):
            left, top = (0.1 + 0.8 * at[:2]) * side
            across, down = (at[2:] - 0.5) * 0.25 * side
            along = (((x - left) * across + (y - top) * down) / (across**2 + down**2 + 1.0)).clamp(0.0, 1.0)
            far = (x - left - along * across) ** 2 + (y - top - along * down) ** 2
            picture = torch.where(far < 6.0, 250.0, picture)
        pictures.append(picture)
    return torch.stack(pictures).clamp(0.0, 255.0).to(torch.uint8)


def gaussian(sigma: float, device: torch.device) -> Tensor:
    reach = round(3 * sigma)
    taps = torch.exp(-((torch.arange(-reach, reach + 1, device=device) / sigma) ** 2) / 2)
    return taps / taps.sum()


def components(mask: Tensor, seeds: Tensor, every: int) -> Tensor:
    """The largest seed of a connected region spreads over it, pixel by pixel, until nothing changes."""
    labels = mask * seeds
    while True:
        before = labels
        for _ in range(every):
            labels = F.max_pool2d(labels, 3, 1, 1) * mask
        if torch.equal(labels, before):
            return labels


def regions(labels: Tensor, scores: Tensor, least: int) -> list[list[float]]:
    """Area, worst score and box of each region of a view."""
    found = []
    for label in labels.unique().tolist():
        inside = labels == label
        area = inside.sum().item()
        if label == 0 or area < least:
            continue
        rows, columns = inside.nonzero().unbind(1)
        box = [columns.min().item(), rows.min().item(), columns.max().item(), rows.max().item()]
        found.append([area, scores[inside].max().item(), *box])
    return found


def regions_there(labels: Tensor, scores: Tensor, most: int) -> Tensor:
    """The same of the `most` largest regions, in rows, without the host."""
    height, width = labels.shape
    at = labels.long().flatten()
    place = torch.arange(height * width, device=labels.device)
    row, column = (place // width).float(), (place % width).float()
    blank = scores.new_zeros(height * width + 1)
    area = blank.scatter_add(0, at, torch.ones_like(row))
    area[0] = 0.0
    worst = blank.scatter_reduce(0, at, scores.flatten(), "amax", include_self=False)
    low = [blank.scatter_reduce(0, at, where, "amin", include_self=False) for where in (column, row)]
    high = [blank.scatter_reduce(0, at, where, "amax", include_self=False) for where in (column, row)]
    area, largest = area.topk(most)
    return torch.stack([area, *(part[largest] for part in (worst, *low, *high))], 1)


def enamel_scratches(
    s: Setup,
    *,
    boards: int = 1,
    every: int = 1,
    table: bool = False,
    together: bool = False,
    graphed: bool = False,
    autocast: bool = False,
    pinned: bool = False,
) -> Step:
    """PatchCore on a wide ResNet of timm; a map of distances becomes scratches with area, score and box."""
    torch.set_float32_matmul_precision("highest")
    views, side, least = 4, s.size(224, 64), s.size(12, 4)
    taken, kept, mixed = s.size(512, 96), s.size(16384, 64), s.size(1024, 32)
    backbone = _timm("resnet18" if s.tiny else "wide_resnet50_2", features_only=True, out_indices=(2, 3)).to(s.device).eval()
    mean, std = (torch.tensor(v, device=s.device).view(1, 3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    taps, seeds = gaussian(4.0, s.device), torch.arange(1.0, side * side + 1, device=s.device).view(1, 1, side, side)

    def patches(frames: Tensor) -> Tensor:
        x = F.interpolate(frames.float() / 255.0, (side, side), mode="bilinear", antialias=True, align_corners=False)
        fine, coarse = (F.avg_pool2d(level, 3, 1, 1) for level in backbone((x - mean) / std))
        coarse = F.interpolate(coarse, fine.shape[-2:], mode="bilinear", align_corners=False)
        both = torch.cat([fine, coarse], 1).permute(0, 2, 3, 1).flatten(0, 2)
        return F.adaptive_avg_pool1d(both[:, None], mixed)[:, 0]

    def known() -> tuple[Tensor, Tensor, Tensor]:
        good: list[Tensor] = []
        while sum(map(len, good)) < kept:
            good.append(patches(enamel(views, taken, 0).to(s.device)))
        bank = torch.cat(good)[torch.randperm(sum(map(len, good)), device=s.device)[:kept]]
        center, spread = bank.mean(0), bank.std() + 1e-6
        return (bank - center) / spread, center, spread

    with torch.no_grad():
        bank, center, spread = known()
        lengths = bank.square().sum(1)

    def judged(frames: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            seen = (patches(frames) - center) / spread
            squares = seen.float().square().sum(1, keepdim=True) + lengths - 2.0 * (seen @ bank.T)
            nearest = squares.clamp(min=0.0).sqrt().min(1).values.float()
        cells = side // 8
        scores = F.interpolate(nearest.view(-1, 1, cells, cells), (side, side), mode="bilinear", align_corners=False)
        reach = len(taps) // 2
        scores = F.conv2d(F.pad(scores, (reach, reach, reach, reach), mode="reflect"), taps.view(1, 1, 1, -1))
        scores = F.conv2d(scores, taps.view(1, 1, -1, 1))
        limit = scores.mean((1, 2, 3), keepdim=True) + 1.5 * scores.std((1, 2, 3), keepdim=True)
        return scores, (scores > limit).float()

    frames = torch.cat([enamel(views, taken, 8)] * boards)
    loader = Prefetcher([(s.pin(frames),)], s) if pinned else None
    held, out = frames.to(s.device), []

    @torch.no_grad()
    def captured() -> None:
        out[:] = judged(held)

    replay = capture(captured, s) if graphed else None

    @torch.no_grad()
    def step() -> list[Any]:
        torch.set_float32_matmul_precision("highest")
        if replay:
            held.copy_(frames)
            replay()
            scores, mask = out
        else:
            scores, mask = judged(loader.next()[0] if loader else frames.to(s.device))
        if together:
            labels = components(mask, seeds, every)
        else:
            labels = torch.cat([components(view[None], seeds, every) for view in mask])
        if table:
            rows = torch.stack([regions_there(a[0], b[0], s.size(64, 8)) for a, b in zip(labels, scores, strict=True)]).tolist()
            return [[row for row in view if row[0] >= least] for view in rows]
        return [regions(a[0], b[0], least) for a, b in zip(labels, scores, strict=True)]

    return step


# Lichen: DINO, with every crop of every picture made by itself.


def grey(x: Tensor) -> Tensor:
    return (0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2])[:, None]


def jitter(x: Tensor, light: Any, contrast: Any, colour: Any) -> Tensor:
    x = (x * light).clamp(0.0, 1.0)
    middle = grey(x).mean((1, 2, 3), keepdim=True)
    x = ((x - middle) * contrast + middle).clamp(0.0, 1.0)
    shade = grey(x)
    return ((x - shade) * colour + shade).clamp(0.0, 1.0)


def blur(x: Tensor, sigma: Any, taps: Tensor) -> Tensor:
    """sigma: a number, or a column with one of each picture."""
    weights = torch.exp(-0.5 * (taps / sigma) ** 2).expand(len(x), -1)
    weights = (weights / weights.sum(1, keepdim=True)).repeat_interleave(3, 0)
    reach, channels = len(taps) // 2, 3 * len(x)
    flat = F.pad(x, (reach, reach, reach, reach), mode="reflect").flatten(0, 1)[None]
    flat = F.conv2d(flat, weights[:, None, None, :], groups=channels)
    return F.conv2d(flat, weights[:, None, :, None], groups=channels).view(x.shape)


class Crops:
    """One kind of crop: its side, how much of the picture it sees, how often it is blurred and solarised."""

    def __init__(self, side: int, scale: tuple[float, float], blurred: float, solarised: float, device: torch.device) -> None:
        self.side, self.scale, self.blurred, self.solarised = side, scale, blurred, solarised
        self.taps = torch.arange(-4.0, 5.0, device=device)
        self.mean, self.std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))

    def one(self, picture: Tensor) -> Tensor:
        full = picture.shape[-1]
        area, ratio = random.uniform(*self.scale), math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = (max(8, min(full, round(full * math.sqrt(part)))) for part in (area * ratio, area / ratio))
        left, top = random.randint(0, full - width), random.randint(0, full - height)
        x = picture[None, :, top : top + height, left : left + width].float() / 255.0
        x = F.interpolate(x, (self.side, self.side), mode="bilinear", align_corners=False)
        if random.random() < 0.5:
            x = x.flip(3)
        if random.random() < 0.8:
            x = jitter(x, random.uniform(0.6, 1.4), random.uniform(0.6, 1.4), random.uniform(0.8, 1.2))
        if random.random() < 0.2:
            x = grey(x).expand(-1, 3, -1, -1)
        if random.random() < self.blurred:
            x = blur(x, random.uniform(0.3, 2.0), self.taps)
        if random.random() < self.solarised:
            x = torch.where(x > 0.5, 1.0 - x, x)
        return (x - self.mean) / self.std

    def each(self, pictures: Tensor) -> Tensor:
        return torch.cat([self.one(picture) for picture in pictures])

    def batch(self, pictures: Tensor) -> Tensor:
        """The same draws and ops for all pictures at once, on their device."""
        count = len(pictures)

        def drawn(low: float, high: float) -> Tensor:
            return torch.empty(count, 1, 1, 1, device=pictures.device).uniform_(low, high)

        area, ratio = drawn(*self.scale), drawn(math.log(3 / 4), math.log(4 / 3)).exp()
        width, height = (area * ratio).sqrt().clamp(max=1.0), (area / ratio).sqrt().clamp(max=1.0)
        middle_x, middle_y = drawn(-1.0, 1.0) * (1.0 - width), drawn(-1.0, 1.0) * (1.0 - height)
        flipped, none = torch.where(drawn(0.0, 1.0) < 0.5, -width, width), torch.zeros_like(width)
        theta = torch.cat([flipped, none, middle_x, none, height, middle_y], 1).view(count, 2, 3)
        grid = F.affine_grid(theta, [count, 3, self.side, self.side], align_corners=False)
        x = F.grid_sample(pictures.float() / 255.0, grid, padding_mode="border", align_corners=False)
        x = torch.where(drawn(0.0, 1.0) < 0.8, jitter(x, drawn(0.6, 1.4), drawn(0.6, 1.4), drawn(0.8, 1.2)), x)
        x = torch.where(drawn(0.0, 1.0) < 0.2, grey(x), x)
        x = torch.where(drawn(0.0, 1.0) < self.blurred, blur(x, drawn(0.3, 2.0).view(-1, 1), self.taps), x)
        if self.solarised:
            x = torch.where((drawn(0.0, 1.0) < self.solarised) & (x > 0.5), 1.0 - x, x)
        return (x - self.mean) / self.std


class Projected(nn.Module):
    """A backbone with DINO's head; crops of one size go through the backbone together."""

    def __init__(self, backbone: nn.Module, width: int, hidden: int, narrow: int, prototypes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, narrow))
        self.last = nn.Parameter(torch.randn(prototypes, narrow))

    def forward(self, *sizes: Tensor) -> Tensor:
        x = self.head(torch.cat([self.backbone(crops) for crops in sizes]))
        return F.linear(F.normalize(x, dim=1), F.normalize(self.last, dim=1))


def lichen_crops(
    s: Setup,
    *,
    batched: bool = False,
    late: bool = False,
    fused: bool = False,
    mean: str = "loop",
    compiled: bool = False,
    pinned: bool = False,
) -> Step:
    """DINO of a small ViT of timm on 16 pictures, two large and four small crops of each, in bf16 autocast."""
    random.seed(45)
    pictures, full, locals_ = s.size(16, 2), s.size(256, 48), s.size(4, 2)
    vit: dict[str, Any] = {"depth": 1, "embed_dim": 32, "num_heads": 2, "img_size": 32} if s.tiny else {}
    backbone = _timm("vit_small_patch16_224", num_classes=0, dynamic_img_size=True, drop_path_rate=0.1, **vit)
    prototypes = s.size(16384, 64)
    student = Projected(backbone, s.size(384, 32), s.size(2048, 32), s.size(256, 16), prototypes).to(s.device).train()
    teacher = copy.deepcopy(student).requires_grad_(False).eval()
    large, small = s.size(224, 32), s.size(96, 16)
    kinds = [
        Crops(large, (0.4, 1.0), 1.0, 0.0, s.device), Crops(large, (0.4, 1.0), 0.1, 0.2, s.device),
        *[Crops(small, (0.05, 0.4), 0.5, 0.0, s.device)] * locals_,
    ]  # fmt: skip
    weights, followers = list(student.parameters()), list(teacher.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in weights if p.ndim > 1]}, {"params": [p for p in weights if p.ndim <= 1], "weight_decay": 0.0},
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=5e-4, weight_decay=0.04, **({"fused": True} if fused or compiled else {}))
    learns, teaches = (s.compile(net, dynamic=False) if compiled else net for net in (student, teacher))
    batches = [(torch.randint(256, (pictures, 3, full, full), dtype=torch.uint8),) for _ in range(4)]
    loader = Prefetcher([tuple(s.pin(part) for part in group) for group in batches], s) if pinned else None
    center, noted = torch.zeros(1, prototypes, device=s.device), torch.zeros((), device=s.device)
    turn, history, total = counter(), deque(maxlen=100), 100_000

    def dino(student_out: Tensor, teacher_out: Tensor) -> Tensor:
        said = (student_out.float() / 0.1).chunk(2 + locals_)
        meant = ((teacher_out.float() - center) / 0.04).softmax(1).chunk(2)
        loss, terms = torch.zeros((), device=s.device), 0
        for i, aim in enumerate(meant):
            for j, guess in enumerate(said):
                if i != j:  # never the crop that the teacher sees
                    loss, terms = loss - (aim * F.log_softmax(guess, 1)).sum(1).mean(), terms + 1
        center.mul_(0.9).add_(teacher_out.float().mean(0, keepdim=True), alpha=0.1)
        return loss / terms

    def clip() -> None:
        """Each parameter's gradient by itself, as DINO does it."""
        if late:
            gradients = [p.grad for p in weights]
            scales = (3.0 / (torch.stack(torch._foreach_norm(gradients)) + 1e-6)).clamp(max=1.0)
            for gradient, scale in zip(gradients, scales.unbind(), strict=True):
                gradient.mul_(scale)
            return
        for p in weights:
            scale = 3.0 / (p.grad.norm(2) + 1e-6)
            if scale < 1:
                p.grad.mul_(scale)

    @torch.no_grad()
    def follow(momentum: float) -> None:
        if mean == "foreach":
            torch._foreach_mul_(followers, momentum)
            torch._foreach_add_(followers, weights, alpha=1.0 - momentum)
            return
        for p, q in zip(weights, followers, strict=True):
            q.data.mul_(momentum).add_((1.0 - momentum) * p.detach().data)

    def step() -> object:
        now = next(turn)
        done = 0.5 * (1.0 + math.cos(math.pi * (now % total) / total))
        for group in optimizer.param_groups:
            group["lr"] = 1e-6 + (5e-4 - 1e-6) * done
        shown = loader.next()[0] if loader else batches[now % 4][0].to(s.device)
        with torch.no_grad():
            crops = [kind.batch(shown) if batched else kind.each(shown) for kind in kinds]
            whole, parts = torch.cat(crops[:2]), torch.cat(crops[2:])
        with torch.autocast(s.device.type, BF16):
            with torch.no_grad():
                meant = teaches(whole)
            said = learns(whole, parts)
        loss = dino(said, meant)
        if late:
            noted.add_(loss.detach())
            if now % 50 == 49:
                history.append(noted.item() / 50)
                noted.zero_()
                if not math.isfinite(history[-1]):
                    raise ArithmeticError(f"loss is {history[-1]}")
        else:
            history.append(loss.item())
            if not math.isfinite(history[-1]):
                raise ArithmeticError(f"loss is {history[-1]}")
        optimizer.zero_grad()
        loss.backward()
        clip()
        optimizer.step()
        follow(1.0 - 0.004 * done)
        return history

    return step


# Knees: which tissue is each vertex of a scanned joint's surface.


def surface(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Vertices, faces and directed edges of a bent ring, triangulated."""
    around = torch.arange(rows)[:, None] * (2 * math.pi / rows)
    along = torch.arange(columns)[None, :] * (2 * math.pi / columns)
    thick = 1.0 + 0.3 * along.cos()
    vertices = torch.stack([thick * around.cos(), thick * around.sin(), 0.3 * along.sin().expand(rows, -1)], -1).view(-1, 3)
    here = torch.arange(rows * columns).view(rows, columns)
    right, below, both = here.roll(-1, 1), here.roll(-1, 0), here.roll((-1, -1), (0, 1))
    faces = torch.cat([torch.stack([a.flatten(), b.flatten(), c.flatten()], 1) for a, b, c in ((here, right, both), (here, both, below))])
    edges = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).T
    return vertices, faces, torch.cat([edges, edges.flip(0)], 1).unique(dim=1)


class Tissues(nn.Module):
    """Convolutions of FeaStNet on the mesh, with shortcuts."""

    def __init__(self, features: int, width: int, layers: int, heads: int, classes: int, loops: bool) -> None:
        super().__init__()
        from torch_geometric.nn import FeaStConv

        self.first = nn.Linear(features, width)
        self.convs = nn.ModuleList(FeaStConv(width, width, heads, add_self_loops=loops) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, 4 * width), nn.ELU(), nn.Dropout(0.3), nn.Linear(4 * width, classes))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = F.elu(self.first(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.elu(norm(conv(x, edges)))
        return self.head(x)


def knee_meshes(
    s: Setup,
    *,
    compiled: str | None = None,
    autocast: bool = False,
    tf32: bool = False,
    late: bool = False,
    fused: bool = False,
    pinned: bool = False,
) -> Step:
    """FeaStNet of torch_geometric in training on six meshes of 5760 vertices, FP32."""
    from torch_geometric.utils import add_self_loops

    meshes, classes, cases = s.size(6, 2), 8, 3
    plain, faces, edges = surface(s.size(72, 6), s.size(80, 5))
    vertices = len(plain)
    moved = torch.arange(meshes) * vertices
    faces = (faces[None] + moved[:, None, None]).view(-1, 3).to(s.device)
    edges = (edges[:, None] + moved[None, :, None]).flatten(1).to(s.device)
    start, end = edges
    degree = torch.zeros(meshes * vertices, 1, device=s.device).index_add_(0, end, torch.ones(len(end), 1, device=s.device))
    owned = late or compiled is not None  # loops are added once, else each convolution drops and adds them by itself
    walked = add_self_loops(edges, num_nodes=meshes * vertices)[0] if owned else edges
    model = Tissues(9, s.size(64, 8), s.size(4, 1), s.size(8, 2), classes, loops=not owned).to(s.device).train()
    run = s.compile(model, mode=compiled, dynamic=False) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **({"fused": True} if fused else {}))
    bands = (torch.arange(vertices) * classes // vertices).repeat(meshes)
    scans = []
    for _ in range(cases):
        bulge = plain[None] * (1.0 + 0.1 * torch.randn(meshes, 1, 3)) + 0.005 * torch.randn(meshes, vertices, 3)
        scans.append((bulge.contiguous(), bands.clone()))
    loader = Prefetcher([tuple(s.pin(part) for part in scan) for scan in scans], s) if pinned else None
    rarity = torch.linspace(0.5, 1.5, classes, device=s.device)
    confusion, sums = torch.zeros(classes * classes, device=s.device), torch.zeros(4, device=s.device)
    turn, logs = counter(), {}

    def turned(points: Tensor) -> Tensor:
        """Each mesh turned about the leg's axis, mirrored, scaled, and shaken."""
        angle = torch.rand(meshes, device=s.device) * (2 * math.pi)
        cos, sin, none, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
        turns = torch.stack([cos, -sin, none, sin, cos, none, none, none, one], 1).view(-1, 3, 3)
        scale = 0.8 + 0.4 * torch.rand(meshes, 1, 1, device=s.device)
        mirror = torch.where(torch.rand(meshes, 1, 1, device=s.device) < 0.5, -1.0, 1.0)
        return ((points @ turns) * scale * mirror + 0.002 * torch.randn_like(points)).view(-1, 3)

    def around(x: Tensor) -> Tensor:
        """Mean over the neighbours."""
        return torch.zeros_like(x).index_add_(0, end, x[start]) / degree

    def described(points: Tensor) -> Tensor:
        a, b, c = (points[faces[:, i]] for i in range(3))
        normals = torch.linalg.cross(b - a, c - a)
        summed = torch.zeros_like(points)
        for i in range(3):
            summed.index_add_(0, faces[:, i], normals)
        return torch.cat([points, F.normalize(summed, dim=1), 20.0 * (around(points) - points)], 1)

    def losses(scores: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        logs_, known = F.log_softmax(scores, 1), F.one_hot(labels, classes).float()
        likely = logs_.exp()
        entropy = F.cross_entropy(scores, labels, rarity)
        dice = 1.0 - ((2 * (likely * known).sum(0) + 1.0) / (likely.sum(0) + known.sum(0) + 1.0)).mean()
        same = (labels[start] == labels[end]).float()
        smooth = ((likely[start] * (logs_[start] - logs_[end])).sum(1) * same).sum() / same.sum()
        return entropy + dice + 0.1 * smooth, entropy, dice, smooth

    @torch.no_grad()
    def measure(scores: Tensor, labels: Tensor) -> Tensor:
        """Vertices are voted on by their neighbours, three times over, before they are counted."""
        votes = scores.softmax(1)
        for _ in range(3):
            votes = 0.5 * votes + 0.5 * around(votes)
        return labels * classes + votes.argmax(1)

    def overlap(counts: Tensor) -> list[float]:
        counts = counts.view(classes, classes).float()
        hit = counts.diagonal()
        return (hit / (counts.sum(0) + counts.sum(1) - hit).clamp(min=1.0)).tolist()

    def step() -> dict[str, Any]:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        now = next(turn)
        points, labels = loader.next() if loader else [part.to(s.device) for part in scans[now % cases]]
        features = described(turned(points))
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            scores = run(features, walked)
        scores = scores.float()
        loss, *parts = losses(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cells = measure(scores.detach(), labels)
        told = [loss.detach(), *(part.detach() for part in parts)]
        if late:
            sums.add_(torch.stack(told))
            confusion.index_add_(0, cells, torch.ones_like(cells, dtype=torch.float))
            if now % 50 == 49:
                logs.update(losses=[value / 50 for value in sums.tolist()], overlap=overlap(confusion))
                sums.zero_()
                confusion.zero_()
        else:
            counts = torch.bincount(cells, minlength=classes * classes)
            logs.update(losses=[part.item() for part in told], overlap=overlap(counts))
        return logs

    return step


WORKLOADS = (
    _public(
        "enamel_scratches", "PatchCore on a wide ResNet of timm, FP32, for four views of a sign: regions grow pixel by pixel, each is then measured.",
        enamel_scratches, {},
        {"sync-stall": {"every": 8, "table": True}, "sync-stall/regions": {"table": True}, "low-arithmetic-intensity/views": {"together": True},
         "low-arithmetic-intensity": {"boards": 4}, "graph-candidate": {"graphed": True}, "precision": {"autocast": True},
         "memcpy": {"pinned": True}},
        shared={"low-arithmetic-intensity": 4.0},
    ),
    _public(
        "lichen_crops", "DINO of a small ViT of timm, bf16 autocast: six crops of 16 pictures, each made by itself; gradients clipped one by one.",
        lichen_crops, {},
        {"host-bound": {"batched": True}, "sync-stall": {"late": True}, "optimizer-foreach/mean": {"mean": "foreach"},
         "optimizer-foreach": {"fused": True}, "launch-gap": {"compiled": True}, "memcpy": {"pinned": True}},
    ),
    _public(
        "knee_meshes", "FeaStNet of torch_geometric in training on six meshes, FP32: messages of eight heads on 242,000 edges; overlaps are read.",
        knee_meshes, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "precision": {"autocast": True}, "precision/tf32": {"tf32": True},
         "sync-stall": {"late": True}, "optimizer-foreach": {"fused": True}, "memcpy": {"pinned": True}},
    ),
)  # fmt: skip
