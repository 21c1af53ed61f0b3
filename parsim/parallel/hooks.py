"""The words in which a strategy speaks to the lowering.

A strategy is asked at the moments that PyTorch's hooks name (before and after a unit's forward and backward, when a
gradient is ready, at the optimizer step) and answers by calling an `Emitter`: start a collective, wait for one,
allocate or free a tensor. It knows bytes and order, never seconds; the lowering knows seconds, never why.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from parsim.kernel import Kernel
from parsim.model.model import Block, Operator, Parameter
from parsim.model.tape import Step

LAUNCHES = "launch"
"""lane of the thread that launches kernels"""
COUNTS = "wait for the counts of tokens"
"""what a device does until the host knows how many tokens come, and has launched what is done with them"""
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
    """embedding | head | router: parts whose products may stay bf16 under fp8; layer: of one that is kept whole; empty elsewhere"""
    table: bool = False
    """its rows are looked up by token"""

    @property
    def trains(self) -> bool:
        """Whether it gets a gradient."""
        return self.parameter.trainable and not self.parameter.buffer


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

    def beside(
        self, name: str, kernels: Sequence[Kernel], *, stream: str, after: Sequence[int] | None = None, kind: str = "data_comm"
    ) -> int:
        """Run kernels beside the compute, one after another in the order of their `stream`, and return a handle.

        They take their time whatever runs meanwhile, and slow the compute. `after` as for collectives; `kind`: their class of time.
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

    def idle(self, name: str, kind: str, seconds: float) -> None:
        """The device does nothing for `seconds`, between the compute so far and what follows."""
        ...

    def compute(self, name: str, kind: str, kernels: Sequence[Kernel], allocates: Sequence[str] = (), frees: Sequence[str] = ()) -> None:
        """Run kernels on the compute lane; allocate before, free after. Empty: more of what ran last, under its name, of its kind."""
        ...

    def tensor(self, name: str, size: int, category: str, *, per_micro_batch: bool = False, stream: str = "") -> str:
        """Declare a tensor (bytes) so that it can be allocated and freed by name; declaring twice is harmless.

        `stream`: the one that allocates it where that is not the compute's; PyTorch's allocator keeps what each has freed apart.
        """
        ...


class Sharding(Protocol):
    """How a data-parallel strategy stores model states and when it communicates.

    The hooks are called in this order; `units` cover a stage's blocks. `parsim.parallel.replicated.Replicated` answers all of them for
    plain replicas, and the other strategies override what differs.
    """

    shares_gradients: ClassVar[bool]
    """a rank has only its share of the reduced gradients when it steps: their norm is that of all ranks"""

    def resident(self, at: Emitter) -> list[str]:
        """Declare what stays on the rank between steps (parameters, optimizer state, buffers); return the names."""
        ...

    def state(self) -> Hashable:
        """What the next pass depends on besides its place in the step (units that are still gathered)."""
        ...

    def restore(self, state: Hashable) -> None:
        """Go to the state that a repeated pass would have left."""
        ...

    def step_begins(self, at: Emitter) -> None:
        """Before the first forward: gather what the last step left behind."""
        ...

    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None:
        """A forward or backward over `units` (in the order they will run) begins."""
        ...

    def before_forward(self, unit: Unit, at: Emitter) -> None:
        """Before a unit's forward: gather weights."""
        ...

    def after_forward(self, unit: Unit, at: Emitter) -> None:
        """After a unit's forward: free weights."""
        ...

    def before_backward(self, unit: Unit, at: Emitter) -> None:
        """Before a unit's backward: gather weights."""
        ...

    def before_gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """The gradients of these (trainable) weights are about to be computed."""
        ...

    def gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """The gradients of these weights have just been computed."""
        ...

    def after_backward(self, unit: Unit, at: Emitter) -> None:
        """After a unit's backward: reduce gradients, free weights."""
        ...

    def pass_ends(self, at: Emitter, *, backward: bool) -> None:
        """The pass has ended on this rank."""
        ...

    def finish_gradients(self, at: Emitter) -> None:
        """All micro-batches are done: whatever reduction is left."""
        ...

    def step(self, at: Emitter) -> None:
        """The optimizer updates what this rank keeps."""
        ...

    def distribute(self, at: Emitter) -> None:
        """Updated parameters go where they are needed."""
        ...


class OperatorHooks(Protocol):
    """What one axis does between the operators of a pass.

    There is one object for every pass and axis; the axes are asked in the order of `Plan.operator_hooks`.
    """

    pending: list[int]
    """handles of transfers that an operator has started and a later one of the same pass waits for"""

    def inside(self, number: int, block: Block) -> None:
        """The operators that follow are of this block of the model; said only where blocks differ in the type of their products or in
        the load of their experts.
        """
        ...

    def runs(self, operator: Operator) -> bool:
        """Whether `run` runs the kernels of this operator, because messages stand between them."""
        ...

    def run(self, step: Step, kind: str, at: Emitter, allocates: Sequence[str], frees: Sequence[str]) -> None:
        """The kernels of a forward, recompute or input step, as compute of this `kind`; `allocates` first, `frees` last."""
        ...

    def before_forward(self, operator: Operator, at: Emitter) -> None: ...
    def after_forward(self, operator: Operator, at: Emitter) -> None: ...
    def before_input(self, operator: Operator, at: Emitter) -> None:
        """Before the gradient of the operator's input."""
        ...

    def after_input(self, operator: Operator, at: Emitter) -> None: ...
    def before_weight(self, operator: Operator, at: Emitter) -> None:
        """Before the gradient of the operator's weights."""
        ...

    def after_weight(self, operator: Operator, at: Emitter) -> None: ...
    def at_step(self, weights: Sequence[Weight], at: Emitter) -> None:
        """All micro-batches are done: sum the gradients of a stage's `weights` of which each rank of the axis has a part."""
        ...


@dataclass
class SilentHooks(OperatorHooks):
    """Says nothing between operators: an axis derives its hooks from this and overrides where it has something to say."""

    pending: list[int] = field(default_factory=list, kw_only=True)

    def inside(self, number: int, block: Block) -> None:
        """All the same."""

    def runs(self, operator: Operator) -> bool:
        """The operator's kernels run undisturbed."""
        return False

    def run(self, step: Step, kind: str, at: Emitter, allocates: Sequence[str], frees: Sequence[str]) -> None:
        """Never asked."""

    def before_forward(self, operator: Operator, at: Emitter) -> None:
        """Nothing."""

    def after_forward(self, operator: Operator, at: Emitter) -> None:
        """Nothing."""

    def before_input(self, operator: Operator, at: Emitter) -> None:
        """Nothing."""

    def after_input(self, operator: Operator, at: Emitter) -> None:
        """Nothing."""

    def before_weight(self, operator: Operator, at: Emitter) -> None:
        """Nothing."""

    def after_weight(self, operator: Operator, at: Emitter) -> None:
        """Nothing."""

    def at_step(self, weights: Sequence[Weight], at: Emitter) -> None:
        """Nothing."""
