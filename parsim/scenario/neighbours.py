"""Scenarios that differ from one scenario in their `training` and `parallel` keys only, built without reading anything again.

What a neighbour has in common with its base is taken from there: model, cluster, devices, software profile. What it changes is
checked by the same rules: the two sections by the schema, the rest by the same builder. A neighbour equals the scenario that
`Scenario.with_overrides` gives, and is refused with the same findings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from parsim.errors import Finding
from parsim.scenario.build import Builder
from parsim.scenario.built import Built
from parsim.scenario.load import COMMAND_LINE, filled
from parsim.scenario.parallel import ParallelSection
from parsim.scenario.scenario import Scenario, flow
from parsim.scenario.software import Assumption, SoftwareProfile
from parsim.scenario.support import unsupported
from parsim.scenario.training import TrainingSection

if TYPE_CHECKING:
    from parsim.hardware.device import Device
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.model.model import Model
    from parsim.parallel.runtime import Runtime

T = TypeVar("T")
Changes = Mapping[str, Any]
"""dotted long keys below `training` and `parallel` -> values as YAML would give them"""
SECTIONS: dict[str, type[BaseModel]] = {"training": TrainingSection, "parallel": ParallelSection}


def arguments(changes: Changes) -> tuple[str, ...]:
    """The same changes as command-line arguments."""
    return tuple(f"{path}={flow(value)}" for path, value in changes.items())


class Neighbours:
    """The scenarios around `base`."""

    def __init__(self, base: Scenario) -> None:
        self.base = base
        self._sections: dict[tuple[str, str], tuple[BaseModel, dict[str, Any]] | None] = {}
        self._known: dict[str, dict[object, _Remembered]] = {}
        """by what differs from the base outside of `SECTIONS`, which every step of the builder may read"""
        self._arguments: dict[tuple[str, str], str] = {}

    def _argument(self, path: str, value: Any) -> str:
        key = (path, repr(value))
        if (argument := self._arguments.get(key)) is None:
            argument = self._arguments[key] = f"{COMMAND_LINE}{path}={flow(value)}"
        return argument

    def scenario(self, changes: Changes) -> Scenario:
        """The base with `changes` on top. Raises `ScenarioError` with every problem, as `with_overrides` does."""
        written, tree, settings = dict(self.base.written), dict(self.base.tree), {}
        for name in SECTIONS:
            own = {path: value for path, value in changes.items() if path.startswith(f"{name}.")}
            section = _laid(self.base.written.get(name) or {}, own, len(name) + 1)
            checked = self._section(name, section)
            if checked is None:
                return self.base.with_overrides(*arguments(changes))
            written[name] = section
            settings[name], tree[name] = checked
        if any(path.partition(".")[0] not in SECTIONS for path in changes):
            return self.base.with_overrides(*arguments(changes))
        origins = {**self.base.origins, **{path: (self._argument(path, value), None, None) for path, value in changes.items()}}
        changed = replace(self.base, settings=self.base.settings.model_copy(update=settings), tree=tree, written=written, origins=origins)
        laid = (*self.base.changes, *(self._argument(path, value).removeprefix(COMMAND_LINE) for path, value in changes.items()))
        return replace(changed, changes=laid, _references={})

    def _section(self, name: str, written: Mapping[str, Any]) -> tuple[BaseModel, dict[str, Any]] | None:
        """The checked section and its tree with every default; None if something is wrong with it."""
        key = (name, json.dumps(written, sort_keys=True, default=repr))
        if key not in self._sections:
            try:
                section = SECTIONS[name].model_validate(written)
            except ValidationError:
                self._sections[key] = None
            else:
                refused = unsupported({name: written})
                self._sections[key] = None if refused else (section, filled(SECTIONS[name], written))
        return self._sections[key]

    def built(self, changes: Changes) -> Built:
        """The domain objects of a neighbour. Raises as `parsim.scenario.build.build` does."""
        outside = repr([change for change in changes.items() if change[0].partition(".")[0] not in SECTIONS])
        return _NeighbourBuilder(self.scenario(changes), self._known.setdefault(outside, {})).built()


def _laid(section: Mapping[str, Any], changes: Changes, cut: int) -> dict[str, Any]:
    """`section` with values laid over it, the key's first `cut` letters left out; nothing is changed in place."""
    tree: dict[str, Any] = dict(section)
    for path, value in changes.items():
        *above, last = path[cut:].split(".")
        at = tree
        for word in above:
            below = at.get(word)
            at[word] = dict(below) if isinstance(below, Mapping) else {}
            at = at[word]
        at[last] = value
    return tree


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a step of the builder gave, and what it recorded."""

    result: Any
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _RememberingProfile(SoftwareProfile):
    """A profile whose records are made once."""

    records: dict[tuple[str, str, str], Assumption] = field(default_factory=dict)

    def assumption(self, name: str, value: object, key: str) -> Assumption:
        """See `SoftwareProfile.assumption`."""
        record = (name, str(value), key)
        if record not in self.records:
            self.records[record] = SoftwareProfile.assumption(self, name, value, key)
        return self.records[record]


class _NeighbourBuilder(Builder):
    """A build that remembers the steps which neighbours have in common, by everything that they read.

    Neighbours have one cluster section, so machine and GPUs differ by what the job works with beyond its devices only.
    """

    def __init__(self, scenario: Scenario, known: dict[object, _Remembered]) -> None:
        super().__init__(scenario)
        self._known = known

    def _once(self, key: object, step: Callable[[], T]) -> T:
        """The result of `step`, with its assumptions and warnings; failures are not remembered."""
        if (remembered := self._known.get(key)) is None:
            assumptions, warnings = len(self.assumptions), len(self.warnings)
            result = step()
            remembered = self._known[key] = _Remembered(result, tuple(self.assumptions[assumptions:]), tuple(self.warnings[warnings:]))
        else:
            self.assumptions += remembered.assumptions
            self.warnings += remembered.warnings
        return remembered.result  # type: ignore[no-any-return]

    def _cluster(self) -> Cluster:
        read = super()._cluster

        def step() -> tuple[Cluster, dict[str, Any]]:
            return read(), self.devices

        cluster, self.devices = self._once(("cluster", self._beyond_devices()), step)
        return cluster

    def _gpus(self, cluster: Cluster) -> tuple[int, ...]:
        read = super()._gpus
        return self._once(("gpus", self._beyond_devices()), lambda: read(cluster))

    def _kinds(self, cluster: Cluster, gpus: Sequence[int]) -> list[Device]:
        read = super()._kinds
        return self._once(("kinds", self._beyond_devices()), lambda: read(cluster, gpus))

    def _model(self, divisor: int = 0) -> Model:
        training, tensor = self.settings.training, self.settings.parallel.tensor.size
        lengths = (
            training.mean_sequence_length,
            training.document_length,
            training.target_sequence_length,
            training.images,
            training.image_size,
        )
        key = ("model", divisor, tensor, training.loss.kind, training.sequence_length, *map(str, lengths))

        read = super()._model

        def step() -> tuple[Model, str]:
            return read(divisor), self.input_dtype

        model, self.input_dtype = self._once(key, step)
        return model

    def _profile(self, model: Model) -> SoftwareProfile:
        sizes = (self.settings.parallel.tensor.size > 1, self.settings.parallel.context.size > 1, self.settings.parallel.pipeline.size > 1)
        strategy, offload = self.settings.parallel.data.strategy, self.settings.training.offload.optimizer

        read = super()._profile

        def step() -> SoftwareProfile:
            plain = read(model)
            name = ("read", plain.name)
            same = self._known.get(name)
            if same is None:
                values = {key: getattr(plain, key) for key in SoftwareProfile.__dataclass_fields__}
                same = self._known[name] = _Remembered(_RememberingProfile(**values), (), ())
            return same.result  # type: ignore[no-any-return]

        return self._once(("profile", sizes, strategy, offload, model.heads > 0), step)

    def _runtime(self, profile: SoftwareProfile, devices: list[Device], *, logits: bool) -> Runtime:
        resolve = super()._runtime
        return self._once(("runtime", profile.name, self._beyond_devices(), logits), lambda: resolve(profile, devices, logits=logits))
