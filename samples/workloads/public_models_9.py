"""Public models of songs, visits, loads and spoken words, each fix being what its rule's advice says, by an author who has not read the rules.

About a third of the fixes are expected to gain nothing: they are what people try first on such a model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step
from .public_models import BF16, COMPILED, How, _call, _casting, _images, _optimizer, _placed, _precision, _timm, inference, training
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public
from .public_models_6 import _forever

# Bound by kernels.


def xlnet(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """XLNet learns to guess words in an order of its own; the collator's masks of 512 x 512 come from host memory in each step."""
    from transformers import XLNetConfig, XLNetLMHeadModel

    way, words, batch, length = How(**how), s.size(32_000, 101), s.size(8, 2), s.size(512, 16)
    config = XLNetConfig(
        vocab_size=words, d_model=s.size(768, 32), n_layer=s.size(6, 1), n_head=s.size(12, 2), d_inner=s.size(3072, 64), mem_len=None,
    )  # fmt: skip
    ids = torch.randint(words, (batch, length))
    guessed = torch.rand(batch, length) < 1 / 6
    order = torch.stack([torch.randperm(length) for _ in range(batch)])
    hidden = ((order[:, :, None] <= order[:, None, :]) & guessed[:, None, :]).float()
    places = torch.eye(length).expand(batch, -1, -1).contiguous()
    host = (ids, hidden, places, ids.masked_fill(~guessed, -100))
    loader = Prefetcher([tuple(s.pin(part) for part in host)], s) if pinned else None

    def loss(model: Any) -> Tensor:
        parts = loader.next() if loader else tuple(part.to(s.device) for part in host)
        return model(input_ids=parts[0], perm_mask=parts[1], target_mapping=parts[2], labels=parts[3]).loss  # type: ignore[no-any-return]

    return training(s, way, XLNetLMHeadModel(config), loss)


