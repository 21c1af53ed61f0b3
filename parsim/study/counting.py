"""What `parsim flops` and `parsim mfu` share: the model, the GPU, and every FLOP convention with its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from parsim import units
from parsim.errors import Finding, InputError, ModelError, ScenarioError, TopologyError
from parsim.model.catalogue import build_model
from parsim.model.flops import (
    CONVENTIONS,
    MODEL_CONVENTIONS,
    Recompute,
    attention_layers,
    attention_width,
    flop_per_token,
    forward_alone,
    forward_flop,
    repeated_flop,
    repeated_work,
)
from parsim.model.model import Model
from parsim.model.parameter_counts import active_parameter_count, layer_parameter_count, parameter_count
from parsim.scenario.files import find, is_shipped, read
from parsim.scenario.references import lookup, model_tree
from parsim.scenario.yaml_tree import nearest

if TYPE_CHECKING:
    from parsim.hardware.device import Device

SEQUENCE = 2048
"""tokens per sample where nobody says otherwise and the model has positions for them"""
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Subject:
    """A model at a sequence length."""

    model: Model
    sequence: int
    """tokens per sample; 1 for models without sequences"""

    @property
    def unit(self) -> str:
        """What work is counted per."""
        return "token" if self.model.sequence else "sample"

    @property
    def parameters(self) -> int:
        """Number of parameters, tied ones counted once."""
        return parameter_count(self.model)


_EXECUTED = ("exact", "exact-full", "megatron-lm", "hfu")
"""conventions that count products as they run"""


@dataclass(frozen=True)
class Counted:
    """One convention's answer."""

    name: str
    formula: str
    """in symbols, and what it counts"""
    arithmetic: str
    """the same in numbers; its value is `flop`"""
    flop: float
    """per token (per sample for models without sequences), forward and backward [FLOP]"""
    repeated: float = 0.0
    """what recomputation adds to it for HFU [FLOP]"""
    alone: float = 0.0
    """what of it runs forward only: it is counted once where all else is counted three times [FLOP]"""


def subject(name: str, sequence: int | None = None) -> Subject:
    """The model called `name` (a shipped one, a path to its YAML or config.json) at `sequence` tokens per sample.

    Raises:
        ScenarioError: there is no such file, or it cannot be read.
        ModelError: the model is wrong (with the place in the user's file), or does not go with `sequence`.
    """
    tree, label, path = model_tree(name, None)
    try:
        model = build_model(tree, name=label, base_lookup=lookup("models", path))
    except InputError as error:
        raise type(error)(_placed(error.findings, "models", name)) from None
    if model.facts.get("family") == "stages":
        text = f"{label} is defined by measured stage times, so it has no FLOP to count"
        raise ModelError(Finding(text, "MODEL", name, "name an architecture"))
    return Subject(model, _sequence(model, sequence))


def _placed(findings: Sequence[Finding], kind: str, name: str) -> list[Finding]:
    """The findings with their lines in the user's own model or device file."""
    path = find(kind, name)
    if is_shipped(path):
        return list(findings)
    origins = read(path).origins
    return [
        finding if finding.file else finding.at(str(path), *(nearest(origins, finding.path.partition(".")[2]) or (path, 1, 1))[1:])
        for finding in findings
    ]


def _sequence(model: Model, wanted: int | None) -> int:
    option = "--sequence"
    if not model.sequence:
        if wanted is not None:
            raise ModelError(Finding(f"{model.name} has samples without sequences", option, wanted, "leave it out"))
        return 1
    fixed, longest = model.facts.get("sequence_length"), model.maximum_sequence
    if fixed is not None:
        if wanted not in (None, fixed):
            raise ModelError(Finding(f"{wanted} tokens, but {model.name} makes {fixed} of every image", option, wanted, "leave it out"))
        return int(str(fixed))
    if wanted is None:
        return min(SEQUENCE, longest or SEQUENCE)
    if longest and wanted > longest and model.facts.get("position") == "learned":
        text = f"{wanted} tokens, but {model.name} has {longest} learned positions"
        raise ModelError(Finding(text, option, wanted, f"use at most {longest}"))
    return wanted


