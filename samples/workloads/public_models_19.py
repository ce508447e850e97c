"""Public models of essays and poisons in training, and of a crane's cameras and radio traffic in service.

Some of the fixes are expected to gain nothing: they are what people try first on such a model.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step
from .public_models import BF16, How, _casting, _optimizer, _placed, _precision, training
from .public_models_2 import SDPA
from .public_models_4 import _public
from .public_models_6 import _forever

# Training.


def _sdpa_of_ctrl(self: Any, v: Tensor, k: Tensor, q: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    heads = (*q.shape[:-1], self.num_heads, self.d_model_size // self.num_heads)
    query, key, value = (linear(of).view(heads).transpose(1, 2) for linear, of in ((self.Wq, q), (self.Wk, k), (self.Wv, v)))
    seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return self.dense(seen.transpose(1, 2).flatten(2)), None


def ctrl(s: Setup, **how: Any) -> Step:
    """CTRL learns to write essays: six pieces of 512 words, and each word is one of 246,534."""
    from transformers import CTRLConfig, CTRLLMHeadModel

    way, words, length = How(**how), s.size(246_534, 101), s.size(512, 16)
    config = CTRLConfig(
        vocab_size=s.size(way.vocabulary or words, 104 if way.vocabulary else words), n_positions=length, n_embd=s.size(1280, 32),
        dff=s.size(8192, 64), n_layer=s.size(4, 1), n_head=s.size(16, 2), use_cache=False, attn_implementation="eager",
    )  # fmt: skip
    with s.device:
        model = CTRLLMHeadModel(config)
    for module in model.modules():
        if way.attention == SDPA and type(module).__name__ == "MultiHeadAttention":
            module.forward = MethodType(_sdpa_of_ctrl, module)
    ids = torch.randint(words, (s.size(6, 2), length), device=s.device)
    return training(s, way, model, lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss)


def _by_degree(self: Any, x: Tensor, edge_index: Tensor, size: Any = None) -> Tensor:
    """All degrees' matrices side by side in one product; each atom then takes its own degree's part."""
    degree = torch.zeros(len(x), dtype=torch.long, device=x.device)
    degree.scatter_add_(0, edge_index[1], torch.ones_like(edge_index[1])).clamp_(max=self.max_degree)
    around = torch.cat([self.propagate(edge_index, x=(x, x), size=size), x], -1)
    left, right = (torch.cat([linear.weight for linear in of]) for of in (self.lins_l, self.lins_r))
    bias = torch.cat([linear.bias for linear in self.lins_l])
    all_of_them = F.linear(around, torch.cat([left, right], 1), bias).view(len(x), self.max_degree + 1, -1)
    mine = degree.view(-1, 1, 1).expand(-1, 1, all_of_them.shape[-1])
    return all_of_them.gather(1, mine).squeeze(1)


def _poisons(count: int, parts: int, tests: int) -> list[Any]:
    """Molecules as random trees with a few rings, and what came of those tests that were made."""
    from torch_geometric.data import Data

    some = []
    for _ in range(count):
        atoms = int(torch.randint(8, 30, ()))
        below = torch.arange(1, atoms)
        above = (below - 1 - (torch.rand(atoms - 1) * 3).long()).clamp(min=0)
        rings = torch.randint(atoms, (2, atoms // 8))
        bonds = torch.cat([torch.stack([above, below]), rings], 1)
        made = torch.rand(1, tests)
        came = torch.where(made < 0.2, float("nan"), (made < 0.3).float())
        some.append(Data(x=torch.rand(atoms, parts), edge_index=torch.cat([bonds, bonds.flip(0)], 1), y=came))
    return some


def fingerprint(s: Setup, *, workers: bool = False, kept: bool = False, **how: Any) -> Step:
    """Neural fingerprints of 256 molecules say which of Tox21's twelve tests they fail; tests that were not made don't count."""
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import MLP
    from torch_geometric.nn.models import NeuralFingerprint

    way, parts, tests, width, print_size = How(**how), s.size(74, 8), 12, s.size(256, 16), s.size(1024, 16)
    options, batches = _forever(s, workers and s.cuda)
    stream = batches(GraphLoader(_poisons(s.size(2048, 8), parts, tests) * 4, s.size(256, 4), shuffle=True, drop_last=True, **options))
    finger = NeuralFingerprint(parts, width, print_size, s.size(4, 2))
    for conv in finger.convs if kept else ():
        conv.forward = MethodType(_by_degree, conv)
    model: Any = _placed(s, way, nn.ModuleList([finger, MLP([print_size, s.size(128, 8), tests], norm=None)])).train()
    optimizer, total = _optimizer(way, model.parameters(), torch.optim.Adam), torch.zeros((), device=s.device)
    seen = 0.0

    def step() -> None:
        nonlocal seen
        _precision(way)
        batch = next(stream).to(s.device, non_blocking=workers)
        optimizer.zero_grad()
        with _casting(s, way):
            scores = model[1](model[0](batch.x, batch.edge_index, batch.batch, batch.num_graphs))
        made = ~batch.y.isnan()
        if kept:
            each = F.binary_cross_entropy_with_logits(scores, batch.y.nan_to_num(0.0), reduction="none")
            loss = torch.where(made, each, 0.0).sum() / made.sum()
        else:
            loss = F.binary_cross_entropy_with_logits(scores[made], batch.y[made])
        loss.backward()
        optimizer.step()
        if kept:
            total.add_(loss.detach() * batch.num_graphs)
        else:
            seen += loss.item() * batch.num_graphs

    return step


# Serving.


def _of_all_pictures(model: Any, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As many points from each picture, those with a score of nought masked: nothing has to be counted on the host."""
    finder, describer = model.keypoint_decoder, model.descriptor_decoder
    encoded = model.encoder(model.extract_one_channel_pixel_values(pictures)).last_hidden_state
    scores = finder._get_pixel_scores(encoded)
    high, wide, edge = *scores.shape[1:], finder.border_removal_distance
    scores = torch.where(scores > finder.keypoint_threshold, scores, 0.0)
    scores[:, :edge], scores[:, :, :edge] = 0.0, 0.0  # as in the library, which takes pictures for eight times as large
    best, at = scores.flatten(1).topk(finder.max_keypoints)
    points = torch.stack([at % wide, at // wide], -1).to(scores.dtype)
    described = F.normalize(describer.conv_descriptor_b(describer.relu(describer.conv_descriptor_a(encoded))), dim=1)
    x, y = ((points[..., which] - 3.5) / (size - 4.5) * 2 - 1 for which, size in enumerate((wide, high)))
    found = F.grid_sample(described, torch.stack([x, y], -1)[:, None].to(described.dtype), align_corners=True)[:, :, 0]
    places = torch.stack([points[..., 0] / wide, points[..., 1] / high], -1)
    return places, F.normalize(found, dim=1).transpose(1, 2), best > 0


def superpoint(s: Setup, *, bytes_sent: bool = False, kept: bool = False, **how: Any) -> Step:
    """SuperPoint finds 1024 points in each of a crane's eight cameras, and which of the quay's landmarks they look like."""
    from transformers import SuperPointConfig, SuperPointForKeypointDetection

    way, cameras, high, wide, most = How(**how), s.size(8, 2), s.size(480, 64), s.size(640, 96), s.size(1024, 16)
    small: dict[str, Any] = {"encoder_hidden_sizes": [8, 8, 16, 16], "decoder_hidden_size": 16, "descriptor_decoder_dim": 16} if s.tiny else {}
    model: Any = _placed(s, way, SuperPointForKeypointDetection(SuperPointConfig(max_keypoints=most, **small))).eval()
    grey = torch.randint(256, (cameras, 1, high, wide), dtype=torch.uint8)
    frames = (grey.float() / 255).repeat(1, 3, 1, 1)  # as the library's processor makes them
    grey = s.pin(grey)
    landmarks = F.normalize(torch.randn(s.size(4096, 32), model.config.descriptor_decoder_dim, device=s.device), dim=-1)

    @torch.no_grad()
    def step() -> tuple[Tensor, ...]:
        _precision(way)
        if bytes_sent:
            pictures = (grey.to(s.device, non_blocking=True).float() / 255).expand(-1, 3, -1, -1)
        else:
            pictures = frames.to(s.device)
        with _casting(s, way):
            if kept:
                places, found, mask = _of_all_pictures(model, pictures)
            else:
                out = model(pixel_values=pictures)
                places, found, mask = out.keypoints, out.descriptors, out.mask
            likeness, which = (found @ landmarks.T).max(-1)
        looks = torch.cat([places.float(), likeness.float()[..., None], which.float()[..., None], mask.float()[..., None]], -1)
        return looks.cpu().unbind()

    return step


LETTERS = "_^$?|ETAONIHSRDLUMWCFGYPBVK'XJQZ"
BLANK, BETWEEN = 0, 4

Word = tuple[str, float, float, float]


def _spelt(ids: list[int], sure: list[float], seconds: float) -> list[Word]:
    """Words with when they begin and end and how sure they are: repeats and blanks are left out."""
    words: list[Word] = []
    letters: list[str] = []
    odds: list[float] = []
    begin, end, last = 0, 0, BLANK
    for at, (letter, odd) in enumerate(zip([*ids, BETWEEN], [*sure, 0.0], strict=True)):
        closing = at == len(ids)
        if closing or (letter != last and letter != BLANK):
            if closing or letter == BETWEEN:
                if letters:
                    words.append(("".join(letters), round(begin * seconds, 2), round((end + 1) * seconds, 2), sum(odds) / len(odds)))
                letters, odds = [], []
            else:
                begin = at if not letters else begin
                letters.append(LETTERS[letter])
                odds.append(odd)
                end = at
        last = letter
    return words


def _spelt_there(ids: Tensor, sure: Tensor, codes: Tensor, seconds: float) -> list[list[Word]]:
    """The same by tensors: each letter's place in the text and its word's number are running sums."""
    calls, length = ids.shape
    changed = F.pad(ids[:, 1:] != ids[:, :-1], (1, 0), value=True)
    kept = changed & (ids != BLANK)
    between = kept & (ids == BETWEEN)
    spoken, word = kept & ~between, between.cumsum(1)
    at = torch.arange(length, device=ids.device).expand_as(ids)
    texts = ids.new_zeros(calls, length + 1).scatter_(1, torch.where(kept, kept.cumsum(1) - 1, length), torch.where(kept, codes[ids], 0))
    texts[:, length] = 0
    begin = ids.new_full((calls, length + 1), length).scatter_reduce_(1, word, torch.where(spoken, at, length), "amin")
    end = ids.new_zeros(calls, length + 1).scatter_reduce_(1, word, torch.where(spoken, at, 0), "amax")
    odds = sure.new_zeros(calls, length + 1).scatter_add_(1, word, torch.where(spoken, sure, 0.0))
    counts = sure.new_zeros(calls, length + 1).scatter_add_(1, word, spoken.to(sure.dtype))
    fetched = torch.stack([texts.to(sure.dtype), begin.to(sure.dtype) * seconds, (end + 1).to(sure.dtype) * seconds, odds / counts]).cpu()
    letters, (begins, ends, means) = fetched[0].to(torch.uint8).numpy(), fetched[1:].numpy().round(6)
    said = []
    for call in range(calls):
        text = letters[call].tobytes().rstrip(b"\0").decode().split("|")
        many = len(text)
        numbers = zip(text, begins[call, :many].tolist(), ends[call, :many].tolist(), means[call, :many].tolist(), strict=True)
        said.append([(name, round(begun, 2), round(ended, 2), mean) for name, begun, ended, mean in numbers if name])
    return said


def sew(s: Setup, *, tidy: bool = True, there: bool = False, together: bool = False, **how: Any) -> Step:
    """SEW writes 16 radio calls of ten seconds down with each word's time; the card's memory is given back after each request."""
    from transformers import SEWConfig, SEWForCTC, Wav2Vec2FeatureExtractor

    way, calls, length = How(**how), s.size(16, 2), s.size(160_000, 8000)
    small: dict[str, Any] = {"conv_dim": (8,) * 13, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2} if s.tiny else {}
    config = SEWConfig(
        vocab_size=len(LETTERS), hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), attn_implementation=way.attention, **small,
    )  # fmt: skip
    model = SEWForCTC(config)
    nn.init.normal_(model.lm_head.weight)
    nn.init.constant_(model.lm_head.bias[BETWEEN], 4.0)  # words end now and then
    model = _placed(s, way, model).eval()  # type: ignore[assignment]
    received = (torch.randn(calls, length) * 3000).short().numpy()
    prepared = Wav2Vec2FeatureExtractor(feature_size=1, sampling_rate=16_000, do_normalize=True)
    codes, seconds = torch.tensor(list(LETTERS.encode()), device=s.device), 0.02

    def normalised() -> Tensor:
        if there:
            sound = torch.from_numpy(received).to(s.device).float() / 32_768
            return (sound - sound.mean(1, keepdim=True)) / (sound.var(1, keepdim=True, correction=0) + 1e-7).sqrt()
        floats = [call.astype("float32") / 32_768 for call in received]
        return prepared(floats, sampling_rate=16_000, return_tensors="pt").input_values.to(s.device)  # type: ignore[no-any-return]

    @torch.no_grad()
    def step() -> list[list[Word]]:
        _precision(way)
        heard = normalised()
        with _casting(s, way):
            scores = model(heard.to(way.dtype) if way.dtype else heard).logits
        sure, ids = scores.float().softmax(-1).max(-1)
        if there:
            said = _spelt_there(ids, sure, codes, seconds)
        elif together:
            both = torch.stack([ids.float(), sure]).cpu()
            said = [_spelt(*parts, seconds) for parts in zip(both[0].long().tolist(), both[1].tolist(), strict=True)]
        else:
            said = [_spelt(*parts, seconds) for parts in zip(ids.tolist(), sure.tolist(), strict=True)]
        del heard, scores, sure, ids
        if tidy and s.cuda:
            torch.cuda.empty_cache()
        return said

    return step


WORKLOADS = (
    _public(
        "ctrl_essays", "CTRL of transformers, training in bf16 autocast on 6 x 512 of 246,534 words; attention written out, gradients are zeroed.",
        ctrl, {"autocast": BF16, "zero": True},
        {"gemm-alignment": {"vocabulary": 246_592}, "optimizer-foreach": {"optimizer": "fused"}, "grad-zeroing": {"zero": False},
         "unfused-attention": {"attention": SDPA}},
    ),
    _public(
        "fingerprint_poisons", "NeuralFingerprint of torch_geometric, training in FP32 on 256 molecules that this process collates; loss is read.",
        fingerprint, {},
        {"data-loading": {"workers": True}, "sync-stall": {"kept": True}, "optimizer-foreach": {"optimizer": "fused"},
         "precision": {"tf32": True}},
    ),
    _public(
        "crane_landmarks", "SuperPoint of transformers, FP32, NCHW, on 8 cameras' pictures from pageable memory; points are sought one by one.",
        superpoint, {},
        {"memcpy": {"bytes_sent": True}, "sync-stall": {"kept": True}, "memory-layout": {"channels_last": True}, "precision": {"autocast": BF16}},
    ),
    _public(
        "radio_calls", "SEW of transformers in bf16 autocast writes 16 calls of ten seconds down; NumPy prepares and Python spells them.",
        sew, {"autocast": BF16},
        {"allocator": {"tidy": False}, "host-bound": {"there": True}, "dtype-casts": {"autocast": None, "dtype": BF16},
         "unfused-attention": {"attention": SDPA}, "sync-stall": {"together": True}},
    ),
)  # fmt: skip
