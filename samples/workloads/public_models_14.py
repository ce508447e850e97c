"""Public models of films, papers, atoms, passages, tables, talk and experts, by an author who has not read the rules.

Each fix is what its rule's advice says; some of them are what people try first on such a model.
"""

from __future__ import annotations

from itertools import cycle
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, GRAPHS, How, _casting, _placed, _precision, training
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public
from .public_models_6 import _root_mean_square

# Bound by kernels.


def s3d(s: Setup, *, pinned: bool = False, nearest: bool = False, **how: Any) -> Step:
    """S3D learns what is done in ten films of 16 pictures: convolutions over the picture, then over time."""
    from torchvision.models.video import s3d as build

    films, kinds = torch.rand(s.size(10, 2), 3, 16, s.size(224, 32), s.size(224, 32)), s.size(400, 5)
    labels = torch.randint(kinds, (len(films),))
    loader = Prefetcher([(s.pin(films), s.pin(labels))], s) if pinned else None
    model = build(weights=None, num_classes=kinds)
    if s.tiny:
        model.avgpool = nn.AdaptiveAvgPool3d(1)
    if nearest:
        model = model.to(memory_format=torch.channels_last_3d)

    def loss(model: Any) -> Tensor:
        seen, done = loader.next() if loader else (films.to(s.device), labels.to(s.device))
        if nearest:
            seen = seen.contiguous(memory_format=torch.channels_last_3d)
        return F.cross_entropy(model(seen), done)

    return training(s, How(**how), model, loss, torch.optim.SGD, momentum=0.9, weight_decay=1e-4)


