"""What a question leaves out: sequence length, batch, failures; each assumption with its source."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from pathlib import Path

from parsim.errors import Finding, ScenarioError
from parsim.model.model import Model, parameter_count
from parsim.scenario import files
from parsim.study.size.question import Question

SEQUENCE = 2048
"""tokens of a sample where neither the question nor the model says more"""
MTBF = 16384 * 54 * 86400 / 419
"""mean time between failures of one GPU with its share of everything else [s]: 419 unexpected interruptions in 54 days on 16,384 GPUs"""
MTBF_SOURCE = "419 unexpected interruptions in 54 days on 16,384 H100 (Llama team 2024, arXiv 2407.21783, section 3.3.4)"
CHECKPOINT = 60.0
"""time for which training stands still while a checkpoint is written [s]"""
_BATCHES = ((100e9, 3.2e6), (6e9, 2e6), (1e9, 1e6), (0.0, 0.5e6))
"""parameters from which so many tokens are in a batch"""
_BATCHES_SOURCE = "the rule of GPT-3's models by size (Brown et al. 2020, arXiv 2005.14165, table 2.1)"


@dataclass(frozen=True, slots=True)
class Assumed:
    """A value that the question did not give."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training with nothing left open."""

    sequence_length: int
    global_batch: int
    """samples"""
    mtbf: float | None
    """of one GPU [s]; None: nothing fails"""
    checkpoint_time: float | None
    assumed: tuple[Assumed, ...]

    @property
    def tokens_per_step(self) -> int:
        """Of the whole job."""
        return self.global_batch * self.sequence_length


def recipe(question: Question, model: Model) -> Recipe:
    """The recipe of a question about `model`.

    Raises:
        ScenarioError: the model has no sequences.
    """
    if not model.sequence:
        raise without_tokens(question)
    assumed: list[Assumed] = []
    length = question.sequence_length
    if length is None:
        length = model.maximum_sequence if model.maximum_sequence and model.maximum_sequence <= 8192 else SEQUENCE
        source = (
            "the model's positions" if length == model.maximum_sequence else "usual in pre-training; the model has more positions or none"
        )
        assumed.append(Assumed("sequence length", f"{length} tokens", source))
    batch = _batch(question, model, length, assumed)
    mtbf, checkpoint = question.mtbf, question.checkpoint_time
    if question.goodput is not None:
        mtbf = checkpoint = None
    else:
        if mtbf is None:
            mtbf = MTBF
            assumed.append(Assumed("MTBF of a GPU", f"{MTBF / 3600:,.0f} h", MTBF_SOURCE))
        if checkpoint is None:
            checkpoint = CHECKPOINT
            assumed.append(
                Assumed("training stands still for a checkpoint", f"{CHECKPOINT:g} s", "assumption; --checkpoint-time changes it")
            )
    return Recipe(length, batch, mtbf, checkpoint, tuple(assumed))


def without_tokens(question: Question) -> ScenarioError:
    """What to say of a model without sequences."""
    text = f"{question.model} has no tokens to be trained on"
    return ScenarioError(Finding(text, "MODEL", question.model, "choose a language model (`parsim list models`)"))


def published_batches() -> dict[str, tuple[float, str]]:
    """Model -> (tokens per step, source), of catalogue/batches.yaml."""
    tree = files.read(Path(files.home("models")).parent / "batches.yaml").tree
    return {name: (float(entry["tokens"]), str(entry["source"])) for entry in tree["batches"] for name in entry["models"]}


def _batch(question: Question, model: Model, length: int, assumed: list[Assumed]) -> int:
    wanted = question.global_batch
    if isinstance(wanted, int):
        return wanted
    if isinstance(wanted, str):
        tokens = float(wanted.split()[0])
        samples = _power_of_two(tokens / length)
        if samples * length != tokens:
            assumed.append(
                Assumed("global batch", f"{samples} samples of {length} tokens", f"the power of two nearest to {tokens:g} tokens")
            )
        return samples
    known = published_batches().get(question.model)
    if known is None:
        parameters = parameter_count(model)
        tokens = next(tokens for least, tokens in _BATCHES if parameters >= least)
        source = _BATCHES_SOURCE
    else:
        tokens, source = known
    samples = _power_of_two(tokens / length)
    assumed.append(
        Assumed("global batch", f"{samples} samples of {length} tokens", f"nearest power of two to {tokens / 1e6:g}M tokens: {source}")
    )
    return samples


def _power_of_two(samples: float) -> int:
    """The nearest one by ratio, at least 1: it divides among most numbers of replicas."""
    return 1 << max(0, round(log2(max(samples, 1.0))))
