"""Live tracking of kayaks in the video of a slalom course: detector, appearance vectors, and ByteTrack with a Kalman filter.

Frames come one at a time from the camera as uint8 arrays. A YOLO-like network in half precision finds boats and paddlers, the
boxes pass non-maximum suppression, a small network turns the crop of every box into an appearance vector, and the tracker, in
NumPy, joins them to the tracks in two rounds (sure detections by overlap and looks, then unsure ones by overlap alone). A step
is one frame and returns the tracks that are seen in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
import torchvision.ops as ops
from torch import Tensor, nn

from workloads.base import Setup, Step, advised

STRIDES = (8, 16, 32)
CLASSES = 2


class ConvBlock(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs, eps=1e-3), nn.SiLU(inplace=True))


class Csp(nn.Module):
    """Splits the channels, refines one half in steps, and joins all of them."""

    def __init__(self, inputs: int, outputs: int, depth: int) -> None:
        super().__init__()
        half = outputs // 2
        self.enter, self.leave = ConvBlock(inputs, outputs, 1), ConvBlock((2 + depth) * half, outputs, 1)
        self.steps = nn.ModuleList(nn.Sequential(ConvBlock(half, half), ConvBlock(half, half)) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for layer in self.steps:
            parts.append(layer(parts[-1]) + parts[-1])
        return self.leave(torch.cat(parts, 1))


class Detector(nn.Module):
    """An anchor-free detector of the YOLO family: backbone, top-down pyramid, decoupled heads."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        w = [width * 2**i for i in range(5)]
        self.stem = nn.Sequential(ConvBlock(3, w[0], stride=2), ConvBlock(w[0], w[1], stride=2), Csp(w[1], w[1], depth))
        self.c3 = nn.Sequential(ConvBlock(w[1], w[2], stride=2), Csp(w[2], w[2], 2 * depth))
        self.c4 = nn.Sequential(ConvBlock(w[2], w[3], stride=2), Csp(w[3], w[3], 2 * depth))
        self.c5 = nn.Sequential(ConvBlock(w[3], w[4], stride=2), Csp(w[4], w[4], depth))
        self.down4, self.down3 = Csp(w[4] + w[3], w[3], depth), Csp(w[3] + w[2], w[2], depth)
        self.box = nn.ModuleList(nn.Sequential(ConvBlock(c, w[2]), ConvBlock(w[2], w[2]), nn.Conv2d(w[2], 4, 1)) for c in w[2:])
        self.score = nn.ModuleList(nn.Sequential(ConvBlock(c, w[2]), ConvBlock(w[2], w[2]), nn.Conv2d(w[2], CLASSES, 1)) for c in w[2:])

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        c3 = self.c3(self.stem(image))
        c4 = self.c4(c3)
        c5 = self.c5(c4)
        p4 = self.down4(torch.cat([F.interpolate(c5, scale_factor=2.0), c4], 1))
        p3 = self.down3(torch.cat([F.interpolate(p4, scale_factor=2.0), c3], 1))
        levels = (p3, p4, c5)
        boxes = torch.cat([head(f).flatten(2) for head, f in zip(self.box, levels, strict=False)], 2)
        scores = torch.cat([head(f).flatten(2) for head, f in zip(self.score, levels, strict=False)], 2)
        return boxes.transpose(1, 2), scores.transpose(1, 2)


class Appearance(nn.Module):
    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        blocks = [ConvBlock(3, width, stride=2), Csp(width, width, 1), ConvBlock(width, 2 * width, stride=2), Csp(2 * width, 2 * width, 1)]
        self.body, self.project = nn.Sequential(*blocks), nn.Linear(2 * width, size)

    def forward(self, crops: Tensor) -> Tensor:
        return F.normalize(self.project(self.body(crops).mean((2, 3))).float(), dim=-1)


