"""Public models of detection, speech, series, recommendation, graphs, diffusion, language and control.

Some of the fixes are expected to gain nothing: they are what people try first on such a model.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, How, _casting, _optimizer, _placed, _precision, _with_fused_norms
from .public_models_2 import SDPA
from .public_models_4 import _public

WORKERS: dict[str, Any] = {"num_workers": 4, "persistent_workers": True, "pin_memory": True, "multiprocessing_context": "fork"}


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


# Detection.


def owlvit(s: Setup, *, bytes_sent: bool = False, together: bool = False, **how: Any) -> Step:
    """OWL-ViT looks for forty goods in four photos of shelves; what it finds is written down box by box, as in the library's example."""
    from transformers import OwlViTConfig, OwlViTForObjectDetection

    way, photos, side, goods, length, found = How(**how), s.size(4, 2), s.size(768, 64), s.size(40, 3), 16, s.size(60, 4)
    text = {
        "vocab_size": s.size(49_408, 101), "hidden_size": s.size(512, 32), "intermediate_size": s.size(2048, 64),
        "num_hidden_layers": s.size(6, 1), "num_attention_heads": s.size(8, 2),
        "max_position_embeddings": length, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    picture = {
        "hidden_size": s.size(768, 32), "intermediate_size": s.size(3072, 64), "num_hidden_layers": s.size(8, 1),
        "num_attention_heads": s.size(12, 2), "image_size": side, "patch_size": 16,
    }  # fmt: skip
    config = OwlViTConfig(text_config=text, vision_config=picture, projection_dim=s.size(512, 32), attn_implementation=way.attention)
    model: Any = _placed(s, way, OwlViTForObjectDetection(config)).eval()
    raw = torch.randint(256, (photos, 3, side, side), dtype=torch.uint8)
    mean, std = (torch.tensor(of).view(3, 1, 1) for of in ((0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)))
    ready = (raw.float() / 255 - mean) / std  # by the library's processor, before
    raw, mean_there, std_there = s.pin(raw), mean.to(s.device), std.to(s.device)
    names = [f"good {number}" for number in range(goods)]
    asked = torch.randint(3, s.size(49_408, 101), (goods, length), device=s.device).repeat(photos, 1)
    size = torch.tensor([side, side, side, side], device=s.device)

    def detected(way: How) -> tuple[Tensor, Tensor, Tensor]:
        if bytes_sent:
            pixels = (raw.to(s.device, non_blocking=True).float() / 255 - mean_there) / std_there
        else:
            pixels = ready.to(s.device)
        if way.channels_last:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        with _casting(s, way):
            out = model(input_ids=asked, pixel_values=pixels)
        scores, labels = out.logits.float().sigmoid().max(-1)
        middle, extent = out.pred_boxes.float().chunk(2, -1)
        return scores, labels, torch.cat([middle - extent / 2, middle + extent / 2], -1) * size

    with torch.no_grad():
        _precision(way)
        enough = float(detected(How(channels_last=way.channels_last))[0].topk(found).values[:, -1].mean())

    @torch.no_grad()
    def step() -> list[list[tuple[str, float, list[float]]]]:
        _precision(way)
        scores, labels, boxes = detected(way)
        if together:
            all_of_them = torch.cat([scores[..., None], labels[..., None].float(), boxes], -1).cpu()
            tables = [each[each[:, 0] > enough].tolist() for each in all_of_them]
            return [[(names[int(row[1])], round(row[0], 3), [round(x, 2) for x in row[2:]]) for row in table] for table in tables]
        results = []
        for score, label, box in zip(scores, labels, boxes, strict=True):
            keep = score > enough
            results.append((score[keep], label[keep], box[keep]))
        said = []
        for of in results:
            rows = zip(*of, strict=True)
            said.append([(names[label.item()], round(score.item(), 3), [round(x, 2) for x in box.tolist()]) for score, label, box in rows])
        return said

    return step


# Speech.


def wav2vec_pretraining(s: Setup, *, drawn_there: bool = False, kept: bool = False, fused: bool = False, **how: Any) -> Step:
    """wav2vec 2.0 learns from sound alone, as in the library's example: masks and wrong frames by NumPy, each gradient's norm read."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForPreTraining
    from transformers.models.wav2vec2.modeling_wav2vec2 import _compute_mask_indices, _sample_negative_indices

    way, clips, length, many = How(**how), s.size(8, 2), s.size(120_000, 8000), s.size(100, 5)
    small: dict[str, Any] = {
        "conv_dim": (16,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "num_codevectors_per_group": 8,
        "codevector_dim": 16, "proj_codevector_dim": 16,
    } if s.tiny else {}  # fmt: skip
    config = Wav2Vec2Config(
        hidden_size=s.size(768, 32), num_hidden_layers=s.size(6, 1), num_attention_heads=s.size(12, 2), intermediate_size=s.size(3072, 64),
        num_negatives=many, layerdrop=0.0, attn_implementation=way.attention, **small,
    )  # fmt: skip
    model: Any = _placed(s, way, Wav2Vec2ForPreTraining(config)).train()
    if fused:
        model.quantizer.forward = s.compile(model.quantizer.forward)
        model.compute_contrastive_logits = s.compile(model.compute_contrastive_logits)
    optimizer = _optimizer(way, model.parameters())
    sounds = torch.randn(clips, length, device=s.device)
    frames = int(model._get_feat_extract_output_lengths(length))
    total, norms = torch.zeros((), device=s.device), torch.zeros((), device=s.device)
    seen: list[float] = []

    def on_the_host() -> tuple[Tensor, Tensor]:
        mask = _compute_mask_indices((clips, frames), 0.65, 10 if not s.tiny else 2, min_masks=2)
        wrong = _sample_negative_indices((clips, frames), many, mask_time_indices=mask)
        return torch.tensor(mask, dtype=torch.long).to(s.device), torch.tensor(wrong, dtype=torch.long).to(s.device)

    def on_the_device() -> tuple[Tensor, Tensor]:
        """As many spans in each clip, and wrong frames out of the masked ones of the same clip."""
        long = 2 if s.tiny else 10
        starts = torch.rand(clips, frames - long + 1, device=s.device).topk(max(2, int(0.65 * frames / long)), dim=1).indices
        spans = (starts[..., None] + torch.arange(long, device=s.device)).flatten(1)
        mask = torch.zeros(clips, frames, dtype=torch.long, device=s.device).scatter_(1, spans, 1)
        masked, rank = mask.sum(1).view(-1, 1, 1), mask.cumsum(1)[..., None] - 1
        drawn = (torch.rand(clips, frames, many, device=s.device) * (masked - 1)).long()
        drawn = drawn + (drawn >= rank).long()
        order = mask.argsort(dim=1, descending=True, stable=True)  # the masked ones first, in their order
        wrong = order.gather(1, drawn.flatten(1)).view_as(drawn) * mask[..., None]
        return mask, wrong + torch.arange(clips, device=s.device).view(-1, 1, 1) * frames

    def step() -> None:
        _precision(way)
        mask, wrong = on_the_device() if drawn_there else on_the_host()
        optimizer.zero_grad()
        with _casting(s, way):
            loss = model(sounds, mask_time_indices=mask, sampled_negative_indices=wrong).loss
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        count = mask.sum()
        torch._foreach_mul_(gradients, 1.0 / count)
        if kept:
            norms.copy_(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
            total.copy_(loss.detach() / count)
        else:
            squares = 0.0
            for gradient in gradients:
                squares += gradient.norm(2).item() ** 2
            seen[:] = [loss.item() / count.item(), squares**0.5]
        optimizer.step()

    return step


# Series.


class Sequence(nn.Module):
    """PyTorch's example time_sequence_prediction: two cells, moment by moment."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, width), nn.LSTMCell(width, width), nn.Linear(width, 1)

    def forward(self, series: Tensor) -> Tensor:
        h1 = c1 = h2 = c2 = torch.zeros(series.size(0), self.width, device=series.device)
        outputs = []
        for moment in series.split(1, dim=1):
            h1, c1 = self.lstm1(moment, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


class Whole(nn.Module):
    """The same weights in one call."""

    def __init__(self, cells: Sequence) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(1, cells.width, 2, batch_first=True), cells.linear
        for layer, cell in enumerate((cells.lstm1, cells.lstm2)):
            for name, weight in cell.named_parameters():
                getattr(self.lstm, f"{name}_l{layer}").data.copy_(weight.data)

    def forward(self, series: Tensor) -> Tensor:
        return self.linear(self.lstm(series[..., None])[0])[..., 0]


def sine_series(s: Setup, *, whole: bool = False, read: bool = True, **how: Any) -> Step:
    """LBFGS teaches two LSTM cells to go on with 97 waves of 64 moments: three looks at the loss and its gradient in each step."""
    way, waves, moments, looks = How(**how), s.size(97, 5), s.size(64, 6), s.size(3, 2)
    phase = torch.randint(-80, 80, (waves, 1), device=s.device)
    data = torch.sin((torch.arange(moments + 1, device=s.device) + phase) / 20.0)
    model: Any = Sequence(s.size(51, 8))
    model = _placed(s, way, Whole(model) if whole else model)
    parameters = list(model.parameters())
    optimizer = torch.optim.LBFGS(parameters, lr=0.8, max_iter=looks, tolerance_grad=0.0, tolerance_change=0.0)
    loss, log = torch.zeros((), device=s.device), [0.0]

    def look() -> None:
        if way.graph:
            torch._foreach_zero_([parameter.grad for parameter in parameters])
        else:
            optimizer.zero_grad()
        with _casting(s, way):
            new = F.mse_loss(model(data[:, :-1]), data[:, 1:])
        new.backward()
        loss.copy_(new.detach())

    if way.graph:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
    _precision(way)
    looking = capture(look, s) if way.graph else look

    def closure() -> Tensor:
        looking()
        if read:
            log[0] = loss.item()
        return loss.clone()

    def step() -> None:
        _precision(way)
        optimizer.step(closure)

    return step


# Recommendation.


class _Histories(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Films that people saw; a fifth of them are hidden as they are read, film by film."""

    def __init__(self, people: list[list[int]], films: int, length: int) -> None:
        self.people, self.films, self.length, self.rng = people, films, length, random.Random(0)

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        tokens, labels = [], []
        for film in self.people[at % len(self.people)]:
            chance = self.rng.random()
            if chance < 0.2:
                chance /= 0.2
                if chance < 0.8:
                    tokens.append(self.films + 1)
                elif chance < 0.9:
                    tokens.append(self.rng.randint(1, self.films))
                else:
                    tokens.append(film)
                labels.append(film)
            else:
                tokens.append(film)
                labels.append(0)
        gap = [0] * (self.length - len(tokens))
        return torch.LongTensor(gap + tokens[-self.length :]), torch.LongTensor(gap + labels[-self.length :])


def bert4rec(s: Setup, *, workers: bool = False, hidden_there: bool = False, kept: bool = False, **how: Any) -> Step:
    """BERT4Rec guesses the hidden ones of 26,744 films in what 64 people saw."""
    from transformers import BertConfig, BertForMaskedLM

    way, films, length, batch = How(**how), s.size(26_744, 97), s.size(200, 12), s.size(64, 4)
    config = BertConfig(
        vocab_size=s.size(way.vocabulary, 104) if way.vocabulary else films + 2, hidden_size=s.size(256, 32),
        num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(8, 2), intermediate_size=s.size(1024, 64),
        max_position_embeddings=length, pad_token_id=0,
        attn_implementation=way.attention,
    )  # fmt: skip
    model = _placed(s, way, BertForMaskedLM(config)).train()
    drawn = np.random.default_rng(0)
    people = [drawn.integers(1, films + 1, drawn.integers(length // 2, length + 1)).tolist() for _ in range(s.size(2048, 16))]
    data, options = _Histories(people, films, length), WORKERS if workers and s.cuda else {}
    stream = _endless(torch.utils.data.DataLoader(data, batch, shuffle=True, drop_last=True, **options))
    seen_by = torch.tensor([[0] * (length - len(one)) + one for one in people], device=s.device)
    optimizer, total = _optimizer(way, model.parameters(), torch.optim.Adam), torch.zeros((), device=s.device)
    log = [0.0]

    def hidden() -> tuple[Tensor, Tensor]:
        """The same on the device, for all at once."""
        films_seen = seen_by[torch.randint(len(people), (batch,), device=s.device)]
        chance = torch.rand(films_seen.shape, device=s.device)
        chosen = (chance < 0.2) & (films_seen > 0)
        instead = torch.where(chance < 0.18, torch.randint_like(films_seen, 1, films + 1), films_seen)
        instead = torch.where(chance < 0.16, films + 1, instead)
        return torch.where(chosen, instead, films_seen), torch.where(chosen, films_seen, 0)

    def step() -> None:
        _precision(way)
        tokens, labels = hidden() if hidden_there else (x.to(s.device, non_blocking=workers) for x in next(stream))
        optimizer.zero_grad()
        with _casting(s, way):
            logits = model(input_ids=tokens, attention_mask=(tokens > 0).long()).logits
            loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1), ignore_index=0)
        loss.backward()
        optimizer.step()
        if kept:
            total.add_(loss.detach())
        else:
            log[0] += loss.item()

    return step


# Graphs.


class Block(nn.Module):
    """As in torch_geometric's example rev_gnn: the dropout's mask is shared among the blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        from torch_geometric.nn import SAGEConv

        self.norm, self.conv = nn.LayerNorm(width), SAGEConv(width, width)

    def reset_parameters(self) -> None:
        self.norm.reset_parameters()
        self.conv.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor, mask: Tensor) -> Tensor:
        return self.conv(self.norm(x).relu() * mask, edge_index)


class Reversible(nn.Module):
    def __init__(self, parts: int, width: int, classes: int, layers: int, groups: int = 2) -> None:
        super().__init__()
        from torch_geometric.nn import GroupAddRev

        self.first, self.last, self.norm = nn.Linear(parts, width), nn.Linear(width, classes), nn.LayerNorm(width)
        self.convs = nn.ModuleList([GroupAddRev(Block(width // groups), num_groups=groups) for _ in range(layers)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x)
        mask = torch.zeros_like(x).bernoulli_(0.5) / 0.5
        for conv in self.convs:
            x = conv(x, edge_index, mask)
        return self.last(F.dropout(self.norm(x).relu(), 0.5, self.training))


def rev_gnn(s: Setup, *, workers: bool = False, graph_there: bool = False, kept: bool = False, **how: Any) -> Step:
    """RevGNN learns what 60,000 wares of a shop are by random sixths of them; what is between these is looked up on the host."""
    from torch_geometric.data import Data
    from torch_geometric.loader import RandomNodeLoader

    way, nodes, edges, parts, classes, pieces = How(**how), s.size(60_000, 60), s.size(1_200_000, 400), s.size(100, 8), 47, s.size(6, 2)
    one, other = torch.randint(nodes, (2, edges // 2))
    data = Data(
        x=torch.randn(nodes, parts), edge_index=torch.cat([torch.stack([one, other]), torch.stack([other, one])], 1),
        y=torch.randint(classes, (nodes, 1)), train_mask=torch.rand(nodes) < 0.4,
    )  # fmt: skip
    options = WORKERS if workers and s.cuda else {}
    order = torch.utils.data.RandomSampler(range(nodes), num_samples=100 * nodes)  # a hundred epochs in one go
    stream = _endless(RandomNodeLoader(data, pieces, sampler=order, **options))
    there = data.to(s.device) if graph_there else data
    model = _placed(s, way, Reversible(parts, s.size(160, 16), classes, s.size(5, 2))).train()
    optimizer, total, known = _optimizer(way, model.parameters(), torch.optim.Adam), torch.zeros((), device=s.device), 0
    sum_of, log = torch.zeros((), device=s.device), [0.0]

    def step() -> None:
        nonlocal known
        _precision(way)
        if graph_there:
            batch = there.subgraph(torch.randperm(nodes, device=s.device)[: -(-nodes // pieces)])
        else:
            batch = next(stream).to(s.device, non_blocking=workers)
        optimizer.zero_grad()
        with _casting(s, way):
            out = model(batch.x, batch.edge_index)
        chosen, labels = batch.train_mask, batch.y.view(-1)
        if kept:
            loss = (F.cross_entropy(out, labels, reduction="none") * chosen).sum() / chosen.sum()
        else:
            loss = F.cross_entropy(out[chosen], labels[chosen])
        loss.backward()
        optimizer.step()
        if kept:
            total.add_(loss.detach() * chosen.sum())
            sum_of.add_(chosen.sum())
        else:
            count = int(chosen.sum())
            log[0] += float(loss) * count
            known += count

    return step


# Diffusion.


def _noised(logits: Tensor, temperature: float, kind: torch.dtype) -> Tensor:
    """LLaDA's Gumbel noise: its authors draw it in float64."""
    logits = logits.to(kind)
    noise = torch.rand_like(logits, dtype=kind)
    return logits.exp() / (-torch.log(noise)) ** temperature


def _picked(logits: Tensor, temperature: float, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """A word at each place, and how sure it is."""
    words = _noised(logits, temperature, kind).argmax(-1)
    sure = F.softmax(logits.to(kind), dim=-1)
    return words, sure.gather(-1, words[..., None])[..., 0]


def llada(s: Setup, *, single: bool = False, fused: bool = False, kept: bool = False, **how: Any) -> Step:
    """LLaDA's sampler on a Llama that sees both ways: eight rounds fill 64 hidden words of four answers, the surest ones first."""
    from transformers import LlamaConfig, LlamaForCausalLM

    way, words, answers, asked, said, rounds = How(**how), s.size(126_464, 101), s.size(4, 2), s.size(64, 6), s.size(64, 8), s.size(8, 2)
    config = LlamaConfig(
        num_hidden_layers=s.size(6, 1), hidden_size=s.size(2048, 32), intermediate_size=s.size(6144, 64), num_attention_heads=s.size(16, 2),
        num_key_value_heads=s.size(16, 2), vocab_size=words, attn_implementation=way.attention,
    )  # fmt: skip
    with s.device:
        model: Any = LlamaForCausalLM(config)
    model = _placed(s, way, _with_fused_norms(model) if way.fused_norms else model).eval()
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    length, hidden = asked + said, words - 1
    both_ways = torch.zeros(1, 1, length, length, device=s.device, dtype=way.dtype)
    prompts = torch.randint(words - 1, (answers, asked), device=s.device)
    pick = s.compile(_picked) if fused else _picked
    kind, share = torch.float32 if single else torch.float64, said // rounds

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        x = F.pad(prompts, (0, said), value=hidden)
        left = torch.full((answers, rounds), share, device=s.device)
        for at in range(rounds):
            masked = x == hidden
            logits = model(input_ids=x, attention_mask=both_ways, use_cache=False).logits
            logits[..., hidden] = -1e4
            guess, sure = pick(logits, 0.5, kind)
            guess = torch.where(masked, guess, x)
            sure = torch.where(masked, sure, -float("inf"))
            if kept:
                chosen = torch.zeros_like(masked).scatter_(1, sure.topk(share, dim=1).indices, True)
            else:
                chosen = torch.zeros_like(masked)
                for one in range(answers):
                    chosen[one, torch.topk(sure[one], k=int(left[one, at])).indices] = True
            x = torch.where(chosen, guess, x)
        return x

    return step


# Language in service.


def _of_all_heads(self: Any, x: Tensor) -> Tensor:
    """All heads' norms in one."""
    weight = torch.stack([norm.weight for norm in self.norms])[:, None]
    return F.layer_norm(x, x.shape[-1:], eps=self.norms[0].eps) * weight.to(x.dtype)


def stablelm(s: Setup, *, batch: int = 1, stream: bool = True, heads: bool = False, **how: Any) -> Step:
    """StableLM 2 reads a question of 768 words and says eight; queries and keys are normed head by head."""
    from transformers import DynamicCache, StableLmConfig, StableLmForCausalLM

    way, words, said = How(**how), s.size(100_352, 101), s.size(8, 3)
    config = StableLmConfig(
        vocab_size=words, hidden_size=s.size(4096, 32), intermediate_size=s.size(11_008, 64), num_hidden_layers=s.size(3, 2),
        num_attention_heads=s.size(32, 4), num_key_value_heads=s.size(8, 2), qk_layernorm=True, use_parallel_residual=True,
        pad_token_id=None, bos_token_id=1, eos_token_id=2, attn_implementation=way.attention,
    )  # fmt: skip
    with s.device:
        model: Any = StableLmForCausalLM(config)
    for module in model.modules():
        if heads and type(module).__name__ == "StableLmLayerNormPerHead":
            module.forward = MethodType(_of_all_heads, module)
    model = _placed(s, way, model).eval()
    asked = torch.randint(3, words, (batch, s.size(768, 8)), device=s.device)
    end = -1  # each answer goes on to its last word

    def next_word(ids: Tensor, cache: Any) -> Tensor:
        with _casting(s, way):
            return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1:].argmax(-1)

    @torch.no_grad()
    def step() -> list[list[int]]:
        _precision(way)
        cache, ids, answer = DynamicCache(config=config), asked, []
        for _ in range(said):
            ids = next_word(ids, cache)
            answer.append(ids)
            if stream and all(word[0] == end for word in ids.tolist()):
                break
        return torch.cat(answer, 1).tolist()  # type: ignore[no-any-return]

    return step


# Control.


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(F.relu(self.one(F.relu(x))))


class Impala(nn.Module):
    """The deep network of IMPALA as torchbeast has it: residual convolutions, then an LSTM that forgets where an episode ends."""

    def __init__(self, actions: int, widths: tuple[int, ...], core: int, side: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for before, width in zip((4, *widths), widths, strict=False):
            parts += [nn.Conv2d(before, width, 3, 1, 1), nn.MaxPool2d(3, 2, 1), Residual(width), Residual(width)]
            side = (side + 1) // 2
        self.see, self.flat = nn.Sequential(*parts, nn.ReLU()), nn.Linear(widths[-1] * side * side, core)
        self.core = nn.LSTM(core + 1, core)
        self.policy, self.baseline = nn.Linear(core, actions), nn.Linear(core, 1)

    def forward(self, frames: Tensor, reward: Tensor, going: Tensor, last: bool = False) -> tuple[Tensor, Tensor]:
        moments, batch = reward.shape
        x = frames.flatten(0, 1).float() / 255.0
        x = self.see(x.contiguous(memory_format=torch.channels_last) if last else x)
        x = F.relu(self.flat(x.flatten(1))).view(moments, batch, -1)
        x = torch.cat([x, reward.clamp(-1, 1)[..., None]], -1)
        state = (x.new_zeros(1, batch, self.core.hidden_size), x.new_zeros(1, batch, self.core.hidden_size))
        outputs = []
        for seen, on in zip(x.unbind(), going.unbind(), strict=True):
            state = (on.view(1, -1, 1) * state[0], on.view(1, -1, 1) * state[1])
            output, state = self.core(seen[None], state)
            outputs.append(output)
        all_of_them = torch.cat(outputs)
        return self.policy(all_of_them), self.baseline(all_of_them)[..., 0]


def _vtrace(ratios: Tensor, discounts: Tensor, rewards: Tensor, values: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    clipped = ratios.exp().clamp(max=1.0)
    following = torch.cat([values[1:], after[None]])
    deltas = clipped * (rewards + discounts * following - values)
    gathered, result = torch.zeros_like(after), []
    for moment in range(discounts.shape[0] - 1, -1, -1):
        gathered = deltas[moment] + discounts[moment] * clipped[moment] * gathered
        result.append(gathered)
    targets = torch.stack(result[::-1]) + values
    return targets, clipped * (rewards + discounts * torch.cat([targets[1:], after[None]]) - values)


def impala(s: Setup, *, ahead: bool = False, kept: bool = False, fused: bool = False, **how: Any) -> Step:
    """IMPALA's learner, as in torchbeast: eighty moments of sixteen players in bytes, the core moment by moment, V-trace in a loop."""
    way, moments, players, side, actions = How(**how), s.size(80, 5), s.size(16, 2), s.size(84, 20), s.size(18, 4)
    net = Impala(actions, (16, 32, 32) if not s.tiny else (4, 4, 4), s.size(256, 16), side)
    model: Any = _placed(s, way, net).train()
    parameters = list(model.parameters())
    optimizer = torch.optim.RMSprop(parameters, lr=4e-4, alpha=0.99, eps=0.01)
    batches: list[tuple[Tensor, ...]] = [
        (
            torch.randint(256, (moments + 1, players, 4, side, side), dtype=torch.uint8), torch.randn(moments + 1, players),
            torch.rand(moments + 1, players) < 0.02, torch.randn(moments + 1, players, actions),
            torch.randint(actions, (moments + 1, players)), torch.randn(moments + 1, players),
        ) for _ in range(3)
    ]  # fmt: skip
    if ahead:
        batches = [tuple(s.pin(part) for part in batch) for batch in batches]
    queue, turn, log = Prefetcher(batches, s) if ahead else None, 0, {"returns": [], "losses": [0.0]}
    fixed = [part.clone().to(s.device) for part in batches[0]] if way.graph else []
    noted, trace = torch.zeros(5, device=s.device), s.compile(_vtrace) if fused else _vtrace

    def losses(frames: Tensor, reward: Tensor, done: Tensor, behaviour: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with _casting(s, way):
            logits, baseline = model(frames, reward, (~done).float(), way.channels_last)
        logits, baseline = logits[:-1].float(), baseline.float()
        reward, done, behaviour, action = reward[1:].clamp(-1, 1), done[1:], behaviour[:-1], action[:-1]
        chosen = logits.log_softmax(-1).gather(-1, action[..., None])[..., 0]
        with torch.no_grad():
            ratios = chosen - behaviour.log_softmax(-1).gather(-1, action[..., None])[..., 0]
            targets, advantages = trace(ratios, (~done).float() * 0.99, reward, baseline[:-1], baseline[-1])
        policy, likely = logits.softmax(-1), logits.log_softmax(-1)
        return -(chosen * advantages).sum(), 0.25 * (targets - baseline[:-1]).square().sum(), 0.0006 * (policy * likely).sum()

    def forth_and_back() -> None:
        torch._foreach_zero_([parameter.grad for parameter in parameters])
        three = losses(*fixed[:5])
        sum(three).backward()  # type: ignore[union-attr]
        noted[:3] = torch.stack(three).detach()

    if way.graph:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
    _precision(way)
    replayed = capture(forth_and_back, s) if way.graph else None

    def step() -> None:
        nonlocal turn
        _precision(way)
        host = batches[turn % len(batches)]
        turn += 1
        if replayed:
            for there, part in zip(fixed, host, strict=True):
                there.copy_(part)
            replayed()
            log["returns"] = fixed[5][fixed[2]].tolist()
            log["losses"] = [part.item() for part in noted[:3]]
        else:
            batch = queue.next() if queue else tuple(part.to(s.device, non_blocking=True) for part in host)
            three = losses(*batch[:5])
            if kept:
                ended = batch[2].float()
                noted.copy_(torch.stack([*(part.detach() for part in three), (batch[5] * ended).sum(), ended.sum()]))
            else:
                log["returns"] = batch[5][batch[2]].tolist()
                log["losses"] = [part.item() for part in three]
            optimizer.zero_grad()
            sum(three).backward()  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(parameters, 40.0)
        optimizer.step()

    return step


WORKLOADS = (
    _public(
        "owlvit_shelves", "OWL-ViT of transformers, FP32, 40 goods in 4 pageable photos; boxes are read one by one, attention written out.",
        owlvit, {},
        {"precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}, "unfused-attention": {"attention": SDPA},
         "memcpy": {"bytes_sent": True}, "sync-stall": {"together": True}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "wav2vec_pretraining", "wav2vec 2.0 of transformers, pretraining in FP32 on 8 clips; NumPy masks, each gradient's norm is read.",
        wav2vec_pretraining, {},
        {"precision": {"autocast": BF16}, "unfused-elementwise": {"fused": True}, "sync-stall": {"kept": True},
         "host-bound": {"drawn_there": True}, "unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "sine_series", "PyTorch's example time_sequence_prediction in FP32: LBFGS, two nn.LSTMCell over 64 moments; the loss is read.",
        sine_series, {},
        {"launch-gap": {"whole": True}, "graph-candidate": {"graph": True}, "sync-stall": {"read": False}, "precision": {"autocast": BF16}},
    ),
    _public(
        "bert4rec_films", "BERT4Rec on BERT of transformers, training in FP32 on 64 x 200 films that Python hides; loss is read.",
        bert4rec, {"attention": SDPA},
        {"data-loading": {"workers": True}, "host-bound": {"hidden_there": True}, "sync-stall": {"kept": True},
         "precision": {"autocast": BF16}, "gemm-alignment": {"vocabulary": 26_752}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "rev_gnn_wares", "RevGNN of torch_geometric, training in FP32 on random sixths of a graph that this process cuts; loss is read.",
        rev_gnn, {},
        {"data-loading": {"workers": True}, "host-bound": {"graph_there": True}, "sync-stall": {"kept": True},
         "precision/tf32": {"tf32": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "llada_answers", "LLaDA's sampler on Llama of transformers in bf16: 8 rounds over 4 x 128 words, Gumbel noise in float64.",
        llada, {"dtype": BF16},
        {"unfused-elementwise": {"fused": True}, "dtype-casts": {"single": True}, "sync-stall": {"kept": True},
         "unfused-attention": {"attention": SDPA}, "unfused-norm": {"fused_norms": True}},
    ),
    _public(
        "stablelm_reply", "StableLM 2 of transformers, FP32 weights in bf16 autocast, reads 768 words, says 8; a norm for each head.",
        stablelm, {"autocast": BF16},
        {"launch-gap": {"heads": True}, "dtype-casts": {"autocast": None, "dtype": BF16}, "sync-stall": {"stream": False},
         "unfused-attention": {"attention": SDPA}, "low-arithmetic-intensity": {"batch": 8}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "impala_players", "IMPALA as in torchbeast, FP32: 81 x 16 pageable frames, nn.LSTM and V-trace by loops; losses are read.",
        impala, {},
        {"graph-candidate": {"graph": True}, "memcpy": {"ahead": True}, "sync-stall": {"kept": True}, "launch-gap": {"fused": True},
         "precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}},
    ),
)  # fmt: skip
