"""Land cover maps of coastal satellite scenes: sliding-window inference with a ResNet-50 FPN on ten Sentinel-2 bands.

A request is one scene (int16 reflectances, as read from the archive) with its cloud mask. The scene is scaled by band
percentiles, cut into overlapping windows, and each batch of windows is predicted three times (as it is and mirrored both ways)
under fp16 autocast. The probabilities are blended with a Hann window, thin specks are removed, and the job returns the areas
of the classes in hectares, the mean entropy, and how mangrove changed against the map of the scene's last visit.
"""

from __future__ import annotations

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import Setup, Step

BANDS = 10
CLASSES = ("water", "mudflat", "mangrove", "saltmarsh", "forest", "built")
MANGROVE = CLASSES.index("mangrove")
CLOUDED = 255
PIXEL_HECTARES = 0.01


class PyramidSegmenter(nn.Module):
    """A feature pyramid whose levels are brought to a quarter of the resolution and summed (panoptic FPN)."""

    def __init__(self, backbone: str, width: int, middle: int) -> None:
        super().__init__()
        self.backbone = timm.create_model(backbone, pretrained=False, features_only=True, in_chans=BANDS, out_indices=(1, 2, 3, 4))
        self.lateral = nn.ModuleList(nn.Conv2d(channels, width, 1) for channels in self.backbone.feature_info.channels())
        self.branches = nn.ModuleList()
        for level in range(4):
            layers: list[nn.Module] = []
            for i in range(max(1, level)):
                layers += [nn.Conv2d(width if i == 0 else middle, middle, 3, padding=1, bias=False), nn.GroupNorm(8, middle), nn.ReLU(inplace=True)]
                if level > 0:
                    layers.append(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False))
            self.branches.append(nn.Sequential(*layers))
        self.dropout = nn.Dropout2d(0.1)
        self.classify = nn.Conv2d(middle, len(CLASSES), 1)

    def forward(self, x: Tensor) -> Tensor:
        features = [lateral(f) for lateral, f in zip(self.lateral, self.backbone(x), strict=False)]
        for i in (2, 1, 0):
            features[i] = features[i] + F.interpolate(features[i + 1], scale_factor=2, mode="nearest")
        summed = sum(branch(f) for branch, f in zip(self.branches, features, strict=False))
        logits = self.classify(self.dropout(summed))
        return F.interpolate(logits, scale_factor=4, mode="bilinear", align_corners=False)


