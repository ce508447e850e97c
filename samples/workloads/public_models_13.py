"""Public models of code, search, chats with pictures, photos, people, papers and dictation, by an author who has not read the rules.

Each fix is what its rule's advice says; some of them are what people try first on such a model and gain nothing.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step
from .public_models import BF16, COMPILED, How, _call, _casting, _placed, _precision, _vision, _with_fused_norms, training
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public

# Bound by kernels.


def _passages(count: int, most: int) -> list[tuple[str, str]]:
    """One question with passages of different lengths, in made-up words."""
    draw = random.Random(7)
    words = ["".join(draw.choices("aeioubdfgklmnprstvz", k=draw.randint(2, 11))) for _ in range(4000)]
    question = " ".join(draw.choices(words, k=min(12, most)))
    return [(question, " ".join(draw.choices(words, k=draw.randint(most // 3, most)))) for _ in range(count)]


def _tokenizer(pairs: list[tuple[str, str]], size: int) -> Any:
    """A tokenizer of the library, learned from these texts, as nothing is fetched."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False)
    made.train_from_iterator((text for pair in pairs for text in pair), trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def reranker(s: Setup, *, prepared: bool = False, pinned: bool = False, multiple: int | None = None, **how: Any) -> Step:
    """A cross-encoder on XLM-RoBERTa base says how well each of 48 passages answers the question; the scores are fetched."""
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    way, pairs = How(**how), _passages(s.size(48, 3), s.size(170, 9))
    config = XLMRobertaConfig(
        vocab_size=s.size(250_002, 801), hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), max_position_embeddings=514, type_vocab_size=1, num_labels=1,
    )  # fmt: skip
    tokenizer = _tokenizer(pairs, s.size(6000, 300))
    with s.device:
        model = XLMRobertaForSequenceClassification(config)
    run = _call(s, way, _placed(s, way, model).eval())

    def tokens() -> dict[str, Tensor]:
        return dict(tokenizer(pairs, padding=True, truncation=True, max_length=512, pad_to_multiple_of=multiple, return_tensors="pt"))

    names = ("input_ids", "attention_mask")
    once = tokens() if prepared else None

    @torch.no_grad()
    def step() -> list[float]:
        _precision(way)
        batch = once or tokens()
        inputs = {name: (s.pin(batch[name]) if pinned else batch[name]).to(s.device, non_blocking=pinned) for name in names}
        scores: list[float] = run(**inputs).logits.view(-1).float().cpu().tolist()
        return scores

    return step


def llava(s: Setup, **how: Any) -> Step:
    """LLaVA is tuned to answer about two pictures of 336, whose encoder is frozen: 576 places and 192 words each."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    way, side, patch, words, batch = How(**how), s.size(336, 32), s.size(14, 16), s.size(192, 8), 2
    vision = CLIPVisionConfig(
        hidden_size=s.size(1024, 32), intermediate_size=s.size(4096, 64), num_hidden_layers=s.size(8, 2), num_attention_heads=s.size(16, 2),
        image_size=side, patch_size=patch, attn_implementation=way.attention,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=s.size(32_064, 101), hidden_size=s.size(2048, 32), intermediate_size=s.size(5632, 64), num_hidden_layers=s.size(6, 1),
        num_attention_heads=s.size(16, 2), num_key_value_heads=s.size(16, 2), attn_implementation=way.attention,
    )  # fmt: skip
    place, places = s.size(32_000, 100), (side // patch) ** 2
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=place, image_seq_length=places, attn_implementation=way.attention
    )
    with s.device:
        model: Any = LlavaForConditionalGeneration(config)
    model.model.vision_tower.requires_grad_(False)
    model = _with_fused_norms(model) if way.fused_norms else model
    said = torch.randint(3, s.size(32_000, 100), (batch, words), device=s.device)
    ids = torch.cat([said[:, :4], torch.full((batch, places), place, device=s.device), said[:, 4:]], 1)
    labels = ids.masked_fill(ids == place, -100)
    mask, pictures = torch.ones_like(ids), torch.randn(batch, 3, side, side, device=s.device)

    def loss(model: Any) -> Tensor:
        return model(input_ids=ids, attention_mask=mask, pixel_values=pictures, labels=labels, use_cache=False).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


def _efficientnet(s: Setup) -> nn.Module:
    """With two blocks where it is tiny: a processor is slow in fp16."""
    if not s.tiny:
        return _vision("efficientnet_v2_s")
    from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig

    return EfficientNet([FusedMBConvConfig(1, 3, 1, 8, 8, 1), MBConvConfig(4, 3, 2, 8, 16, 1)], dropout=0.2, last_channel=32)  # type: ignore[no-any-return]


def efficientnet_v2(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """EfficientNetV2-S of torchvision learns what is on 48 pictures of 300, as its authors' recipe has it but for the scaler."""
    way, count, side = How(**how), s.size(48, 2), s.size(300, 32)
    pictures, kinds = torch.rand(count, 3, side, side), torch.randint(1000, (count,))
    loader = Prefetcher([(s.pin(pictures), s.pin(kinds))], s) if pinned else None

    def loss(model: Any) -> Tensor:
        seen, wanted = loader.next() if loader else (pictures.to(s.device), kinds.to(s.device))
        if way.channels_last:
            seen = seen.contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(model(seen), wanted, label_smoothing=0.1)

    return training(s, way, _efficientnet(s), loss, torch.optim.SGD, momentum=0.9, weight_decay=2e-5)


