"""Public models of veneers, container yards, judo throws and teeth, by an author who has not read the rules."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, GRAPHS, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_4 import _public

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# Veneers.


def veneer_species(
    s: Setup, *, fused_attention: bool = False, ahead: bool = False, at_once: bool = False, graphed: bool = False, **how: Any
) -> Step:  # fmt: skip
    """VOLO names the wood of 48 sheets of veneer in BF16 autocast, as they lie and mirrored; the best three of each are listed."""
    from timm.models.volo import VOLO

    way, batch, side, species = How(**{"autocast": BF16, **how}), s.size(48, 2), s.size(224, 64), s.size(460, 11)
    wide = s.size(384, 32)
    with s.device:
        model: Any = VOLO(
            [1, 1, 1, 1] if s.tiny else [2, 2, 4, 1], img_size=side, num_classes=species, stem_hidden_dim=s.size(64, 8),
            embed_dims=[s.size(192, 16), wide, wide, wide], num_heads=[s.size(6, 2), *3 * [s.size(12, 2)]],
        )  # fmt: skip
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused_attention
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    sheets = [torch.randint(256, (batch, 3, side, side), dtype=torch.uint8) for _ in range(4)]
    loader = Prefetcher([(s.pin(sheet),) for sheet in sheets], s) if ahead else None
    mean, std = (torch.tensor(colours, device=s.device).view(3, 1, 1) for colours in (MEAN, STD))
    held, chances = torch.zeros_like(sheets[0], device=s.device), torch.zeros(batch, species, device=s.device)
    turn = 0

    def named(sheet: Tensor) -> Tensor:
        x = ((sheet.float() / 255 - mean) / std).to(way.dtype or torch.float32)
        if way.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with _casting(s, way):
            logits = run(x).float()
            logits = logits + run(x.flip(3)).float()
        return (logits / 2).softmax(-1)

    @torch.no_grad()
    def replayed() -> None:
        chances.copy_(named(held))

    _precision(way)
    replay = capture(replayed, s) if graphed else replayed

    @torch.no_grad()
    def step() -> list[tuple[list[int], list[float]]]:
        nonlocal turn
        _precision(way)
        sheet = loader.next()[0] if loader else sheets[turn % 4].to(s.device)
        turn += 1
        if graphed:
            held.copy_(sheet)
            replay()
            found = chances
        else:
            found = named(sheet)
        if at_once:
            best = found.topk(3)
            rows = torch.cat([best.indices.float(), best.values], 1).tolist()
            return [([int(kind) for kind in row[:3]], row[3:]) for row in rows]
        names = []
        for row in found:
            best = row.topk(3)
            names.append((best.indices.tolist(), best.values.tolist()))
        return names

    return step


# Container yards.


class _Deformed(nn.Module):
    """A deformable convolution with learnt places and weights, then twice the size."""

    def __init__(self, inner: int, out: int) -> None:
        from torchvision.ops import DeformConv2d

        super().__init__()
        self.places = nn.Conv2d(inner, 27, 3, padding=1)
        self.conv, self.norm = DeformConv2d(inner, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)
        self.larger, self.larger_norm = nn.ConvTranspose2d(out, out, 4, 2, 1, bias=False), nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        down, right, weight = self.places(x).chunk(3, 1)
        x = F.relu(self.norm(self.conv(x, torch.cat([down, right], 1), weight.sigmoid())))
        return F.relu(self.larger_norm(self.larger(x)))


class _CenterNet(nn.Module):
    """CenterNet on timm's HGNetV2: heats of things' centres, their sizes and where in a cell they are."""

    def __init__(self, kinds: int, widths: tuple[int, ...], head: int) -> None:
        import timm

        super().__init__()
        self.body: Any = timm.create_model("hgnetv2_b0", pretrained=False, features_only=True, out_indices=(3,))
        last, steps = self.body.feature_info.channels()[-1], list[nn.Module]()
        for width in widths:
            steps.append(_Deformed(last, width))
            last = width
        self.up = nn.Sequential(*steps)
        self.heads = nn.ModuleList(nn.Sequential(nn.Conv2d(last, head, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(head, out, 1)) for out in (kinds, 2, 2))
        nn.init.constant_(self.heads[0][-1].bias, -2.19)  # type: ignore[index, arg-type]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.up(self.body(x)[0])
        return tuple(head(x) for head in self.heads)


def _centres(maps: tuple[Tensor, ...], many: int) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes, scores and kinds of the `many` hottest peaks of each picture."""
    heat, sizes, shifts = (each.float() for each in maps)
    heat = heat.sigmoid()
    heat = heat * (F.max_pool2d(heat, 3, 1, 1) == heat)
    width = heat.shape[-1]
    scores, at = heat.flatten(1).topk(many)
    area = heat.shape[-2] * width
    kinds, at = at // area, at % area
    index = at[:, None].expand(-1, 2, -1)
    size, shift = sizes.flatten(2).gather(2, index), shifts.flatten(2).gather(2, index)
    centre = torch.stack([at % width, at // width], 1) + shift
    return 4 * torch.cat([centre - size / 2, centre + size / 2], 1).transpose(1, 2), scores, kinds


def container_yard(
    s: Setup, *, cameras: int = 1, pinned: bool = False, on_gpu: bool = False, packed: bool = False, graphed: bool = False, **how: Any
) -> Step:  # fmt: skip
    """CenterNet looks for containers, trucks and people in one camera's frame of 512 x 640 in FP32; what is above a threshold is listed."""
    way, high, wide, many, least = How(**how), s.size(512, 64), s.size(640, 96), s.size(100, 10), 0.02
    rng = np.random.default_rng(322)
    frames = [rng.integers(0, 256, (high, wide, 3), dtype=np.uint8) for _ in range(16)]
    with s.device:
        model: Any = _CenterNet(s.size(12, 3), (s.size(256, 16), s.size(128, 16), s.size(64, 8)), s.size(64, 8))
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    means, stds = (torch.tensor(colours).view(3, 1, 1) for colours in (MEAN, STD))
    mean, std = means.to(s.device), stds.to(s.device)
    held, shelf = torch.zeros(cameras, 3, high, wide, device=s.device), s.pin(torch.zeros(cameras, 3, high, wide))
    turn = 0

    def pictures() -> Tensor:
        nonlocal turn
        shots = [torch.from_numpy(frames[(turn + n) % len(frames)]).permute(2, 0, 1) for n in range(cameras)]
        turn += cameras
        if on_gpu:
            return (torch.stack(shots).to(s.device).float() / 255 - mean) / std
        whole = torch.stack([(shot.float() / 255 - means) / stds for shot in shots])
        return shelf.copy_(whole).to(s.device, non_blocking=True) if pinned else whole.to(s.device)

    def looked(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _centres(run(x), many)

    @torch.no_grad()
    def first() -> tuple[Tensor, Tensor, Tensor]:
        return looked(held)

    _precision(way)
    seen = first()

    @torch.no_grad()
    def replayed() -> None:
        for kept, new in zip(seen, looked(held), strict=True):
            kept.copy_(new)

    replay = capture(replayed, s) if graphed else replayed

    @torch.no_grad()
    def step() -> list[Any]:
        _precision(way)
        x = pictures()
        if graphed:
            held.copy_(x)
            replay()
            boxes, scores, kinds = seen
        else:
            boxes, scores, kinds = looked(x)
        if packed:
            rows = torch.cat([boxes, scores[..., None], kinds[..., None].float()], 2).tolist()
            return [[(row[:4], row[4], int(row[5])) for row in camera if row[4] > least] for camera in rows]
        found = []
        for camera in range(cameras):
            good = scores[camera] > least
            things = boxes[camera][good].tolist(), scores[camera][good].tolist(), kinds[camera][good].tolist()
            found.append(list(zip(*things, strict=True)))
        return found

    return step


# Judo throws.


def judo_throws(
    s: Setup, *, layout: bool = False, once: bool = False, kept: bool = False, pinned: bool = False, on_gpu: bool = False, averaged: str = "loop", **how: Any
) -> Step:  # fmt: skip
    """A shallow R(2+1)D learns to tell throws apart in BF16 autocast: two micro-batches of six clips, cropped and normed by this process."""
    from torchvision.models.video.resnet import BasicBlock, Conv2Plus1D, R2Plus1dStem, VideoResNet

    way, clips, moments, side, parts = How(**{"autocast": BF16 if s.cuda else None, **how}), s.size(6, 2), s.size(16, 2), s.size(112, 16), 2
    high, wide, throws = s.size(128, 20), s.size(171, 24), s.size(68, 5)
    memory = torch.channels_last_3d if layout else torch.contiguous_format
    rng = np.random.default_rng(323)
    films = [torch.randint(256, (3, moments, high, wide), dtype=torch.uint8) for _ in range(s.size(48, 6))]
    kinds = torch.from_numpy(rng.integers(0, throws, len(films)))
    with s.device:
        model: Any = VideoResNet(BasicBlock, [Conv2Plus1D] * 4, [1, 1, 1, 1], R2Plus1dStem, num_classes=throws)
    model = _placed(s, way, model).to(memory_format=memory).train()
    average = deepcopy(model).requires_grad_(False)
    old, new = ([*each.parameters(), *(part for part in each.buffers() if part.is_floating_point())] for each in (average, model))
    run = _call(s, way, model)
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=1e-4)
    shape = (clips, 3, moments, side, side)
    shelf = [s.pin(torch.zeros(shape)) for _ in range(2 * parts)] if pinned else []
    means, stds = (torch.tensor(colours).view(3, 1, 1, 1) for colours in (MEAN, STD))
    mean, std = means.to(s.device), stds.to(s.device)
    along, number = torch.arange(side, device=s.device), torch.arange(clips, device=s.device)[:, None, None]
    turn, log, sums = 0, [0.0, 0.0, 0.0], torch.zeros(3, device=s.device)

    def batch() -> tuple[Tensor, Tensor]:
        nonlocal turn
        picked = rng.integers(0, len(films), clips)
        tops, lefts, turned = rng.integers(0, high - side + 1, clips), rng.integers(0, wide - side + 1, clips), rng.random(clips) < 0.5
        turn += 1
        kind = kinds[torch.from_numpy(picked)].to(s.device)
        if on_gpu:
            whole = torch.stack([films[film] for film in picked]).to(s.device)
            places = torch.from_numpy(np.stack([tops, lefts, turned.astype(np.int64)])).to(s.device)
            rows, columns = places[0, :, None] + along, places[1, :, None] + along
            columns = torch.where(places[2, :, None] == 1, columns.flip(1), columns)
            x = whole[number, :, :, rows[:, :, None], columns[:, None]].permute(0, 3, 4, 1, 2)
            return (x.float() / 255 - mean) / std, kind
        cut = []
        for film, top, left, mirrored in zip(picked, tops, lefts, turned, strict=True):
            clip = films[film][..., top : top + side, left : left + side]
            clip = clip.flip(-1) if mirrored else clip
            cut.append((clip.float() / 255 - means) / stds)
        if pinned:
            return torch.stack(cut, out=shelf[turn % len(shelf)]).to(s.device, non_blocking=True), kind
        return torch.stack(cut).to(s.device), kind

    def micro() -> None:
        x, kind = batch()
        x = x.contiguous(memory_format=memory)
        with _casting(s, way):
            logits = run(x)
            loss = F.cross_entropy(logits.float(), kind, label_smoothing=0.1) / parts
        loss.backward()
        right = (logits.argmax(1) == kind).float().mean() / parts
        if kept:
            sums[0] += loss.detach()
            sums[1] += right
        else:
            log[0] += loss.item()
            log[1] += right.item()

    def step() -> None:
        _precision(way)
        optimizer.zero_grad(set_to_none=not way.zero)
        if once:
            with _casting(s, way):
                for _ in range(parts):
                    micro()
        else:
            for _ in range(parts):
                micro()
        norm = nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()
        with torch.no_grad():
            if averaged == "foreach":
                torch._foreach_lerp_(old, new, 0.002)
            else:
                for mine, theirs in zip(old, new, strict=True):
                    mine.lerp_(theirs, 0.002)
        if kept:
            sums[2] = norm.detach()
        else:
            log[2] = norm.item()

    return step


# Teeth.


class _MoNet(nn.Module):
    """Mixtures of Gaussians over a mesh's edges (GMMConv); each vertex gets a tooth, or gum."""

    def __init__(self, seen: int, width: int, kernels: int, layers: int, teeth: int) -> None:
        from torch_geometric.nn import GMMConv

        super().__init__()
        self.enter = nn.Linear(seen, width)
        self.convs = nn.ModuleList(GMMConv(width, width, dim=3, kernel_size=kernels) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.ELU(), nn.Linear(2 * width, teeth))

    def forward(self, x: Tensor, edge_index: Tensor, pseudo: Tensor) -> Tensor:
        first = x = F.elu(self.enter(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.elu(norm(conv(x, edge_index, pseudo)))
        return self.head(torch.cat([first, x], 1)).float()  # type: ignore[no-any-return]


def _arch(rng: np.random.Generator, rows: int, columns: int, teeth: int) -> tuple[np.ndarray[Any, Any], ...]:
    """A jaw as a bent sheet of triangles whose vertices are in no order: places, normals, edges and teeth."""
    across, along = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(0, np.pi, columns), indexing="ij")
    radius = 4.0 + 0.5 * across
    bumps = 0.4 * np.abs(np.sin(along * teeth / 2)) * (1 - across**2) + 0.02 * rng.standard_normal((rows, columns))
    pos = np.stack([radius * np.cos(along), radius * np.sin(along), bumps], -1).reshape(-1, 3)
    normals = pos * np.array([0.1, 0.1, 0.0]) + np.array([0.0, 0.0, 1.0])
    kind = np.where(bumps > 0.1, 1 + (along / np.pi * (teeth - 1)).astype(np.int64).clip(0, teeth - 2), 0).reshape(-1)
    at = np.arange(rows * columns).reshape(rows, columns)
    pairs = [(at[:-1], at[1:]), (at[:, :-1], at[:, 1:]), (at[:-1, :-1], at[1:, 1:])]
    half = np.concatenate([np.stack([one.reshape(-1), two.reshape(-1)]) for one, two in pairs], 1)
    place = rng.permutation(rows * columns)
    back = np.argsort(place)
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    return pos[back].astype(np.float32), normals[back].astype(np.float32), place[np.concatenate([half, half[::-1]], 1)], kind[back]


def dental_scans(s: Setup, *, kept: bool = False, pinned: bool = False, on_gpu: bool = False, **how: Any) -> Step:
    """MoNet learns in FP32 to tell the teeth of four scanned jaws apart; jaws are turned in NumPy and joined here, Dice is read tooth by tooth."""
    from torch_geometric.data import Batch, Data

    way, many, rows, columns, teeth = How(**how), s.size(4, 2), s.size(64, 5), s.size(160, 8), s.size(17, 4)
    rng = np.random.default_rng(324)
    scans = [_arch(rng, rows, columns, teeth) for _ in range(s.size(24, 4))]
    vertices = rows * columns
    model = _placed(s, way, _MoNet(6, s.size(64, 8), s.size(8, 2), s.size(3, 2), teeth)).train()
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=1e-4)
    weights = torch.cat([torch.tensor([0.3]), torch.ones(teeth - 1)]).to(s.device)
    stacked = [torch.from_numpy(np.stack(part)).to(s.device) for part in zip(*scans, strict=True)] if on_gpu else []
    offsets = torch.arange(many, device=s.device)[:, None, None] * vertices
    turn, log, dice = 0, [0.0], [0.0] * teeth
    total, table = torch.zeros(1, device=s.device), torch.zeros(teeth * teeth, device=s.device)
    ones = torch.ones(many * vertices, device=s.device)

    def turns() -> np.ndarray[Any, Any]:
        angles = rng.uniform(-0.5, 0.5, many)
        matrices = np.zeros((many, 3, 3), dtype=np.float32)
        matrices[:, 0, 0] = matrices[:, 1, 1] = np.cos(angles)
        matrices[:, 0, 1], matrices[:, 1, 0], matrices[:, 2, 2] = -np.sin(angles), np.sin(angles), 1.0
        return matrices

    def joined() -> tuple[Tensor, ...]:
        picked, matrices = rng.integers(0, len(scans), many), turns()
        if on_gpu:
            index, matrix = torch.from_numpy(picked).to(s.device), torch.from_numpy(matrices).to(s.device)
            places, normals, edges, kinds = (part[index] for part in stacked)
            places, normals = places @ matrix, normals @ matrix
            ends = (edges + offsets).transpose(0, 1).reshape(2, -1)
            flat = places.flatten(0, 1)
            between = (flat[ends[1]] - flat[ends[0]]).view(many, -1, 3)
            between = between / (2 * between.abs().amax((1, 2), keepdim=True)) + 0.5
            return torch.cat([places, normals], 2).flatten(0, 1), ends, between.flatten(0, 1), kinds.flatten()
        jaws = []
        for scan, matrix in zip(picked, matrices, strict=True):
            place, normal, edge, kind = scans[scan]
            place, normal = place @ matrix, normal @ matrix
            pseudo = place[edge[1]] - place[edge[0]]
            pseudo = pseudo / (2 * np.abs(pseudo).max()) + 0.5
            jaws.append(
                Data(
                    x=torch.from_numpy(np.concatenate([place, normal], 1)), edge_index=torch.from_numpy(edge),
                    edge_attr=torch.from_numpy(pseudo), y=torch.from_numpy(kind),
                )
            )  # fmt: skip
        batch: Any = Batch.from_data_list(jaws)
        if pinned and s.cuda:
            batch = batch.pin_memory()
        batch = batch.to(s.device, non_blocking=pinned)
        return batch.x, batch.edge_index, batch.edge_attr, batch.y

    def step() -> None:
        nonlocal turn
        _precision(way)
        x, edge_index, pseudo, kind = joined()
        turn += 1
        optimizer.zero_grad(set_to_none=not way.zero)
        with _casting(s, way):
            logits = run(x, edge_index, pseudo)
        loss = F.cross_entropy(logits, kind, weight=weights)
        loss.backward()
        optimizer.step()
        guess = logits.detach().argmax(1)
        if kept:
            total.add_(loss.detach())
            table.index_add_(0, kind * teeth + guess, ones)
            if turn % 100 == 0:
                log[0] += total.item()
                counts = table.view(teeth, teeth).cpu()
                dice[:] = (2 * counts.diagonal() / (counts.sum(0) + counts.sum(1)).clamp(min=1.0)).tolist()
                total.zero_()
                table.zero_()
            return
        log[0] += loss.item()
        for tooth in range(teeth):
            mine, theirs = guess == tooth, kind == tooth
            both, whole = (mine & theirs).sum().item(), mine.sum().item() + theirs.sum().item()
            dice[tooth] = 0.99 * dice[tooth] + 0.01 * 2 * both / max(whole, 1)

    return step


WORKLOADS = (
    _public(
        "veneer_species", "VOLO of timm, bf16 autocast over FP32 weights, on 48 pageable pictures and their mirrors; attention written out, 96 reads.",
        veneer_species, {},
        {"dtype-casts": {"autocast": None, "dtype": BF16}, "unfused-attention": {"fused_attention": True},
         "unfused-elementwise": {"compiled": COMPILED}, "memory-layout": {"channels_last": True}, "graph-candidate": {"graphed": True},
         "memcpy": {"ahead": True}, "sync-stall": {"at_once": True}},
    ),
    _public(
        "container_yard", "CenterNet of timm's HGNetV2 and torchvision's DeformConv2d, FP32, on one frame that the host makes floats; boxes by masks.",
        container_yard, {},
        {"launch-gap": {"compiled": GRAPHS}, "graph-candidate": {"graphed": True}, "low-arithmetic-intensity": {"cameras": 8},
         "host-bound": {"on_gpu": True}, "memcpy": {"pinned": True}, "sync-stall": {"packed": True}, "precision": {"tf32": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "judo_throws", "R(2+1)D of torchvision, training in bf16 autocast, NCDHW: 2 x 6 clips cropped by the host; weights averaged by a loop, five reads.",
        judo_throws, {},
        {"memory-layout": {"layout": True}, "unfused-elementwise": {"compiled": COMPILED}, "dtype-casts": {"once": True},
         "optimizer-foreach": {"averaged": "foreach"}, "sync-stall": {"kept": True}, "memcpy": {"pinned": True}, "host-bound": {"on_gpu": True}},
    ),
    _public(
        "dental_scans", "MoNet (GMMConv) of torch_geometric, training in FP32 on 4 jaws that NumPy turns and this process joins; 52 numbers are read.",
        dental_scans, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "precision/tf32": {"tf32": True}, "precision": {"autocast": BF16},
         "optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"kept": True}, "memcpy": {"pinned": True}, "host-bound": {"on_gpu": True}},
    ),
)  # fmt: skip
