"""Real encoders, encoder-decoders and models with a vision tower: parameters, FLOP and what autograd saves against parsim's models.

Attention is eager but where something else is said: transformers then computes all pairs, and so does parsim.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch_side import flop, gpu_kernels, ids, module, parameters, saved_bytes, torch, transformers
from towers import ENCODER_DECODERS, ENCODERS, VISION_LANGUAGE, configuration

from parsim.model import activations
from parsim.model.catalogue import build_model
from parsim.model.lengths import Lengths
from parsim.model.liveness import tape
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.workload import Workload

BATCH, SOURCE, TARGET = 3, 24, 16
NEARLY = {"t5": 0.006, "t5 gated": 0.005, "mt5": 0.005, "umt5": 0.009}
"""the bias of relative positions is kept by nobody in particular: of small models it is a part that shows"""


def of_parsim(model: Model, at: Workload) -> tuple[float, float]:
    """FLOP of all blocks, forward and backward."""
    tapes = [tape(block, at, (), index > 0) for index, block in enumerate(model.blocks)]
    sums = [sum(kernel.flop for step in steps for kernel in step.kernels) for t in tapes for steps in (t.forward, t.backward)]
    return sum(sums[::2]), sum(sums[1::2])


def of_torch(run: Any) -> tuple[int, int]:
    forward, output = flop(run)
    backward, _ = flop(output.loss.backward)
    return forward, backward


def counterpart(config: Any, kind: Any, lengths: Lengths = Lengths()) -> Model:  # noqa: B008 - immutable
    tree = {**config.to_dict(), "architectures": [kind.__name__]}
    return build_model(tree, name=kind.__name__, base_lookup=lambda _: {}, lengths=lengths)


def workload(model: Model, tokens: int, attention: str = "eager", element: int = 2) -> Workload:
    dropout, dtype = float(str(model.facts["dropout"])), "bf16" if element == 2 else "fp32"
    return Workload(BATCH, tokens, element=element, dtype=dtype, weight_element=element, attention=attention, dropout=dropout)


HEADS = [(name, head) for name, (_, _, heads) in ENCODERS.items() for head in heads.split()]


@pytest.mark.parametrize(("name", "head"), HEADS, ids=[f"{name} {head}" for name, head in HEADS])
def test_encoders(name: str, head: str) -> None:
    kind, values, _ = ENCODERS[name]
    config = configuration(kind, values)
    cls = getattr(transformers, kind + ("" if head == "Model" else "For") + head)
    device = "cpu" if kind == "MegatronBert" else "meta"  # which looks for padding in any mask
    built, model = module(config, bits="bf16", kind=cls, device=device), counterpart(config, cls)
    assert parameter_count(model) == parameters(built)
    if head in ("MaskedLM", "ImageClassification"):
        words = ids(BATCH, 32, device)
        inputs = {"input_ids": words, "labels": words}
        if kind == "DebertaV2":  # which looks for padding in the words where no mask is given
            inputs["attention_mask"] = torch.ones_like(words)
        if head == "ImageClassification":
            inputs = {"pixel_values": torch.zeros(BATCH, 3, 32, 32, device="meta", dtype=built.dtype), "labels": words[:, 0]}
        with gpu_kernels():
            expected = of_torch(lambda: built(**inputs))
        tokens = model.maximum_sequence if head == "ImageClassification" else 32
        assert of_parsim(model, workload(model, tokens)) == expected


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", [name for name in ENCODERS if name.startswith("deberta")])
def test_saved_bytes_of_disentangled_attention(name: str, train: bool) -> None:
    """All but the factors of a layer's three scales, in tensors of one element; ids of positions are kept here, and there a buffer."""
    kind, values, _ = ENCODERS[name]
    share = 0.1 if train else 0.0
    config = configuration(kind, {**values, "hidden_dropout_prob": share, "attention_probs_dropout_prob": share})
    cls = transformers.DebertaV2ForMaskedLM
    built, model = module(config, bits="bf16", kind=cls), counterpart(config, cls)
    built.train(train)
    inputs = {"input_ids": ids(BATCH, 32), "labels": ids(BATCH, 32), "attention_mask": torch.ones_like(ids(BATCH, 32))}
    with gpu_kernels():
        saved = saved_bytes(lambda: built(**inputs), built)
    expected = saved - 3 * 2 * config.num_hidden_layers + 8 * 32 * config.position_biased_input
    assert activations.saved_bytes(model, workload(model, 32)) == expected


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoders(name: str) -> None:
    """Source and target of different lengths."""
    kind, values = ENCODER_DECODERS[name]
    config = configuration(kind, {**values, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 0})
    config.use_cache = False
    cls = getattr(transformers, f"{kind}{'MTModel' if kind == 'Marian' else 'ForConditionalGeneration'}")
    built, model = module(config, bits="bf16", kind=cls), counterpart(config, cls, Lengths(SOURCE, TARGET))
    assert parameter_count(model) == parameters(built)
    inputs: dict[str, Any] = {"input_ids": ids(BATCH, SOURCE), "labels": ids(BATCH, TARGET)}
    if name == "whisper":
        inputs = {"input_features": torch.zeros(BATCH, 8, 48, device="meta", dtype=built.dtype), "labels": inputs["labels"]}
    with gpu_kernels():
        expected = of_torch(lambda: built(**inputs))
        saved = saved_bytes(lambda: built(**inputs), built)
    at = workload(model, SOURCE)
    assert of_parsim(model, at) == expected
    assert activations.saved_bytes(model, at) == pytest.approx(saved, rel=NEARLY.get(name, 0.0))


