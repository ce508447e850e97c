"""Training of a CenterNet detector that finds heron nests in aerial photographs of reed beds.

A ResNet-34 with three upsampling stages predicts, at a quarter of the resolution, one heat map per class (occupied nest,
empty nest, adult bird), box sizes and centre offsets. The photographs lie in host memory; a data set crops and flips them and
draws the Gaussian targets with NumPy, and a background thread prepares the next batches. bf16 autocast, AdamW with warm-up,
gradient clipping, an EMA of the weights; now and then the peaks of the batch are decoded and their recall is logged.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

from ..base import Setup, Step

CLASSES = 3
STRIDE = 4
MAX_OBJECTS = 64


def gaussian_radius(height: float, width: float, overlap: float = 0.7) -> float:
    """The radius within which a shifted box still overlaps the true one by `overlap` (the tightest case of CornerNet)."""
    a, b, c = 1.0, height + width, width * height * (1 - overlap) / (1 + overlap)
    return max(0.0, (b - np.sqrt(b * b - 4 * a * c)) / 2)


def draw_gaussian(heat: np.ndarray, x: int, y: int, radius: int) -> None:
    sigma = (2 * radius + 1) / 6
    line = np.arange(-radius, radius + 1, dtype=np.float32)
    bump = np.exp(-(line[:, None] ** 2 + line[None] ** 2) / (2 * sigma * sigma))
    height, width = heat.shape
    left, right = min(x, radius), min(width - x, radius + 1)
    top, bottom = min(y, radius), min(height - y, radius + 1)
    region = heat[y - top : y + bottom, x - left : x + right]
    np.maximum(region, bump[radius - top : radius + bottom, radius - left : radius + right], out=region)


class NestTiles(Dataset):
    """Aerial tiles with boxes; each item is a random crop with its CenterNet targets."""

    def __init__(self, tiles: int, tile: int, crop: int, seed: int, draw: bool = True) -> None:
        self.draw = draw  # else each item has the radii in place of the heat map
        self.rng = np.random.default_rng(seed)
        self.crop, self.tile = crop, tile
        self.images = self.rng.integers(40, 140, size=(tiles, tile, tile, 3), dtype=np.uint8)
        self.boxes: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []
        for image in self.images:
            count = int(self.rng.integers(5, 40))
            centres = self.rng.uniform(8, tile - 8, size=(count, 2))
            sizes = self.rng.uniform(10, 48, size=(count, 2))
            boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], 1).clip(0, tile - 1).astype(np.float32)
            labels = self.rng.integers(0, CLASSES, size=count)
            for (x1, y1, x2, y2), label in zip(boxes.astype(int), labels, strict=False):
                image[y1:y2, x1:x2, label] += 90
            self.boxes.append(boxes)
            self.labels.append(labels)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        x0, y0 = self.rng.integers(0, self.tile - self.crop + 1, size=2)
        image = self.images[index, y0 : y0 + self.crop, x0 : x0 + self.crop]
        boxes = self.boxes[index] - np.array([x0, y0, x0, y0], dtype=np.float32)
        labels = self.labels[index]
        if self.rng.random() < 0.5:
            image = image[:, ::-1]
            boxes = np.stack([self.crop - boxes[:, 2], boxes[:, 1], self.crop - boxes[:, 0], boxes[:, 3]], 1)

        boxes = boxes.clip(0, self.crop - 1) / STRIDE
        size = boxes[:, 2:] - boxes[:, :2]
        kept = (size > 1.0).all(1)
        boxes, size, labels = boxes[kept][:MAX_OBJECTS], size[kept][:MAX_OBJECTS], labels[kept][:MAX_OBJECTS]
        side = self.crop // STRIDE
        if not self.draw:
            return self.undrawn(image, boxes, size, labels)
        heat = np.zeros((CLASSES, side, side), dtype=np.float32)
        sizes = np.zeros((MAX_OBJECTS, 2), dtype=np.float32)
        offsets = np.zeros((MAX_OBJECTS, 2), dtype=np.float32)
        places = np.zeros(MAX_OBJECTS, dtype=np.int64)
        present = np.zeros(MAX_OBJECTS, dtype=np.float32)
        classes = np.zeros(MAX_OBJECTS, dtype=np.int64)
        for i, (box, (width, height), label) in enumerate(zip(boxes, size, labels, strict=False)):
            centre = (box[:2] + box[2:]) / 2
            x, y = int(centre[0]), int(centre[1])
            draw_gaussian(heat[label], x, y, int(gaussian_radius(height, width)))
            sizes[i], offsets[i] = (width, height), centre - (x, y)
            places[i], present[i], classes[i] = y * side + x, 1.0, label
        image = np.ascontiguousarray(image.transpose(2, 0, 1))
        return {"image": image, "heat": heat, "size": sizes, "offset": offsets, "place": places, "present": present, "label": classes}

    def undrawn(self, image: np.ndarray, boxes: np.ndarray, size: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """The same targets for all objects at once, less the heat map, which `draw_heat` draws for the whole batch."""
        count = len(boxes)
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2
        cells = centres.astype(np.int64)
        sizes = np.zeros((MAX_OBJECTS, 2), dtype=np.float32)
        offsets = np.zeros((MAX_OBJECTS, 2), dtype=np.float32)
        places = np.zeros(MAX_OBJECTS, dtype=np.int64)
        present = np.zeros(MAX_OBJECTS, dtype=np.float32)
        classes = np.zeros(MAX_OBJECTS, dtype=np.int64)
        radii = np.zeros(MAX_OBJECTS, dtype=np.int64)
        sizes[:count], offsets[:count] = size, centres - cells
        places[:count], present[:count], classes[:count] = cells[:, 1] * (self.crop // STRIDE) + cells[:, 0], 1.0, labels
        radii[:count] = gaussian_radii(size[:, 1], size[:, 0])
        image = np.ascontiguousarray(image.transpose(2, 0, 1))
        return {"image": image, "radius": radii, "size": sizes, "offset": offsets, "place": places, "present": present, "label": classes}

    def largest_radius(self) -> int:
        """No crop has a larger one: what it cuts off makes boxes smaller."""
        sizes = np.concatenate([boxes[:, 2:] - boxes[:, :2] for boxes in self.boxes]) / STRIDE
        return int(gaussian_radii(sizes[:, 1], sizes[:, 0]).max()) + 1  # one more for rounding


def gaussian_radii(height: np.ndarray, width: np.ndarray, overlap: float = 0.7) -> np.ndarray:
    b, c = height + width, width * height * (1 - overlap) / (1 + overlap)
    return np.maximum(0.0, (b - np.sqrt(b * b - 4 * c)) / 2).astype(np.int64)


@torch.no_grad()
def draw_heat(batch: dict[str, Tensor], side: int, reach: int) -> Tensor:
    """The heat maps of a batch (batch, classes, side, side), from its objects; no radius is larger than `reach`."""
    place, radius = batch["place"][..., None], batch["radius"][..., None]
    line = torch.arange(-reach, reach + 1, device=place.device)
    dy, dx = line.repeat_interleave(len(line)), line.repeat(len(line))
    x, y = place % side + dx, place // side + dy  # (batch, n, window)
    sigma = (2 * radius + 1).float() / 6
    bump = torch.exp(-(dx * dx + dy * dy).float() / (2 * sigma * sigma))
    drawn = (dx.abs() <= radius) & (dy.abs() <= radius) & (x >= 0) & (x < side) & (y >= 0) & (y < side)
    bump = bump * drawn * batch["present"][..., None]  # what is not drawn adds a zero
    row = torch.arange(len(place), device=place.device)[:, None, None] * CLASSES + batch["label"][..., None]
    index = (row * side + y.clamp(0, side - 1)) * side + x.clamp(0, side - 1)
    heat = torch.zeros(len(place) * CLASSES * side * side, device=place.device)
    heat.scatter_reduce_(0, index.flatten(), bump.flatten(), "amax")
    return heat.view(len(place), CLASSES, side, side)


def background(loader: DataLoader, ahead: int) -> Iterator[dict[str, Tensor]]:
    """Epoch after epoch of the loader, prepared by a thread."""
    ready: queue.Queue[dict[str, Tensor]] = queue.Queue(ahead)

    def work() -> None:
        while True:
            for batch in loader:
                ready.put(batch)

    threading.Thread(target=work, daemon=True).start()
    while True:
        yield ready.get()


class CenterNet(nn.Module):
    def __init__(self, backbone: str, width: int, head: int) -> None:
        super().__init__()
        self.backbone = timm.create_model(backbone, pretrained=False, features_only=True, out_indices=(4,))
        channels = self.backbone.feature_info.channels()[-1]
        stages: list[nn.Module] = []
        for _ in range(3):
            stages += [nn.ConvTranspose2d(channels, width, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        self.up = nn.Sequential(*stages)
        self.heads = nn.ModuleDict()
        for name, outputs in (("heat", CLASSES), ("size", 2), ("offset", 2)):
            self.heads[name] = nn.Sequential(nn.Conv2d(width, head, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(head, outputs, 1))
        nn.init.constant_(self.heads["heat"][-1].bias, -2.19)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        features = self.up(self.backbone(image)[-1])
        return {name: head(features).float() for name, head in self.heads.items()}


def focal_loss(logits: Tensor, heat: Tensor) -> Tensor:
    """The penalty-reduced focal loss of CornerNet."""
    probability = logits.sigmoid().clamp(1e-4, 1 - 1e-4)
    positive = heat.eq(1).float()
    hit = torch.log(probability) * (1 - probability) ** 2 * positive
    miss = torch.log(1 - probability) * probability**2 * (1 - heat) ** 4 * (1 - positive)
    return -(hit.sum() + miss.sum()) / positive.sum().clamp(min=1)


def gather_places(values: Tensor, places: Tensor) -> Tensor:
    """(batch, 2, h, w) at flat places (batch, n) -> (batch, n, 2)."""
    flat = values.flatten(2).transpose(1, 2)
    return flat.gather(1, places[..., None].expand(-1, -1, flat.shape[2]))


@torch.no_grad()
def peak_recall(logits: Tensor, batch: dict[str, Tensor], count: int, reach: float = 2.0) -> Tensor:
    """The share of objects with one of the `count` highest peaks of their class within `reach` cells."""
    heat = logits.sigmoid()
    heat = heat * (F.max_pool2d(heat, 3, stride=1, padding=1) == heat)
    side = heat.shape[-1]
    _, index = heat.flatten(1).topk(count)
    label, place = index // (side * side), index % (side * side)
    peaks = torch.stack([place % side, place // side], -1).float()
    objects = torch.stack([batch["place"] % side, batch["place"] // side], -1).float()
    near = (torch.cdist(objects, peaks) <= reach) & (batch["label"][..., None] == label[:, None])
    return (near.any(-1).float() * batch["present"]).sum() / batch["present"].sum().clamp(min=1)


def heron_nests(s: Setup, *, compiled: bool = False, chains: bool = False, host: bool = False, fused_adamw: bool = False) -> Step:
    """Each flag carries out one finding by itself: the model compiled and AdamW fused; the preparation of the image, model and losses compiled
    in one; heat maps drawn on the GPU and the lists of tensors gathered once; AdamW fused."""
    torch.manual_seed(11)
    crop = s.size(512, 64)
    data = NestTiles(tiles=s.size(96, 8), tile=s.size(640, 96), crop=crop, seed=11, draw=not host)
    loader = DataLoader(data, batch_size=s.size(16, 2), shuffle=True, drop_last=True, pin_memory=s.cuda, generator=torch.Generator().manual_seed(5))
    batches = background(loader, ahead=4)

    model = CenterNet("resnet34" if not s.tiny else "resnet10t", width=s.size(256, 16), head=64).to(s.device, memory_format=torch.channels_last)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9995), use_buffers=True)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 1e-2}, {"params": plain, "weight_decay": 0.0}], lr=5e-4, **({"fused": True} if compiled or fused_adamw else {}))
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=200)
    fall = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[8000, 11000], gamma=0.1)
    mean = torch.tensor([0.33, 0.37, 0.30], device=s.device).view(1, 3, 1, 1)
    std = torch.tensor([0.16, 0.17, 0.15], device=s.device).view(1, 3, 1, 1)
    model.train()
    steps = 0
    log: dict[str, float] = {}

    net = s.compile(model) if compiled else model

    kind = s.device.type

    def whole(raw: Tensor, heat: Tensor, sizes: Tensor, offsets: Tensor, places: Tensor, present: Tensor) -> tuple[Tensor, ...]:
        """The loss, its three parts and the logits of the heat maps, all but the first for the log only."""
        image = (raw.float() / 255 - mean) / std
        image = image.contiguous(memory_format=torch.channels_last)
        with torch.autocast(kind, dtype=torch.bfloat16):
            out = model(image)
        present = present[..., None]
        total = present.sum().clamp(min=1)
        heat_loss = focal_loss(out["heat"], heat)
        size_loss = (F.l1_loss(gather_places(out["size"], places), sizes, reduction="none") * present).sum() / total
        offset_loss = (F.l1_loss(gather_places(out["offset"], places), offsets, reduction="none") * present).sum() / total
        loss = heat_loss + 0.1 * size_loss + offset_loss
        return loss, heat_loss.detach(), size_loss.detach(), offset_loss.detach(), out["heat"].detach()

    whole = s.compile(whole) if chains else whole
    reach = data.largest_radius() if host else 0
    # The tensors of both models stay the same objects for the whole run.
    parameters = list(model.parameters()) if host else []
    kept = [t.detach() for t in itertools.chain(ema.module.parameters(), ema.module.buffers())] if host else []
    seen = [t.detach() for t in itertools.chain(model.parameters(), model.buffers())] if host else []
    groups = [[(k, v) for k, v in zip(kept, seen, strict=False) if k.is_floating_point() == real] for real in (True, False)]
    groups = [tuple(map(list, zip(*group, strict=False))) for group in groups if group]

    @torch.no_grad()
    def update_ema() -> None:
        """What ema.update_parameters does, on lists gathered once."""
        for kept, seen in groups:
            if steps == 0:
                torch._foreach_copy_(kept, seen)
            else:
                ema.multi_avg_fn(kept, seen, steps)
        ema.n_averaged += 1

    def step() -> dict[str, float]:
        nonlocal steps
        batch = {name: value.to(s.device, non_blocking=True) for name, value in next(batches).items()}
        if host:
            batch["heat"] = draw_heat(batch, crop // STRIDE, reach)
        if chains:
            tensors = (batch[name] for name in ("image", "heat", "size", "offset", "place", "present"))
            loss, heat_loss, size_loss, offset_loss, heat_logits = whole(*tensors)
        else:
            image = (batch["image"].float() / 255 - mean) / std
            image = image.contiguous(memory_format=torch.channels_last)
            with torch.autocast(s.device.type, dtype=torch.bfloat16):
                out = net(image)
            present = batch["present"][..., None]
            total = present.sum().clamp(min=1)
            heat_loss = focal_loss(out["heat"], batch["heat"])
            size_loss = (F.l1_loss(gather_places(out["size"], batch["place"]), batch["size"], reduction="none") * present).sum() / total
            offset_loss = (F.l1_loss(gather_places(out["offset"], batch["place"]), batch["offset"], reduction="none") * present).sum() / total
            loss = heat_loss + 0.1 * size_loss + offset_loss
            heat_logits = out["heat"]

        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters if host else model.parameters(), 35.0)
        optimizer.step()
        warm.step()
        fall.step()
        if host:
            update_ema()
        else:
            ema.update_parameters(model)

        log.update(loss=loss.item(), heat=heat_loss.item(), size=size_loss.item(), offset=offset_loss.item(), norm=norm.item())
        if steps % 10 == 0:
            log["recall"] = peak_recall(heat_logits, batch, count=s.size(100, 10)).item()
        log["lr"] = optimizer.param_groups[0]["lr"]
        steps += 1
        return dict(log)

    return step