def _sdpa_of_donut(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> tuple[Tensor]:
    windows, places, _width = hidden_states.shape
    heads = self.num_attention_heads
    q, k, v = (linear(hidden_states).view(windows, places, heads, -1).transpose(1, 2) for linear in (self.query, self.key, self.value))
    bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(places, places, heads).permute(2, 0, 1)[None]
    if attention_mask is not None:
        bias = (bias + attention_mask[:, None]).repeat(windows // len(attention_mask), 1, 1, 1)
    bias = bias.to(q.dtype).expand(windows, -1, -1, -1)
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=self.dropout.p if self.training else 0.0)
    return (seen.transpose(1, 2).reshape(windows, places, -1),)


def donut(s: Setup, *, pinned: bool = False, vocabulary: int = 57_525, **how: Any) -> Step:
    """Donut learns to write down what is on four pages, without any reading of letters before it."""
    from transformers import DonutSwinConfig, MBartConfig, VisionEncoderDecoderConfig, VisionEncoderDecoderModel

    way, pages, high, wide = How(**how), s.size(4, 2), s.size(640, 64), s.size(480, 64)
    words, length, dim = s.size(vocabulary, 101), s.size(256, 8), s.size(1024, 64)
    eye = DonutSwinConfig(
        image_size=[high, wide], embed_dim=s.size(128, 8), depths=[2, 2, s.size(14, 2), 2], num_heads=[s.size(heads, 2) for heads in (4, 8, 16, 32)],
        window_size=s.size(10, 2),
    )  # fmt: skip
    pen = MBartConfig(
        vocab_size=words, d_model=dim, encoder_layers=1, decoder_layers=s.size(4, 1), decoder_attention_heads=s.size(16, 2),
        decoder_ffn_dim=s.size(4096, 64), max_position_embeddings=s.size(1536, 64), is_decoder=True, add_cross_attention=True, scale_embedding=True,
        attn_implementation=SDPA,
    )  # fmt: skip
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(eye, pen, pad_token_id=1, decoder_start_token_id=2)
    with s.device:
        model = VisionEncoderDecoderModel(config)
    for module in model.modules():
        if way.attention == SDPA and type(module).__name__ == "DonutSwinSelfAttention":
            module.forward = MethodType(_sdpa_of_donut, module)
    batch = torch.randn(pages, 3, high, wide), torch.randint(3, s.size(57_525, 101), (pages, length))
    loader = Prefetcher([tuple(s.pin(part) for part in batch)], s) if pinned else None

    def loss(model: Any) -> Tensor:
        pictures, written = loader.next() if loader else (part.to(s.device) for part in batch)
        return model(pixel_values=pictures, labels=written, use_cache=False).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


class Bonds(nn.Module):
    """In the place of ViSNet's Distance: which atoms are near was found when the data was prepared, as the sizes are small."""

    def __init__(self, near: Tensor) -> None:
        super().__init__()
        self.near = nn.Buffer(near)

    def forward(self, pos: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        between = pos[self.near[0]] - pos[self.near[1]]
        return self.near, between.norm(dim=-1), between


def visnet(s: Setup, *, layers_compiled: bool = False, **how: Any) -> Step:
    """ViSNet learns the energy of 128 molecules of 18 atoms: each pair of atoms has a vector of eight parts times 128."""
    from torch_geometric.nn.models import ViSNet

    molecules, atoms = s.size(128, 2), s.size(18, 4)
    pairs = torch.ones(atoms, atoms).nonzero().T
    near = torch.cat([pairs + atoms * at for at in range(molecules)], 1)
    model = ViSNet(lmax=2, num_layers=s.size(6, 2), hidden_channels=s.size(128, 16))
    model.representation_model.distance = Bonds(near)
    for layer in model.representation_model.vis_mp_layers:
        if layers_compiled:
            layer.forward = s.compile(layer.forward)
    count = molecules * atoms
    kinds, places = torch.randint(1, 10, (count,), device=s.device), 1.5 * torch.randn(count, 3, device=s.device)
    whose = torch.arange(molecules, device=s.device).repeat_interleave(atoms)
    energies = torch.randn(molecules, 1, device=s.device)
    return training(s, How(**how), model, lambda model: F.l1_loss(model(kinds, places, whose)[0], energies))


def dpr(s: Setup, *, prepared: bool = False, **how: Any) -> Step:
    """DPR learns to find passages: two BERTs, 32 questions, the right passage of each and a wrong one; lists are filled up in Python."""
    from transformers import DPRConfig, DPRContextEncoder, DPRQuestionEncoder

    way, asked, length = How(**how), s.size(32, 2), s.size(256, 16)
    config = DPRConfig(
        vocab_size=s.size(30_522, 101), hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), attn_implementation=way.attention,
    )  # fmt: skip
    model = nn.ModuleDict({"question": DPRQuestionEncoder(config), "passage": DPRContextEncoder(config)})
    questions = [torch.randint(1, config.vocab_size, (int(words),)).tolist() for words in torch.randint(4, length // 8 + 3, (asked,))]
    passages = [torch.randint(1, config.vocab_size, (int(words),)).tolist() for words in torch.randint(length // 2, length + 1, (2 * asked,))]
    right = torch.arange(asked, device=s.device)

    def joined(lists: list[list[int]], most: int) -> tuple[Tensor, Tensor]:
        ids = torch.tensor([words[:most] + [0] * (most - len(words)) for words in lists])
        mask = torch.tensor([[1] * len(words[:most]) + [0] * (most - len(words)) for words in lists])
        return ids.to(s.device), mask.to(s.device)

    def batch() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return joined(questions, length // 4), joined(passages, length)

    ready = batch() if prepared else None

    def loss(model: Any) -> Tensor:
        (query, query_mask), (text, text_mask) = ready or batch()
        q = model["question"](input_ids=query, attention_mask=query_mask).pooler_output
        p = model["passage"](input_ids=text, attention_mask=text_mask).pooler_output
        return F.cross_entropy(q.float() @ p.float().T, right)

    return training(s, way, model, loss)


# Bound by the host, or by both.

Cell = list[int]
Table = tuple[Cell, list[list[Cell]], tuple[int, int]]


def _encoded(table: Table, length: int) -> tuple[list[int], list[int], list[list[int]], list[int]]:
    """Words, mask, seven kinds of each word and labels, cell by cell, as the tokenizer of TAPAS has it."""
    question, rows, answer = table
    words, kinds, labels = [101, *question, 102], [[0] * 7 for _ in range(len(question) + 2)], [0] * (len(question) + 2)
    columns = list(zip(*rows, strict=True))
    ranks = []
    for column in columns:
        order = sorted(range(1, len(column)), key=lambda at, column=column: column[at])  # type: ignore[misc]
        ranks.append({at: rank + 1 for rank, at in enumerate(order)})
    for r, row in enumerate(rows):
        for c, cell in enumerate(row):
            rank = ranks[c].get(r, 0)
            for word in cell:
                words.append(word)
                kinds.append([1, c + 1, r, 0, rank, len(rows) - rank if rank else 0, 0])
                labels.append(int((r, c) == answer))
    more = length - len(words)
    mask = [1] * len(words) + [0] * more
    return (words + [0] * more)[:length], mask[:length], (kinds + [[0] * 7] * more)[:length], (labels + [0] * more)[:length]


def _tables(s: Setup, count: int) -> list[Table]:
    """Questions of ten words on tables of 20 to 24 rows of 6 columns, one to four words a cell."""
    made = []
    for _ in range(count):
        rows = [
            [torch.randint(1000, 30_000, (int(torch.randint(1, s.size(5, 2), ())),)).tolist() for _ in range(s.size(6, 2))]
            for _ in range(int(torch.randint(s.size(20, 3), s.size(25, 4), ())))
        ]
        made.append((torch.randint(1000, 30_000, (s.size(10, 3),)).tolist(), rows, (int(torch.randint(1, len(rows), ())), 0)))
    return made


def tapas(s: Setup, *, prepared: bool = False, **how: Any) -> Step:
    """TAPAS answers questions by a cell of a table: eight tables a step are turned into words and kinds of words in this process."""
    from transformers import TapasConfig, TapasForQuestionAnswering

    length, count = s.size(512, 32), s.size(8, 2)
    config = TapasConfig(
        hidden_size=s.size(768, 32), num_hidden_layers=s.size(8, 1), num_attention_heads=s.size(12, 2), intermediate_size=s.size(3072, 64),
    )  # fmt: skip
    model = TapasForQuestionAnswering(config)
    nn.init.normal_(model.output_weights, std=0.02)
    nn.init.normal_(model.column_output_weights, std=0.02)
    tables = _tables(s, 8 * count)

    def batch(some: list[Table]) -> list[Tensor]:
        return [torch.tensor(part) for part in zip(*(_encoded(table, length) for table in some), strict=True)]

    groups = [tables[at : at + count] for at in range(0, len(tables), count)]
    turns, ready = cycle(groups), cycle([batch(group) for group in groups] if prepared else [])

    def loss(model: Any) -> Tensor:
        words, mask, kinds, labels = (part.to(s.device) for part in (next(ready) if prepared else batch(next(turns))))
        return model(input_ids=words, attention_mask=mask, token_type_ids=kinds, labels=labels.float()).loss  # type: ignore[no-any-return]

    return training(s, How(**how), model, loss)


def rwkv(s: Setup, *, batch: int = 1, stream: bool = True, **how: Any) -> Step:
    """RWKV says eight words, a state being all that it knows of the ones before; each is shown as soon as it is there."""
    from transformers import RwkvConfig, RwkvForCausalLM
    from transformers.models.rwkv import modeling_rwkv

    modeling_rwkv.is_ninja_available = lambda: False  # the authors' kernel would be fetched
    way, words, said = How(**how), s.size(50_277, 101), s.size(8, 3)
    config = RwkvConfig(vocab_size=words, context_length=64, hidden_size=s.size(2048, 32), num_hidden_layers=s.size(12, 2))
    with s.device:
        model: Any = RwkvForCausalLM(config)
    model = _placed(s, way, model).eval()
    asked = torch.randint(words, (batch, s.size(32, 4)), device=s.device)
    with torch.no_grad():
        after = model(input_ids=asked, use_cache=True)
    start, state, word = [part.clone() for part in after.state], list(after.state), asked[:, -1:].clone()

    @torch.no_grad()
    def token() -> object:
        out = model(input_ids=word, state=state, use_cache=True)
        return word.copy_(out.logits[:, -1:].argmax(-1))

    _precision(way)
    following = capture(token, s) if way.graph else token

    def step() -> list[Any]:
        _precision(way)
        for now, then in zip(state, start, strict=True):
            now.copy_(then)
        word.copy_(asked[:, -1:])
        text: list[Any] = []
        for _ in range(said):
            following()
            text.append(word.tolist() if stream else word.clone())
        return text if stream else torch.cat(text, 1).tolist()

    return step


def _masked_experts(self: Any, hidden_states: Tensor, selected_experts: Tensor, routing_weights: Tensor) -> Tensor:
    """All experts on all words; a mask multiplies what a word did not choose by zero."""
    shares = (selected_experts * routing_weights.view(-1, 1, 1)).sum(1).to(hidden_states.dtype)
    out = torch.zeros_like(hidden_states)
    for at in range(self.num_experts):
        out = out + self[f"expert_{at}"](hidden_states) * shares[:, at, None]
    return out


def switch_transformer(s: Setup, *, masked: bool = False, norms: bool = False, **how: Any) -> Step:
    """A Switch Transformer learns to fill up texts of 128 words: in half of the layers each of eight experts looks for its own words."""
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    words = s.size(32_128, 101)
    config = SwitchTransformersConfig(
        vocab_size=words, d_model=s.size(768, 32), d_kv=s.size(64, 16), d_ff=s.size(2048, 64), num_layers=s.size(4, 2),
        num_decoder_layers=s.size(4, 2), num_sparse_encoder_layers=s.size(2, 1), num_sparse_decoder_layers=s.size(2, 1),
        num_heads=s.size(12, 2), num_experts=s.size(8, 2), decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    with s.device:
        model = SwitchTransformersForConditionalGeneration(config)
    for module in model.modules():
        if masked and type(module).__name__ == "SwitchTransformersExperts":
            module.forward = MethodType(_masked_experts, module)
        if norms and type(module).__name__ == "SwitchTransformersLayerNorm":
            module.forward = MethodType(_root_mean_square, module)
    ids = torch.randint(2, words, (s.size(8, 2), s.size(128, 8)), device=s.device)
    labels = torch.randint(2, words, (len(ids), s.size(64, 4)), device=s.device)
    return training(s, How(**how), model, lambda model: model(input_ids=ids, labels=labels).loss)


def fast_speech(s: Setup, *, batch: int = 1, **how: Any) -> Step:
    """FastSpeech 2 with Conformers makes the spectrum of a sentence of 60 letters, six frames a letter, and it is fetched."""
    from transformers import FastSpeech2ConformerConfig, FastSpeech2ConformerModel

    way = How(**how)
    small: dict[str, Any] = {"hidden_size": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_linear_units": 32, "decoder_linear_units": 32}
    model: Any = FastSpeech2ConformerModel(FastSpeech2ConformerConfig(**(small if s.tiny else {})))
    nn.init.zeros_(model.duration_predictor.linear.weight)
    nn.init.constant_(model.duration_predictor.linear.bias, 1.95)
    model = _placed(s, way, model).eval()
    for part in (model.encoder, model.decoder):
        if way.compiled:
            part.forward = s.compile(part.forward, mode=way.compiled)
    letters = torch.randint(1, 78, (batch, s.size(60, 6)), device=s.device)
    mask = torch.ones_like(letters)

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        with _casting(s, way):
            return model(input_ids=letters, attention_mask=mask).spectrogram.float().cpu()  # type: ignore[no-any-return]

    return step


WORKLOADS = (
    _public(
        "s3d_films", "S3D of torchvision, training in FP32 on 10 films of 16 pictures from pageable memory, NCDHW; the loss is read in each step.", s3d,
        {"read_loss": True},
        {"precision": {"autocast": BF16}, "memory-layout": {"nearest": True}, "memcpy": {"pinned": True}, "sync-stall": {"read_loss": False}},
    ),
    _public(
        "donut_pages", "Donut of transformers, training in bf16 autocast on 4 pages of 640 x 480 and 256 words of 57,525; windows' attention written out.",
        donut, {"autocast": BF16},
        {"gemm-alignment": {"vocabulary": 57_528}, "memcpy": {"pinned": True}, "unfused-attention": {"attention": SDPA},
         "unfused-elementwise": {"compiled": COMPILED}},
    ),
    _public(
        "visnet_energies", "ViSNet of torch_geometric, training in FP32 on 128 molecules of 18 atoms, vectors of all pairs.", visnet, {},
        {"unfused-elementwise": {"layers_compiled": True}, "precision": {"tf32": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "dpr_passages", "DPR of transformers, training with TF32 products on 32 questions and 64 passages of 256 words, whose lists Python fills up.", dpr,
        {"tf32": True},
        {"precision": {"autocast": BF16}, "unfused-attention": {"attention": SDPA}, "host-bound": {"prepared": True},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "tapas_tables", "TAPAS of transformers, training with TF32 products on 8 tables that Python encodes cell by cell; the loss is read in each step.", tapas,
        {"tf32": True, "read_loss": True},
        {"host-bound": {"prepared": True}, "precision": {"autocast": BF16}, "sync-stall": {"read_loss": False}},
    ),
    _public(
        "rwkv_words", "RWKV of transformers, FP32, says eight words one by one from a state; each is read as soon as it is there.", rwkv, {},
        {"graph-candidate": {"graph": True}, "low-arithmetic-intensity": {"batch": 8}, "sync-stall": {"stream": False}, "precision": {"dtype": HALF}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "switch_texts", "A Switch Transformer of transformers, training in FP32 on 8 x 128 words: eight experts look for their words, norms written out.",
        switch_transformer, {},
        {"sync-stall": {"masked": True}, "unfused-norm": {"norms": True}, "precision": {"autocast": BF16}},
    ),
    _public(
        "fastspeech_sentence", "FastSpeech 2 with Conformers of transformers, FP32, makes the spectrum of one sentence of 60 letters.", fast_speech, {},
        {"launch-gap": {"compiled": GRAPHS}, "low-arithmetic-intensity": {"batch": 8}, "precision": {"autocast": HALF}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