def device_of(name: str) -> Device:
    """The GPU called `name`: a shipped one, an alias, or a path to its file.

    Raises:
        ScenarioError: there is no such file.
        TopologyError: what is wrong in it.
    """
    from parsim.hardware.device import device_from_tree

    try:
        return device_from_tree(read(find("devices", name)).tree)
    except TopologyError as error:
        raise TopologyError(_placed(error.findings, "devices", name)) from None


def dtype_for(device: Device | None, wanted: str | None) -> tuple[str, tuple[Finding, ...]]:
    """The matmul type: as `wanted`, else bf16, or fp16 on a GPU without it; and what is wrong with it."""
    if wanted is None:
        return ("bf16" if device is None or "bf16" in device.peak else "fp16" if "fp16" in device.peak else "fp32"), ()
    known = tuple(device.peak) if device is not None else ("fp32", "tf32", "fp16", "bf16", "fp8")
    if wanted in known:
        return wanted, ()
    owner = device.name if device is not None else "a GPU"
    return wanted, (Finding(f"{owner} has no {wanted} arithmetic", "--dtype", wanted, f"choose one of {', '.join(known)}"),)


def fraction(text: str, option: str, findings: list[Finding]) -> float:
    """``0.4``, ``40%`` or ``40 %`` as 0.4; what is wrong goes to `findings`."""
    number = text.strip().removesuffix("%").strip()
    try:
        value = units.real(number) / (100.0 if number != text.strip() else 1.0)
    except ValueError:
        findings.append(Finding(f"{text!r} is not a fraction", option, text, "write for example 0.4 or 40%"))
        return 1.0
    if not 0.0 < value <= 1.0:
        hint = f"write {value / 100:g} or {value:g}%" if 1.0 < value <= 100.0 else "write for example 0.4 or 40%"
        findings.append(Finding(f"{text} is not between 0 and 1", option, text, hint))
        return 1.0
    return value


def quantity(text: str | None, dimension: str, option: str, findings: list[Finding]) -> float | None:
    """`text` in base units, above zero; what is wrong goes to `findings`."""
    if text is None:
        return None
    try:
        value = float(units.parse(text, dimension))
    except ValueError as error:
        message, _, suggestion = str(error).partition("; ")
        findings.append(Finding(message, option, text, suggestion))
        return 1.0
    if value <= 0:
        findings.append(Finding(f"{text} is not above 0", option, text))
        return 1.0
    return value


def stop(findings: Sequence[Finding]) -> None:
    """Raise `ScenarioError` with all findings, if there are any."""
    if findings:
        raise ScenarioError(findings)


def chosen(of: Subject, name: str, option: str = "--convention") -> Finding | None:
    """What is wrong with `name` as the convention of a utilisation of this model."""
    if name not in MODEL_CONVENTIONS:
        return Finding(f"unknown FLOP convention {name!r}", option, name, f"known: {', '.join(MODEL_CONVENTIONS)}")
    if not CONVENTIONS[name].applies(of.model):
        known = [other for other in MODEL_CONVENTIONS if CONVENTIONS[other].applies(of.model)]
        text = f"{CONVENTIONS[name].meaning} does not describe {of.model.name}"
        return Finding(text, option, name, f"use one of {', '.join(known)}")
    return None


def usual(of: Subject) -> str:
    """Name of the default convention: palm, or exact for models without sequences."""
    return "palm" if CONVENTIONS["palm"].applies(of.model) else "exact"


def conventions(of: Subject, recompute: Recompute = "none") -> tuple[Counted, ...]:
    """Every convention of model FLOP that describes the model, with what `recompute` repeats under it."""
    again = repeated_work(of.model, of.sequence, recompute)
    counts = (_counted(of, name) for name in MODEL_CONVENTIONS if CONVENTIONS[name].applies(of.model))
    return tuple(replace(one, repeated=repeated_flop(one.name, one.flop, again)) for one in counts)


