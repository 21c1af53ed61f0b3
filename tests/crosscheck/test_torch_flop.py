"""FLOP of real modules, forward and backward (``torch.utils.flop_counter``), against parsim's kernels for the same work.

PyTorch counts attention as if it were not causal; parsim counts the lower triangle (s (s + 1) / 2 pairs) where the kernel skips the
rest, and the whole square for eager products. Each attention kernel has 2 products forward and, one recomputed, 5 backward.
"""

from __future__ import annotations

from typing import Any

import pytest
from small_models import LANGUAGE, small
from torch_side import counterpart, flop, gpu_kernels, ids, module, torch, transformers

from parsim.model.catalogue import build_model
from parsim.model.liveness import tape
from parsim.model.model import Model
from parsim.model.tape import Step
from parsim.model.workload import Workload

BATCH, SEQUENCE = 3, 32
EAGER_ONLY = ("bloom", "mpt", "gemma2")
SKIPPED_PAIRS = SEQUENCE**2 - SEQUENCE * (SEQUENCE + 1) // 2


def of_parsim(model: Model, at: Workload) -> tuple[float, float]:
    """FLOP of all blocks, forward and backward."""
    tapes = [tape(block, at, (), index > 0) for index, block in enumerate(model.blocks)]
    return sum(_flop(t.forward) for t in tapes), sum(_flop(t.backward) for t in tapes)


def _flop(steps: tuple[Step, ...]) -> float:
    return sum(kernel.flop for step in steps for kernel in step.kernels)


def of_torch(built: Any, attention: str, **inputs: Any) -> tuple[int, int]:
    with gpu_kernels(attention):
        forward, output = flop(lambda: built(**inputs))
        backward, _ = flop(output.loss.backward)
    return forward, backward


@pytest.mark.parametrize("attention", ["eager", "mem-efficient", "flash2"])
@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models(name: str, attention: str) -> None:
    if attention != "eager" and name in EAGER_ONLY:
        pytest.skip("transformers runs it with eager attention only")
    if attention == "flash2" and name.startswith("deepseek"):
        pytest.skip("the flash kernel needs values as wide as keys")
    config = small(name)
    built, model = module(config, bits="bf16", attention=attention), counterpart(config)
    forward, backward = of_torch(built, attention, input_ids=ids(BATCH, SEQUENCE), labels=ids(BATCH, SEQUENCE))
    at = Workload(BATCH, SEQUENCE, attention=attention, dropout=float(str(model.facts["dropout"])))
    predicted = of_parsim(model, at)
    skipped = 0
    if attention != "eager" and name not in ("bert", "roberta"):
        skipped = 2 * BATCH * model.heads * SKIPPED_PAIRS * model.layers
    keys, values = model.head_dim, int(str(model.facts["value_dim"]))
    assert predicted[0] + skipped * (keys + values) == forward
    assert predicted[1] + skipped * (3 * keys + 2 * values) == backward


@pytest.mark.parametrize("attention", ["eager", "mem-efficient"])
def test_vision_transformer(attention: str) -> None:
    config = small("vit")
    built, model = module(config, attention=attention), counterpart(config)
    pixels, labels = torch.zeros(BATCH, 3, 32, 32, device="meta"), torch.zeros(BATCH, dtype=torch.int64, device="meta")
    forward, backward = of_torch(built, attention, pixel_values=pixels, labels=labels)
    at = Workload(BATCH, 17, element=4, dtype="fp32", weight_element=4, attention=attention)
    assert of_parsim(model, at) == (forward, backward)


@pytest.mark.parametrize("depth", [18, 50])
def test_residual_networks(depth: int) -> None:
    from parsim.scenario import files

    def look_up(word: str) -> dict[str, Any]:
        return files.read(files.find("models", word)).tree

    shape = {
        18: {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"},
        50: {"depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048], "layer_type": "bottleneck"},
    }[depth]
    with torch.device("meta"):
        built = transformers.ResNetForImageClassification._from_config(transformers.ResNetConfig(**shape, num_labels=1000))
    model = build_model({"base": f"resnet{depth}"}, name="resnet", base_lookup=look_up)
    labels = torch.zeros(2, dtype=torch.int64, device="meta")
    forward, backward = of_torch(built, "eager", pixel_values=torch.zeros(2, 3, 224, 224, device="meta"), labels=labels)
    assert of_parsim(model, Workload(2, element=4, dtype="fp32", weight_element=4)) == (forward, backward)
