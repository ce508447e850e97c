"""Public models of talk, poses, photos, streets, sounds and walks, each fix being what its rule's advice says, by an author who has not read the rules.

About a third of the fixes are expected to gain nothing: they are what people try first on such a model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step
from .public_models import BF16, COMPILED, GRAPHS, How, _call, _casting, _images, _placed, _precision, _timm, _tokens, training
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public
from .public_models_6 import _forever

Array = np.ndarray[Any, Any]

# Bound by kernels.


def convbert(s: Setup, **how: Any) -> Step:
    """ConvBERT guesses hidden words: half of the heads are convolutions whose weights are made of the words under them."""
    from transformers import ConvBertConfig, ConvBertForMaskedLM

    words = s.size(30_522, 101)
    config = ConvBertConfig(
        vocab_size=words, hidden_size=s.size(768, 32), embedding_size=s.size(768, 32), num_hidden_layers=s.size(4, 1),
        num_attention_heads=s.size(12, 4), intermediate_size=s.size(3072, 64),
    )  # fmt: skip
    ids = _tokens(s, 32, 256, words)
    labels = torch.where(torch.rand(ids.shape, device=s.device) < 0.15, ids, -100)
    labels[:, 0] = ids[:, 0]
    mask = torch.ones_like(ids)
    model = ConvBertForMaskedLM(config)
    return training(s, How(**how), model, lambda model: model(input_ids=ids, attention_mask=mask, labels=labels).loss)


def davit(s: Setup, **how: Any) -> Step:
    """DaViT: attention in windows of 7 x 7, then attention between channels, a depthwise convolution in front of each part."""
    way = How(**how)
    small: dict[str, Any] = {"embed_dims": (8, 16, 32, 64), "num_heads": (1, 2, 4, 8), "depths": (1, 1, 1, 1)} if s.tiny else {}
    model = _timm("davit_tiny", num_classes=100, drop_path_rate=0.1, **small)
    images, labels = _images(s, way, 96, 224, 64, way.dtype), torch.randint(100, (s.size(96, 2),), device=s.device)
    return training(s, way, model, lambda model: F.cross_entropy(model(images), labels, label_smoothing=0.1), weight_decay=0.05)


def mask2former(s: Setup, *, packed: bool = False, **how: Any) -> Step:
    """Mask2Former on Swin names each pixel of eight pictures; the maps are made as the library's processor makes them, each in its picture's size."""
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    way, count, side, wide = How(**how), s.size(8, 2), s.size(512, 64), s.size(256, 32)
    trunk = SwinConfig(
        embed_dim=s.size(96, 8), depths=[s.size(depth, 1) for depth in (2, 2, 6, 2)], num_heads=[s.size(heads, 2) for heads in (3, 6, 12, 24)],
        window_size=s.size(7, 2), out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = Mask2FormerConfig(
        backbone_config=trunk, feature_size=wide, mask_feature_size=wide, hidden_dim=wide, encoder_feedforward_dim=s.size(1024, 32),
        encoder_layers=s.size(6, 1), decoder_layers=s.size(10, 3), dim_feedforward=s.size(2048, 32), num_attention_heads=s.size(8, 2),
        num_queries=s.size(100, 5), num_labels=150,
    )  # fmt: skip
    model = _placed(s, way, Mask2FormerForUniversalSegmentation(config)).eval()
    pictures = torch.randn(count, 3, side, side)
    sizes = [(side, side + side // 16 * turn) for turn in range(count)]
    loader = Prefetcher([(s.pin(pictures),)], s) if packed else None

    @torch.no_grad()
    def step() -> list[Tensor]:
        _precision(way)
        images = loader.next()[0] if loader else pictures.to(s.device)
        if way.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with _casting(s, way):
            out = model(pixel_values=images)
        masks = F.interpolate(out.masks_queries_logits, (s.size(384, 48), s.size(384, 48)), mode="bilinear").sigmoid()
        named = torch.einsum("bqc,bqhw->bchw", out.class_queries_logits.softmax(-1)[..., :-1], masks)
        maps = [F.interpolate(one[None], size, mode="bilinear")[0].argmax(0) for one, size in zip(named, sizes, strict=True)]
        if packed:
            areas: Any = torch.cat([one.flatten() for one in maps]).cpu()
            areas = areas.split([high * broad for high, broad in sizes])
            return [area.view(size) for area, size in zip(areas, sizes, strict=True)]
        return [one.cpu() for one in maps]

    return step


# Bound by the host, or by both.


def _unsaid(ids: Tensor, scores: Tensor) -> Tensor:
    """No three words twice, beam by beam, as libraries of generation have long had it."""
    banned = []
    for beam in ids:
        said = beam.tolist()
        following: dict[tuple[int, ...], list[int]] = {}
        for one, other, third in zip(said, said[1:], said[2:], strict=False):
            following.setdefault((one, other), []).append(third)
        banned.append(following.get(tuple(said[-2:]), []))
    for row, words in enumerate(banned):
        scores[row, words] = -float("inf")
    return scores


def _unsaid_on_gpu(ids: Tensor, scores: Tensor) -> Tensor:
    """The same without a look at the words: a scattered mask."""
    if ids.shape[1] < 3:
        return scores
    windows = ids.unfold(1, 3, 1)
    again = (windows[..., :2] == ids[:, None, -2:]).all(-1)
    mask = torch.zeros_like(scores).scatter_add_(1, windows[..., 2], again.to(scores.dtype))
    return torch.where(mask > 0, -float("inf"), scores)


class Unsaid:
    """What generate() calls before it chooses among the words."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu = on_gpu

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return _unsaid_on_gpu(input_ids, scores) if self.on_gpu else _unsaid(input_ids, scores)


