"""The two ancestors of DDP: torch.nn.DataParallel and a parameter server.

DataParallel (one process, one model): GPU 0 scatters the batch, broadcasts its weights to all GPUs every step,
gathers all outputs, computes the loss, scatters the outputs' gradients, sums all gradients on itself and alone
steps the optimizer. Nothing overlaps, and GPU 0's link carries (n-1)(2 P e + outputs).

Parameter server (Li et al. 2014), synchronous, the server on rank 0: workers push their gradients when backward has
ended, the server sums and steps, workers pull the weights: 2 (n-1) P e through the server's link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsim.kernel import Memory
from parsim.parallel.groups import DATA
from parsim.parallel.hooks import Emitter, Unit, Weight
from parsim.parallel.optimizer import weight_bytes
from parsim.parallel.replicated import LANE, Replicated


@dataclass
class _Central(Replicated):
    """Rank 0 owns the truth. `steps` says whether this rank is rank 0."""

    output_bytes: int = 0
    """bytes of one replica's model output (DataParallel gathers it)"""
    input_bytes: int = 0
    """bytes of one replica's input"""

    @property
    def count(self) -> int:
        """Trainable elements of the model."""
        return sum(w.count for w in self._trainable)

    def _push(self, at: Emitter) -> None:
        size = self.size * self.count * self.training.precision.gradients
        inbox = at.tensor("gathered gradients", self.count * self.training.precision.gradients if self.steps else 0, "buffers")
        at.collective("gather", DATA, size, "gradients to rank 0", lane=LANE, blocking=True, allocates=[inbox], frees=[inbox])
        if self.steps:
            add = Memory(3.0 * (self.size - 1) * self.count * self.training.precision.gradients)
            at.compute("sum gradients", "compute", (add,))

    def _pull(self, at: Emitter) -> None:
        size = self.size * self.count * self.training.precision.parameters
        at.collective("scatter", DATA, size, "weights from rank 0", lane=LANE, blocking=True)


@dataclass
class DataParallelModule(_Central):
    """torch.nn.DataParallel; see the module's text."""

    def resident(self, at: Emitter) -> list[str]:
        """GPU 0 holds the module; the others receive a replica in every forward."""
        return super().resident(at) if self.steps else []

    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None:
        """Forward: scatter the input, broadcast the weights. Backward: scatter the outputs' gradients."""
        if backward:
            size = self.size * self.output_bytes
            at.collective("scatter", DATA, size, "scatter output gradients", lane=LANE, blocking=True, frees=self._inbox(at))
            return
        replica = [] if self.steps else [self._weight(w, at) for w in self.weights]
        at.collective("scatter", DATA, self.size * self.input_bytes, "scatter inputs", lane=LANE, blocking=True)
        frozen = sum(weight_bytes(w, self.training) for w in self.weights if not (w.trains or w.parameter.buffer))
        weights = self.size * (
            sum(w.count for w in self.weights if w.trains or w.parameter.buffer) * self.training.precision.parameters + frozen
        )
        at.collective("scatter", DATA, weights, "replicate weights", lane=LANE, blocking=True, allocates=replica)

    def pass_ends(self, at: Emitter, *, backward: bool) -> None:
        """Forward: gather all outputs on GPU 0. Backward: sum the gradients there and drop the replicas."""
        if not backward:
            size = self.size * self.output_bytes
            at.collective("gather", DATA, size, "gather outputs", lane=LANE, blocking=True, allocates=self._inbox(at))
            if self.training.backward:
                return
            at.compute("", "compute", (), frees=self._inbox(at))
        else:
            self._push(at)
        if not self.steps:
            gradients = [self._gradient(w, at) for w in self._trainable] if backward else []
            at.compute("", "compute", (), frees=[*(self._weight(w, at) for w in self.weights), *gradients])

    def _inbox(self, at: Emitter) -> list[str]:
        return [at.tensor("gathered outputs", self.size * self.output_bytes, "buffers")] if self.steps else []

    def before_gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """Replicas are new in every pass, and so are their gradients."""
        if self.steps:
            super().before_gradient(unit, weights, at)
        else:
            at.compute("", "compute", (), allocates=[self._gradient(w, at) for w in weights])

    def gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """Only GPU 0 accumulates."""
        if self.steps:
            super().gradient(unit, weights, at)

    def step(self, at: Emitter) -> None:
        """Only GPU 0 steps."""
        if self.steps:
            super().step(at)


@dataclass
class ParameterServer(_Central):
    """Synchronous parameter server on rank 0; see the module's text."""

    def finish_gradients(self, at: Emitter) -> None:
        """Workers push their gradients to the server, which sums them."""
        if self.training.backward:
            self._push(at)

    def distribute(self, at: Emitter) -> None:
        """Workers pull the stepped weights from the server."""
        if self.training.backward and self.training.step:
            self._pull(at)
