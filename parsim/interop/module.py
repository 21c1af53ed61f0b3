"""A traced module as a scenario: its blocks, checked against what torch counts, with what is left to fill in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from typing import Any

from parsim.errors import Finding, ModelError, ScenarioError
from parsim.interop.traced_blocks import blocks, folded
from parsim.interop.traced_nodes import ModuleTrace
from parsim.interop.traced_reading import PRODUCTS, OperatorLine, TraceWalk
from parsim.interop.traced_sizes import Traces
from parsim.interop.traced_words import read
from parsim.kernel import Gemm
from parsim.model.liveness import tape
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.tape import Step
from parsim.model.traced import traced_model
from parsim.model.workload import Workload
from parsim.scenario.scenario import flow
from parsim.scenario.support import PLACEHOLDER


@dataclass(frozen=True, slots=True)
class ImportedModule:
    """A scenario of a module."""

    tree: dict[str, Any]
    yaml: str
    warnings: tuple[Finding, ...]
    facts: Mapping[str, Any]
    """what was counted: parameters, FLOP of both passes"""
    to_fill: tuple[str, ...]


def import_traces(small: ModuleTrace, large: ModuleTrace, reference: str, *, name: str, on: str | None = None) -> ImportedModule:
    """The scenario of a module that was traced with two batches.

    Raises `ScenarioError` where the module does what no line stands for: an operator with parameters or matrix products, parameters
    that nothing uses, FLOP other than torch's.
    """
    reading = read(Traces(small, large))
    _refuse(reading, small, reference)
    end = _end(reading, small)
    unmapped = _listed(reading, small)
    made = folded(blocks(reading))
    inputs = next(iter(small.inputs.values()), None)
    shape = list(inputs.shape[1:]) if inputs is not None else []
    model: dict[str, Any] = {"name": name, "input": {"shape": shape or [1], "dtype": small.dtype}, "parameters": small.parameter_count}
    if unmapped:
        model["unmapped"] = unmapped
    model["blocks"] = made
    built = _checked(model, small, name, reference)
    warnings = (
        [] if not unmapped else [Finding(f"not known: {row}; counts as one pass over its tensors", "model.unmapped") for row in unmapped]
    )
    if end:
        warnings.append(Finding(end, "training.loss"))
    attentions = [node for node in small.nodes if node.op == "scaled_dot_product_attention"]
    if masked := sum(node.arguments[3] is not None and node.causal is None for node in attentions):
        text = f"{masked} attentions have a mask whose values a trace does not know: all scores are counted"
        warnings.append(Finding(text, "model.blocks", suggestion="if it is the causal mask, write causal: true in their lines"))
    facts = {"parameters": parameter_count(built), "forward_flop": small.flop[0], "backward_flop": small.flop[1], "batch": small.batch}
    tree: dict[str, Any] = {
        "name": name,
        "model": model,
        "cluster": on or PLACEHOLDER,
        "training": {"micro_batch": small.batch, "gradient_accumulation": 1},
    }
    to_fill = () if on else ("cluster",)
    return ImportedModule(tree, _yaml(tree, small, reference, facts, on), tuple(warnings), facts, to_fill)


def _error(reference: str, message: str, suggestion: str = "") -> ScenarioError:
    return ScenarioError(Finding(message, value=reference, suggestion=suggestion, file=reference.rpartition(":")[0]))


def _refuse(reading: TraceWalk, trace: ModuleTrace, reference: str) -> None:
    """Operators whose work nothing stands for."""
    findings = []
    lost = [line for line in reading.lines if line.op == "kernel" and line.aten.rstrip("_") in PRODUCTS and line.label != "softmax"]
    lost += [line for line in reading.unmapped if line.parameters and line not in lost]
    for (aten, shape), count in Counter((line.aten, line.shape) for line in lost).items():
        what = "parameters" if any(line.parameters for line in lost if line.aten == aten) else "matrix products"
        text = f"{aten} -> {list(shape)} x {count} holds {what} and is not supported yet: {_share(aten, trace)}"
        findings.append(Finding(text, value=aten, file=reference.rpartition(":")[0]))
    if not reading.lines:
        findings.append(Finding("forward calls no operator", value=reference, file=reference.rpartition(":")[0]))
    used = {trace.parameters[name].name for line in reading.lines for name in line.parameters}
    unused = sorted({parameter.name for parameter in trace.parameters.values()} - used)
    if unused and not findings:
        shown = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if len(unused) > 5 else "")
        text = f"parameters that no known operator of this forward uses: {shown}"
        findings.append(Finding(text, value=reference, file=reference.rpartition(":")[0]))
    if findings:
        raise ScenarioError(findings)


def _share(aten: str, trace: ModuleTrace) -> str:
    total = sum(trace.flop)
    own = trace.flop_by_operator.get(aten, 0)
    return f"{own / total:.1%} of the FLOP that torch counts" if total else "torch counts no FLOP"


def _listed(reading: TraceWalk, trace: ModuleTrace) -> list[str]:
    """Operators that are not known, by name, shape and count."""
    counts = Counter((line.aten, line.shape) for line in reading.unmapped)
    return [f"{aten} -> {list(shape)} x {count} ({_share(aten, trace)})" for (aten, shape), count in counts.items()]


def _end(reading: TraceWalk, trace: ModuleTrace) -> str:
    """Lets the lines end in a loss; says so where the module has none."""
    outputs = [reading.rooted(name) for name in trace.outputs if reading.grad.get(name)]
    made = {line.name: place for place, line in enumerate(reading.lines)}
    losses = [name for name in outputs if name in made and reading.lines[made[name]].shape == ()]
    if losses:
        place = made[losses[0]]
        reading.lines[place + 1 :] = []
        return ""
    if not outputs or outputs[0] not in made:
        return ""
    last = reading.lines[made[outputs[0]]]
    count, _ = reading.traces.count(last.name)
    classes = last.shape[-1] if last.shape else 1
    settings = {"kind": "sum", "classes": classes, "upcast": False} | ({} if count == classes else {"rows": count // classes})
    reading.lines.append(OperatorLine("loss", [last.name], settings, "loss", "", aten="loss"))
    return f"the module returns no loss: the sum of its {list(last.shape)} is taken; training.loss: cross_entropy takes the other"


def _checked(tree: Mapping[str, Any], trace: ModuleTrace, name: str, reference: str) -> Model:
    """The model as parsim builds it, with exactly the parameters and the FLOP of the module."""
    try:
        model = traced_model({key: tree[key] for key in ("input", "blocks")}, name)
    except ModelError as error:
        raise ScenarioError([finding.at(reference.rpartition(":")[0], 0, 0) for finding in error.findings]) from error
    findings = []
    if (count := parameter_count(model)) != trace.parameter_count:
        findings.append(f"{count:,} parameters were found, the module has {trace.parameter_count:,}")
    for what, mine, theirs in zip(("forward", "backward"), module_flop(model, trace), trace.flop, strict=True):
        if mine != theirs:
            findings.append(f"{mine:,.0f} FLOP {what} were found, torch.utils.flop_counter counts {theirs:,}: {mine - theirs:+,.0f}")
    if findings:
        raise ScenarioError([Finding(text, value=reference, file=reference.rpartition(":")[0]) for text in findings])
    return model


def module_flop(model: Model, trace: ModuleTrace) -> tuple[float, float]:
    """FLOP of the matrix products of a traced batch, forward and backward, with attention as eager products."""
    at = Workload(trace.batch, element=trace.element, dtype=trace.dtype, weight_element=trace.element, attention="eager")
    dropout = model.facts.get("dropout")
    at = (
        Workload(trace.batch, element=trace.element, dtype=trace.dtype, attention="eager", dropout=float(str(dropout or 0)))
        if dropout
        else at
    )
    tapes = [tape(block, at, (), index > 0) for index, block in enumerate(model.blocks)]
    return _products(step for t in tapes for step in t.forward), _products(step for t in tapes for step in t.backward)


def _products(steps: Any) -> float:
    def of(step: Step) -> float:
        return fsum(kernel.flop for kernel in step.kernels if isinstance(kernel, Gemm))

    return fsum(map(of, steps))


def _yaml(tree: Mapping[str, Any], trace: ModuleTrace, reference: str, facts: Mapping[str, Any], on: str | None) -> str:
    """The scenario as text: an operator a line."""
    model = tree["model"]
    lines = [
        f"# {reference}, traced by torch.export ({trace.tool}) with {trace.batch} samples",
        f"# {facts['parameters']:,} parameters; FLOP of {trace.batch} samples: {trace.flop[0]:,} forward and {trace.flop[1]:,} backward,",
        "# as torch.utils.flop_counter counts them (causal attention whole)",
        f"name: {flow(tree['name'])}",
        "",
        "model:",
        f"  name: {flow(model['name'])}",
        f"  input: {flow(model['input'])}",
        f"  parameters: {model['parameters']}",
    ]
    if "unmapped" in model:
        lines += ["  unmapped:  # each counts as one pass over its tensors", *(f"    - {flow(row)}" for row in model["unmapped"])]
    lines.append("  blocks:")
    for block in model["blocks"]:
        lines.append(f"    - name: {flow(block['name'])}")
        if "times" in block:
            lines.append(f"      times: {block['times']}")
        lines += [f"      output: {flow(block['output'])}", "      operators:"]
        lines += [f"        - {flow(row)}" for row in block["operators"]]
    hint = "" if on else "  # FILL IN: a topology (parsim list topologies), or a box such as 8x h100-sxm-80gb"
    lines += ["", f"cluster: {flow(tree['cluster'])}{hint}", f"training: {flow(tree['training'])}", ""]
    return "\n".join(lines)
