"""A model known only by its measured pipeline-stage times.

``{stages: [{forward: 18.5 ms, backward_input: 18.1 ms, backward_weight: 9.3 ms, send: 0.6 ms, activation: 1.2 GiB}]}``:
each entry is one global stage (virtual stages included), a single entry stands for all of them. Times are of one
micro-batch; ``backward`` may be given instead of the two halves, the weight half then being zero. ``overhead`` is what a
micro-batch costs a stage outside the measured kernels; it is added to the forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.kernel import Fixed
from parsim.model.model import Block, Model, Parameter, Save, Work
from parsim.model.workload import Split, Workload
from parsim.units import parse

_DIMENSIONS = {
    "forward": "time",
    "overhead": "time",
    "backward": "time",
    "backward_input": "time",
    "backward_weight": "time",
    "send": "time",
    "activation": "bytes",
    "output": "bytes",
    "parameters": "count",
}


@dataclass(frozen=True)
class ProfiledStage:
    """One stage of one micro-batch, as measured: an operator whose kernels are durations."""

    name: str
    forward: float
    """[s]"""
    backward_input: float
    """[s]"""
    backward_weight: float
    """[s]"""
    activation: int
    """kept from the forward to the end of the backward of one micro-batch [B]"""
    output_bytes: int = 0
    """what the stage sends on [B]; 0 where `send` is measured"""
    parameter_count: int = 0
    send: float = 0.0
    """time until the next stage has the output (and the previous one the gradient) [s]"""
    inputs: tuple[str, ...] = ("input",)
    output: str = "output"
    split: Split = "replicated"
    selective: str = ""

    def parameters(self) -> tuple[Parameter, ...]:
        """One flat parameter of the stated size."""
        return (Parameter("weight", (self.parameter_count,)),) if self.parameter_count else ()

    def work(self, at: Workload) -> Work:
        """The measured durations, whatever the workload."""
        size = self.output_bytes or 1  # a tensor of its own: an output of 0 B would be a view of the input
        saves = (Save("kept", self.activation, "weight"),) if at.backward and self.activation else ()
        return Work(
            forward=(Fixed(self.forward),),
            backward_input=(Fixed(self.backward_input),) if at.backward else (),
            backward_weight=(Fixed(self.backward_weight),) if at.backward and self.backward_weight else (),
            output=size,
            input_gradients=(size,),
            saves=saves,
        )


def build_stages(tree: Mapping[str, Any], *, name: str) -> Model:
    """The model of the entries under ``stages``, one block each.

    ``facts["send"]`` holds the send times [s]; ``facts["repeat"]`` says that a single entry stands for every stage.
    Raises `ModelError` on unknown keys and wrong units.
    """
    findings = [Finding(f"{key!r} does not go with stages", f"model.{key}", value) for key, value in tree.items() if key != "stages"]
    entries = tree["stages"]
    if not isinstance(entries, list) or not entries:
        findings.append(Finding("stages is a list of at least one mapping", "model.stages", entries))
        raise ModelError(findings)
    stages = [_stage(entry, number, findings) for number, entry in enumerate(entries)]
    if findings:
        raise ModelError(findings)
    return Model(
        name=name,
        blocks=tuple(Block("layer", (stage,)) for stage in stages),
        block_names=tuple(f"stage {number}" for number in range(len(stages))),
        sequence=False,
        layers=len(stages),
        facts={"family": "stages", "repeat": len(stages) == 1, "send": tuple(stage.send for stage in stages)},
    )


def _stage(entry: Any, number: int, findings: list[Finding]) -> ProfiledStage:
    path = f"model.stages[{number}]"
    values = _quantities(entry, path, findings)
    if "backward" in values and values.keys() & {"backward_input", "backward_weight"}:
        findings.append(Finding("backward is the sum of its halves", f"{path}.backward", entry["backward"], "give either"))
    if isinstance(entry, Mapping) and entry and "forward" not in entry:
        findings.append(Finding("forward is required", f"{path}.forward", None, "for example 18.5 ms"))
    return ProfiledStage(
        name="stage",
        forward=float(values.get("forward", 0.0)) + float(values.get("overhead", 0.0)),
        backward_input=float(values.get("backward_input", values.get("backward", 0.0))),
        backward_weight=float(values.get("backward_weight", 0.0)),
        activation=int(values.get("activation", 0)),
        output_bytes=int(values.get("output", 0)),
        parameter_count=int(values.get("parameters", 0)),
        send=float(values.get("send", 0.0)),
    )


def _quantities(entry: Any, path: str, findings: list[Finding]) -> dict[str, float]:
    if not isinstance(entry, Mapping) or not entry:
        findings.append(Finding(f"a stage is a mapping with {', '.join(_DIMENSIONS)}", path, entry))
        return {}
    values = {}
    for key, text in entry.items():
        if key not in _DIMENSIONS:
            near = get_close_matches(str(key), _DIMENSIONS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_DIMENSIONS)}"
            findings.append(Finding(f"unknown key {key!r}", f"{path}.{key}", text, hint))
            continue
        try:
            values[key] = parse(text, _DIMENSIONS[key])
        except ValueError as error:
            message, _, suggestion = str(error).partition("; ")
            findings.append(Finding(message, f"{path}.{key}", text, suggestion))
    return values
