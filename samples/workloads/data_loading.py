"""Programs that wait for their next batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Make, Setup, Step, Workload
from .models import Block, VisionTransformer


class AugmentedImages(Dataset[tuple[Tensor, int]]):
    """Images held as bytes, as a decoder leaves them; each is resized, flipped and normalised on the CPU when it is asked for."""

    def __init__(self, s: Setup) -> None:
        stored = s.size(320, 40)
        self.side, self.classes = s.size(224, 32), s.size(1000, 10)
        self.images = torch.randint(256, (s.size(64, 4), 3, stored, stored), dtype=torch.uint8)

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index % len(self.images)].float().unsqueeze(0)
        image = F.interpolate(image, size=(self.side, self.side), mode="bicubic", antialias=True)
        image = image.flip(-1) if index % 2 else image
        return (image.squeeze(0) - 116.0) / 57.0, index % self.classes


class TokenizedTexts(Dataset[tuple[Tensor, Tensor]]):
    """Texts that are split, looked up and padded in Python when they are asked for."""

    def __init__(self, s: Setup) -> None:
        self.words, self.length = s.size(600, 20), s.size(512, 16)
        self.vocabulary = {f"word{i}": i for i in range(s.size(30_000, 100))}

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        text = " ".join(f"word{(index * 31 + k * 7) % len(self.vocabulary)}" for k in range(self.words))
        ids = [self.vocabulary.get(word, 0) for word in text.split()][: self.length]
        ids += [0] * (self.length - len(ids))
        return torch.tensor(ids), torch.tensor([*ids[1:], 0])


def _batches(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def _loader(s: Setup, data: Dataset[Any], batch: int, **options: Any) -> Iterator[Any]:
    # One thread in this process for the transforms, as in each worker, so that both sides make a batch in the same way.
    torch.set_num_threads(1)
    return _batches(DataLoader(data, batch_size=batch, shuffle=True, drop_last=True, **options))


def _workers(s: Setup) -> dict[str, Any]:
    return {"num_workers": s.size(12, 2), "persistent_workers": True, "prefetch_factor": 4, "pin_memory": s.cuda}


def _images(options: bool) -> Make:
    def make(s: Setup) -> Step:
        data = AugmentedImages(s)
        model = VisionTransformer(s.size(384, 32), s.size(6, 2), s.size(6, 1), data.classes).to(s.device, torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        batches = _loader(s, data, s.size(64, 2), **(_workers(s) if options else {}))

        def step() -> None:
            images, labels = next(batches)
            images = images.to(s.device, non_blocking=options)
            labels = labels.to(s.device, non_blocking=options)
            optimizer.zero_grad()
            F.cross_entropy(model(images.bfloat16()), labels).backward()
            optimizer.step()

        return step

    return make


class Language(nn.Module):
    def __init__(self, s: Setup, words: int) -> None:
        super().__init__()
        dim = s.size(1024, 32)
        self.embedding = nn.Embedding(words, dim)
        self.blocks = nn.Sequential(*(Block(dim, s.size(16, 2), causal=True) for _ in range(s.size(6, 1))))
        self.head = nn.Linear(dim, words)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(ids)))


def _texts(options: bool) -> Make:
    def make(s: Setup) -> Step:
        data = TokenizedTexts(s)
        model = Language(s, len(data.vocabulary)).to(s.device, torch.bfloat16).eval()
        batches = _loader(s, data, s.size(32, 2), **(_workers(s) if options else {"pin_memory": s.cuda}))

        @torch.inference_mode()
        def step() -> Tensor:
            ids, targets = next(batches)
            logits = model(ids.to(s.device, non_blocking=True))
            return F.cross_entropy(logits.flatten(0, 1), targets.to(s.device, non_blocking=True).flatten())

        return step

    return make


class Ready(Dataset[Tensor]):
    """Samples that need no work."""

    def __init__(self, s: Setup) -> None:
        self.samples = torch.randn(64, s.size(2048, 16))

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        return self.samples[index % 64]


def _hidden(workers: bool) -> Make:
    """A loader without workers whose batches are done long before the GPU is: num_workers gains nothing."""

    def make(s: Setup) -> Step:
        features = s.size(2048, 16)
        model = nn.Sequential(*(nn.Linear(features, features) for _ in range(s.size(24, 2)))).to(s.device, torch.bfloat16)
        repeated = s.size(512, 2)
        options = _workers(s) if workers else {"pin_memory": s.cuda}
        batches = _loader(s, Ready(s), s.size(128, 2), **options)

        @torch.inference_mode()
        def step() -> Tensor:
            x = next(batches).to(s.device, non_blocking=True).bfloat16()
            return model(x.repeat(repeated, 1))

        return step

    return make


WORKLOADS = (
    Workload(
        name="image_augmentation", rule="data-loading", main=True, make_slow=_images(False), make_fixed=_images(True),
        what="Vision-transformer training on images that the main process resizes, flips and normalises one by one.",
        fix="12 worker processes, kept between epochs, pinned memory",
        fixed_quiet=False, with_stack=True,
    ),
    Workload(
        name="tokenize_on_the_fly", rule="data-loading", make_slow=_texts(False), make_fixed=_texts(True),
        what="Language-model scoring of texts that the main process tokenises in Python; batches are pinned already.",
        fix="12 worker processes",
        fixed_quiet=False,
    ),
    Workload(
        name="loader_behind_gpu", rule="data-loading", trap=True, make_slow=_hidden(False), make_fixed=_hidden(True),
        what="A loader without workers whose batches are ready long before the GPU asks for them.",
        fix="none worth making: workers gain nothing",
        gpu_bound=True,
    ),
)  # fmt: skip
