"""Small programs whose launches bound the step, of kinds that differ as much as they can: each is a function that returns a module and its inputs."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda"
rand = lambda *size: torch.randn(*size, device=DEVICE)  # noqa: E731
whole = lambda most, *size: torch.randint(most, size, device=DEVICE)  # noqa: E731


class Encoder(nn.Module):
    def __init__(self, width, heads, layers):
        super().__init__()
        torch.backends.mha.set_fastpath_enabled(False)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, dropout=0.0), layers, enable_nested_tensor=False
        )
        self.head, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(self.head(self.layers(x)))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        return F.relu(x + self.norms[1](self.two(F.relu(self.norms[0](self.one(x))))))


class Messages(nn.Module):
    """Messages along edges: gathers, an MLP, sums by target and a normalisation by degree."""

    def __init__(self, width, rounds):
        super().__init__()
        self.edges = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))
        self.nodes = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))

    def forward(self, x, source, target):
        degree = torch.zeros(len(x), device=x.device).index_add(0, target, torch.ones(len(target), device=x.device)).clamp(min=1.0)
        for edge, node in zip(self.edges, self.nodes):
            message = F.silu(edge(torch.cat([x[source], x[target]], 1)))
            gate = torch.sigmoid(message.sum(1, keepdim=True))
            summed = torch.zeros_like(x).index_add(0, target, gate * message) / degree[:, None]
            x = x + F.silu(node(torch.cat([x, summed], 1)))
        return x


class Cells(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(width, width), nn.Linear(width, width)

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], x.shape[2], device=x.device)
        out = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            out.append(self.head(h))
        return torch.stack(out, 1)


class Recommender(nn.Module):
    def __init__(self, tables, rows, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        self.top = nn.Sequential(nn.LazyLinear(256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense, sparse):
        features = torch.stack([self.bottom(dense), *(table(sparse[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        at = torch.tril_indices(features.shape[1], features.shape[1], -1, device=dense.device)
        return torch.sigmoid(self.top(torch.cat([features[:, 0], products[:, at[0], at[1]]], 1)))


class Dilated(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.filters = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, dilation=2 ** (i % 8), padding=2 ** (i % 8)) for i in range(layers))
        self.mixes = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))

    def forward(self, x):
        skips = 0.0
        for gate, mix in zip(self.filters, self.mixes):
            a, b = gate(x).chunk(2, 1)
            rest, skip = mix(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x, skips = (x + rest) * 0.7071, skips + skip
        return skips


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        half = lambda i, o: nn.Sequential(nn.GroupNorm(8, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))  # noqa: E731
        block = lambda i, o: nn.Sequential(half(i, o), half(o, o))  # noqa: E731
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down = nn.ModuleList(block(width * 2**i, width * 2 ** (i + 1)) for i in range(3))
        self.up = nn.ModuleList(block(width * 2 ** (i + 2), width * 2**i) for i in reversed(range(3)))
        self.middle = block(width * 8, width * 8)

    def forward(self, x):
        x, kept = self.first(x), []
        for down in self.down:
            x = down(x)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        for up in self.up:
            x = up(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1))
        return self.last(x)


class Fluid(nn.Module):
    """Steps of an explicit solver: shifted fields, no products, no parameters."""

    def forward(self, u, v, p):
        for _ in range(8):
            ux, uy = (torch.roll(u, -1, d) - torch.roll(u, 1, d) for d in (0, 1))
            vx, vy = (torch.roll(v, -1, d) - torch.roll(v, 1, d) for d in (0, 1))
            u, v = u - 0.1 * (u * ux + v * uy), v - 0.1 * (u * vx + v * vy)
            p = (torch.roll(p, 1, 0) + torch.roll(p, -1, 0) + torch.roll(p, 1, 1) + torch.roll(p, -1, 1) - ux - vy) / 4
            total = p.mean()
            u, v = u - 0.1 * (p - total), v - 0.1 * torch.clamp(p, -1.0, 1.0)
        return u + v


class Broken(Encoder):
    """The encoder with a question to the device between layers, which breaks the graph."""

    def forward(self, x):
        for layer in self.layers.layers:
            x = layer(x)
            if x.mean() > 1e6:
                x = x / 2
        return self.norm(self.head(x))


class Points(nn.Module):
    """Each point with its nearest ones: distances, a top-k, gathers and maxima."""

    def __init__(self, width, rounds):
        super().__init__()
        self.mixes = nn.ModuleList(nn.Sequential(nn.Linear(2 * width if i else 6, width), nn.LayerNorm(width), nn.ReLU()) for i in range(rounds))

    def forward(self, x):
        for mix in self.mixes:
            near = torch.cdist(x, x).topk(8, largest=False).indices
            others = x[torch.arange(len(x), device=x.device)[:, None, None], near]
            own = x[:, :, None].expand_as(others)
            x = mix(torch.cat([own, others - own], -1)).amax(2)
        return x.mean(1)


class Experts(nn.Module):
    """A gate weighs experts, each of which sees all words."""

    def __init__(self, width, experts, layers):
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.experts = nn.ModuleList(
            nn.ModuleList(nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(experts)) for _ in range(layers)
        )

    def forward(self, x):
        for gate, experts in zip(self.gates, self.experts):
            share = torch.softmax(gate(x), -1)
            x = x + sum(share[..., i : i + 1] * expert(x) for i, expert in enumerate(experts))
        return x


class Scaled(nn.Module):
    """A single kernel: what is left is the entry."""

    def forward(self, x):
        return torch.tanh(x) * 2.0


class Logits(nn.Module):
    """A model of transformers, of which only the first output counts."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids)[0]


