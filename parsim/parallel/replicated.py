"""Model states kept whole on every rank: single GPU, DDP, and the parts ZeRO-1 shares with them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from parsim.kernel import Kernel, Memory
from parsim.parallel.buckets import Bucket
from parsim.parallel.groups import DATA
from parsim.parallel.hooks import Emitter, Sharding, Unit, Weight
from parsim.parallel.kronecker import BY_MATRIX, Preconditioned, Preconditioner
from parsim.parallel.muon import (
    Matrix,
    MatrixLayout,
    NewtonSchulz,
    is_matrix,
    momentum_kernels,
    tensors_of,
    update_kernels,
    workspace,
)
from parsim.parallel.narrow_weights import narrow_elements, stored_narrow
from parsim.parallel.offload import host_buffers, host_gradient, place, step_on_host
from parsim.parallel.optimizer import (
    State,
    before_update,
    behind_update,
    flat_states,
    masters,
    states,
    step_kernels,
    step_temporary,
    update,
    weight_bytes,
)
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import DataParallel
from parsim.parallel.training import KEPT_LAYER, Optimizer, Training

LANE = DATA
"""queue of the collectives that gradients and weights travel in"""


def _stepped_by(weight: Weight, optimizer: Optimizer) -> Optimizer:
    """Under Muon and SOAP weights that are no matrices are AdamW's."""
    return optimizer if is_matrix(weight) else replace(optimizer, name="adamw")


def gradient_names(weight: str) -> tuple[str, str]:
    """Names of the tensors of a weight's gradient: the one that is kept, and that of a single micro-batch, which is added to it."""
    return f"{weight}.grad", f"{weight}.grad.new"