def made_up_scene(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Smooth patches of land cover with their own spectra, sensor noise, and a few round clouds."""
    coarse = rng.integers(0, len(CLASSES), size=(size // 32, size // 32))
    cover = np.kron(coarse, np.ones((32, 32), dtype=np.int64))
    spectra = rng.integers(200, 4000, size=(BANDS, len(CLASSES))).astype(np.int16)
    scene = spectra[:, cover]
    scene += rng.integers(-150, 150, size=scene.shape, dtype=np.int16)
    y, x = np.ogrid[:size, :size]
    cloud = np.zeros((size, size), dtype=bool)
    for _ in range(6):
        cy, cx = rng.integers(0, size, size=2)
        cloud |= (y - cy) ** 2 + (x - cx) ** 2 < rng.integers(size // 40 + 1, size // 12) ** 2
    scene[:, cloud] += 5000
    return scene.clip(0, 10000), cloud


def window_starts(length: int, window: int, stride: int) -> list[int]:
    starts = list(range(0, length - window, stride))
    return [*starts, length - window]


def hann_window(window: int, device: torch.device) -> Tensor:
    line = torch.hann_window(window + 2, periodic=False, device=device)[1:-1]
    return (line[:, None] * line[None]).clamp(min=1e-3)


def open_specks(labels: Tensor, target: int, radius: int) -> Tensor:
    """Morphological opening of one class; what is opened away takes the most common class around it."""
    side = 2 * radius + 1
    mask = (labels == target).float()[None, None]
    eroded = -F.max_pool2d(-mask, side, stride=1, padding=radius)
    opened = F.max_pool2d(eroded, side, stride=1, padding=radius)
    specks = (mask > 0) & (opened == 0)
    others = F.one_hot(labels, len(CLASSES)).permute(2, 0, 1)[None].float()
    votes = F.avg_pool2d(others, side, stride=1, padding=radius)
    votes[:, target] = -1
    return torch.where(specks[0, 0], votes.argmax(1)[0], labels)


class SceneMapper:
    def __init__(self, model: nn.Module, device: torch.device, low: np.ndarray, high: np.ndarray, window: int, stride: int, batch: int) -> None:
        self.model, self.device = model, device
        self.window, self.stride, self.batch = window, stride, batch
        self.low = torch.from_numpy(low).to(device).view(-1, 1, 1)
        self.range = torch.from_numpy(high - low).to(device).view(-1, 1, 1)
        self.weight = hann_window(window, device)
        self.low_precision = torch.float16 if device.type == "cuda" else torch.bfloat16
        self.converted = False  # the model's own weights are of low precision, and it runs without autocast
        self.mirrors_together = False
        self.probability = self.class_probability

    def class_probability(self, windows: Tensor) -> Tensor:
        windows = windows.contiguous(memory_format=torch.channels_last)
        if self.converted:
            return self.model(windows).float().softmax(1)
        with torch.autocast(self.device.type, dtype=self.low_precision):
            logits = self.model(windows)
        return logits.float().softmax(1)

    def predict(self, windows: Tensor) -> Tensor:
        """Mean class probabilities over the mirrored versions."""
        if self.converted:
            windows = windows.to(self.low_precision)
        if self.mirrors_together:
            plain, across, down = self.probability(torch.cat((windows, windows.flip(3), windows.flip(2)))).chunk(3)
            return (plain + across.flip(3) + down.flip(2)) / 3
        total = torch.zeros(len(windows), len(CLASSES), self.window, self.window, device=self.device)
        for dims in ((), (3,), (2,)):
            mirrored = windows.flip(dims) if dims else windows
            probability = self.probability(mirrored)
            total += probability.flip(dims) if dims else probability
        return total / 3

    @torch.inference_mode()
    def __call__(self, scene: np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        size = scene.shape[1]
        margin = self.window // 8
        x = scene.float() if isinstance(scene, Tensor) else torch.from_numpy(scene).to(self.device).float()
        x = ((x - self.low) / self.range).clamp(0, 1.5)
        x = F.pad(x[None], (margin,) * 4, mode="reflect")[0]
        starts = window_starts(x.shape[1], self.window, self.stride)
        corners = [(top, left) for top in starts for left in starts]
        summed = torch.zeros(len(CLASSES), *x.shape[1:], device=self.device)
        weights = torch.zeros(x.shape[1:], device=self.device)
        for first in range(0, len(corners), self.batch):
            group = corners[first : first + self.batch]
            windows = torch.stack([x[:, top : top + self.window, left : left + self.window] for top, left in group])
            for (top, left), probability in zip(group, self.predict(windows), strict=False):
                summed[:, top : top + self.window, left : left + self.window] += probability * self.weight
                weights[top : top + self.window, left : left + self.window] += self.weight
        blended = (summed / weights)[:, margin : margin + size, margin : margin + size]
        entropy = -(blended * blended.clamp(min=1e-6).log()).sum(0)
        return blended.argmax(0), entropy


@torch.no_grad()
def settle(model: PyramidSegmenter, windows: Tensor) -> None:
    """In place of a trained checkpoint: batch norms that know the data, and logits that spread evenly over the classes."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    model.train()
    model(windows)
    model.eval()
    logits = model(windows)
    std = logits.std((0, 2, 3)) / 2
    model.classify.weight /= std.view(-1, 1, 1, 1)
    model.classify.bias.copy_((model.classify.bias - logits.mean((0, 2, 3))) / std)


def mangrove_scenes(
    s: Setup,
    *,
    graphed: bool = False,
    on_gpu: bool = False,
    copied_ahead: bool = False,
    fused: bool = False,
    half: bool = False,
    wide: bool = False,
    together: bool = False,
) -> Step:
    """graphed: the model runs as CUDA graphs. on_gpu: drift and change are computed on the device. copied_ahead: pinned buffers, and
    the next scene is copied while this one is mapped. fused: the model and its softmax are compiled. half: the model is in half
    precision without autocast. wide: the norms are compiled with what surrounds them. together: all windows and mirrored versions of a
    scene go through the model in one call.
    """
    torch.manual_seed(23)
    rng = np.random.default_rng(23)
    size = s.size(1536, 128)
    scenes = [made_up_scene(rng, size) for _ in range(s.size(4, 2))]
    sample = np.stack([scene[:, ::16, ::16] for scene, _ in scenes]).transpose(1, 0, 2, 3).reshape(BANDS, -1)
    low, high = np.percentile(sample, [2, 98], axis=1).astype(np.float32)

    model = PyramidSegmenter("resnet50" if not s.tiny else "resnet10t", width=s.size(256, 16), middle=s.size(128, 16))
    model = model.to(s.device, memory_format=torch.channels_last)
    window = s.size(512, 64)
    mapper = SceneMapper(model, s.device, low, high, window=window, stride=s.size(384, 48), batch=s.size(8, 4))
    corner = torch.from_numpy(np.stack([scene[:, :window, :window] for scene, _ in scenes])).to(s.device).float()
    settle(model, ((corner - mapper.low) / mapper.range).clamp(0, 1.5))
    if half:
        model.to(mapper.low_precision)
        mapper.converted = True
    if graphed:
        mapper.probability = s.compile(mapper.class_probability, mode="reduce-overhead")
    elif fused:
        mapper.probability = s.compile(mapper.class_probability)
    elif wide:
        mapper.model = s.compile(model)
    if together:
        mapper.mirrors_together = True
        per_side = len(window_starts(size + 2 * (window // 8), window, mapper.stride))
        mapper.batch = per_side * per_side
    last_maps: dict[int, np.ndarray] = {}
    visits = 0

    def step() -> dict[str, object]:
        nonlocal visits
        index = visits % len(scenes)
        visits += 1
        scene, cloud = scenes[index]
        # a new visit of the same place: another sun, another day
        drift = rng.integers(-60, 60, size=(BANDS, 1, 1), dtype=np.int16)
        labels, entropy = mapper(scene + drift)
        labels = open_specks(labels, MANGROVE, radius=2)
        clouded = torch.from_numpy(cloud).to(s.device)
        labels = labels.to(torch.uint8).masked_fill(clouded, CLOUDED)
        clear = ~clouded
        counts = torch.bincount(labels[clear].long(), minlength=len(CLASSES))
        hectares = dict(zip(CLASSES, (counts.double() * PIXEL_HECTARES).tolist(), strict=False))
        doubt = entropy[clear].mean().item()

        land = labels.cpu().numpy()
        gained = lost = 0.0
        if index in last_maps:
            before = last_maps[index]
            known = (before != CLOUDED) & (land != CLOUDED)
            gained = float(((land == MANGROVE) & (before != MANGROVE) & known).sum()) * PIXEL_HECTARES
            lost = float(((land != MANGROVE) & (before == MANGROVE) & known).sum()) * PIXEL_HECTARES
        last_maps[index] = land
        return {"hectares": hectares, "entropy": doubt, "gained": gained, "lost": lost, "clouded": float(cloud.mean())}

    if on_gpu:
        maps_on_device: dict[int, Tensor] = {}

        @torch.inference_mode()
        def step_on_gpu() -> dict[str, object]:
            nonlocal visits
            index = visits % len(scenes)
            visits += 1
            scene, cloud = scenes[index]
            drift = rng.integers(-60, 60, size=(BANDS, 1, 1), dtype=np.int16)
            labels, entropy = mapper(torch.from_numpy(scene).to(s.device) + torch.from_numpy(drift).to(s.device))
            labels = open_specks(labels, MANGROVE, radius=2)
            clouded = torch.from_numpy(cloud).to(s.device)
            labels = labels.to(torch.uint8).masked_fill(clouded, CLOUDED)
            clear = ~clouded
            counts = torch.bincount(labels[clear].long(), minlength=len(CLASSES))
            doubt = entropy[clear].mean()
            changed = [clouded.sum()]
            if index in maps_on_device:
                before = maps_on_device[index]
                known = (before != CLOUDED) & (labels != CLOUDED)
                now, then = labels == MANGROVE, before == MANGROVE
                changed += [(now & ~then & known).sum(), (~now & then & known).sum()]
            maps_on_device[index] = labels

            hectares = dict(zip(CLASSES, (counts.double() * PIXEL_HECTARES).tolist(), strict=False))
            hidden, *change = torch.stack(changed).tolist()
            gained, lost = (float(pixels) * PIXEL_HECTARES for pixels in change) if change else (0.0, 0.0)
            return {"hectares": hectares, "entropy": doubt.item(), "gained": gained, "lost": lost, "clouded": hidden / cloud.size}

        return step_on_gpu

    if copied_ahead:
        pinned_scene = s.pin(torch.empty(BANDS, size, size, dtype=torch.int16))
        pinned_cloud = s.pin(torch.empty(size, size, dtype=torch.bool))
        side = torch.cuda.Stream() if s.cuda else None
        copied = torch.cuda.Event() if s.cuda else None

        def fetch(index: int) -> tuple[Tensor, Tensor]:
            """Begins to copy a new visit of a scene."""
            scene, cloud = scenes[index]
            drift = rng.integers(-60, 60, size=(BANDS, 1, 1), dtype=np.int16)
            if copied is not None:
                copied.synchronize()  # the copy before has left the buffers
            np.add(scene, drift, out=pinned_scene.numpy())
            pinned_cloud.numpy()[...] = cloud
            if side is None or copied is None:
                return pinned_scene.clone(), pinned_cloud.clone()
            with torch.cuda.stream(side):
                sent = pinned_scene.to(s.device, non_blocking=True), pinned_cloud.to(s.device, non_blocking=True)
                copied.record(side)
            return sent

        ahead: tuple[Tensor, Tensor] | None = None

        def step_copied_ahead() -> dict[str, object]:
            nonlocal visits, ahead
            index = visits % len(scenes)
            visits += 1
            x, clouded = ahead or fetch(index)
            if side is not None:
                current = torch.cuda.current_stream()
                current.wait_stream(side)
                x.record_stream(current)
                clouded.record_stream(current)
            labels, entropy = mapper(x)
            ahead = fetch(visits % len(scenes))  # what was launched so far is still at work
            labels = open_specks(labels, MANGROVE, radius=2)
            labels = labels.to(torch.uint8).masked_fill(clouded, CLOUDED)
            host = torch.empty(labels.shape, dtype=torch.uint8, pin_memory=s.cuda)  # its block is reused when its map is forgotten
            host.copy_(labels, non_blocking=True)
            clear = ~clouded
            counts = torch.bincount(labels[clear].long(), minlength=len(CLASSES))
            hectares = dict(zip(CLASSES, (counts.double() * PIXEL_HECTARES).tolist(), strict=False))
            doubt = entropy[clear].mean().item()  # waits, so that the map has arrived too

            land = host.numpy()
            gained = lost = 0.0
            if index in last_maps:
                before = last_maps[index]
                known = (before != CLOUDED) & (land != CLOUDED)
                gained = float(((land == MANGROVE) & (before != MANGROVE) & known).sum()) * PIXEL_HECTARES
                lost = float(((land != MANGROVE) & (before == MANGROVE) & known).sum()) * PIXEL_HECTARES
            last_maps[index] = land
            return {"hectares": hectares, "entropy": doubt, "gained": gained, "lost": lost, "clouded": float(scenes[index][1].mean())}

        return step_copied_ahead

    return step
