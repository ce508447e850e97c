"""ViTPose of transformers in fp16 on 32 people from pageable memory, attention written out; NumPy reads joint by joint."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from workloads.base import Prefetcher, Setup, Step
from workloads.public import GRAPHS, HALF, SDPA, How, _call, _placed, _precision, _public

Array = np.ndarray[Any, Any]


def _joints(maps: Array, centres: Array, scales: Array) -> tuple[Array, Array]:
    """Where each joint is, as get_final_preds() of the public code of HRNet has it: one after the other."""
    people, count, high, wide = maps.shape
    flat = maps.reshape(people, count, -1)
    at, sure = flat.argmax(2), flat.max(2)
    places = np.stack([at % wide, at // wide], -1).astype(np.float32)
    for person in range(people):
        for joint in range(count):
            one, x, y = maps[person, joint], int(places[person, joint, 0] + 0.5), int(places[person, joint, 1] + 0.5)
            if 1 < x < wide - 1 and 1 < y < high - 1:
                slope = np.array([one[y, x + 1] - one[y, x - 1], one[y + 1, x] - one[y - 1, x]])
                places[person, joint] += np.sign(slope) * 0.25
    for person in range(people):
        step, corner = scales[person] / (wide, high), centres[person] - scales[person] / 2
        turn = np.array([[step[0], 0.0, corner[0]], [0.0, step[1], corner[1]]])
        for joint in range(count):
            x, y = places[person, joint]
            places[person, joint] = np.dot(turn, np.array([x, y, 1.0]))
    return places, sure


def _joints_at_once(maps: Array, centres: Array, scales: Array) -> tuple[Array, Array]:
    people, count, high, wide = maps.shape
    flat = maps.reshape(people * count, -1)
    at = flat.argmax(1)
    rows, x, y = np.arange(len(flat)), at % wide, at // wide
    inside = (x > 1) & (x < wide - 1) & (y > 1) & (y < high - 1)
    middle = np.where(inside, at, wide + 1)
    slopes = np.stack([flat[rows, middle + 1] - flat[rows, middle - 1], flat[rows, middle + wide] - flat[rows, middle - wide]], -1)
    places = np.stack([x, y], -1).astype(np.float32) + np.sign(slopes) * 0.25 * inside[:, None]
    places = places.reshape(people, count, 2) * (scales / (wide, high))[:, None] + (centres - scales / 2)[:, None]
    return places.astype(np.float32), flat[rows, at].reshape(people, count)


def vitpose(s: Setup, *, pinned: bool = False, at_once: bool = False, **how: Any) -> Step:
    """ViTPose finds 17 joints of each of 32 people, who have been cut out of a picture; NumPy reads them from the maps."""
    from transformers import VitPoseBackboneConfig, VitPoseConfig, VitPoseForPoseEstimation

    way, people, layers = How(**how), s.size(32, 3), s.size(12, 1)
    high, wide = s.size(256, 64), s.size(192, 48)
    trunk = VitPoseBackboneConfig(
        image_size=[high, wide], hidden_size=s.size(768, 32), num_hidden_layers=layers, num_attention_heads=s.size(12, 2), out_indices=[layers]
    )
    model: Any = VitPoseForPoseEstimation(VitPoseConfig(backbone_config=trunk, num_labels=17))
    model.backbone.config._attn_implementation = way.attention
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    cut = torch.randn(people, 3, high, wide)
    loader = Prefetcher([(s.pin(cut),)], s) if pinned else None
    draw = np.random.default_rng(0)
    centres, scales = draw.uniform(200, 800, (people, 2)), draw.uniform(60, 400, (people, 2))
    found = _joints_at_once if at_once else _joints

    @torch.no_grad()
    def step() -> list[dict[str, Array]]:
        _precision(way)
        images = loader.next()[0] if loader else cut.to(s.device)
        maps = run(pixel_values=images.to(way.dtype)).heatmaps.float().cpu().numpy()
        places, sure = found(maps, centres, scales)
        return [{"keypoints": where, "scores": score} for where, score in zip(places, sure, strict=True)]

    return step


PROGRAM = _public(
    "vitpose_people",
    "ViTPose of transformers in fp16 on 32 people from pageable memory, attention written out; NumPy reads joint by joint.",
    vitpose,
    {"dtype": HALF},
    {"host-bound": {"at_once": True}, "memcpy": {"pinned": True}, "unfused-attention": {"attention": SDPA}, "launch-gap": {"compiled": GRAPHS}},
)
