"""The `training` section: what one optimizer step is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from parsim import units
from parsim.model.kept_products import MATMULS
from parsim.model.regions import REGIONS
from parsim.parallel.training import Recompute
from parsim.scenario.finetune import FinetuneSection
from parsim.scenario.precision import PrecisionChoice
from parsim.scenario.values import Choice, Flag, JsonSchema, Kind, Number, Quantity, Section, Whole, did_you_mean, shown

OPTIMIZERS = (
    "sgd", "momentum", "adam", "adamw", "adam-8bit", "adam-4bit", "adam-mini", "adafactor", "lamb", "lion", "muon", "soap", "shampoo",
)  # fmt: skip
OBJECTIVES = (
    "auto", "language-modelling", "dpo", "orpo", "kto", "reward", "grpo", "grpo-without-reference", "grpo-on-policy",
    "grpo-on-policy-without-reference",
)  # fmt: skip
_OTHER_OBJECTIVES = {
    "sft": "write language-modelling", "rm": "write reward", "simpo": "write orpo", "rloo": "write grpo, whose work it has",
    "dapo": "write grpo-without-reference", "ppo": "not supported yet: it trains a critic beside the policy",
}  # fmt: skip
"""what others call them, and what trains more than one model"""
LOSSES = ("auto", "sum", "mse", "cross_entropy")
LOSS_KERNELS = ("eager", "eager-chunks", "compiled", "fused", "vocab-parallel", "vocab-parallel-fused", "te", "auto")
ATTENTIONS = ("eager", "mem-efficient", "triton-fa1", "flash2", "flash3", "cudnn")
SELECTABLE = ("attention", "mlp", "norm", *REGIONS, MATMULS)
SPELLED = {"core_attn": "attention"}
"""parts by the names of Megatron-LM's --recompute-modules, where they are not ours"""
PLACES = ("none", "cpu", "nvme")
LARGEST_BATCH = 10**12


@dataclass(frozen=True, slots=True)
class Tokens:
    """A batch written in tokens ("4M tokens")."""

    count: int


class Batch(Kind):
    """Samples per optimizer step, or tokens where the text says so."""

    def check(self, value: Any) -> Any:
        rule = f'a number of samples from 1 to {LARGEST_BATCH:,}, or of tokens such as "4M tokens"'
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError(f"{shown(value)} is not {rule}")
        try:
            count, noun = units.parse_counted(value)
        except ValueError:
            raise ValueError(f"{shown(value)} is not {rule}") from None
        if count != int(count) or not 1 <= count <= LARGEST_BATCH or noun not in ("", "token", "sample", "sequence"):
            raise ValueError(f"{shown(value)} is not {rule}")
        return Tokens(int(count)) if noun == "token" else int(count)

    def json_schema(self) -> JsonSchema:
        text = {"type": "string", "pattern": r"^[0-9][0-9_.eE+]* ?[kMGTB]?( ?(tokens|samples|sequences))?$", "examples": ["4M tokens"]}
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": LARGEST_BATCH}, text, {"type": "null"}]}


class RecomputeKind(Kind):
    """Which activations are recomputed: a word, or one of ``{every: k}``, ``{one_in: k}``, ``{blocks: n}``, ``{selective: [...]}``."""

    words = ("none", "full", "selective")

    def check(self, value: Any) -> Any:
        rule = f"none, full, {{every: k}}, {{one_in: k}}, {{blocks: n}}, selective or {{selective: [{', '.join(SELECTABLE)}]}}"
        if isinstance(value, str) and value in self.words:
            return Recompute(mode=value)  # type: ignore[arg-type]
        if isinstance(value, dict) and len(value) == 1:
            key, item = next(iter(value.items()))
            if key == "every":
                return Recompute("every", every=_count(key, item))
            if key == "one_in":
                return Recompute("one_in", one_in=_count(key, item))
            if key == "blocks":
                return Recompute("blocks", blocks=_count(key, item))
            if key == "selective":
                return Recompute("selective", selective=_parts(item))
        hint = did_you_mean(value, self.words) if isinstance(value, str) else ""
        raise ValueError(f"{shown(value)} is not {rule}{'; ' + hint if hint else ''}")

    def json_schema(self) -> JsonSchema:
        count = {"type": "integer", "minimum": 1, "maximum": 10_000}
        parts = {"type": "array", "items": {"enum": [*SELECTABLE, *SPELLED]}, "minItems": 1}
        mappings = [
            {"type": "object", "properties": {key: kind}, "required": [key], "additionalProperties": False}
            for key, kind in (("every", count), ("one_in", count), ("blocks", count), ("selective", parts))
        ]
        return {"anyOf": [{"enum": [*self.words, "gradient_checkpointing"]}, {"type": "boolean"}, *mappings]}


