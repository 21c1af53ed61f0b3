"""What PyTorch does: parameters, bytes that autograd saves, FLOP, on the ``meta`` device and with the kernels of a GPU.

Tensors on ``meta`` have shapes and storages but no memory, so models of any size cost nothing. Two functions choose by device
and would choose something else there than on a GPU; `gpu_kernels` puts the GPU's choice back:

- dropout: ``native_dropout``, which keeps a mask of one byte (on CPU and meta, dropout keeps the noise in the input's type);
- scaled_dot_product_attention: the flash or the memory-efficient kernel, as asked for (on meta it decomposes).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from parsim.model.catalogue import build_model  # noqa: E402
from parsim.model.model import Model  # noqa: E402

transformers.logging.set_verbosity_error()
masking_utils = import_module("transformers.masking_utils")
F = torch.nn.functional
BITS = {"fp32": torch.float32, "bf16": torch.bfloat16}
HEADS = {
    "bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM", "vit": "ViTForImageClassification",
    "distilbert": "DistilBertForMaskedLM", "modernbert": "ModernBertForMaskedLM", "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration", "whisper": "WhisperForConditionalGeneration",
}  # fmt: skip
"""the class of each model type that has no head for causal language models"""


def saved_bytes(run: Callable[[], Any], module: Any) -> int:
    """Bytes of the storages that autograd saves during `run`, each once; parameters and buffers of `module` left out."""
    resident = {tensor.untyped_storage()._cdata for tensor in (*module.parameters(), *module.buffers())}
    found: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in resident:
            found[storage._cdata] = storage  # holding it keeps its address from being used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(storage.nbytes() for storage in found.values())


def flop(run: Callable[[], Any]) -> tuple[int, Any]:
    """FLOP of the products that `run` executes, and its result."""
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: _grouped}) as counter:
        result = run()
    return counter.get_total_flops(), result


def _grouped(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """One product per expert, over all rows of all experts; FlopCounterMode does not know it (shapes, not tensors)."""
    return 2 * a[-2] * a[-1] * b[-1]


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002 - PyTorch's name
    return torch.native_dropout(input, p, True)[0] if training and p else input


def _attention(kernel: str) -> Callable[..., Any]:
    def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        assert attn_mask is None, "a mask would be a tensor of its own; these cases have none"
        aten = torch.ops.aten
        if kernel == "flash2":
            return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        groups = query.shape[1] // key.shape[1]  # the memory-efficient kernel has no grouped queries
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        return aten._scaled_dot_product_efficient_attention(query, key, value, None, True, dropout_p, is_causal, scale=scale)[0]

    return attend


@contextlib.contextmanager
def gpu_kernels(attention: str = "eager") -> Iterator[None]:
    """Dropout and attention kernels as a GPU has them (see above)."""
    with (
        mock.patch.object(F, "dropout", _dropout),
        mock.patch.object(F, "scaled_dot_product_attention", _attention(attention)),
        # looks into the positions for packed samples, which meta tensors cannot answer
        mock.patch.object(masking_utils, "find_packed_sequence_indices", return_value=None),
    ):
        yield


def class_of(config: Any) -> Any:
    """The transformers class that trains `config`."""
    name = HEADS.get(config.model_type)
    return getattr(transformers, name) if name else transformers.AutoModelForCausalLM._model_mapping[type(config)]


def module(config: Any, *, bits: str = "fp32", attention: str = "eager", train: bool = True, device: str = "meta", kind: Any = None) -> Any:
    """A module of `config`; attention other than eager is called through scaled_dot_product_attention."""
    config._attn_implementation = "eager" if attention == "eager" else "sdpa"
    with torch.device(device):
        built = (kind or class_of(config))._from_config(config)
    return built.to(BITS[bits]).train(train)


def counterpart(config: Any, kind: Any = None) -> Model:
    """parsim's model of the same configuration, read as transformers would write it."""
    tree = {**config.to_dict(), "architectures": [(kind or class_of(config)).__name__]}
    return build_model(tree, name=config.model_type, base_lookup=lambda _: {})


def parameters(built: Any) -> int:
    return sum(parameter.numel() for parameter in built.parameters())


def ids(batch: int, sequence: int, device: str = "meta") -> Any:
    return torch.zeros(batch, sequence, dtype=torch.int64, device=device)