def test_cross_attention_of_a_fused_kernel() -> None:
    """Causal halves and what a kernel computes again in backward are told apart as for decoders (`test_torch_flop`)."""
    kind, values = ENCODER_DECODERS["whisper"]
    config = configuration(kind, {**values, "decoder_start_token_id": 0, "pad_token_id": 0})
    cls = transformers.WhisperForConditionalGeneration
    built = module(config, bits="bf16", attention="mem-efficient", kind=cls)
    model = counterpart(config, cls, Lengths(SOURCE, TARGET))
    features = torch.zeros(BATCH, 8, 48, device="meta", dtype=built.dtype)
    with gpu_kernels("mem-efficient"):
        forward, backward = of_torch(lambda: built(input_features=features, labels=ids(BATCH, TARGET)))
        saved = saved_bytes(lambda: built(input_features=features, labels=ids(BATCH, TARGET)), built)
    at = workload(model, SOURCE, "mem-efficient")
    skipped = 2 * BATCH * model.heads * (TARGET**2 - TARGET * (TARGET + 1) // 2) * 3 * model.head_dim
    predicted = of_parsim(model, at)
    assert (predicted[0] + 2 * skipped, predicted[1] + 5 * skipped) == (forward, backward)
    assert activations.saved_bytes(model, at) == saved


@pytest.mark.parametrize("name", VISION_LANGUAGE)
def test_models_with_a_vision_tower(name: str) -> None:
    """One sample with one image: eager Pixtral attends across all images of a batch, which kernels for packed samples do not."""
    kind, values, tokens = VISION_LANGUAGE[name]
    word = 9
    special = {"image_token_index": word, "image_token_id": word}
    config = configuration(kind, {**values, **{key: value for key, value in special.items() if hasattr(configuration(kind, values), key)}})
    cls = getattr(transformers, f"{kind}ForConditionalGeneration")
    model = counterpart(config, cls, Lengths(image_size=32))
    if not tokens:
        assert parameter_count(model) == parameters(module(config, kind=cls))
        return
    config.text_config.use_cache = False
    built = module(config, kind=cls, device="cpu")
    assert parameter_count(model) == parameters(built)
    words = torch.ones(1, 32, dtype=torch.int64)
    words[:, 2 : 2 + tokens] = word
    inputs: dict[str, Any] = {"input_ids": words, "labels": words, "pixel_values": torch.zeros(1, 3, 32, 32)}
    if name.startswith("qwen"):
        inputs |= {"pixel_values": torch.zeros(16, 3 * 2 * 64), "image_grid_thw": torch.tensor([[1, 4, 4]])}
        inputs["mm_token_type_ids"] = (words == word).int()
    elif name == "idefics3":
        inputs["pixel_values"] = torch.ones(1, 1, 3, 32, 32)
    elif name in ("mistral3", "llava pixtral"):
        inputs["image_sizes"] = torch.tensor([[32, 32]])
    elif name.startswith("gemma4"):
        places = torch.tensor([[[x, y] for y in range(4) for x in range(4)]])
        inputs |= {"pixel_values": torch.zeros(1, 16, 3 * 64), "image_position_ids": places}
        inputs["mm_token_type_ids"] = (words == word).int()
    elif name in ("gemma3", "paligemma"):
        inputs["token_type_ids"] = torch.zeros_like(words)
    with gpu_kernels():
        expected = of_torch(lambda: built(**inputs))
    at = Workload(1, 32, element=4, dtype="fp32", weight_element=4, attention="eager")
    assert of_parsim(model, at) == expected


@pytest.mark.parametrize("name", ["llama4", "qwen3_5", "qwen3_5_moe"])
def test_classes_of_the_text_alone(name: str) -> None:
    """AutoModelForCausalLM makes them of a config with a tower."""
    kind, values, _ = VISION_LANGUAGE[name]
    config = configuration(kind, values)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    assert type(built).__name__ == f"{kind}ForCausalLM"
    assert parameter_count(counterpart(config, type(built))) == parameters(built)