def grid_points(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    points, strides = [], []
    for stride in STRIDES:
        y, x = torch.meshgrid(torch.arange(height // stride, device=device), torch.arange(width // stride, device=device), indexing="ij")
        points.append((torch.stack([x, y], -1).reshape(-1, 2) + 0.5) * stride)
        strides.append(torch.full((len(points[-1]), 1), float(stride), device=device))
    return torch.cat(points), torch.cat(strides)


def match(cost: np.ndarray, limit: float) -> list[tuple[int, int]]:
    """Pairs in the order of their cost, each row and column once."""
    cost, pairs = cost.copy(), []
    while cost.min() <= limit:
        row, column = divmod(int(cost.argmin()), cost.shape[1])
        cost[row], cost[:, column] = np.inf, np.inf
        pairs.append((row, column))
    return pairs


@dataclass
class Track:
    """A constant-velocity Kalman filter over (x, y, width, height)."""

    number: int
    state: np.ndarray
    covariance: np.ndarray
    look: np.ndarray
    hits: int = 1
    missed: int = 0

    @property
    def box(self) -> np.ndarray:
        centre, size = self.state[:2], self.state[2:4].clip(1)
        return np.concatenate([centre - size / 2, centre + size / 2])

    def noise(self, position: float, speed: float) -> np.ndarray:
        scale = max(float(self.state[3]), 1.0)
        return np.diag(np.square([position * scale] * 4 + [speed * scale] * 4))

    def predict(self, motion: np.ndarray) -> None:
        self.state = motion @ self.state
        self.covariance = motion @ self.covariance @ motion.T + self.noise(1 / 20, 1 / 160)
        self.missed += 1

    def update(self, measured: np.ndarray, look: np.ndarray | None) -> None:
        innovation = self.covariance[:4, :4] + self.noise(1 / 20, 0)[:4, :4]
        gain = np.linalg.solve(innovation, self.covariance[:4]).T
        self.state = self.state + gain @ (measured - self.state[:4])
        self.covariance = self.covariance - gain @ innovation @ gain.T
        if look is not None:
            self.look = 0.9 * self.look + 0.1 * look
            self.look /= np.linalg.norm(self.look)
        self.hits, self.missed = self.hits + 1, 0


class Tracker:
    def __init__(self, sure: float, patience: int) -> None:
        self.sure, self.patience = sure, patience
        self.tracks: list[Track] = []
        self.born = 0
        self.motion = np.eye(8) + np.eye(8, k=4)

    def __call__(self, boxes: np.ndarray, scores: np.ndarray, looks: np.ndarray) -> list[Track]:
        for track in self.tracks:
            track.predict(self.motion)
        centred = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)
        sure, unsure = np.flatnonzero(scores >= self.sure), np.flatnonzero(scores < self.sure)
        waiting = list(self.tracks)
        fresh = set(sure.tolist())
        for indices, by_look in ((sure, True), (unsure, False)):
            if not waiting or len(indices) == 0:
                continue
            places = np.stack([track.box for track in waiting])
            cost = 1 - ops.box_iou(torch.from_numpy(places), torch.from_numpy(boxes[indices])).numpy()
            if by_look:
                apart = (1 - np.stack([track.look for track in waiting]) @ looks[indices].T) / 2
                cost = np.where(cost < 0.9, np.minimum(cost, apart + 0.2), cost)
            pairs = match(cost, 0.8 if by_look else 0.5)
            for row, column in pairs:
                index = int(indices[column])
                waiting[row].update(centred[index], looks[index] if by_look else None)
                fresh.discard(index)
            waiting = [track for i, track in enumerate(waiting) if i not in {row for row, _ in pairs}]
        # a track is confirmed when it was seen three times; until then the first miss ends it
        self.tracks = [track for track in self.tracks if track.missed <= (self.patience if track.hits >= 3 else 0)]
        for index in sorted(fresh):
            self.born += 1
            track = Track(self.born, np.concatenate([centred[index], np.zeros(4)]), np.eye(8), looks[index])
            track.covariance = track.noise(1 / 10, 1 / 16)
            self.tracks.append(track)
        return [track for track in self.tracks if track.missed == 0 and track.hits >= 3]


class BatchedTracker:
    """As Tracker, with the filters of all tracks as tensors on the device; only the costs come to the host, to be matched."""

    def __init__(self, sure: float, patience: int, looks: int, device: torch.device) -> None:
        self.sure, self.patience, self.device = sure, patience, device
        self.born = 0
        self.numbers, self.hits, self.missed = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self.motion = (torch.eye(8, dtype=torch.float64) + torch.diag(torch.ones(4, dtype=torch.float64), 4)).to(device)
        self.state = torch.zeros((0, 8), dtype=torch.float64, device=device)
        self.covariance = torch.zeros((0, 8, 8), dtype=torch.float64, device=device)
        self.look = torch.zeros((0, looks), dtype=torch.float32, device=device)

    @property
    def tracks(self) -> np.ndarray:
        return self.numbers

    @staticmethod
    def boxes(state: Tensor) -> Tensor:
        centre, size = state[:, :2], state[:, 2:4].clamp(min=1)
        return torch.cat([centre - size / 2, centre + size / 2], 1)

    @staticmethod
    def noise(state: Tensor, position: float, speed: float) -> Tensor:
        scale = state[:, 3:4].clamp(min=1.0)
        return torch.diag_embed(torch.cat([(position * scale).expand(-1, 4), (speed * scale).expand(-1, 4)], 1).square())

    def indices(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(self.device)

    def update(self, rows: Tensor, measured: Tensor, looks: Tensor | None) -> None:
        state, covariance = self.state[rows], self.covariance[rows]
        innovation = covariance[:, :4, :4] + self.noise(state, 1 / 20, 0)[:, :4, :4]
        gain = torch.linalg.solve_ex(innovation, covariance[:, :4]).result.mT
        self.state[rows] = state + (gain @ (measured - state[:, :4]).unsqueeze(-1)).squeeze(-1)
        self.covariance[rows] = covariance - gain @ innovation @ gain.mT
        if looks is not None:
            look = 0.9 * self.look[rows] + 0.1 * looks
            self.look[rows] = look / torch.linalg.vector_norm(look, dim=-1, keepdim=True)

    def __call__(self, boxes: Tensor, scores: np.ndarray, looks: Tensor) -> list[tuple]:
        """Boxes (float64) and looks (float32) on the device. The number and box of every track that is seen and confirmed."""
        self.state = self.state @ self.motion.T
        self.covariance = self.motion @ self.covariance @ self.motion.T + self.noise(self.state, 1 / 20, 1 / 160)
        self.missed += 1
        centred = torch.cat([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)
        sure, unsure = np.flatnonzero(scores >= self.sure), np.flatnonzero(scores < self.sure)
        waiting, fresh = np.arange(len(self.numbers)), np.zeros(len(scores), dtype=bool)
        fresh[sure] = True
        for indices, by_look in ((sure, True), (unsure, False)):
            if len(waiting) == 0 or len(indices) == 0:
                continue
            rows, columns = self.indices(waiting), self.indices(indices)
            cost = 1 - ops.box_iou(self.boxes(self.state[rows]), boxes[columns])
            if by_look:
                apart = (1 - self.look[rows] @ looks[columns].T) / 2
                cost = torch.where(cost < 0.9, torch.minimum(cost, (apart + 0.2).double()), cost)
            pairs = match(cost.cpu().numpy(), 0.8 if by_look else 0.5)
            if not pairs:
                continue
            row, column = np.array(pairs).T
            met, index = waiting[row], indices[column]
            chosen = self.indices(index)
            self.update(self.indices(met), centred[chosen], looks[chosen] if by_look else None)
            self.hits[met] += 1
            self.missed[met] = 0
            fresh[index] = False
            waiting = np.delete(waiting, row)
        kept = np.flatnonzero(self.missed <= np.where(self.hits >= 3, self.patience, 0))
        new = np.flatnonzero(fresh)
        rows, chosen = self.indices(kept), self.indices(new)
        state = F.pad(centred[chosen], (0, 4))
        self.state = torch.cat([self.state[rows], state])
        self.covariance = torch.cat([self.covariance[rows], self.noise(state, 1 / 10, 1 / 16)])
        self.look = torch.cat([self.look[rows], looks[chosen]])
        self.numbers = np.concatenate([self.numbers[kept], self.born + 1 + np.arange(len(new))])
        self.hits = np.concatenate([self.hits[kept], np.ones(len(new), dtype=np.int64)])
        self.missed = np.concatenate([self.missed[kept], np.zeros(len(new), dtype=np.int64)])
        self.born += len(new)
        seen = np.flatnonzero((self.missed == 0) & (self.hits >= 3))
        places = self.boxes(self.state).cpu().numpy()[seen].round(1)
        return [(int(number), *place) for number, place in zip(self.numbers[seen], places.tolist(), strict=False)]


def made_up_video(frames: int, height: int, width: int, boats: int, rng: np.random.Generator) -> np.ndarray:
    """Rippled water with bright boats that drift down the course."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    water = np.stack([40 + 8 * np.sin(x / 17), 80 + 12 * np.sin(y / 11), 110 + 10 * np.sin((x + y) / 23)], -1).astype(np.uint8)
    video = np.empty((frames, height, width, 3), dtype=np.uint8)
    places = rng.uniform([0, 0], [width, height], size=(boats, 2))
    speeds, sizes = rng.uniform(-3, 3, size=(boats, 2)), rng.uniform(0.04, 0.1, size=(boats, 2)) * height
    colours = rng.integers(90, 255, size=(boats, 3))
    grain = rng.integers(0, 12, size=(height, width, 1), dtype=np.uint8)
    for t in range(frames):
        video[t] = water + np.roll(grain, 3 * t, axis=1)
        for place, speed, (w, h), colour in zip(places, speeds, sizes, colours, strict=False):
            left, top = (place + t * speed) % (width, height)
            video[t, int(top) : int(top + h), int(left) : int(left + 2 * w)] = colour
    return video


@torch.no_grad()
def settle(detector: Detector, appearance: Appearance, images: Tensor, share: float) -> None:
    """In place of trained checkpoints: batch norms that know the data, and scores of which a small share is sure."""
    for network, seen in ((detector, images), (appearance, F.interpolate(images, size=(64, 64)))):
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None
        network.train()(seen)
        network.eval()
    _, scores = detector(images)
    spread = scores.std()
    sure = (scores.amax(-1).flatten() / spread).quantile(1 - share)
    for head in detector.score:
        head[-1].weight /= spread
        head[-1].bias.copy_(head[-1].bias / spread - sure)


def kayak_tracks(s: Setup, *, batched: bool = False, graphs: bool = False) -> Step:
    torch.manual_seed(41)
    height, width = s.size(736, 96), s.size(1280, 160)
    video = made_up_video(s.size(48, 6), s.size(720, 90), width, boats=s.size(24, 4), rng=np.random.default_rng(41))
    dtype = torch.float16 if s.cuda else torch.float32
    detector, appearance = Detector(s.size(32, 8), 1).to(s.device), Appearance(s.size(32, 8), s.size(128, 16)).to(s.device)

    def prepare(frame: np.ndarray) -> Tensor:
        image = torch.from_numpy(frame).to(s.device).permute(2, 0, 1)[None].to(dtype) / 255
        return F.pad(image, (0, 0, 0, height - frame.shape[0]), value=114 / 255)

    settle(detector, appearance, torch.cat([prepare(frame) for frame in video[:2]]).float(), share=s.size(60, 20) / (height * width / 49))
    detector, appearance = detector.to(dtype), appearance.to(dtype)
    points, strides = grid_points(height, width, s.device)
    tracker = BatchedTracker(0.5, 30, appearance.project.out_features, s.device) if batched else Tracker(sure=0.5, patience=30)
    most = s.size(100, 20)
    limit = torch.tensor([width, video.shape[1], width, video.shape[1]], dtype=torch.float32, device=s.device)
    shown = 0

    def detect(image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        raw, logits = detector(image)
        scores, labels = logits[0].float().sigmoid().max(-1)
        # the head gives distances to the four sides, in strides
        sides = F.softplus(raw[0].float()).clamp(max=8) * strides
        return torch.cat([points - sides[:, :2], points + sides[:, 2:]], -1), scores, labels

    look_at = appearance
    if graphs:
        detect, one_size = s.compile(detect, mode="reduce-overhead", dynamic=False), s.compile(appearance, mode="reduce-overhead", dynamic=False)

        def look_at(crops: Tensor) -> Tensor:
            """As many crops in every frame, so that one graph serves all."""
            return one_size(F.pad(crops, (0, 0, 0, 0, 0, 0, 0, most - len(crops))))[: len(crops)]

    @torch.inference_mode()
    def step() -> dict[str, object]:
        nonlocal shown
        turn, shown = shown % (2 * len(video) - 2), shown + 1
        image = prepare(video[min(turn, 2 * len(video) - 2 - turn)])
        boxes, scores, labels = detect(image)
        found = scores > 0.35
        boxes, scores, labels = boxes[found].clamp(min=0).minimum(limit), scores[found], labels[found]
        kept = ops.batched_nms(boxes, scores, labels, 0.5)[:most]
        boxes, scores = boxes[kept], scores[kept]
        if len(boxes) > 0:
            crops = ops.roi_align(image.float(), [boxes], output_size=(64, 64), sampling_ratio=2)
            looks = look_at(crops.to(dtype))
        else:
            looks = torch.zeros((0, appearance.project.out_features), device=s.device)
        if batched:
            seen = tracker(boxes.double(), scores.cpu().numpy(), looks)
            return {"frame": shown, "detections": len(boxes), "alive": len(tracker.tracks), "born": tracker.born, "tracks": seen}
        looks = looks.cpu().numpy()
        tracks = tracker(boxes.cpu().double().numpy(), scores.cpu().numpy(), looks)
        seen = [(track.number, *track.box.round(1).tolist()) for track in tracks]
        return {"frame": shown, "detections": len(boxes), "alive": len(tracker.tracks), "born": tracker.born, "tracks": seen}

    return step


PROGRAM = advised(
    "kayak_tracks",
    "A frame of video at a time: a detector in fp16, NMS, vectors of the crops, a tracker with a Kalman filter in NumPy.",
    kayak_tracks,
    {"host-bound": {"batched": True}, "launch-gap": {"graphs": True}},
)
