"""Bytes that autograd saves beside PEFT's adapters, by the type of their parameters, against parsim's prediction."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import small
from torch_side import counterpart, gpu_kernels, ids, module, saved_bytes, torch

from parsim.model import activations
from parsim.model.finetune import Finetune, finetuned
from parsim.model.workload import Workload

peft = pytest.importorskip("peft")
BATCH, SEQUENCE, RANK = 3, 32, 8
HEADS = 16
"""dimension of a head of the small models"""


def adapted(config: Any, *, fp32: bool, dropout: float) -> Any:
    """The module in bf16 with adapters beside all linear layers but the head; the embedding's output wants a gradient."""
    built = module(config, bits="bf16", attention="flash2")
    settings = peft.LoraConfig(r=RANK, lora_dropout=dropout, target_modules="all-linear")
    with torch.device("meta"):
        whole = peft.get_peft_model(built, settings, autocast_adapter_dtype=fp32)
    whole.enable_input_require_grads()
    return whole if fp32 else whole.to(torch.bfloat16)  # on meta PEFT makes fp32 ones anyway


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("fp32", [False, True])
@pytest.mark.parametrize("name", ["llama", "llama grouped", "mistral", "qwen3"])
def test_saved_bytes(name: str, fp32: bool, dropout: float) -> None:
    """Equal to the byte, but for the rotary tables, which parsim counts only where what made them wants a gradient."""
    config = small(name)
    config.use_cache = False
    recipe = Finetune(rank=RANK, dropout=dropout > 0, fp32_adapters=fp32)
    model = finetuned(counterpart(config), recipe)
    built = adapted(config, fp32=fp32, dropout=dropout)
    kinds = {parameter.dtype for parameter in built.parameters() if parameter.requires_grad}
    assert kinds == {torch.float32 if fp32 else torch.bfloat16}
    words, labels = ids(BATCH, SEQUENCE), ids(BATCH, SEQUENCE)
    with gpu_kernels("flash2"):
        expected = saved_bytes(lambda: built(input_ids=words, labels=labels), built)
    at = Workload(BATCH, SEQUENCE, element=2, dtype="bf16", attention="flash2")
    tables = 2 * SEQUENCE * HEADS * 2
    assert activations.saved_bytes(model, at) + tables == expected


def test_saved_bytes_under_autocast() -> None:
    """On the CPU: every A keeps 16-bit input of its own, and the cast weights are kept, which parsim counts as cached copies."""
    layer = torch.nn.Sequential(torch.nn.Linear(64, 96, bias=False)).to(torch.bfloat16)
    whole = peft.get_peft_model(layer, peft.LoraConfig(r=RANK, target_modules=["0"]))
    given = torch.zeros(BATCH * SEQUENCE, 64, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = saved_bytes(lambda: whole(given), whole)
    copies = 2 * RANK * (64 + 96)
    assert found == 2 * BATCH * SEQUENCE * (64 + RANK) + copies