def _count(key: str, value: Any) -> int:
    try:
        return int(Whole(1, 10_000).check(value))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _parts(value: Any) -> tuple[str, ...]:
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"selective: {shown(value)} is not a list of {', '.join(SELECTABLE)}")
    known = tuple(Choice(SELECTABLE).check(SPELLED.get(part, part) if isinstance(part, str) else part) for part in parts)
    if MATMULS in known and not set(known) <= {MATMULS, "attention"}:
        raise ValueError(
            f"selective: {MATMULS} recomputes everything except every second product and fused attention; only attention can be added"
        )
    return known


class OptimizerSection(Section):
    """The optimizer; a name alone stands for ``{name: NAME}``."""

    name: Annotated[str, Choice(OPTIMIZERS, {"adam8bit": "write adam-8bit", "adamw8bit": "write adam-8bit"})] = "adamw"
    """algorithm; decides the states per parameter"""
    implementation: Annotated[str, Choice(("fused", "foreach", "loop", "auto"))] = "auto"
    """fused | foreach | loop kernels; auto = the software profile's"""
    clip_gradients: Annotated[bool, Flag()] = True
    """a global gradient norm before the step"""
    newton_schulz_steps: Annotated[int, Whole(1, 100)] = 5
    """muon: iterations that orthogonalise the momentum of a matrix"""
    tensor_mode: Annotated[str, Choice(("blockwise", "duplicated", "distributed"))] = "blockwise"
    """muon: tensor-parallel ranks orthogonalise each its part, or each the gathered whole, or together"""
    split_query_key_value: Annotated[bool, Flag()] = True
    """muon: query, key and value are orthogonalised one by one where they are stored as one tensor"""
    split_gate_up: Annotated[bool, Flag()] = False
    """muon: so are gate and up; separate tensors always are"""
    padded_parts: Annotated[bool, Flag()] = False
    """muon, soap with zero1: gradients are reduce-scattered in parts as long as the longest, instead of all-reduced"""
    precondition_frequency: Annotated[Any, Whole(1, 1_000_000, ("auto",))] = "auto"
    """soap, shampoo: steps from one renewal of eigenvectors or inverse roots to the next; auto = soap 10 (1 in Megatron-LM), shampoo 1"""
    max_preconditioner_dim: Annotated[Any, Whole(1, 10_000_000, ("auto",))] = "auto"
    """soap: longest side that has a factor; shampoo: of a block; auto = soap 10,000 (any in Megatron-LM), shampoo 1,024"""


class LossSection(Section):
    """The loss; a kind alone stands for ``{kind: KIND}``."""

    kind: Annotated[str, Choice(LOSSES)] = "auto"
    """sum | mse | cross_entropy; auto = the model's"""
    kernel: Annotated[str, Choice(LOSS_KERNELS)] = "auto"
    """how logits become a loss; auto = the software profile's, compiled where its eager one is, vocab-parallel under tensor parallelism"""
    hold_logits: Annotated[Any, Flag(("auto",))] = "auto"
    """the script holds the logits until the micro-batch is done; auto = as the stack's training loop does, by the software profile"""
    chunks: Annotated[int, Whole(1, 10_000)] = 1
    """parts in which logits and loss are computed one after another"""


class OffloadSection(Section):
    """Where model states and activations live."""

    parameters: Annotated[str, Choice(PLACES)] = "none"
    """none | cpu | nvme"""
    gradients: Annotated[str, Choice(PLACES)] = "none"
    """none | cpu | nvme"""
    optimizer: Annotated[str, Choice(PLACES)] = "none"
    """none | cpu | nvme"""
    activations: Annotated[str, Choice(PLACES)] = "none"
    """none | cpu | nvme"""