def hardware(of: Subject, recompute: Recompute = "full") -> tuple[Counted, ...]:
    """The conventions that count recomputation themselves: Megatron's 96 for 72, and exact with what runs again."""
    return tuple(_counted(of, name, recompute) for name in ("megatron-hardware", "hfu") if CONVENTIONS[name].applies(of.model))


def _counted(of: Subject, name: str, recompute: Recompute = "full") -> Counted:
    flop = flop_per_token(of.model, of.sequence, name, recompute)
    alone = forward_alone(of.model, of.sequence) if name in _EXECUTED else 0.0
    return Counted(name, CONVENTIONS[name].meaning, arithmetic(of, name, recompute), flop, alone=alone)


def arithmetic(of: Subject, name: str, recompute: Recompute = "full") -> str:
    """The formula of a convention with the model's numbers; commas, ``x`` and ``^`` as people write them."""
    model, s = of.model, of.sequence
    count, layers, h, width = active_parameter_count(model), model.layers, model.hidden, attention_width(model)
    attending = attention_layers(model)
    widths = f"{attending} x {width:,.10g}" if width == int(width) else f"{round(attending * width):,}"  # of all layers, where they differ
    shape = f"1 + {s:,} / (6 x {h:,})"
    head = f"{model.vocabulary_padded:,} / (12 x {layers} x {h:,})"
    match name:
        case "palm":
            return f"6 x {count:,} + 12 x {widths} x {s:,}"
        case "llm-foundry":
            return f"3 x (2 x {count:,} + 4 x {widths} x {s:,})"
        case "6n":
            return f"6 x {count:,}"
        case "6n-non-embedding":
            return f"6 x {layer_parameter_count(model):,}"
        case "megatron-hardware" if recompute == "full":
            return f"96 x {layers} x {h:,}^2 x ({shape} + {model.vocabulary_padded:,} / (16 x {layers} x {h:,}))"
        case "megatron-hardware" if recompute == "selective":
            return f"72 x {layers} x {h:,}^2 x ({shape} + {s:,} / (18 x {h:,}) + {head})"
        case "megatron" | "megatron-hardware":
            return f"72 x {layers} x {h:,}^2 x ({shape} + {head})"
    return _executed(of, name, recompute)


def _executed(of: Subject, name: str, recompute: Recompute) -> str:
    """Products of the layers' weights, the attention cores, and what stands before and behind the layers."""
    whole = repeated_work(of.model, of.sequence, "full")
    forward = forward_flop(of.model, of.sequence)
    core = whole.square if name == "exact-full" else whole.core
    rest = forward - whole.products - whole.core
    terms = [whole.products, core, rest]
    alone = forward_alone(of.model, of.sequence)
    routers = forward - (flop_per_token(of.model, of.sequence, "megatron-lm") + 2 * alone) / 3 if name == "megatron-lm" else 0.0
    text = (
        "3 x ("
        + " + ".join(f"{term:,.15g}" for term in terms if term)
        + (f" {'-' if routers > 0 else '+'} {abs(routers):,.15g}" if routers else "")
        + ")"
        + (f" - 2 x {alone:,.15g}" if alone else "")
    )
    if name != "hfu":
        return text
    again = repeated_work(of.model, of.sequence, recompute)
    return f"{text} + {again.products + again.core:,.15g}"


def forward_only(counted: Counted) -> Counted:
    """A third of it: what one forward pass counts. What runs forward only is counted as often as all else."""
    again = f" + 2 x {counted.alone:,.15g}" if counted.alone else ""
    return replace(counted, arithmetic=f"({counted.arithmetic}{again}) / 3", flop=(counted.flop + 2 * counted.alone) / 3, repeated=0.0)


def counted_document(counted: Counted) -> dict[str, Any]:
    """One convention as JSON."""
    return {"name": counted.name, "formula": counted.formula, "arithmetic": counted.arithmetic, "flop": counted.flop}
