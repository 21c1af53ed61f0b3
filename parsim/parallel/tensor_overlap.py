"""Products of tensor parallelism in pieces, with the pieces of their collectives beside them.

Transformer Engine's user buffers (``overlap: full``; ``pytorch/module/base.py``: initialize_ub) exchange tokens in a ring through the
copy engines before a product, and reduce and scatter the parts of a result while the next is computed. PyTorch's asynchronous tensor
parallelism (``overlap: async``; ``torch/distributed/_symmetric_memory``) copies pieces between neighbours in both cases, t of each.

==================  ======================================================  ==========================================
product             user buffers                                            asynchronous tensor parallelism
==================  ======================================================  ==========================================
column forward      ring: t pieces of the tokens, gather beside all but     the same
                    the last
row forward         pipeline: parts of the features, all but the first      t pieces of the tokens, exchange beside all
                    beside the scatter of the one before                    but the first, then a sum of t parts
row input gradient  ring, as column forward                                 the same
column input        bulk: whole product beside the gather of the saved      as row forward; whole products where several read
gradient            input                                                   the input, whose sum is scattered
column weight       bulk: whole product beside the scatter of the input's   whole product, after a gather of the saved
gradient            gradient                                                input
==================  ======================================================  ==========================================

Only the four projections of a layer have user buffers (qkv, proj, fc1, fc2); embedding, head and experts keep plain collectives.
torch.compile finds a product in front of a scatter (``torch/_inductor/fx_passes/micro_pipeline_tp.py``: _find_producer_matmul), not the sum
of the gradients that queries, keys and values, or gate and up, have for their common input.
Closed forms: `parsim.theory.communication.gather_and_product_time`, `product_and_scatter_time`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from parsim.kernel import Gemm, Kernel, Memory
from parsim.model.linear import Linear
from parsim.model.model import Operator
from parsim.model.tape import Step
from parsim.model.workload import Workload
from parsim.parallel.groups import TENSOR, USER_BUFFERS
from parsim.parallel.hooks import Emitter
from parsim.parallel.settings import TensorParallel

BUFFERED = ("query_key_value", "attention_output", "mlp_up", "mlp_down")
"""operators that user buffers are made for: qkv, proj, fc1 and fc2 (Transformer Engine, initialize_ub)"""


BUFFERS = {"gather": 6, "scatter": 4}
"""buffers of tokens x hidden that are registered, by what happens in them; those of gathers have one byte per element under fp8"""


def user_buffer_bytes(workload: Workload, hidden: int, settings: TensorParallel) -> int:
    """Memory of a rank's user buffers, outside PyTorch's allocator [B]."""
    if settings.overlap != "full" or settings.size == 1:
        return 0
    gathered = 1 if workload.dtype == "fp8" else workload.element
    return workload.tokens * hidden * (BUFFERS["gather"] * gathered + BUFFERS["scatter"] * workload.element)


@dataclass(frozen=True, slots=True)
class OverlappedProducts:
    """Runs products with their collectives for one workload; says which products those are."""

    workload: Workload
    settings: TensorParallel

    def covers(self, operator: Operator, *, phase: str) -> bool:
        """Whether the operator's collective of this phase (forward or input) runs beside its own product."""
        mode = self.settings.overlap
        if mode not in ("full", "async") or not isinstance(operator, Linear) or phase not in ("forward", "input"):
            return False
        if mode == "full":
            return operator.name in BUFFERED and (phase == "forward" or operator.split == "row") and operator.split in ("column", "row")
        summed = phase == "input" and operator.split == "column" and len(operator.out_features) > 1
        return operator.split in ("column", "row", "vocab") and not operator.apart and not summed

    def run(self, step: Step, size: int, kind: str, at: Emitter, allocates: Sequence[str], frees: Sequence[str]) -> None:
        """The kernels of a step that `covers` covers, as compute of this `kind`; its collective moves `size` bytes."""
        operator = step.operator
        gemm = next((kernel for kernel in step.kernels if isinstance(kernel, Gemm)), None)
        at.compute("", kind, (), allocates=allocates)
        name = operator.name if step.phase == "forward" else f"{operator.name} grad"

        def compute(kernels: Sequence[Kernel]) -> None:
            at.compute("", kind, kernels)

        if gemm is not None:
            product = step.kernels.index(gemm)
            compute(step.kernels[:product])
            gathers = (operator.split == "row") != (step.phase == "forward")
            if gathers:
                self._gather(gemm, size, name, at, compute)
            elif self.settings.overlap == "full":
                self._pipeline(gemm, size, name, at, compute)
            else:
                self._exchange(gemm, size, name, at, compute)
            compute(step.kernels[product + 1 :])
        at.compute("", kind, (), frees=frees)

    def _gather(self, gemm: Gemm, size: int, name: str, at: Emitter, compute: Callable[[Sequence[Kernel]], None]) -> None:
        """A piece of the tokens is there from the start; every other one comes while the one before it is multiplied."""
        piece = replace(gemm, m=-(-gemm.m // self.settings.size))
        handle = at.collective("all_gather", TENSOR, size, name, lane=USER_BUFFERS)
        compute([replace(piece, batch=self.settings.size - 1)])
        at.wait(handle)
        compute([piece])

    def _pipeline(self, gemm: Gemm, size: int, name: str, at: Emitter, compute: Callable[[Sequence[Kernel]], None]) -> None:
        """A part of the features is reduced and scattered while the next is computed; communication takes multiprocessors."""
        parts = self.settings.overlap_splits
        piece = replace(gemm, n=-(-gemm.n // parts), occupied=self.settings.overlap_sms)
        compute([piece])
        if parts > 1:
            handle = at.collective("reduce_scatter", TENSOR, size - size // parts, name, lane=USER_BUFFERS)
            compute([replace(piece, batch=parts - 1)])
            at.wait(handle)
        at.collective("reduce_scatter", TENSOR, size // parts, f"{name} last part", blocking=True)

    def _exchange(self, gemm: Gemm, size: int, name: str, at: Emitter, compute: Callable[[Sequence[Kernel]], None]) -> None:
        """A rank computes the others' tokens first and its own last; then it sums what the others have sent."""
        ranks = self.settings.size
        piece = replace(gemm, m=-(-gemm.m // ranks))
        compute([piece])
        handle = at.collective("reduce_scatter", TENSOR, size, name, lane=USER_BUFFERS)
        compute([replace(piece, batch=ranks - 1)])
        at.wait(handle)
        compute([Memory(size + size / ranks)])
