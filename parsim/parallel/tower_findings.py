"""What models of several stacks (an encoder and a decoder, images beside a text), or with tensors that many layers read, do not go with."""

from __future__ import annotations

from collections.abc import Mapping

from parsim.errors import Finding
from parsim.model.model import Model
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Training


def tower_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """Why a model whose blocks work on different tokens cannot be trained so."""
    encoder, vision = model.facts.get("encoder"), model.facts.get("vision")
    findings = _beside_findings(model, parallelism)
    if not encoder and not vision:
        return findings
    what = "an encoder-decoder" if encoder else "a model with a vision tower"
    if parallelism.context.size > 1:
        text = f"not supported yet: context parallelism of {what}, whose stacks have samples of different lengths"
        findings.append(Finding(text, "parallel.context.size", parallelism.context.size, "use context.size 1"))
    if encoder and parallelism.pipeline.size > 1:
        text = "not supported yet: pipeline stages of an encoder-decoder, every one of which needs the encoder's output"
        findings.append(Finding(text, "parallel.pipeline.size", parallelism.pipeline.size, "use pipeline.size 1"))
    if training.mean_sequence_length:
        text = f"not supported yet: a mean length of the samples of {what}"
        findings.append(Finding(text, "training.mean_sequence_length", training.mean_sequence_length, "leave it out"))
    if training.document_length:
        text = f"not supported yet: documents packed into the samples of {what}"
        findings.append(Finding(text, "training.document_length", training.document_length, "leave it out"))
    if encoder and model.facts.get("position") in ("learned", "sinusoidal"):
        target = int(str(model.facts.get("target_length"))) or training.sequence_length
        if target > (most := int(str(model.facts["maximum_sequence"]))):
            text = f"{target} tokens, but the decoder of {model.name} has {most} positions"
            findings.append(Finding(text, "training.target_sequence_length", target, f"use at most {most}"))
    if isinstance(vision, Mapping) and (size := parallelism.tensor.size) > 1 and vision["heads"] % size:
        text = f"{vision['heads']} heads of the vision tower / tensor size {size} = {vision['heads'] / size:g} is not whole"
        findings.append(Finding(text, "parallel.tensor.size", size, "use a size that divides them"))
    if isinstance(encoder, Mapping) and (size := parallelism.tensor.size) > 1 and (heads := encoder["heads"] or model.heads) % size:
        text = f"{heads} heads of the encoder / tensor size {size} = {heads / size:g} is not whole"
        findings.append(Finding(text, "parallel.tensor.size", size, "use a size that divides them"))
    return findings


def _beside_findings(model: Model, parallelism: Parallelism) -> list[Finding]:
    """Why a model whose layers read more than the residual stream cannot be cut into stages."""
    reads = {
        "per_layer_inputs": f"every layer of {model.name} reads per-layer inputs, which the stage of the embedding makes",
        "shared_key_values": f"the last {model.facts.get('shared_key_values')} layers of {model.name} read keys and values of earlier ones",
    }
    said = [text for fact, text in reads.items() if model.facts.get(fact)]
    if not said or parallelism.pipeline.size == 1:
        return []
    text = f"not supported yet: pipeline stages that pass on more than the residual stream; {'; '.join(said)}"
    return [Finding(text, "parallel.pipeline.size", parallelism.pipeline.size, "use pipeline.size 1")]
