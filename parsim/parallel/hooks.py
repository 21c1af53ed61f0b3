"""The words in which a strategy speaks to the lowering.

A strategy is asked at the moments that PyTorch's hooks name (before and after a unit's forward and backward, when a
gradient is ready, at the optimizer step) and answers by calling an `Emitter`: start a collective, wait for one,
allocate or free a tensor. It knows bytes and order, never seconds; the lowering knows seconds, never why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from parsim.kernel import Kernel
from parsim.model.model import Operator, Parameter

START = -1
"""Handle of the moment a pass begins: the end of whatever the compute lane did before."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter tensor of a rank: its full name and its elements after tensor parallelism."""

    name: str
    parameter: Parameter
    count: int
    block: int
    """index of the block that holds it"""
    product: bool = True
    """a matrix product reads it (an embedding that only looks rows up is not cast by autocast)"""
    operator: str = ""
    """operator of a layer that it belongs to; empty for embedding and head"""
    part: str = ""
    """embedding | head | router: parts whose products may stay bf16 under fp8; empty elsewhere"""


@dataclass(frozen=True)
class Unit:
    """What a sharded strategy gathers and reduces at once: the parameters of one or several blocks."""

    name: str
    blocks: tuple[int, ...]
    """indices of the model's blocks, ascending"""
    weights: tuple[Weight, ...]

    @property
    def count(self) -> int:
        """Elements of the unit on one tensor-parallel rank."""
        return sum(weight.count for weight in self.weights)


class Emitter(Protocol):
    """What a strategy may do at a hook."""

    @property
    def first(self) -> bool:
        """The step's first micro-batch: gradients are written, not accumulated."""

    @property
    def last(self) -> bool:
        """The step's last micro-batch: gradients are complete after it."""

    def collective(  # noqa: PLR0913
        self,
        kind: str,
        axis: str,
        size: int,
        name: str,
        *,
        lane: str = "",
        blocking: bool = False,
        after: Sequence[int] | None = None,
        allocates: Sequence[str] = (),
        frees: Sequence[str] = (),
    ) -> int:
        """Issue a collective of `size` bytes along `axis` and return its handle.

        `blocking` holds the compute lane too. `after` = handles that must have ended (default: the compute so far).
        `allocates` happen at its start, `frees` at its end.
        """
        ...

    def copy(
        self,
        kind: str,
        size: int,
        name: str,
        *,
        after: Sequence[int] | None = None,
        behind: Sequence[str] = (),
        allocates: Sequence[str] = (),
        frees: Sequence[str] = (),
    ) -> int:
        """Move `size` bytes between this rank and its host, on the lane of that `kind`, and return a handle.

        d2h and h2d copy over the host's links; nvme_read and nvme_write between host memory and drives; cpu_step reads and
        writes host memory (the optimizer on the CPU). `behind` = lanes whose last transfer so far must have ended.
        """
        ...

    def wait(self, *handles: int) -> None:
        """The next compute waits for these."""
        ...

    def wait_for_lane(self, lane: str) -> None:
        """The next compute waits for everything issued on `lane` so far."""
        ...

    def mark(self) -> int:
        """Handle of the end of the compute issued so far in this pass."""
        ...

    def compute(self, name: str, kind: str, kernels: Sequence[Kernel], allocates: Sequence[str] = (), frees: Sequence[str] = ()) -> None:
        """Run kernels on the compute lane; allocate before, free after."""
        ...

    def tensor(self, name: str, size: int, category: str, *, per_micro_batch: bool = False) -> str:
        """Declare a tensor (bytes) so that it can be allocated and freed by name; declaring twice is harmless."""
        ...


class Sharding(Protocol):
    """How a data-parallel strategy stores model states and when it communicates. `N` is the data-parallel size.

    The lowering calls the hooks in this order; `units` cover a stage's blocks.
    """

    def resident(self, at: Emitter) -> list[str]:
        """Declare what stays on the rank between steps (parameters, optimizer state, buffers); return the names."""
        ...

    def step_begins(self, at: Emitter) -> None: ...
    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None: ...
    def before_forward(self, unit: Unit, at: Emitter) -> None: ...
    def after_forward(self, unit: Unit, at: Emitter) -> None: ...
    def before_backward(self, unit: Unit, at: Emitter) -> None: ...
    def before_gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """The gradients of these (trainable) weights are about to be computed."""
        ...

    def gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """They have just been computed."""
        ...

    def after_backward(self, unit: Unit, at: Emitter) -> None: ...
    def pass_ends(self, at: Emitter, *, backward: bool) -> None: ...
    def finish_gradients(self, at: Emitter) -> None:
        """All micro-batches are done: whatever reduction is left."""
        ...

    def step(self, at: Emitter) -> None:
        """The optimizer."""
        ...

    def distribute(self, at: Emitter) -> None:
        """Updated parameters go where they are needed."""
        ...


class OperatorHooks(Protocol):
    """Tensor parallelism: communication between operators."""

    def before_forward(self, operator: Operator, at: Emitter) -> None: ...
    def after_forward(self, operator: Operator, at: Emitter) -> None: ...
    def before_input(self, operator: Operator, at: Emitter) -> None: ...
    def after_input(self, operator: Operator, at: Emitter) -> None: ...
    def before_weight(self, operator: Operator, at: Emitter) -> None: ...
    def after_weight(self, operator: Operator, at: Emitter) -> None: ...
    def at_step(self, at: Emitter) -> None: ...