def dinov3(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """DINOv3 base of transformers turns 64 pictures of 224 into vectors, which stay on the device."""
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    way, side = How(**how), s.size(224, 32)
    config = DINOv3ViTConfig(
        hidden_size=s.size(768, 32), intermediate_size=s.size(3072, 64), num_hidden_layers=s.size(12, 1), num_attention_heads=s.size(12, 2),
        image_size=side, num_register_tokens=4, attn_implementation=SDPA,
    )  # fmt: skip
    with s.device:
        model = DINOv3ViTModel(config)
    run, pictures = _call(s, way, _placed(s, way, model).eval()), torch.rand(s.size(64, 2), 3, side, side)
    loader = Prefetcher([(s.pin(pictures),)], s) if pinned else None

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        seen = loader.next()[0] if loader else pictures.to(s.device)
        with _casting(s, way):
            return F.normalize(run(pixel_values=seen).pooler_output, dim=-1)

    return step


# Bound by the host, or by both.


def starcoder2(s: Setup, *, batch: int = 1, static: bool = False, **how: Any) -> Step:
    """StarCoder2 goes on with 256 words of code by ten, the likeliest each time, by the library's own generate()."""
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    way, said, words = How(**how), s.size(10, 3), s.size(49_152, 101)
    config = Starcoder2Config(
        vocab_size=words, hidden_size=s.size(2048, 32), intermediate_size=s.size(8192, 64), num_hidden_layers=s.size(12, 1),
        num_attention_heads=s.size(16, 2), num_key_value_heads=s.size(2, 1), bos_token_id=0, eos_token_id=1, pad_token_id=0,
        attn_implementation=way.attention,
    )  # fmt: skip
    with s.device:
        model: Any = Starcoder2ForCausalLM(config)
    model = _placed(s, way, model).eval()
    code = torch.randint(2, words, (1, s.size(256, 6)), device=s.device).expand(batch, -1).contiguous()
    mask = torch.ones_like(code)
    options: dict[str, Any] = {"cache_implementation": "static"} if static else {}  # with it, generate() compiles

    @torch.no_grad()
    def step() -> list[list[int]]:
        _precision(way)
        if "past_key_values" in options:
            options["past_key_values"].reset()
        answer = model.generate(
            code, attention_mask=mask, max_new_tokens=said, min_new_tokens=said, do_sample=False, return_dict_in_generate=True, **options
        )
        if static:  # the graphs read and write one cache
            options.pop("cache_implementation", None)
            options["past_key_values"] = answer.past_key_values
        return answer.sequences.tolist()  # type: ignore[no-any-return]

    return step


class _Authors(nn.Module):
    """torch_geometric's example hetero_conv_dblp: two layers of one SAGEConv for each kind of edge."""

    def __init__(self, widths: dict[str, int], kinds: list[tuple[str, str, str]], hidden: int) -> None:
        super().__init__()
        from torch_geometric.nn import HeteroConv, SAGEConv

        reached = {kind[2] for kind in kinds}
        first: Any = HeteroConv({kind: SAGEConv((widths[kind[0]], widths[kind[2]]), hidden) for kind in kinds})
        second: Any = HeteroConv({kind: SAGEConv((hidden, hidden), hidden) for kind in kinds if kind[0] in reached})
        self.convs, self.lin = nn.ModuleList([first, second]), nn.Linear(hidden, 4)

    def forward(self, x: dict[str, Tensor], edges: dict[tuple[str, str, str], Tensor]) -> Tensor:
        for conv in self.convs:
            x = {kind: F.leaky_relu(value) for kind, value in conv(x, edges).items()}
        return self.lin(x["author"])  # type: ignore[no-any-return]


def hetero_sage(s: Setup, *, masked: bool = True, **how: Any) -> Step:
    """Who of 4057 authors writes in which of four fields, from their papers, the papers' terms and conferences, all at once."""
    small, way = s.size(1, 100), How(**how)
    counts = {"author": 4057 // small, "paper": 14_328 // small, "term": 7723 // small, "conference": 20}
    widths = {"author": 334, "paper": s.size(4231, 40), "term": 50, "conference": 20}
    ends = {("author", "paper"): 19_645, ("paper", "term"): 85_810, ("paper", "conference"): 14_328}
    edges: dict[tuple[str, str, str], Tensor] = {}
    for (one, other), count in ends.items():
        links = torch.stack([torch.randint(counts[one], (count // small,)), torch.randint(counts[other], (count // small,))]).to(s.device)
        edges[one, "to", other], edges[other, "to", one] = links, links.flip(0).contiguous()
    features = {kind: torch.rand(count, widths[kind], device=s.device) for kind, count in counts.items()}
    fields = torch.randint(4, (counts["author"],), device=s.device)
    seen = torch.rand(counts["author"], device=s.device) < 0.1
    share = seen.float() / seen.sum()

    def loss(model: Any) -> Tensor:
        guess = model(features, edges)
        if masked:
            return F.cross_entropy(guess[seen], fields[seen])
        return (F.cross_entropy(guess, fields, reduction="none") * share).sum()

    return training(s, way, _Authors(widths, list(edges), s.size(64, 16)), loss, torch.optim.Adam, weight_decay=1e-3)


def dictation(s: Setup, *, batch: int = 1, prepared: bool = False, stream: bool = True, **how: Any) -> Step:
    """Whisper small writes down nine seconds of speech by twelve words, its own feature extractor included; each word is shown as it comes."""
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    way, words = How(**how), s.size(51_865, 101)
    config = WhisperConfig(
        vocab_size=words, d_model=s.size(768, 32), encoder_layers=s.size(12, 1), decoder_layers=s.size(12, 1),
        encoder_attention_heads=s.size(12, 2), decoder_attention_heads=s.size(12, 2), encoder_ffn_dim=s.size(3072, 64),
        decoder_ffn_dim=s.size(3072, 64), max_source_positions=s.size(1500, 50), pad_token_id=1, bos_token_id=1, eos_token_id=1,
        decoder_start_token_id=2, attn_implementation=SDPA,
    )  # fmt: skip
    with s.device:
        model: Any = WhisperForConditionalGeneration(config)
    model = _placed(s, way, model).eval()
    extractor = WhisperFeatureExtractor(chunk_length=s.size(30, 1))
    waves = [wave.numpy() for wave in torch.rand(batch, s.size(144_000, 8000)) - 0.5]
    first = torch.full((batch, 1), 2, device=s.device)

    def features() -> Tensor:
        return extractor(waves, sampling_rate=16_000, return_tensors="pt").input_features  # type: ignore[no-any-return]

    once = features() if prepared else None

    @torch.no_grad()
    def step() -> list[Any]:
        _precision(way)
        heard = (features() if once is None else once).to(s.device, way.dtype)
        sound, read, cache, said = model.get_encoder()(heard), first, None, []
        for _ in range(s.size(12, 3)):
            out = model(encoder_outputs=sound, decoder_input_ids=read, past_key_values=cache, use_cache=True)
            read, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
            said.append(read.tolist() if stream else read)
        return said if stream else torch.cat(said, 1).tolist()

    return step


WORKLOADS = (
    _public(
        "xlmr_reranker", "XLM-RoBERTa of transformers in fp16 scores 48 passages for a question; a tokenizer of the library runs in each step.",
        reranker, {"dtype": HALF},
        {"host-bound": {"prepared": True}, "unfused-elementwise": {"compiled": COMPILED}, "memcpy": {"pinned": True},
         "gemm-alignment": {"multiple": 8}},
    ),
    _public(
        "llava_tuning", "LLaVA of transformers, training in bf16 autocast on two pictures and 192 words each, attention and norms written out; the loss is read.",
        llava, {"autocast": BF16, "read_loss": True},
        {"unfused-attention": {"attention": SDPA}, "unfused-norm": {"fused_norms": True}, "optimizer-foreach": {"optimizer": "fused"},
         "sync-stall": {"read_loss": False}},
    ),
    _public(
        "efficientnetv2_scaler", "EfficientNetV2-S of torchvision, training in fp16 with a GradScaler on 48 pictures from pageable memory, NCHW.",
        efficientnet_v2, {"autocast": HALF, "scaler": True},
        {"memory-layout": {"channels_last": True}, "amp-scaler-sync": {"autocast": BF16, "scaler": False}, "unfused-elementwise": {"compiled": COMPILED},
         "memcpy": {"pinned": True}},
    ),
    _public(
        "dinov3_vectors", "DINOv3 of transformers, FP32, on 64 pictures from pageable memory.", dinov3, {},
        {"precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}, "memcpy": {"pinned": True}},
    ),
    _public(
        "starcoder2_completion", "StarCoder2 of transformers in bf16 says ten words after 256, attention written out.", starcoder2, {"dtype": BF16},
        {"launch-gap": {"static": True}, "low-arithmetic-intensity": {"batch": 8}, "unfused-attention": {"attention": SDPA}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "heterosage_authors", "SAGEConv for each of six kinds of edge of torch_geometric, training in FP32 on a graph of DBLP's size; a boolean mask picks, the loss is read.",
        hetero_sage, {"read_loss": True},
        {"launch-gap": {"compiled": COMPILED}, "sync-stall": {"masked": False, "read_loss": False}, "optimizer-foreach": {"optimizer": "fused"},
         "precision": {"tf32": True}},
    ),
    _public(
        "whisper_dictation", "Whisper small of transformers, FP32, features made on the host, writes twelve words; each is read as soon as it is there.",
        dictation, {},
        {"host-bound": {"prepared": True}, "low-arithmetic-intensity": {"batch": 8}, "precision": {"dtype": HALF}, "sync-stall": {"stream": False}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
