"""What `build` returns: the objects the other rooms work with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding
from parsim.parallel.settings import Parallelism, Runtime, Training
from parsim.scenario.schema import ReportSection
from parsim.scenario.software import Assumption

if TYPE_CHECKING:
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.hardware.nccl.inputs import Settings
    from parsim.hardware.transfers import Background
    from parsim.model.model import Model
    from parsim.scenario.scenario import Scenario


@dataclass(frozen=True)
class Built:
    """A scenario as domain objects, every auto resolved."""

    scenario: Scenario
    model: Model
    cluster: Cluster
    training: Training
    parallelism: Parallelism
    runtime: Runtime
    gpus: tuple[int, ...]
    """GPU of each rank"""
    slow: Mapping[int, float]
    """rank -> relative compute speed"""
    batch_arithmetic: str
    """how the third batch number follows from the other two"""
    bytes_per_parameter: str
    """``2+2+4+8 = 16 B/parameter``"""
    memory_reserve: int
    """memory of every device that must stay free [B]"""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Finding, ...]
    report: ReportSection
    collectives: Settings | None = None
    """how NCCL's model prices collectives; None: rings and trees on the graph's capacities"""
    interference: str = "off"
    """off | simple | full"""
    seed: int = 0
    tokens: float | None = None
    """of the whole training; None: not asked about"""
    steps_to_train: int | None = None
    """optimizer steps of the whole training; None: the scenario does not say"""
    economics: Mapping[str, Any] | None = None
    """facts for `parsim.report.economics.economics`; None: nobody asked"""
    background: tuple[Background, ...] = ()
    """traffic of other jobs"""

    @property
    def used_gpus(self) -> int:
        """Ranks."""
        return len(self.gpus)
