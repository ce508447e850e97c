"""Programs in which the host waits for the GPU, and one in which that wait costs nothing."""

from __future__ import annotations

import io
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload
from .models import Attention, Block


class PaddedBlock(nn.Module):
    """A transformer block whose MLP skips padding: `keep` selects the real tokens, by mask or by index."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), Attention(dim, heads, causal=True)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        tokens = x.flatten(0, 1)
        update = torch.zeros_like(tokens)
        update[keep] = self.mlp(self.norm2(tokens[keep]))
        return x + update.view_as(x)


class PaddedModel(nn.Module):
    def __init__(self, dim: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(PaddedBlock(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, keep)
        return self.head(x[:, 0])


class PaddedTraining:
    """Model, optimizer and one batch, a tenth of it padding."""

    def __init__(self, s: Setup) -> None:
        dim, batch, length, classes = s.size(768, 32), s.size(24, 2), s.size(256, 8), s.size(1000, 10)
        self.model = PaddedModel(dim, s.size(12, 2), s.size(4, 1), classes).to(s.device, torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(batch, length, dim, device=s.device, dtype=torch.bfloat16)
        self.labels = torch.randint(classes, (batch,), device=s.device)
        lengths = torch.linspace(0.8 * length, length, batch, device=s.device)
        self.mask = (torch.arange(length, device=s.device) < lengths[:, None]).flatten()

    def update(self, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.optimizer.zero_grad()
        logits = self.model(self.x, keep)
        loss = F.cross_entropy(logits, self.labels)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach(), (logits.argmax(-1) == self.labels).float().mean(), norm


def masked_slow(s: Setup) -> Step:
    training = PaddedTraining(s)

    def step() -> tuple[float, float, float]:
        loss, accuracy, norm = training.update(training.mask)  # each use of the mask is a nonzero(), and so a wait
        if torch.isnan(loss).item():
            raise FloatingPointError("the loss is NaN")
        return loss.item(), accuracy.item(), norm.item()

    return step


def masked_fixed(s: Setup) -> Step:
    training = PaddedTraining(s)
    keep = training.mask.nonzero().squeeze(1)  # once a batch, where the batch is made
    totals = torch.zeros(3, device=s.device)
    done = 0

    def step() -> None:
        nonlocal done
        totals.add_(torch.stack([value.float() for value in training.update(keep)]))
        done += 1
        if done % 100 == 0 and totals.isnan().any().item():
            raise FloatingPointError("the loss is NaN")

    return step


class LanguageModelTraining:
    """A training step with far more GPU work than host work."""

    def __init__(self, s: Setup) -> None:
        dim = s.size(2048, 32)
        with s.device:
            self.model = nn.Sequential(*(Block(dim, s.size(16, 2), causal=True) for _ in range(s.size(4, 1)))).to(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(s.size(12, 2), s.size(1024, 8), dim, device=s.device, dtype=torch.bfloat16)

    def update(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(self.x), self.x)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def print_slow(s: Setup) -> Step:
    training, log = LanguageModelTraining(s), io.StringIO()

    def step() -> None:
        loss = training.update()
        print(f"loss {loss.item():.4f}", file=log)

    return step


def print_fixed(s: Setup) -> Step:
    training, log = LanguageModelTraining(s), io.StringIO()
    total, done = torch.zeros((), device=s.device), 0

    def step() -> None:
        nonlocal done
        total.add_(training.update())
        done += 1
        if done % 100 == 0:
            print(f"mean loss {total.item() / done:.4f}", file=log)

    return step


class Detector(nn.Module):
    """A convolutional detector: a score and a box for each cell of a grid 16 times coarser than the image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [3, width, 2 * width, 4 * width, 8 * width]
        coarser = [nn.Conv2d(i, o, 3, stride=2, padding=1) for i, o in pairwise(widths)]
        deeper = [nn.Conv2d(8 * width, 8 * width, 3, padding=1) for _ in range(3)]
        self.backbone = nn.Sequential(*(m for conv in coarser + deeper for m in (conv, nn.ReLU(inplace=True))))
        self.head = nn.Conv2d(8 * width, 5, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        cells = self.head(self.backbone(images)).flatten(2).transpose(1, 2).float()
        return cells[..., 0].sigmoid(), cells[..., 1:]


def _detection(s: Setup) -> tuple[Detector, Tensor, float]:
    model = Detector(s.size(64, 4)).to(s.device, torch.bfloat16, memory_format=torch.channels_last).eval()
    side = s.size(640, 64)
    images = torch.rand(s.size(16, 2), 3, side, side, device=s.device, dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        threshold = model(images)[0].flatten().quantile(0.98).item()  # about 32 boxes an image
    return model, images, threshold


def detect_slow(s: Setup) -> Step:
    model, images, threshold = _detection(s)

    @torch.inference_mode()
    def step() -> list[dict[str, list[float]]]:
        scores, boxes = model(images)
        results = []
        for i in range(len(images)):
            keep = scores[i] > threshold
            results.append({"scores": scores[i][keep].cpu().tolist(), "boxes": boxes[i][keep].cpu().tolist()})
        return results

    return step


def detect_fixed(s: Setup) -> Step:
    model, images, threshold = _detection(s)
    most = s.size(64, 4)
    buffers = [s.pin(torch.zeros(len(images), most, 5)) for _ in range(2)]
    copied = [torch.cuda.Event() if s.cuda else None for _ in buffers]
    turn = 0

    @torch.inference_mode()
    def step() -> list[list[list[float]]]:
        nonlocal turn
        scores, boxes = model(images)
        best, index = scores.topk(most, dim=1)
        boxes = boxes.gather(1, index[..., None].expand(-1, -1, 4))
        buffers[turn].copy_(torch.cat([best[..., None], boxes], dim=-1), non_blocking=True)
        if (event := copied[turn]) is not None:
            event.record()
        turn = 1 - turn  # the previous batch has arrived while this one was being launched
        if (event := copied[turn]) is not None:
            event.synchronize()
        return [rows[rows[:, 0] > threshold].tolist() for rows in buffers[turn]]

    return step


WORKLOADS = (
    Workload(
        name="masked_tokens", rule="sync-stall", main=True, make_slow=masked_slow, make_fixed=masked_fixed, with_stack=True,
        what="Training step that indexes with a boolean mask in each layer, tests the loss for NaN and reads three metrics.",
        fix="index with positions computed once a batch; keep the metrics on the GPU and read them every 100 steps",
        top=("sync-stall", "launch-gap", "graph-candidate"),
    ),
    Workload(
        name="print_loss_each_step", rule="sync-stall", trap=True, make_slow=print_slow, make_fixed=print_fixed, with_stack=True,
        what="loss.item() after each step of a GPU-bound training loop: the wait is long and costs next to nothing.",
        fix="none worth making: reading the loss every 100 steps gains nothing",
        gpu_bound=True,
    ),
    Workload(
        name="cpu_tolist_in_loop", rule="sync-stall", make_slow=detect_slow, make_fixed=detect_fixed, with_stack=True,
        what="Detector post-processing, image by image: boolean indexing, .cpu() and .tolist() in a loop of 16.",
        fix="top-k for the whole batch, one asynchronous copy to pinned memory, read one batch later",
        top=("sync-stall", "launch-gap", "graph-candidate", "host-bound", "memcpy"),
    ),
)  # fmt: skip