class TrainingSection(Section):
    """The training recipe. Two of global_batch, micro_batch and gradient_accumulation are needed; the third is derived."""

    sequence_length: Annotated[int | None, Whole(1, 10**8, optional=True)] = None
    """tokens per sample, the longest one (s); needed for models of sequences"""
    mean_sequence_length: Annotated[Any, Whole(1, 10**8, ("auto",))] = "auto"
    """tokens per sample on average, where shorter than sequence_length"""
    document_length: Annotated[Any, Whole(1, 10**8, ("auto",))] = "auto"
    """tokens of each document packed into a sample, which attends to no other (sequence packing); auto = a sample is one document"""
    target_sequence_length: Annotated[Any, Whole(1, 10**8, ("auto",))] = "auto"
    """tokens of the decoder's samples where sequence_length is the encoder's; auto = as many, or all that a decoder of speech has"""
    images: Annotated[Any, Whole(1, 10_000, ("auto",))] = "auto"
    """images per sample of a model with a vision tower, whose tokens are among sequence_length; auto = 1"""
    image_size: Annotated[Any, Whole(1, 100_000, ("auto",))] = "auto"
    """pixels along a side of these images, where the model takes any size; auto = 448"""
    global_batch: Annotated[int | Tokens | None, Batch()] = None
    """samples per optimizer step of the whole job; "4M tokens" is legal"""
    micro_batch: Annotated[int | None, Whole(1, 10**6, optional=True)] = None
    """samples per forward pass of one model replica (b)"""
    gradient_accumulation: Annotated[Any, Whole(1, 10**6, ("auto",))] = "auto"
    """micro-batches per optimizer step and replica (m)"""
    partial_micro_batch: Annotated[bool, Flag()] = False
    """a smaller last micro-batch is allowed"""
    tokens: Annotated[float | None, Quantity("count", optional=True, minimum=1)] = None
    """tokens of the whole training, e.g. 2T: turns on time to train and cost"""
    examples: Annotated[int | None, Whole(1, 10**12, optional=True)] = None
    """samples of the data set: turns on time to train, steps = ceil(examples x epochs / global_batch)"""
    epochs: Annotated[float | None, Number(0.0, 1e6, above=True, optional=True)] = None
    """passes over the examples; null = 1"""
    iteration: Annotated[str, Choice(("steady", "first"))] = "steady"
    """steady, or the first one (lazy optimizer state, one DDP bucket)"""
    backward: Annotated[bool, Flag()] = True
    """false: forward only"""
    step: Annotated[bool, Flag()] = True
    """false: no optimizer step and no optimizer states"""
    objective: Annotated[str, Choice(OBJECTIVES, _OTHER_OBJECTIVES)] = "auto"
    """auto (the model's own task) | language-modelling | dpo | orpo (pairs without a reference model) | kto | reward | grpo (one update on
    answers that are there) | grpo-without-reference (no KL term) | grpo-on-policy (the updated policy has generated them itself: only the
    reference model's pass comes before) | grpo-on-policy-without-reference (none does)"""
    precision: PrecisionChoice = Field(default="auto")  # type: ignore[assignment]
    """a preset, or a mapping of types; auto = what the software profile's stack uses"""
    optimizer: OptimizerSection = OptimizerSection()
    """sgd | momentum | adam | adamw | adam-8bit | adam-4bit | adam-mini | adafactor | lamb | lion | muon | soap | shampoo, or a mapping"""
    loss: LossSection = LossSection()
    """auto | sum | mse | cross_entropy, or a mapping"""
    dropout: Annotated[Any, Number(0.0, 1.0, open=True, words=("auto",))] = "auto"
    """probability; auto = the model's"""
    attention: Annotated[
        str, Choice(("auto", *ATTENTIONS), {"flash": "write flash2 or flash3", "sdpa": "write flash2 or mem-efficient"})
    ] = "auto"
    """attention kernel; auto = the best that the device and the software profile have"""
    recompute: Annotated[Recompute, RecomputeKind()] = Field(default="none")  # type: ignore[assignment]
    """activation recomputation (gradient checkpointing)"""
    offload: OffloadSection = OffloadSection()
    """states and activations outside device memory"""
    finetune: FinetuneSection | None = None
    """training of adapters or of a part of the parameters"""
    data_loading: Annotated[float, Quantity("time", 86400.0)] = Field(default="0 s")  # type: ignore[assignment]
    """time per micro-batch, hidden behind compute unless longer"""
