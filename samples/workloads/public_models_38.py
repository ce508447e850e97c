"""Public models of false accounts, pallets on forks and a station's announcements, by an author who logs all that happens."""

from __future__ import annotations

import math
from types import MethodType
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public

# Accounts.


class _Puppets(nn.Module):
    """SuperGAT with residuals; it returns classes and how well attention told links from no links."""

    def __init__(self, features: int, width: int, kinds: int, layers: int, loops: bool) -> None:
        from torch_geometric.nn import SuperGATConv

        super().__init__()
        self.enter = nn.Linear(features, width)
        self.convs = nn.ModuleList(
            SuperGATConv(width, width // 4, heads=4, dropout=0.1, attention_type="MX", add_self_loops=loops, is_undirected=True) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, kinds)

    def forward(self, x: Tensor, edge_index: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
        x, told = F.relu(self.enter(x)), x.new_zeros(())
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.dropout(F.elu(norm(conv(x, edge_index, neg_edge_index=wrong))), 0.3, self.training)
            told = told + conv.get_attention_loss()
            conv.att_x = conv.att_y = None
        return self.head(x), told


def sock_puppets(s: Setup, *, ahead: bool = False, looped: bool = False, masked: bool = False, graphed: bool = False, **how: Any) -> Step:
    """SuperGAT learns which accounts of a forum are false; links that are not there are drawn by the library in each step, meters are read."""
    from torch_geometric.utils import add_self_loops, negative_sampling

    way, accounts, kinds, width = How(**how), s.size(24_000, 60), s.size(8, 3), s.size(128, 16)
    drawn = np.random.default_rng(0)
    ends = (drawn.random((2, s.size(80_000, 120))) ** 1.5 * accounts).astype(np.int64)
    ends[1] = np.where(ends[0] == ends[1], (ends[1] + 1) % accounts, ends[1])
    links = torch.from_numpy(np.unique(np.concatenate([ends, ends[::-1]], 1), axis=1)).to(s.device)
    looped = looped or masked or graphed
    edges = add_self_loops(links, num_nodes=accounts)[0] if looped else links
    many = links.shape[1] // 10
    with s.device:
        x, truth, part = torch.randn(accounts, s.size(96, 8)), torch.randint(kinds, (accounts,)), torch.rand(accounts)
        sums, names = torch.zeros(2 + kinds), torch.arange(kinds)
    known, tried = part < 0.7, part > 0.85
    asked = torch.where(known, truth, -100)
    each = F.one_hot(truth, kinds).float() * tried[:, None]
    model = _placed(s, way, _Puppets(x.shape[1], width, kinds, s.size(3, 2), not looped)).train()
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=1e-4, capturable=graphed and s.cuda)

    def draw() -> Tensor:
        return negative_sampling(links, accounts, num_neg_samples=many)

    pool = [draw() for _ in range(16)] if ahead else []
    wrong, turn = draw(), 0
    meters: dict[str, float] = {}

    def learn(wrong: Tensor) -> None:
        optimizer.zero_grad()
        with _casting(s, way):
            out, told = run(x, edges, wrong)
            late = masked or graphed
            fits = F.cross_entropy(out, asked) if late else F.cross_entropy(out[known], truth[known])
            loss = fits + 4.0 * told
        loss.backward()
        optimizer.step()
        guess = out.detach().argmax(-1)
        if late:
            recalls = ((guess[:, None] == names) * each).sum(0) / each.sum(0)
            sums.copy_(torch.cat([torch.stack([fits.detach(), told.detach()]).float(), recalls]))
            return
        meters["loss"], meters["links"] = fits.item(), told.item()
        for kind in range(kinds):
            those = tried & (truth == kind)
            meters[f"recall/{kind}"] = (guess[those] == kind).float().mean().item()

    _precision(way)
    learning = capture(lambda: learn(wrong), s) if graphed else None

    def step() -> dict[str, float]:
        nonlocal turn
        _precision(way)
        now = pool[turn % 16] if ahead else draw()
        turn += 1
        if learning:
            wrong.copy_(now)
            learning()
        else:
            learn(now)
        if (masked or graphed) and turn % 50 == 0:
            meters.update(zip(("loss", "links", *(f"recall/{kind}" for kind in range(kinds))), sums.tolist(), strict=True))
        return meters

    return step


# Pallets.


class _NoLoss(nn.Module):
    """In place of EomtLoss, which asks for SciPy and is of no use to a service."""

    num_labels, eos_coef = 0, 0.1

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.register_buffer("empty_weight", torch.ones(1))


def pallet_masks(
    s: Setup, *, attention: str = "eager", raw: bool = False, packed: bool = False, hosted: bool = False, counted: bool = False,
    graphed: bool = False, layers: bool = False, **how: Any,
) -> Step:  # fmt: skip
    """EoMT under fp16 autocast cuts four fork lifts' views into things; NumPy makes the pictures floats, each thing's areas are read."""
    from transformers import EomtConfig, EomtForUniversalSegmentation
    from transformers.models.eomt import modeling_eomt

    low = HALF if s.cuda else BF16
    way = How(**{"autocast": low, **how})
    if way.dtype:
        way = How(**{**how, "dtype": low})  # The CPU's convolutions take BF16.
    batch, side, width, labels = s.size(4, 2), s.size(640, 64), s.size(768, 32), s.size(80, 5)
    queries, best = s.size(200, 8), s.size(50, 5)
    config = EomtConfig(
        hidden_size=width, num_hidden_layers=s.size(12, 3), num_attention_heads=s.size(12, 2), image_size=side, patch_size=16, num_queries=queries,
        num_blocks=s.size(4, 2), num_labels=labels, attn_implementation=attention,
    )  # fmt: skip
    with s.device, mock.patch.object(modeling_eomt, "EomtLoss", _NoLoss):
        model: Any = EomtForUniversalSegmentation(config)
    model = _placed(s, way, model).eval()
    model.attn_mask_probs.zero_()
    if hosted or graphed:
        model.attn_mask_probs = model.attn_mask_probs.cpu()
    if layers:
        for layer in model.layers:
            layer.forward = s.compile(layer.forward)
    rng = np.random.default_rng(0)
    views = [rng.integers(0, 256, (batch, side, side, 3), dtype=np.uint8) for _ in range(4)]
    mean, std = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    mean_there, std_there = (torch.from_numpy(part).to(s.device)[:, None, None] for part in (mean, std))
    order = torch.channels_last if way.channels_last else torch.contiguous_format
    buffer = s.pin(torch.zeros(batch, 3, side, side))
    pixels, ranks = torch.zeros(batch, 3, side, side, device=s.device), torch.arange(best, device=s.device)[:, None, None]
    turn = 0

    def prepared(view: np.ndarray[Any, Any]) -> Tensor:
        if raw:
            return (torch.from_numpy(view).to(s.device).permute(0, 3, 1, 2).float() / 255.0 - mean_there) / std_there
        pictures = [((picture.astype(np.float32) / 255.0 - mean) / std).transpose(2, 0, 1) for picture in view]
        if packed:
            np.stack(pictures, out=buffer.numpy())
            return buffer.to(s.device, non_blocking=True)
        return torch.from_numpy(np.stack(pictures)).to(s.device)

    def forward(pictures: Tensor) -> tuple[Tensor, Tensor]:
        with _casting(s, way):
            out = model(pixel_values=pictures.to(way.dtype or torch.float32, memory_format=order))
        return out.class_queries_logits.float(), out.masks_queries_logits.float()

    kept: list[tuple[Tensor, Tensor]] = [(pixels, pixels)]

    def captured() -> None:
        kept[0] = forward(pixels)

    _precision(way)
    with torch.no_grad():
        replay = capture(captured, s) if graphed else None

    @torch.no_grad()
    def step() -> list[list[tuple[int, float, int]]]:
        nonlocal turn
        _precision(way)
        pictures = prepared(views[turn % 4])
        turn += 1
        if replay:
            pixels.copy_(pictures)
            replay()
            if not s.cuda:
                captured()
            classes, masks = kept[0]
        else:
            classes, masks = forward(pictures)
        found: list[list[tuple[int, float, int]]] = []
        tables = []
        for at in range(batch):
            score, label = classes[at].softmax(-1)[:, :-1].max(-1)
            score, top = score.topk(best)
            label = label[top]
            probs = F.interpolate(masks[at, top][None], size=(side, side), mode="bilinear", align_corners=False)[0].sigmoid()
            owner = (probs * score[:, None, None]).argmax(0)
            if counted:
                areas, wholes = (owner == ranks).sum((1, 2)), (probs >= 0.5).sum((1, 2))
                tables.append(torch.stack([label.double(), score.double(), areas.double(), wholes.double()], 1))
                continue
            things = []
            for rank in range(best):
                area, whole = (owner == rank).sum().item(), (probs[rank] >= 0.5).sum().item()
                if area > 0 and whole > 0 and area / whole > 0.1:
                    things.append((int(label[rank].item()), score[rank].item(), int(area)))
            found.append(things)
        if counted:
            found += [
                [(int(name), sure, int(area)) for name, sure, area, whole in table if area > 0 and whole > 0 and area / whole > 0.1]
                for table in torch.stack(tables).tolist()
            ]
        return found

    return step


# Announcements.


def _fused_speech(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, position_bias: Tensor | None = None, **_: Any) -> Any:
    """Self-attention of SpeechT5 in one kernel; what places add to the scores goes in as the mask."""
    b, n, _width = hidden_states.shape
    q, k, v = (part(hidden_states).view(b, n, self.num_heads, self.head_dim).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
    bias = attention_mask
    if position_bias is not None:
        places = torch.einsum("bhid,ijd->bhij", q * self.scaling, position_bias.to(q.dtype))
        bias = places if bias is None else places + bias
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=None if bias is None else bias.to(q.dtype), dropout_p=self.dropout if self.training else 0.0, scale=self.scaling
    )  # fmt: skip
    return self.out_proj(out.transpose(1, 2).reshape(b, n, -1)), None


def _whole_loss(config: Any, there: Tensor, before: Tensor, after: Tensor, stop: Tensor, mels: Tensor, crossed: tuple[Tensor, ...]) -> Tensor:
    """SpeechT5's loss with weights of 0 and 1 where the library selects, and all guides at once."""
    real = mels[:, :, 0] != -100.0
    weight = real[:, :, None].float() / (real.sum() * mels.shape[2])
    l1 = (((after - mels).abs() + (before - mels).abs()) * weight).sum()
    last = F.pad((~real).float()[:, 1:], (0, 1), value=1.0)
    bce = F.binary_cross_entropy_with_logits(stop, last, reduction="none", pos_weight=last.new_full((), 5.0))
    bce = (bce * real).sum() / real.sum()
    attn = torch.cat([x[:, : config.guided_attention_loss_num_heads] for x in crossed], 1)
    spoken, read = real[:, config.reduction_factor - 1 :: config.reduction_factor], there == 1
    down = torch.arange(spoken.shape[1], device=mels.device) / spoken.sum(-1, keepdim=True)
    along = torch.arange(read.shape[1], device=mels.device) / read.sum(-1, keepdim=True)
    both = spoken[:, :, None] & read[:, None]
    guide = (1.0 - torch.exp(-((along[:, None] - down[:, :, None]) ** 2) / (2 * config.guided_attention_loss_sigma**2))) * both
    guided = (attn * guide[:, None]).sum() / (both.sum() * attn.shape[1])
    return l1 + bce + config.guided_attention_loss_scale * guided  # type: ignore[no-any-return]


def tannoy_voices(
    s: Setup, *, fused: bool = False, whole: bool = False, late: bool = False, ahead: bool = False, averaged: bool = False, **how: Any
) -> Step:  # fmt: skip
    """SpeechT5 learns to announce trains, fp16 with a scaler; the library's guided loss asks for lengths, an average is kept, five meters are read."""
    from transformers import SpeechT5Config, SpeechT5ForTextToSpeech
    from transformers.models.speecht5.modeling_speecht5 import SpeechT5SpectrogramLoss, shift_spectrograms_right

    way = How(**{"autocast": HALF if s.cuda else BF16, "scaler": True, "zero": True, **how})
    batch, letters, frames, width, signs = s.size(16, 2), s.size(120, 10), s.size(640, 24), s.size(512, 32), s.size(81, 20)
    config = SpeechT5Config(
        vocab_size=signs, hidden_size=width, encoder_layers=s.size(8, 1), encoder_attention_heads=s.size(8, 2), encoder_ffn_dim=4 * width,
        decoder_layers=s.size(6, 1), decoder_attention_heads=s.size(8, 2), decoder_ffn_dim=4 * width, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
        speech_decoder_prenet_units=s.size(256, 16), speech_decoder_postnet_units=s.size(256, 16), speaker_embedding_dim=s.size(512, 8),
        guided_attention_loss_num_heads=2,
    )  # fmt: skip
    with s.device:
        model: Any = SpeechT5ForTextToSpeech(config)
    if fused:
        for name, module in model.named_modules():
            if type(module).__name__ == "SpeechT5Attention" and "encoder_attn" not in name:
                module.forward = MethodType(_fused_speech, module)
    model = _placed(s, way, model).train()
    criterion = SpeechT5SpectrogramLoss(config).to(s.device)
    weights = list(model.parameters())
    mean = [weight.detach().clone() for weight in weights]
    optimizer = _optimizer(way, weights, weight_decay=0.01)
    scaler = torch.amp.GradScaler(s.device.type, enabled=way.scaler and s.cuda)
    pile = []
    for _ in range(4):
        long, loud = torch.randint(letters // 2, letters + 1, (batch, 1)), 2 * torch.randint(frames // 4, frames // 2 + 1, (batch, 1))
        there = (torch.arange(letters) < long).long()
        mels = torch.randn(batch, frames, config.num_mel_bins).masked_fill((torch.arange(frames) >= loud)[:, :, None], -100.0)
        pile.append((torch.randint(4, signs, (batch, letters)), there, mels, F.normalize(torch.randn(batch, config.speaker_embedding_dim), dim=-1)))
    loader = Prefetcher([tuple(s.pin(part) for part in group) for group in pile], s) if ahead else None
    turn, sums, meters = 0, torch.zeros(4, device=s.device), {"loss": 0.0, "norm": 0.0, "mel": 0.0, "stop": 0.0, "scale": 0.0}

    def step() -> dict[str, float]:
        nonlocal turn
        _precision(way)
        ids, there, mels, speaker = loader.next() if loader else tuple(part.to(s.device) for part in pile[turn % 4])
        turn += 1
        optimizer.zero_grad(set_to_none=not way.zero)
        with _casting(s, way):
            given, _ = shift_spectrograms_right(mels, config.reduction_factor)
            out = model.speecht5(
                input_values=ids, attention_mask=there, decoder_input_values=given, speaker_embeddings=speaker, use_cache=False, output_attentions=True,
                return_dict=True,
            )  # fmt: skip
            before, after, stop = model.speech_decoder_postnet(out.last_hidden_state)
            if whole:
                loss = _whole_loss(config, there, before, after, stop, mels, out.cross_attentions)
            else:
                loss = criterion(there, before, after, stop, mels, out.cross_attentions)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(weights, 1.0)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            if averaged:
                torch._foreach_lerp_(mean, weights, 1e-3)
            else:
                for kept, weight in zip(mean, weights, strict=True):
                    kept.mul_(0.999).add_(weight, alpha=0.001)
            shown = (loss.detach(), norm, after.detach().float().abs().mean(), stop.detach().float().sigmoid().mean())
            if whole or late:
                sums.add_(torch.stack(shown))
                if turn % 50 == 0:
                    meters.update(zip(meters, [value / 50 for value in sums.tolist()] + [math.log2(scaler.get_scale())], strict=True))
                    sums.zero_()
            else:
                meters.update(zip(meters, [value.item() for value in shown] + [math.log2(scaler.get_scale())], strict=True))
        return meters

    return step


WORKLOADS = (
    _public(
        "sock_puppets", "SuperGATConv of torch_geometric on 24,000 accounts, training in FP32; false links are drawn in each step, masks pick, ten reads.",
        sock_puppets, {},
        {"host-bound": {"ahead": True}, "sync-stall": {"masked": True}, "unfused-elementwise": {"compiled": COMPILED, "looped": True},
         "graph-candidate": {"graphed": True}, "precision": {"autocast": BF16}, "precision/tf32": {"tf32": True},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "pallet_masks", "EoMT of transformers, fp16 autocast over FP32 weights on 4 views of 640, attention written out; NumPy prepares, 800 reads.",
        pallet_masks, {},
        {"unfused-attention": {"attention": SDPA}, "sync-stall": {"counted": True}, "sync-stall/blocks": {"hosted": True},
         "host-bound": {"raw": True}, "memcpy": {"packed": True}, "dtype-casts": {"autocast": None, "dtype": HALF},
         "unfused-elementwise": {"layers": True}, "graph-candidate": {"graphed": True}},
    ),
    _public(
        "tannoy_voices", "SpeechT5 of transformers, training in fp16 autocast with a scaler on 16 announcements; guides by length, EMA by a loop.",
        tannoy_voices, {},
        {"amp-scaler-sync": {"optimizer": "fused"}, "amp-scaler-sync/bf16": {"autocast": BF16, "scaler": False},
         "sync-stall": {"whole": True}, "sync-stall/meters": {"late": True}, "unfused-attention": {"fused": True},
         "optimizer-foreach": {"averaged": True}, "grad-zeroing": {"zero": False}, "memcpy": {"ahead": True}},
    ),
)  # fmt: skip