def mlp():
    return nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU()) for _ in range(12))), (rand(16, 512),)


def convnet():
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), *(Residual(64) for _ in range(8)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100)), (
        rand(1, 3, 64, 64),
    )


def encoder():
    return Encoder(256, 4, 8), (rand(1, 32, 256),)


def messages():
    return Messages(64, 6), (rand(500, 64), whole(500, 4000), whole(500, 4000))


def cells():
    return Cells(256), (rand(8, 24, 256),)


def recommender():
    model = Recommender(26, 10_000, 64).to(DEVICE)
    data = (rand(128, 13), whole(10_000, 128, 26))
    model(*data)
    return model, data


def timm_vit():
    import timm

    return timm.create_model("vit_tiny_patch16_224"), (rand(1, 3, 224, 224),)


def hf_gpt2():
    from transformers import GPT2Config, GPT2Model

    return Logits(GPT2Model(GPT2Config(n_embd=384, n_head=6, n_layer=8, use_cache=False))), (whole(50_000, 1, 64),)


def hf_bert():
    from transformers import BertConfig, BertModel

    return Logits(BertModel(BertConfig(hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536))), (whole(30_000, 2, 64),)


def hf_albert():
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, attn_implementation="eager")
    return Logits(AlbertModel(config)), (whole(30_000, 2, 48),)


def hf_t5():
    from transformers import T5Config, T5EncoderModel

    return Logits(T5EncoderModel(T5Config(d_model=384, d_ff=1024, num_layers=6, num_heads=6))), (whole(32_000, 1, 64),)


def timm_mobilenet():
    import timm

    return timm.create_model("mobilenetv3_small_100"), (rand(1, 3, 224, 224),)


def timm_convnext():
    import timm

    return timm.create_model("convnext_atto"), (rand(1, 3, 224, 224),)


def unet():
    return UNet(32), (rand(1, 3, 32, 32),)


def wavenet():
    return Dilated(64, 16), (rand(1, 64, 1024),)


def fluid():
    return Fluid(), (rand(128, 128), rand(128, 128), rand(128, 128))


def scaled():
    return Scaled(), (rand(64, 64),)


def broken():
    return Broken(256, 4, 8), (rand(1, 32, 256),)


def points():
    return Points(64, 4), (rand(4, 128, 3),)


def experts():
    return Experts(128, 4, 4), (rand(2, 16, 128),)


def hf_llama():
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2, vocab_size=32_000, use_cache=False
    )
    return Logits(LlamaModel(config)), (whole(32_000, 1, 64),)


def hf_wav2vec():
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, mask_time_prob=0.0)
    return Logits(Wav2Vec2Model(config)), (rand(1, 8000),)


def timm_resnet():
    import timm

    return timm.create_model("resnet18"), (rand(1, 3, 128, 128),)


def timm_swin():
    import timm

    return timm.create_model("swin_tiny_patch4_window7_224"), (rand(1, 3, 224, 224),)


FITTED = (mlp, convnet, encoder, messages, cells, recommender, timm_vit, hf_gpt2)
LEFT_OUT = (hf_bert, hf_albert, hf_t5, timm_mobilenet, timm_convnext, unet, wavenet, fluid)
LATER = (points, experts, hf_llama, hf_wav2vec, timm_resnet, timm_swin)
ENTRIES = (scaled, broken)
PROGRAMS = {make.__name__: make for make in (*FITTED, *LEFT_OUT, *LATER, *ENTRIES)}