@dataclass
class Replicated(Sharding):
    """One rank's whole copy of weights, gradients and optimizer state; no communication by itself.

    Gradients appear tensor by tensor as backward reaches them (set_to_none) and vanish after the step. With
    accumulation a later micro-batch writes a temporary gradient and adds it, unless the accumulation is fused
    into the weight-gradient GEMM.
    """

    shares_gradients: ClassVar[bool] = False

    weights: tuple[Weight, ...]
    training: Training
    data: DataParallel
    runtime: Runtime
    size: int = 1
    """data-parallel size N"""
    group: str = field(default=DATA, kw_only=True)
    """ranks with the same weights"""
    label: str = field(default="", kw_only=True)
    """what the names of its own tensors and collectives begin with, where a rank has several strategies"""
    replicas: int = field(default=0, kw_only=True)
    """ranks by whose number Megatron-LM sizes buckets, of experts too: those with the same weights outside experts; 0: `size`"""
    layout: MatrixLayout = field(default_factory=MatrixLayout, kw_only=True)
    """how the stack stores the matrices that Muon steps"""
    steps: bool = True
    """this rank holds optimizer state and steps (False on the workers of DataParallel)"""
    _trainable: tuple[Weight, ...] = field(init=False)
    _kept: list[str] = field(default_factory=list, init=False)
    _let_go: set[str] = field(default_factory=set, init=False)
    """weights whose gradients the step has let go already"""

    def __post_init__(self) -> None:
        self._trainable = tuple(w for w in self.weights if w.trains)

    @property
    def masters_only(self) -> bool:
        """The own weights are the optimizer's masters, and there are no others between steps."""
        return False

    @property
    def trainable(self) -> tuple[Weight, ...]:
        """The weights that get gradients, in registration order."""
        return self._trainable

    # -- memory ---------------------------------------------------------------------------------------------------

    def resident(self, at: Emitter) -> list[str]:
        """Weights, cached casts and, in steady state, optimizer state."""
        names = [self._weight(weight, at) for weight in self.weights]
        names += self._casts(at)
        names += self._placeholders(at)
        if self._keeps_states():
            names += self._states(at)
        return names

    def _weight(self, weight: Weight, at: Emitter) -> str:
        category = "buffers" if weight.parameter.buffer else "parameters"
        return at.tensor(weight.name, weight.count if self._primary(weight) else weight_bytes(weight, self.training), category)

    def _casts(self, at: Emitter) -> list[str]:
        element = self.training.precision.weight_copies
        if not element:
            return []
        half = self.training.finetune is not None and self.training.finetune.base  # frozen weights are stored as they are read
        cast = self._trainable if half else tuple(w for w in self.weights if not w.parameter.buffer)
        kept = (*self.training.precision.keep, KEPT_LAYER)
        matrices = [w for w in cast if w.parameter.dimensions >= 2 and w.product and w.part not in kept]
        copies = {w.name: round(element * w.count) - (w.count if self._primary(w) else 0) for w in matrices}
        return [at.tensor(f"{name}.cast", size, "parameters") for name, size in copies.items() if size]

    def _primary(self, weight: Weight) -> bool:
        """Stored in fp8 alone; one of its copies is the weight."""
        return self.data.strategy == "zero1" and stored_narrow(weight, self.training.precision)

    def _placeholders(self, at: Emitter) -> list[str]:
        """Transformer Engine adds weight gradients to the fp32 buffer inside the GEMM and gives autograd an empty tensor instead.

        It keeps one for every shape of a layer's weights (NVIDIA/TransformerEngine pytorch/module/base.py, get_dummy_wgrad).
        """
        if not (self.runtime.transformer_engine and self.runtime.gradient_accumulation_fusion and self.training.backward):
            return []
        fused: dict[tuple[int, str], list[Weight]] = {}
        for weight in self._trainable:  # Q, K and V are one tensor there, as are gate and up
            if weight.operator and len(weight.parameter.shape) == 2 and not weight.parameter.expert:
                fused.setdefault((weight.block, weight.operator), []).append(weight)
        shapes = {tuple(w.parameter.shape for w in parts): sum(w.count for w in parts) for parts in fused.values()}
        element = self.training.precision.parameters
        return [at.tensor(f"placeholder {shape}", element * count, "buffers") for shape, count in shapes.items()]

    def _keeps_states(self) -> bool:
        return self.training.step and self.training.backward and self.steps and self.training.iteration == "steady"

    def _state_list(self) -> list[tuple[Weight, State]]:
        optimizer, precision = self.training.optimizer, self.training.precision
        of_shape: dict[tuple[tuple[int, ...], int], tuple[State, ...]] = {}
        if optimizer.name == "shampoo":
            return self._block_states()
        if self._by_matrix:
            apart = [w for w in self._trainable if optimizer.name == "muon" or not is_matrix(w)]
            found = [(w, state) for w in apart for state in states(_stepped_by(w, optimizer), precision, w.parameter.shape, w.count)]
            return found if optimizer.name == "muon" else [*found, *self._matrix_states()]
        for weight in self._trainable:
            key = (weight.parameter.shape, weight.count)
            if key not in of_shape:
                of_shape[key] = states(optimizer, precision, *key)
        return [(w, state) for w in self._trainable for state in of_shape[w.parameter.shape, w.count]]

    @property
    def _by_matrix(self) -> bool:
        """Muon or SOAP."""
        return self.training.optimizer.name in BY_MATRIX

    @property
    def _preconditioner(self) -> Preconditioner:
        return Preconditioner.of(self.training.optimizer, megatron=self.runtime.megatron)

    def _matrix_states(self) -> list[tuple[Weight, State]]:
        """SOAP's, of every stored matrix."""
        precision, found = self.training.precision, []
        for tensor in tensors_of(self._trainable, self.training.optimizer, self.layout):
            own = self._preconditioner.states(precision, self._preconditioner.matrices(tensor.matrices))
            found += [(tensor.weights[0], state) for state in (*masters(precision, tensor.count), *own)]
        return found

    def _blocks(self) -> list[Preconditioned]:
        """What Shampoo cuts this rank's weights into, of which it may step a part."""
        return [block for weight in self._trainable for block in self._preconditioner.blocks(weight.parameter.shape)]

    def _block_states(self) -> list[tuple[Weight, State]]:
        """Shampoo's, of the blocks that this rank steps, beside the masters of its weights."""
        if not self._trainable:
            return []
        blocks = Weight(f"{self.label}blocks", self._trainable[0].parameter, sum(w.count for w in self._trainable), 0)
        precision, stepped = self.training.precision, self._stepped_blocks(fullest=True)
        mine = masters(precision, sum(block.count for block in self._blocks()))
        return [(blocks, state) for state in (*mine, *self._preconditioner.states(precision, stepped))]

    def _stepped_blocks(self, *, fullest: bool) -> list[Preconditioned]:
        """The blocks of the rank that has most to keep, or most to do."""
        return self._blocks()

    def _orthogonalised(self) -> Sequence[Matrix]:
        """The matrices that this rank's Muon orthogonalises, or SOAP steps."""
        tensors = tensors_of(self._trainable, self.training.optimizer, self.layout)
        return [matrix for tensor in tensors for matrix in tensor.matrices]

    def _matrix_elements(self) -> int:
        """Elements of matrices that this rank steps."""
        return sum(matrix.count for matrix in self._orthogonalised())

    def _flat_states(
        self, name: str, weights: Sequence[Weight], block: int, optimizer: Optimizer | None = None
    ) -> list[tuple[Weight, State]]:
        """Optimizer states of this rank's share of some weights that are sharded as one flat tensor `name`, padded to a multiple of N."""
        if self._by_matrix and optimizer is None:
            kinds: dict[Optimizer, list[Weight]] = {}
            for weight in weights:
                kinds.setdefault(_stepped_by(weight, self.training.optimizer), []).append(weight)
            return [state for by, own in kinds.items() for state in self._flat_states(f"{name} {by.name}", own, block, by)]
        share = -(-sum(w.count for w in weights) // self.size)
        if not share:
            return []
        rows = sum(-(-w.count // w.parameter.shape[-1]) for w in weights) // self.size + 1
        columns = sum(w.parameter.shape[-1] for w in weights) // self.size + 1
        flat = Weight(name, weights[0].parameter, share, block)
        return [
            (flat, state) for state in flat_states(optimizer or self.training.optimizer, self.training.precision, share, (rows, columns))
        ]

    def _states(self, at: Emitter) -> list[str]:
        category = place(self.training.offload.optimizer, "optimizer")
        return [at.tensor(f"{w.name}.{state.name}", state.bytes, category) for w, state in self._state_list()]

    def _host(self, at: Emitter, count: int, total: int) -> list[str]:
        """What the host keeps of `count` stepped elements besides their optimizer state; `total` parameters pass through it."""
        if not self._offloaded:
            return []
        category = place(self.training.offload.gradients, "gradients")
        gradients = at.tensor(f"{self.label}offloaded gradients", count * host_gradient(self.training.precision), category)
        return [gradients, *host_buffers(at, self.training, count, self._state_bytes(), total)]

    @property
    def _offloaded(self) -> bool:
        """The optimizer and the gradients are off the device."""
        return self.training.offload.optimizer != "none"

    def _name(self, bucket: Bucket) -> str:
        return f"{self.label}bucket {bucket.index}"

    def _gradient(self, weight: Weight, at: Emitter) -> str:
        return at.tensor(gradient_names(weight.name)[0], weight.count * self.training.precision.gradients, "gradients")

    # -- events ---------------------------------------------------------------------------------------------------

    def state(self) -> Hashable:
        """What the next pass depends on besides its place in the step (units that are still gathered)."""
        return ()

    def restore(self, state: Hashable) -> None:
        """Go to the state that a repeated pass would have left."""

    def step_begins(self, at: Emitter) -> None:
        """Megatron-LM sets its gradient buffer to zero (megatron/core/distributed/param_and_grad_buffer.py, reset)."""
        if self.runtime.megatron and self.training.backward and self.training.step:
            size = sum(w.count for w in self._trainable) * self.training.precision.gradients
            at.compute("zero gradients", "optimizer", [Memory(float(size))] if size else [])

    def _average(self, count: int, at: Emitter) -> None:
        """Megatron-LM scales a bucket of `count` gradients by one over the replicas before it reduces it (start_grad_sync there)."""
        if self.runtime.megatron:
            at.compute("", "compute", [Memory(2.0 * count * self.training.precision.gradients, float(count))])

    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None:
        """A forward or backward over `units` (in the order they will run) begins."""

    def pass_ends(self, at: Emitter, *, backward: bool) -> None:
        """It has ended on this rank."""
        if backward and self._kept:
            at.compute("", "compute", (), frees=self._kept)
            self._kept = []

    def before_forward(self, unit: Unit, at: Emitter) -> None:
        """Weights are already here."""

    def after_forward(self, unit: Unit, at: Emitter) -> None:
        """Weights stay."""

    def before_backward(self, unit: Unit, at: Emitter) -> None:
        """Weights are still here."""

    def before_gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """The first micro-batch writes the gradient; a later one writes a temporary unless accumulation is fused."""
        if at.first:
            at.compute("", "compute", (), allocates=[self._gradient(w, at) for w in weights])
        if self._adds(at):
            at.compute("", "compute", (), allocates=[self._fresh(w, at) for w in weights])

    def gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        """The temporary is added and dropped."""
        if self._adds(at):
            moved = self.training.precision.parameters + 2.0 * self.training.precision.gradients
            adds = [Memory(moved * w.count, float(w.count)) for w in weights]
            fresh = [self._fresh(w, at) for w in weights]
            at.compute("", "compute", adds, frees=[] if self._keeps_fresh else fresh)
            if self._keeps_fresh:
                self._kept += fresh

    @property
    def _keeps_fresh(self) -> bool:
        """A micro-batch's own gradients stay until its backward has ended."""
        return False

    def _adds(self, at: Emitter) -> bool:
        """Autograd's gradient, of the weight's type, is added to the one that is kept (always where that is wider)."""
        wider = self.training.precision.gradients > self.training.precision.parameters
        return not self.runtime.gradient_accumulation_fusion and (wider or not at.first)

    def _fresh(self, weight: Weight, at: Emitter) -> str:
        return at.tensor(gradient_names(weight.name)[1], weight.count * self.training.precision.parameters, "temporaries")

    def after_backward(self, unit: Unit, at: Emitter) -> None:
        """Gradients stay until the step."""

    def finish_gradients(self, at: Emitter) -> None:
        """Nothing to reduce."""

    def step(self, at: Emitter) -> None:
        """Step the optimizer on everything, then drop the gradients."""
        self._step(at, sum(w.count for w in self._trainable), len(self._trainable), max((w.count for w in self._trainable), default=0))
        self._drop_gradients(at)

    def distribute(self, at: Emitter) -> None:
        """Weights are already where they belong."""

    def _drop_gradients(self, at: Emitter) -> None:
        if self.training.backward:
            at.compute("", "optimizer", (), frees=[self._gradient(w, at) for w in self._trainable if w.name not in self._let_go])

    def _step(self, at: Emitter, count: int, tensors: int, largest: int) -> None:
        if not (self.training.step and self.training.backward and self.steps):
            return
        if self._offloaded:
            states = (self._state_bytes(), self._states(at))
            step_on_host(at, self.training, self.data.strategy, count, states)
            return
        optimizer, precision = self.training.optimizer, self.training.precision
        if self.training.iteration == "first":
            at.compute("optimizer", "optimizer", (), allocates=self._states(at))
        state_bytes = self._state_bytes()
        temporary = step_temporary(optimizer, precision, max(0, count - self._matrix_elements()) if self._by_matrix else count, largest)
        name = [at.tensor(f"{self.label}optimizer.temporary", temporary, "temporaries")] if temporary else []
        wide = self._widen(count, at) if count and precision.gradients < precision.master and not self.masters_only else []
        if self._by_matrix:
            self._step_matrices(at, count, name)
            at.compute("", "optimizer", (), frees=[*name, *wide])
        elif optimizer.name == "shampoo":
            self._step_blocks(at, count, name)
            at.compute("", "optimizer", (), frees=[*name, *wide])
        else:
            cast = -(-narrow_elements(self._trainable, precision) // self.size) if self.data.strategy == "zero1" else 0
            kernels = step_kernels(optimizer, precision, count, state_bytes, tensors, masters_only=self.masters_only, narrow=cast)
            at.compute("optimizer", "optimizer", kernels, allocates=name, frees=[*name, *wide])
        if self.training.iteration == "first":
            at.compute("optimizer", "optimizer", (), frees=self._states(at))

    def _step_matrices(self, at: Emitter, count: int, temporary: Sequence[str]) -> None:
        """Muon or SOAP steps the matrices among `count` elements, AdamW all others."""
        optimizer, precision = self.training.optimizer, self.training.precision
        matrices = self._matrix_elements()
        kernels: list[Kernel] = [*before_update(optimizer, precision, count, masters_only=self.masters_only)]
        if others := count - matrices:
            adamw = replace(optimizer, name="adamw")
            held = sum(state.bytes for state in states(adamw, precision, (others,), others))
            kernels.append(update(adamw, precision, others, held, len(self._trainable)))
        at.compute("optimizer", "optimizer", kernels, allocates=temporary)
        if optimizer.name == "muon":
            at.compute("", "optimizer", momentum_kernels(precision, matrices))
            self._orthogonalise(at)
            at.compute("", "optimizer", update_kernels(precision, matrices))
        else:
            self._precondition(at, self._preconditioner.matrices(self._orthogonalised()))
        at.compute("", "optimizer", behind_update(precision, count, masters_only=self.masters_only))

    def _orthogonalise(self, at: Emitter) -> None:
        """Newton-Schulz on this rank's matrices."""
        optimizer = self.training.optimizer
        matrices = self._orthogonalised()
        whole = [matrix.whole(self.layout.ranks) if optimizer.tensor_mode == "duplicated" else matrix for matrix in matrices]
        space = at.tensor(f"{self.label}optimizer.newton-schulz", workspace(whole), "temporaries")
        at.compute("", "optimizer", (), allocates=[space])
        NewtonSchulz(optimizer.newton_schulz_steps, optimizer.tensor_mode, self.layout).run(matrices, at)
        at.compute("", "optimizer", (), frees=[space])

    def _step_blocks(self, at: Emitter, count: int, temporary: Sequence[str]) -> None:
        """Shampoo steps its blocks among `count` elements."""
        kernels = before_update(self.training.optimizer, self.training.precision, count, masters_only=self.masters_only)
        at.compute("optimizer", "optimizer", kernels, allocates=temporary)
        self._precondition(at, self._stepped_blocks(fullest=False))
        self._add_directions(at, count)

    def _add_directions(self, at: Emitter, count: int) -> None:
        """The blocks' own passes have stepped `count` elements, or their masters, which are copied."""
        at.compute("", "optimizer", behind_update(self.training.precision, count, masters_only=self.masters_only))

    def _precondition(self, at: Emitter, tensors: Sequence[Preconditioned]) -> None:
        """SOAP or Shampoo on these tensors."""
        space = at.tensor(f"{self.label}optimizer.preconditioning", self._preconditioner.workspace(tensors), "temporaries")
        count, number = sum(one.count for one in tensors), sum(one.number for one in tensors)
        passes = self._preconditioner.elementwise(self.training.optimizer, self.training.precision, count, number)
        at.compute("", "optimizer", [*self._preconditioner.kernels(tensors), *passes], allocates=[space], frees=[space])

    def _widen(self, count: int, at: Emitter) -> list[str]:
        """Make the fp32 gradients that the step of `count` fp32 masters reads, and return what it frees.

        Megatron-LM: optimizer.py, _copy_model_grads_to_main_grads (``main_param.grad = model_param.grad.float()``); apex: FP16_Optimizer.
        """
        wide = [self._wide(count, at)]
        at.compute("optimizer", "optimizer", (), allocates=wide)
        return wide

    def _wide(self, count: int, at: Emitter) -> str:
        return at.tensor(f"{self.label}optimizer.gradients", self.training.precision.master * count, "temporaries")

    def _state_bytes(self) -> int:
        return sum(state.bytes for _, state in self._state_list())
