"""Effects of training: what published training steps show and single kernels do not.

Device and link files hold datasheets and measurements of single kernels and collectives. In a training step kernels run at a lower clock,
beside other work and behind a host that does more than launch them. `catalogue/training_effects.yaml` names these effects, with the
value that published steps give them (validation/runs/fit.py) and where they apply. ``software.effects`` is ``published`` (the default),
``none`` (nothing that a training step taught), or a mapping of effects to values of one's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from parsim.scenario import files
from parsim.scenario.values import JsonSchema, Kind, did_you_mean, shown

if TYPE_CHECKING:
    from parsim.hardware.device import Device
    from parsim.parallel.runtime import Runtime
    from parsim.scenario.machine import HostSection
    from parsim.scenario.software import Assumption

QUANTITIES = ("compute", "memory", "launch", "boundary")
"""what an effect changes: the rate of matrix products (and, in part, of attention: `Device.pace`), the rate of memory-bound kernels, the
host's time per kernel (all as factors), the time of the optimizer step per 1e9 local parameters [s]"""
_NOTABLE = 1e-3
"""an effect that is closer to its start is nothing that a report has to list"""


@dataclass(frozen=True, slots=True)
class TrainingEffect:
    """One effect: what it changes, for whom, and by how much."""

    name: str
    changes: str
    """one of `QUANTITIES`"""
    meaning: str
    start: float
    """where nothing is known of training steps: 1 for a factor, 0 for a time"""
    least: float
    most: float
    """what is physically possible"""
    value: float
    """what published training steps give it"""
    architectures: tuple[str, ...] = ()
    """of GPUs (`Device.architecture`); empty: all"""
    profiles: tuple[str, ...] = ()
    """software profiles; empty: all"""
    strategies: tuple[str, ...] = ()
    """data strategies; empty: all"""
    several: bool = False
    """of jobs of several GPUs alone"""
    assumed_host: bool = False
    """where nobody timed the host beside the GPU (`Device.issue`, `parsim calibrate`)"""

    def applies(self, device: Device, profile: str, strategy: str, gpus: int) -> bool:
        """Whether it concerns a job."""
        return (
            (not self.architectures or device.architecture in self.architectures)
            and (not self.profiles or profile in self.profiles)
            and (not self.strategies or strategy in self.strategies)
            and (gpus > 1 or not self.several)
            and not (self.assumed_host and device.host_timed)
        )


@dataclass(frozen=True, slots=True)
class Effects:
    """What the effects of a job amount to."""

    compute: float = 1.0
    """factor on the rate of matrix products, and in part on that of attention (`Device.pace`)"""
    memory: float = 1.0
    """factor on the rate of memory-bound kernels"""
    launch: float = 1.0
    """factor on the host's time per kernel"""
    boundary: float = 0.0
    """added to the optimizer step per 1e9 local parameters [s]"""

    def on_device(self, device: Device) -> Device:
        """The device as kernels of a training step find it."""
        if self.compute == self.memory == 1.0:
            return device
        return replace(device, sustained=self.compute, memory_efficiency=device.memory_efficiency * self.memory)

    def on_runtime(self, runtime: Runtime, stated: HostSection) -> Runtime:
        """The runtime as it behaves in training; what the scenario has `stated` of its host stays."""
        assumed = [key for key in ("per_kernel_forward", "per_kernel_backward") if getattr(stated, key) == "auto"]
        host = replace(runtime.host, **{key: self.launch * getattr(runtime.host, key) for key in assumed})
        return replace(runtime, host=host, boundary=runtime.boundary + self.boundary)


class EffectsKind(Kind):
    """``published``, ``none``, or a mapping of effects to values."""

    def check(self, value: Any) -> Any:
        if value in ("published", "none"):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(
                f"{shown(value)} is not published, none or a mapping of effects; {did_you_mean(str(value), ('published', 'none'))}"
            )
        known = {effect.name: effect for effect in catalogue()}
        problems = []
        for name, number in value.items():
            if name not in known:
                problems.append(f"unknown effect {name!r}; {did_you_mean(str(name), list(known)) or 'known: ' + ', '.join(known)}")
            elif isinstance(number, bool) or not isinstance(number, (int, float)) or not known[name].least <= number <= known[name].most:
                problems.append(f"{name}: {shown(number)} is not a number from {known[name].least:g} to {known[name].most:g}")
        if problems:
            raise ValueError("; ".join(problems))
        return {str(name): float(number) for name, number in value.items()}

    def json_schema(self) -> JsonSchema:
        values = {e.name: {"type": "number", "minimum": e.least, "maximum": e.most} for e in catalogue()}
        return {"anyOf": [{"enum": ["published", "none"]}, {"type": "object", "properties": values, "additionalProperties": False}]}


@cache
def catalogue() -> tuple[TrainingEffect, ...]:
    """The effects that come with parsim."""
    tree = files.read(files.home("devices").parent / "training_effects.yaml").tree
    return tuple(_effect(str(name), entry) for name, entry in tree["effects"].items())


def _effect(name: str, entry: Mapping[str, Any]) -> TrainingEffect:
    least, most = map(float, entry["bounds"])
    where = entry.get("where", {})
    return TrainingEffect(
        name, str(entry["changes"]), str(entry["meaning"]), float(entry["start"]), least, most, float(entry["value"]),
        architectures=tuple(where.get("architectures", ())), profiles=tuple(where.get("profiles", ())),
        strategies=tuple(where.get("strategies", ())), several=where.get("gpus") == "several", assumed_host=where.get("host") == "assumed",
    )  # fmt: skip


def effects_of(
    wanted: str | Mapping[str, float], device: Device, profile: str, strategy: str, gpus: int, assumptions: list[Assumption]
) -> Effects:
    """The effects of a job of `gpus`; what the catalogue decides is added to `assumptions` as one."""
    from parsim.scenario.software import Assumption

    if wanted == "none":
        return Effects()
    found = {"compute": 1.0, "memory": 1.0, "launch": 1.0, "boundary": 0.0}
    values: list[str] = []
    meanings: list[str] = []
    for effect in catalogue():
        if not effect.applies(device, profile, strategy, gpus):
            continue
        value = effect.value if isinstance(wanted, str) else wanted.get(effect.name, effect.start)
        if effect.changes == "boundary":
            found["boundary"] += value
        else:
            found[effect.changes] *= value
        if isinstance(wanted, str) and abs(value - effect.start) > _NOTABLE:
            values.append(f"{effect.name} {value:g} s" if effect.changes == "boundary" else f"{effect.name} x {value:g}")
            meanings.append(effect.meaning)
    if values:
        source = f"fitted to published training steps (docs/accuracy.md): {'; '.join(meanings)}"
        assumptions.append(Assumption("training_effects", ", ".join(values), source, "catalogue/training_effects.yaml"))
    return Effects(**found)


def effects_of_others(
    wanted: str | Mapping[str, float], devices: Sequence[Device], profile: str, strategy: str, gpus: int, assumptions: list[Assumption]
) -> tuple[Effects, ...]:
    """The effects on every kind of GPU but the first; what differs from the first's is an assumption that names the device."""
    found = []
    first = [one.value for one in assumptions if one.name == "training_effects"]
    for device in devices[1:]:
        own: list[Assumption] = []
        found.append(effects_of(wanted, device, profile, strategy, gpus, own))
        assumptions += [replace(one, value=f"{one.value} ({device.name})") for one in own if one.value not in first]
    return tuple(found)