def focalnet(s: Setup, **how: Any) -> Step:
    """FocalNet: depthwise convolutions of growing width, weighed by gates, stand where attention was."""
    from timm.models.focalnet import FocalNet

    way = How(**how)
    model = FocalNet(num_classes=102, depths=(s.size(2, 1), s.size(2, 1), s.size(6, 1), s.size(2, 1)), embed_dim=s.size(96, 16), drop_path_rate=0.2)
    images, labels = _images(s, way, 64, 224, 64, way.dtype), torch.randint(102, (s.size(64, 2),), device=s.device)
    return training(s, way, model, lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


def xcit(s: Setup, **how: Any) -> Step:
    """XCiT: attention between channels, and small depthwise convolutions of the same words as pictures."""
    way = How(**how)
    model = _timm("xcit_tiny_12_p16_224" if s.tiny else "xcit_small_12_p16_224", **({"depth": 1, "img_size": 64} if s.tiny else {}))
    return inference(s, way, model, (_images(s, way, 128, 224, 64, way.dtype),))


def janus(s: Setup, *, emptied: bool = True, **how: Any) -> Step:
    """A script draws pictures from words: the decoder makes pixels, which are saved from the host, and the cache is emptied each time."""
    from transformers.models.janus.configuration_janus import JanusVQVAEConfig
    from transformers.models.janus.modeling_janus import JanusVQVAE

    way, patches, count = How(**how), s.size(24, 2), s.size(6, 1)
    sizes: dict[str, Any] = {"channel_multiplier": [1, 1], "num_res_blocks": 1, "base_channels": 32, "latent_channels": 32} if s.tiny else {}
    config = JanusVQVAEConfig(num_patches=patches, num_embeddings=s.size(16_384, 50), **sizes)
    model = _placed(s, way, JanusVQVAE(config)).eval()
    ids = torch.randint(config.num_embeddings, (count, patches * patches), device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        with _casting(s, way):
            pixels = model.decode(ids)
        pictures = ((pixels.float().clamp(-1, 1) + 1) * 127.5).byte().permute(0, 2, 3, 1).cpu()
        del pixels
        if emptied and s.cuda:
            torch.cuda.empty_cache()
        return pictures

    return step


# Bound by the host, or by both.


def demucs(s: Setup, *, chunks: int = 1, **how: Any) -> Step:
    """The library's tutorial takes a song apart: the model gets one piece of ten seconds after the other, FP32."""
    from torchaudio.models import HDemucs

    sources = ["drums", "bass", "other", "vocals"]
    model = HDemucs(sources, nfft=s.size(4096, 1024), depth=s.size(6, 5), channels=s.size(48, 8))
    return inference(s, How(**how), model, (torch.randn(chunks, 2, s.size(441_000, 20_000), device=s.device) / 10,))


def _last_messages() -> type[nn.Module]:
    """The library's memory with its dictionaries of messages made tensors: the last aggregator needs but one message of each node."""
    from torch_geometric.nn import TGNMemory

    class LastMessages(TGNMemory):  # type: ignore[misc]
        def _reset_message_store(self) -> None:
            self.msg_s_store, self.msg_d_store = self._empty(), self._empty()

        def _empty(self) -> tuple[Tensor, Tensor, Tensor]:
            other, when = (torch.full((self.num_nodes,), start, device=self.device) for start in (0, -1))
            return other, when, torch.zeros(self.num_nodes, self.raw_msg_dim, device=self.device)

        def _update_msg_store(self, src: Tensor, dst: Tensor, t: Tensor, raw_msg: Tensor, msg_store: tuple[Tensor, Tensor, Tensor]) -> None:
            last = torch.zeros(self.num_nodes, dtype=torch.long, device=src.device)
            last = last.scatter_reduce_(0, src, torch.arange(len(src), device=src.device), "amax")[src]
            for stored, new in zip(msg_store, (dst, t, raw_msg), strict=True):
                stored[src] = new[last]  # one node's events all write its last

        def _message(self, n_id: Tensor, store: tuple[Tensor, Tensor, Tensor], module: nn.Module) -> tuple[Tensor, Tensor]:
            other, when, raw = (part[n_id] for part in store)
            passed = self.time_enc((when - self.last_update[n_id]).to(raw.dtype))
            return module(self.memory[n_id], self.memory[other], raw, passed), when

        def _get_updated_memory(self, n_id: Tensor) -> tuple[Tensor, Tensor]:
            sent, sent_at = self._message(n_id, self.msg_s_store, self.msg_s_module)
            got, got_at = self._message(n_id, self.msg_d_store, self.msg_d_module)
            newest = torch.maximum(sent_at, got_at)
            message = torch.where((sent_at >= got_at)[:, None], sent, got) * (newest >= 0)[:, None]
            return self.gru(message, self.memory[n_id]), newest.clamp(min=0)

    return LastMessages  # type: ignore[no-any-return]


def tgn(s: Setup, *, tensors: bool = False, read: bool = True, **how: Any) -> Step:
    """The library's example tgn.py on visits to pages: each node's messages lie in a dictionary, 200 visits make a step."""
    from torch_geometric.data import TemporalData
    from torch_geometric.loader import TemporalDataLoader
    from torch_geometric.nn import TGNMemory, TransformerConv
    from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader

    way, users, pages, events, features, dim = How(**how), s.size(8227, 30), s.size(1000, 10), s.size(157_474, 400), s.size(172, 6), s.size(100, 8)
    nodes = users + pages
    busy, liked = torch.rand(2, events) ** 3  # few users make most visits
    visits = TemporalData(
        src=(busy * users).long(), dst=users + (liked * pages).long(), t=torch.arange(events) * 17, msg=torch.rand(events, features)
    ).to(s.device)

    class Embedding(nn.Module):
        def __init__(self, time_encoder: nn.Module) -> None:
            super().__init__()
            self.time_encoder = time_encoder
            self.conv = TransformerConv(dim, dim // 2, heads=2, dropout=0.1, edge_dim=features + dim)

        def forward(self, x: Tensor, last_update: Tensor, edges: Tensor, t: Tensor, message: Tensor) -> Tensor:
            passed = self.time_encoder((last_update[edges[0]] - t).to(x.dtype))
            return self.conv(x, edges, torch.cat([passed, message], -1))  # type: ignore[no-any-return]

    class Predictor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.src, self.dst, self.final = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, 1)

        def forward(self, src: Tensor, dst: Tensor) -> Tensor:
            return self.final((self.src(src) + self.dst(dst)).relu())  # type: ignore[no-any-return]

    kind = _last_messages() if tensors else TGNMemory
    memory = kind(nodes, features, dim, dim, message_module=IdentityMessage(features, dim, dim), aggregator_module=LastAggregator()).to(s.device)
    memory.reset_state()  # its stores move to the device
    embedding, predictor = Embedding(memory.time_enc).to(s.device), Predictor().to(s.device)
    neighbours, place = LastNeighborLoader(nodes, size=10, device=s.device), torch.empty(nodes, dtype=torch.long, device=s.device)
    parameters = {*memory.parameters(), *embedding.parameters(), *predictor.parameters()}
    optimizer, sums = _optimizer(way, parameters, torch.optim.Adam), [0.0]
    loader = TemporalDataLoader(visits, batch_size=s.size(200, 20), neg_sampling_ratio=1.0)

    def batches() -> Any:
        while True:
            memory.reset_state()
            neighbours.reset_state()
            yield from loader

    stream = batches()

    def step() -> None:
        _precision(way)
        batch = next(stream)
        optimizer.zero_grad()
        nearby, edges, numbers = neighbours(batch.n_id)
        place[nearby] = torch.arange(len(nearby), device=s.device)
        with _casting(s, way):
            state, last_update = memory(nearby)
            state = embedding(state, last_update, edges, visits.t[numbers], visits.msg[numbers])
            source = state[place[batch.src]]
            there, elsewhere = (predictor(source, state[place[end]]) for end in (batch.dst, batch.neg_dst))
            loss = F.binary_cross_entropy_with_logits(there, torch.ones_like(there))
            loss = loss + F.binary_cross_entropy_with_logits(elsewhere, torch.zeros_like(elsewhere))
        memory.update_state(batch.src, batch.dst, batch.t, batch.msg)
        neighbours.insert(batch.src, batch.dst)
        loss.backward()
        optimizer.step()
        memory.detach()
        if read:
            sums[0] += loss.item() * batch.num_events

    return step


def moonshine(s: Setup, *, batch: int = 1, static: bool = False, **how: Any) -> Step:
    """Moonshine tiny writes down six seconds of speech, greedily, by the library's own generate()."""
    from transformers import MoonshineConfig, MoonshineForConditionalGeneration

    way, words = How(**how), s.size(16, 3)
    config = MoonshineConfig(
        vocab_size=s.size(32_768, 101), hidden_size=s.size(288, 32), intermediate_size=s.size(1152, 64), encoder_num_hidden_layers=s.size(6, 1),
        decoder_num_hidden_layers=s.size(6, 1), encoder_num_attention_heads=s.size(8, 2), decoder_num_attention_heads=s.size(8, 2), pad_token_id=2,
        attn_implementation=way.attention,
    )  # fmt: skip
    model = _placed(s, way, MoonshineForConditionalGeneration(config)).eval()
    waves = torch.randn(batch, s.size(96_000, 8000), device=s.device, dtype=way.dtype) / 10
    options: dict[str, Any] = {"cache_implementation": "static"} if static else {}  # with it, generate() compiles

    @torch.no_grad()
    def step() -> list[list[int]]:
        _precision(way)
        if "past_key_values" in options:
            options["past_key_values"].reset()
        said = model.generate(
            input_values=waves, max_new_tokens=words, min_new_tokens=words, do_sample=False, return_dict_in_generate=True, **options
        )
        if static:  # the graphs read and write one cache
            options.pop("cache_implementation", None)
            options["past_key_values"] = said.past_key_values
        return said.sequences.tolist()  # type: ignore[no-any-return]

    return step


def loads(s: Setup, *, batch: int = 8, checked: bool = True, **how: Any) -> Step:
    """A transformer for time series says how eight series may go on: 24 hours, one after another, drawn a hundred times."""
    from torch.distributions import Distribution
    from transformers import TimeSeriesTransformerConfig, TimeSeriesTransformerForPrediction

    way, hours, lags, series = How(**how), s.size(24, 3), [1, 2, 3, 4, 5, 6, 7, 23, 24, 25, 47, 48, 49], s.size(batch, 2)
    config = TimeSeriesTransformerConfig(
        prediction_length=hours, context_length=s.size(48, 6), lags_sequence=lags, num_time_features=4, num_static_categorical_features=1,
        cardinality=[366], embedding_dimension=[2], d_model=s.size(32, 16), num_parallel_samples=s.size(100, 4),
    )  # fmt: skip
    model = _placed(s, way, TimeSeriesTransformerForPrediction(config)).eval()
    past = config.context_length + max(lags)
    inputs = {
        "past_values": torch.rand(series, past, device=s.device) * 100, "past_time_features": torch.rand(series, past, 4, device=s.device),
        "past_observed_mask": torch.ones(series, past, device=s.device), "future_time_features": torch.rand(series, hours, 4, device=s.device),
        "static_categorical_features": torch.randint(366, (series, 1), device=s.device),
    }  # fmt: skip

    @torch.no_grad()
    def step() -> Any:
        _precision(way)
        Distribution.set_default_validate_args(checked)
        with _casting(s, way):
            return model.generate(**inputs).sequences.float().median(1).values.cpu()

    return step


class Shelves(Dataset[tuple[Tensor, dict[str, Tensor]]]):
    """Stored pictures with boxes; as each is read it is mirrored, cut, resized and made brighter or darker."""

    def __init__(self, count: int, high: int, wide: int) -> None:
        self.count, self.size = count, (high, wide)
        self.pictures = [torch.randint(256, (3, high + high // 3, wide + wide // 3), dtype=torch.uint8) for _ in range(24)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Tensor, dict[str, Tensor]]:
        picture = self.pictures[at % len(self.pictures)]
        if torch.rand(()) < 0.5:
            picture = picture.flip(-1)
        high, wide = (int(edge * (0.7 + 0.3 * torch.rand(()).item())) for edge in picture.shape[1:])
        image = picture[None, :, -high:, :wide].float() / 255
        image = F.interpolate(image, self.size, mode="bilinear", antialias=True)[0]
        image = (image * (0.7 + 0.6 * torch.rand(()))).clamp(0, 1)
        image = (image - image.new_tensor([0.485, 0.456, 0.406])[:, None, None]) / image.new_tensor([0.229, 0.224, 0.225])[:, None, None]
        things = 5 + at % 11
        boxes = torch.cat([0.25 + 0.5 * torch.rand(things, 2), 0.05 + 0.3 * torch.rand(things, 2)], 1)
        return image, {"boxes": boxes, "class_labels": torch.randint(20, (things,))}


def _pictures(batch: list[tuple[Tensor, dict[str, Tensor]]]) -> tuple[Tensor, list[dict[str, Tensor]]]:
    return torch.stack([image for image, _ in batch]), [labels for _, labels in batch]


def conditional_detr(s: Setup, *, workers: bool = False, read: bool = True, **how: Any) -> Step:
    """Conditional DETR: each layer's guesses are matched with the boxes on the host; the parts of the loss are added up for a log."""
    from transformers import ConditionalDetrConfig, ConditionalDetrForObjectDetection, ResNetConfig

    way, sizes = How(**how), [s.size(256, 8), s.size(512, 16), s.size(1024, 16), s.size(2048, 32)]
    trunk = ResNetConfig(
        embedding_size=s.size(64, 8), hidden_sizes=sizes, depths=[s.size(depth, 1) for depth in (3, 4, 6, 3)], out_features=["stage4"],
        layer_type="bottleneck",
    )  # fmt: skip
    config = ConditionalDetrConfig(
        backbone_config=trunk, d_model=s.size(256, 32), encoder_layers=s.size(4, 1), decoder_layers=s.size(4, 2), encoder_ffn_dim=s.size(2048, 32),
        decoder_ffn_dim=s.size(2048, 32), encoder_attention_heads=s.size(8, 2), decoder_attention_heads=s.size(8, 2), num_queries=s.size(300, 20),
        auxiliary_loss=True, num_labels=20,
    )  # fmt: skip
    options, batches = _forever(s, workers and s.cuda)
    data = Shelves(s.size(1 << 14, 64), s.size(480, 64), s.size(640, 64))
    stream = batches(DataLoader(data, s.size(4, 2), shuffle=True, drop_last=True, collate_fn=_pictures, **options))
    model = _placed(s, way, ConditionalDetrForObjectDetection(config)).train()
    run, optimizer, sums = _call(s, way, model), _optimizer(way, model.parameters(), weight_decay=1e-4), dict[str, float]()

    def step() -> None:
        _precision(way)
        images, labels = next(stream)
        images = images.to(s.device, non_blocking=workers)
        targets = [{name: part.to(s.device, non_blocking=workers) for name, part in one.items()} for one in labels]
        optimizer.zero_grad()
        with _casting(s, way):
            out = run(pixel_values=images, labels=targets)
        out.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if read:
            for name, part in out.loss_dict.items():
                sums[name] = sums.get(name, 0.0) + part.item()

    return step


WORKLOADS = (
    _public(
        "xlnet_orders", "XLNet of transformers, training with TF32 products on 8 x 512 words; masks of 16 MB come from pageable memory.", xlnet,
        {"tf32": True},
        {"precision": {"autocast": BF16}, "memcpy": {"pinned": True}, "unfused-elementwise": {"compiled": COMPILED},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "focalnet_flowers", "FocalNet of timm, training in bf16 autocast on 64 pictures, NCHW; the loss is read in each step.", focalnet,
        {"autocast": BF16, "read_loss": True},
        {"memory-layout": {"channels_last": True}, "dtype-casts": {"autocast": None, "dtype": BF16}, "sync-stall": {"read_loss": False},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "xcit_photos", "XCiT of timm on 128 pictures, fp16 autocast over FP32 weights and pictures: attention between channels.", xcit,
        {"autocast": HALF},
        {"unfused-elementwise": {"compiled": COMPILED}, "dtype-casts": {"autocast": None, "dtype": HALF}, "graph-candidate": {"graph": True},
         "memory-layout": {"channels_last": True}},
    ),
    _public(
        "janus_pictures", "The picture decoder of Janus of transformers makes 6 pictures of 384, FP32, NCHW; the allocator's cache is emptied each time.",
        janus, {},
        {"allocator": {"emptied": False}, "precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "demucs_song", "Hybrid Demucs of torchaudio takes a song apart in FP32, ten seconds at a time.", demucs, {},
        {"low-arithmetic-intensity": {"chunks": 8}, "precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "tgn_visits", "A temporal graph network of torch_geometric, training in FP32 on 200 visits a step, messages in dictionaries.", tgn, {},
        {"host-bound": {"tensors": True}, "sync-stall": {"read": False}, "precision": {"autocast": BF16}},
    ),
    _public(
        "moonshine_speech", "Moonshine of transformers, FP32, writes down six seconds of speech, sixteen words one by one; attention written out.",
        moonshine, {},
        {"low-arithmetic-intensity": {"batch": 8}, "launch-gap": {"static": True}, "unfused-attention": {"attention": SDPA},
         "precision": {"dtype": HALF}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "series_samples", "A time series transformer of transformers, FP32, draws 24 hours of 8 series a hundred times, hour by hour.", loads, {},
        {"sync-stall": {"checked": False}, "low-arithmetic-intensity": {"batch": 64}, "precision/tf32": {"tf32": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "conditional_detr", "Conditional DETR of transformers, training in FP32 on 4 pictures that are prepared in this process; 16 numbers are read.",
        conditional_detr, {},
        {"data-loading": {"workers": True}, "precision": {"autocast": BF16}, "sync-stall": {"read": False}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
)  # fmt: skip
