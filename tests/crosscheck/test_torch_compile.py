"""``software.fusion: compiled`` against torch.compile's own partitioner: what it keeps for backward in whole models.

In fp32 on a CPU (16-bit LayerNorm statistics and attention with dropout differ there). While it traces, scaled_dot_product_attention
is given its causal mask as a tensor, and keys and values are copied to all heads; both are added to the prediction.
"""

from __future__ import annotations

from typing import Any

import pytest
from compiled import compiled_saved_bytes
from small_models import small
from torch_side import class_of, counterpart, torch

from parsim.model.activations import saved_bytes
from parsim.model.catalogue import build_model
from parsim.model.model import Model
from parsim.model.workload import Workload

BATCH, SEQUENCE = 3, 32
MASK = 4 * BATCH * SEQUENCE**2
MASKED = ("llama", "llama grouped", "qwen3", "gemma", "gpt2", "gpt-neox")
NO_ATTENTION_DROPOUT: dict[str, dict[str, Any]] = {"gpt2": {"attn_pdrop": 0.0}, "bert": {"attention_probs_dropout_prob": 0.0}}
TOLERANCE = {"bert": 0.03}
"""one tensor of T h in the masked-LM head, which has an activation before its norm; gone at 12 layers"""


def compiled(config: Any, attention: str) -> int:
    config._attn_implementation = attention
    config.use_cache = False
    torch.manual_seed(0)
    built = class_of(config)._from_config(config).train()
    built.loss_type = "ForMaskedLM" if config.model_type == "bert" else "ForCausalLM"  # looked up with a warning otherwise
    words, labels = (torch.randint(1, 300, (BATCH, SEQUENCE)) for _ in range(2))
    inputs = {"token_type_ids": torch.zeros_like(words)} if config.model_type == "bert" else {}
    return compiled_saved_bytes(built, input_ids=words, labels=labels, **inputs)


def predicted(model: Model, attention: str, **changes: Any) -> int:
    settings: dict[str, Any] = {"fused": True, "compiled": True, "element": 4, "dtype": "fp32", "weight_element": 4, **changes}
    dropout = float(str(model.facts["dropout"]))
    return saved_bytes(model, Workload(BATCH, SEQUENCE, attention=attention, dropout=dropout, **settings))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "llama grouped", "qwen3", "gemma", "gpt2", "opt", "gpt-neox", "bert"])
def test_what_the_partitioner_keeps(name: str, attention: str) -> None:
    config = small(name, **NO_ATTENTION_DROPOUT.get(name, {}))
    measured = compiled(config, attention)
    tree = {**config.to_dict(), "architectures": [class_of(config).__name__]}
    copied = {"base": "mine", "expand_key_value": True} if attention == "sdpa" else {"base": "mine"}
    model = build_model(copied, name=name, base_lookup=lambda _: tree)
    expected = predicted(model, "flash2" if attention == "sdpa" else "eager")
    if attention == "sdpa" and name in MASKED:
        expected += MASK
    assert measured == pytest.approx(expected, rel=TOLERANCE.get(name, 0.0075))


def test_it_keeps_less_than_eager_code_and_no_less_than_its_products_need() -> None:
    """Llama: norms and SwiGLU as fused kernels keep them, (12 + 4k/a) h + 6f + 4a + 8 B per token in 16 bit."""
    model = counterpart(small("llama"))
    eager = predicted(model, "eager", fused=False, compiled=False)
    assert compiled(small("llama"), "eager") < eager
    h, f, a, tokens = 64, 176, 4, BATCH * SEQUENCE
    layers = predicted(model, "flash2", element=2) - (predicted(counterpart(small("llama", num_hidden_layers=1)), "flash2", element=2))
    assert layers == tokens * (16 * h + 6 * f + 4 * a + 8) + 24
