"""The expert that every token visits, beside the messages of the others (--moe-shared-expert-overlap).

Megatron-LM (megatron/core/transformer/moe/shared_experts.py, called by token_dispatcher.py) runs it in two halves on a stream of its own:
the first product and the activation start with dispatch, the second product with combine. Backward runs the second product's gradients
beside combine's, and those of the first beside dispatch's, which start when the routed experts have theirs:

    tokens          router | dispatch      | experts | combine       | sum
    shared expert          | up, activation|         | down          |

Its products gather and scatter tokens by calls of their own (parallel_mode None): what was gathered is kept. Dispatch and combine become
two operators each here, with the shared expert's between them: `Departure` starts the messages and `Arrival` waits for them, in backward
the other way round. The multiprocessors do one thing at a time: where the shared expert takes longer than the messages, the routed experts
begin later by the rest, which is what two streams of products that fill a device share out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from parsim.kernel import Memory
from parsim.model.elementwise import Activation, GatedActivation
from parsim.model.exchange import Way
from parsim.model.linear import Linear
from parsim.model.mixture import Combine, Dispatch
from parsim.model.model import Block, Layer, Model, Operator, Work
from parsim.model.workload import Split, Workload

SHARED = "shared_experts"
"""`Operator.selective` of what a shared expert consists of"""
_NOTHING = (Memory(0.0, launches=0),)
"""a step that only starts messages, or waits for them"""


@dataclass(frozen=True, slots=True)
class Departure(Layer):
    """What stands before the messages of a dispatch or combine, or behind those of its gradients; `inputs` are those of `whole`."""

    whole: Dispatch | Combine
    split: Split = "replicated"
    selective: str = "moe"

    def training_work(self, at: Workload) -> Work:
        """What travels is the result: buffers that a kernel copies from on arrival, or the tensor that arrives."""
        there, back = ways(self.whole, at)
        work = self.whole.training_work(at)
        return work._replace(
            forward=there.before or _NOTHING,
            backward_input=back.behind or _NOTHING,
            output=there.buffers if there.behind else work.output,
            forward_temporary=0 if there.behind else there.buffers,
            backward_temporary=0 if back.behind else back.buffers,
        )


@dataclass(frozen=True, slots=True)
class Arrival(Layer):
    """What stands behind the messages of a dispatch or combine, or before those of its gradients."""

    whole: Dispatch | Combine
    split: Split = "replicated"
    selective: str = "moe"

    def training_work(self, at: Workload) -> Work:
        """A view of what travelled, where nothing is copied."""
        there, back = ways(self.whole, at)
        arrived = self.whole.training_work(at).output if there.behind else 0
        travels = back.buffers if back.behind else 0
        return Work(there.behind or _NOTHING, back.before or _NOTHING, output=arrived, input_gradients=(travels,))


def ways(whole: Dispatch | Combine, at: Workload) -> tuple[Way, Way]:
    """How tokens travel in forward, and their gradients in backward."""
    exchange = whole.exchange(at)
    return (exchange.leaving, exchange.returning) if isinstance(whole, Dispatch) else (exchange.returning, exchange.leaving)


def exchanged(operator: Operator) -> Dispatch | Combine | None:
    """The dispatch or combine that the operator is, or a half of; None: it is another one."""
    if isinstance(operator, Departure | Arrival):
        return operator.whole
    return operator if isinstance(operator, Dispatch | Combine) else None


def dispatches(operator: Operator) -> bool:
    """Whether tokens leave for their experts in this operator."""
    return isinstance(operator, Dispatch) or (isinstance(operator, Departure) and isinstance(operator.whole, Dispatch))


def has_shared_expert(model: Model) -> bool:
    """Whether some mixture has an expert that every token visits."""
    return any(operator.selective == SHARED for operator in model.distinct_operators)


def overlap_shared_experts(model: Model) -> Model:
    """The model with shared experts beside the messages of the others."""
    return replace(model, blocks=tuple(_overlapped(block) for block in model.blocks))


@lru_cache(maxsize=256)
def _overlapped(block: Block) -> Block:
    """The block in that order; one without shared expert as it is."""
    operators = block.operators
    shared = [operator for operator in operators if operator.selective == SHARED]
    if not shared:
        return block
    middle = 1 + next(place for place, operator in enumerate(shared) if isinstance(operator, Activation | GatedActivation))
    beside: dict[type[Layer], list[Operator]] = {Dispatch: shared[:middle], Combine: shared[middle:]}
    rows: list[Operator] = []
    for operator in operators:
        if isinstance(operator, Dispatch | Combine):
            rows += _halves(operator, beside[type(operator)])
        elif operator.selective != SHARED:
            rows.append(operator)
    return replace(block, operators=tuple(rows), registration=block.registration or tuple(block.by_operator))


def _halves(whole: Dispatch | Combine, between: Sequence[Operator]) -> list[Operator]:
    """The two halves of `whole`, with operators between them."""
    travels = f"{whole.name}.travelling"
    products = [replace(operator, apart=True) if isinstance(operator, Linear) else operator for operator in between]
    return [
        Departure(whole.name, whole.inputs, travels, whole),
        *products,
        Arrival(f"{whole.name}.arrival", (travels,), whole.output, whole),
    ]