def blenderbot(s: Setup, *, batch: int = 1, on_gpu: bool = False, **how: Any) -> Step:
    """Blenderbot answers by twelve words, found by ten beams of the library's own generate(), no three words twice."""
    from transformers import BlenderbotConfig, BlenderbotForConditionalGeneration, LogitsProcessorList

    way, words, said = How(**how), s.size(8008, 101), s.size(12, 5)
    config = BlenderbotConfig(
        vocab_size=words, d_model=s.size(1280, 32), encoder_layers=s.size(2, 1), decoder_layers=s.size(12, 1), encoder_ffn_dim=s.size(5120, 64),
        decoder_ffn_dim=s.size(5120, 64), encoder_attention_heads=s.size(32, 2), decoder_attention_heads=s.size(32, 2),
        attn_implementation=way.attention,
    )  # fmt: skip
    with s.device:
        model: Any = BlenderbotForConditionalGeneration(config)
    model = _placed(s, way, model).eval()
    asked = torch.randint(3, words, (batch, s.size(40, 6)), device=s.device)
    mask, rules = torch.ones_like(asked), LogitsProcessorList([Unsaid(on_gpu)])

    @torch.no_grad()
    def step() -> list[list[int]]:
        _precision(way)
        answer = model.generate(
            asked, attention_mask=mask, num_beams=s.size(10, 3), max_new_tokens=said, min_new_tokens=said, length_penalty=0.65, do_sample=False,
            logits_processor=rules, encoder_no_repeat_ngram_size=0,
        )  # fmt: skip
        return answer.tolist()

    return step


def metapath2vec(s: Setup, *, workers: bool = False, pinned: bool = False, read: bool = True) -> Step:
    """The library's example metapath2vec.py: walks from author to paper to venue and back, as they are and drawn at random, are embedded."""
    from torch_geometric.nn import MetaPath2Vec

    authors, papers, venues = s.size(160_000, 40), s.size(300_000, 60), s.size(3883, 5)
    writes = torch.stack([torch.randint(authors, (s.size(900_000, 200),)), torch.randint(papers, (s.size(900_000, 200),))])
    shown = torch.stack([torch.arange(papers), torch.randint(venues, (papers,))])
    edges = {
        ("author", "writes", "paper"): writes, ("paper", "published_in", "venue"): shown,
        ("venue", "publishes", "paper"): shown.flip(0), ("paper", "written_by", "author"): writes.flip(0),
    }  # fmt: skip
    model = MetaPath2Vec(
        edges, embedding_dim=s.size(128, 8), metapath=list(edges), walk_length=s.size(50, 8), context_size=s.size(7, 3), walks_per_node=s.size(5, 2),
        num_negative_samples=s.size(5, 2), num_nodes_dict={"author": authors, "paper": papers, "venue": venues}, sparse=True,
    ).to(s.device)  # fmt: skip
    model.train()
    options, batches = _forever(s, workers and s.cuda)
    options |= {"pin_memory": s.cuda} if pinned else {}
    stream = batches(model.loader(batch_size=s.size(128, 4), shuffle=True, drop_last=True, **options))
    optimizer: Any = torch.optim.SparseAdam(list(model.parameters()), lr=0.01)
    sums = [0.0]

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        real, drawn = next(stream)
        optimizer.zero_grad()
        loss = model.loss(real.to(s.device, non_blocking=pinned or workers), drawn.to(s.device, non_blocking=pinned or workers))
        loss.backward()
        optimizer.step()
        if read:
            sums[0] += loss.item()

    return step


