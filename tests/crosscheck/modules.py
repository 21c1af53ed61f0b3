"""Modules for `parsim import module`, as users write them."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
nn, functional = torch.nn, torch.nn.functional


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


class Basic(nn.Module):
    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Identity()
        if channels != out:
            self.down = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.down(x)
        return self.relu(y)


def residual() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    layers = [Basic(16, 16), Basic(16, 16), Basic(16, 32, 2), Basic(32, 32)]
    return nn.Sequential(stem, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


class Attention(nn.Module):
    """minGPT's, with its mask in a buffer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.register_buffer("mask", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x):
        b, t, h = x.shape
        q, k, v = (y.view(b, t, self.heads, h // self.heads).transpose(1, 2) for y in self.qkv(x).split(h, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (h // self.heads) ** -0.5
        weights = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).contiguous().view(b, t, h))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(320, 64), nn.Embedding(32, 64)
        self.layers = nn.ModuleList([Block(64, 4) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 320, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids, labels):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return logits, functional.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))


def gpt() -> nn.Module:
    return Gpt()


def gpt2() -> nn.Module:
    sizes = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 320, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.AutoModelForCausalLM.from_config(transformers.GPT2Config(**sizes))


def llama() -> nn.Module:
    sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**sizes, vocab_size=320, max_position_embeddings=64))


def recurrent() -> nn.Module:
    return nn.LSTM(16, 16, batch_first=True)


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        return self.second(torch.fft.fft(self.first(x)).real)


def spectral() -> nn.Module:
    return Spectral()


def lone() -> nn.Module:
    """A parameter that forward does not use."""
    module = nn.Linear(8, 8)
    module.register_parameter("idle", nn.Parameter(torch.zeros(3)))
    return module


class Crossed(nn.Module):
    """An encoder and a decoder over sequences of different lengths, with a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Transformer(64, 4, 2, 2, 128, batch_first=True)
        self.positions = nn.Parameter(torch.zeros(1, 24, 64))

    def forward(self, source, target):
        return self.both(source + self.positions, target).pow(2).mean()


def crossed() -> nn.Module:
    return Crossed()


def make_inputs(batch: int) -> tuple:
    return torch.zeros(batch, 24, 64), torch.zeros(batch, 16, 64)
