"""The same on a CPU that really computes: what autograd saves there, with the CPU's own kernels and the differences written out.

- dropout keeps the noise in the activations' type: e bytes per element where a GPU keeps a mask of 1 B;
- the flash kernel keeps no random state (24 B per layer);
- LayerNorm in 16 bit keeps its two statistics in 16 bit: 4 B per row instead of 8.
"""

from __future__ import annotations

from typing import Any

import pytest
from small_models import small
from torch_side import BITS, counterpart, module, saved_bytes, torch

from parsim.model.activations import saved_bytes as predicted_bytes
from parsim.model.attention import AttentionCore
from parsim.model.elementwise import Dropout
from parsim.model.model import Model
from parsim.model.norms import LayerNorm
from parsim.model.workload import Workload

BATCH, SEQUENCE, HIDDEN = 3, 32, 64
TOKENS = BATCH * SEQUENCE


def operators(model: Model, kind: type) -> int:
    return sum(isinstance(operator, kind) for block in model.blocks for operator in block.operators)


def differences(model: Model, element: int, attention: str, dropout: float) -> int:
    """Bytes that the CPU keeps beyond a GPU."""
    found = 0
    if dropout:
        cores = [operator for block in model.blocks for operator in block.operators if isinstance(operator, AttentionCore)]
        scores = sum(core.dropout for core in cores) * BATCH * model.heads * SEQUENCE**2 if attention == "eager" else 0
        found += (element - 1) * (operators(model, Dropout) * TOKENS * HIDDEN + scores)
    if attention != "eager":
        found -= 24 * model.layers
    if element == 2:
        found -= 4 * TOKENS * operators(model, LayerNorm)
    return found


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("bits", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["eager", "flash2"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "bert", "mixtral", "qwen3-moe"])
def test_forward_and_backward(name: str, attention: str, bits: str, train: bool) -> None:
    # with dropout in the attention kernel the CPU has no fused one
    without = {"gpt2": {"attn_pdrop": 0.0}, "bert": {"attention_probs_dropout_prob": 0.0}}
    config = small(name, **(without.get(name, {}) if attention != "eager" else {}))
    config.use_cache = False
    torch.manual_seed(0)
    built = module(config, bits=bits, attention=attention, train=train, device="cpu")
    words, labels = (torch.randint(1, 300, (BATCH, SEQUENCE)) for _ in range(2))
    inputs: dict[str, Any] = {}
    if name == "bert":
        inputs = {"token_type_ids": torch.zeros_like(words), "position_ids": torch.arange(SEQUENCE)[None]}
    output = []
    measured = saved_bytes(lambda: output.append(built(input_ids=words, labels=labels, **inputs)), built)
    output[0].loss.backward()
    assert all(parameter.grad is not None and torch.isfinite(parameter.grad).all() for parameter in built.parameters())

    model, element = counterpart(config), BITS[bits].itemsize
    dropout = float(str(model.facts["dropout"])) if train else 0.0
    at = Workload(BATCH, SEQUENCE, element=element, dtype=bits, weight_element=element, attention=attention, dropout=dropout)
    token_types = 8 * TOKENS if name == "bert" else 0  # a tensor of their own
    expected = predicted_bytes(model, at) + differences(model, element, attention, dropout) + token_types
    assert measured == (pytest.approx(expected, rel=0.005) if name == "qwen3-moe" else expected)