class Commands(Dataset[tuple[Tensor, int]]):
    """Spoken words of a second; as each is read it is shifted, gets noise and becomes a spectrogram of which stripes are masked."""

    def __init__(self, count: int, samples: int, bands: int) -> None:
        from torchaudio import transforms

        self.count, self.samples = count, samples
        self.waves, self.noise = torch.randn(64, samples) / 10, torch.randn(4 * samples) / 100
        self.spectrum = transforms.MelSpectrogram(16_000, n_fft=1024, win_length=480, hop_length=160, n_mels=bands)
        self.decibels = transforms.AmplitudeToDB(top_db=80.0)
        self.masks = transforms.FrequencyMasking(bands // 8), transforms.TimeMasking(samples // 1600)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        shift, start = (int(torch.randint(high, ())) for high in (self.samples // 5, 3 * self.samples))
        wave = self.waves[at % len(self.waves)].roll(shift - self.samples // 10) + self.noise[start : start + self.samples]
        picture = self.decibels(self.spectrum(wave[None]))
        for mask in self.masks:
            picture = mask(picture)
        return (picture - picture.mean()) / picture.std(), at % 35


def spoken_words(s: Setup, *, workers: bool = False, read: bool = True, **how: Any) -> Step:
    """MobileNetV2 learns 35 words from spectrograms; how many it gets right is counted for a line of text."""
    way, correct = How(**how), [0]
    options, batches = _forever(s, workers and s.cuda)
    data = Commands(s.size(1 << 14, 64), s.size(16_000, 8000), s.size(64, 32))
    stream = batches(DataLoader(data, s.size(32, 4), shuffle=True, drop_last=True, **options))

    def loss(model: Any) -> Tensor:
        pictures, words = (part.to(s.device, non_blocking=workers) for part in next(stream))
        if way.channels_last:
            pictures = pictures.contiguous(memory_format=torch.channels_last)
        scores = model(pictures)
        if read:
            correct[0] += int((scores.argmax(1) == words).sum().item())
        return F.cross_entropy(scores, words)

    model = _timm("mobilenetv2_100", in_chans=1, num_classes=35)
    return training(s, way, model, loss, torch.optim.SGD, momentum=0.9, weight_decay=1e-4)


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


WORKLOADS = (
    _public(
        "convbert_masked", "ConvBERT of transformers, training with TF32 products on 32 x 256 words; the loss is read in each step.", convbert,
        {"tf32": True, "read_loss": True},
        {"precision": {"autocast": BF16}, "unfused-elementwise": {"compiled": COMPILED}, "optimizer-foreach": {"optimizer": "fused"},
         "sync-stall": {"read_loss": False}},
    ),
    _public(
        "davit_photos", "DaViT of timm, training in bf16 autocast on 96 pictures, NCHW, gradients filled with zeros.", davit,
        {"autocast": BF16, "zero": True},
        {"memory-layout": {"channels_last": True}, "unfused-elementwise": {"compiled": COMPILED}, "dtype-casts": {"autocast": None, "dtype": BF16},
         "grad-zeroing": {"zero": False}},
    ),
    _public(
        "mask2former_streets", "Mask2Former of transformers on 8 pictures of 512 from pageable memory, FP32, NCHW; maps come back one by one.",
        mask2former, {},
        {"precision": {"autocast": HALF}, "memcpy": {"packed": True}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "blenderbot_reply", "Blenderbot of transformers, FP32, answers by twelve words with ten beams, whose words Python reads; attention written out.",
        blenderbot, {},
        {"low-arithmetic-intensity": {"batch": 8}, "sync-stall": {"on_gpu": True}, "unfused-attention": {"attention": SDPA},
         "precision": {"dtype": HALF}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "metapath_walks", "MetaPath2Vec of torch_geometric, training in FP32 on walks of 128 authors, drawn in this process; the loss is read.",
        metapath2vec, {},
        {"data-loading": {"workers": True}, "memcpy": {"pinned": True}, "sync-stall": {"read": False}},
    ),
    _public(
        "mobilenet_words", "MobileNetV2 of timm, training in FP32 on 32 spoken words whose spectrograms are made in this process; hits are counted.",
        spoken_words, {},
        {"data-loading": {"workers": True}, "precision": {"autocast": BF16}, "sync-stall": {"read": False}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "vitpose_people", "ViTPose of transformers in fp16 on 32 people from pageable memory, attention written out; NumPy reads joint by joint.",
        vitpose, {"dtype": HALF},
        {"host-bound": {"at_once": True}, "memcpy": {"pinned": True}, "unfused-attention": {"attention": SDPA}, "launch-gap": {"compiled": GRAPHS}},
    ),
)  # fmt: skip
