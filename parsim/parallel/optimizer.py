"""Bytes of model states: weights as they are stored, what an optimizer keeps per parameter, and what its step moves.

State sizes: Adam keeps two moments, momentum, Lion and Muon one, SGD none; Adafactor (Shazeer & Stern 2018, beta1 = 0)
keeps a row and a column vector per matrix; 8-bit Adam (Dettmers et al. 2022, bitsandbytes) keeps two bytes per
element plus one fp32 scale per block of 256 for each moment, and fp32 moments for tensors under 4096 elements. 4-bit Adam
(Li et al. 2023; torchao, OptimState4bit) keeps half a byte per element and moment, and a scale per block of 128. Adam-mini
(Zhang et al. 2024) keeps the first moment and a number per head, row or token of a matrix, which are small and left out.
LAMB (You et al. 2019) keeps Adam's two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from parsim.errors import Finding, PlanError
from parsim.kernel import AdamStep, Memory
from parsim.model.adapters import AS_READ, stored_bytes
from parsim.parallel.hooks import Weight
from parsim.parallel.training import Optimizer, Precision, Training

MOMENTS = {"sgd": 0, "momentum": 1, "lion": 1, "adam": 2, "adamw": 2, "muon": 1, "soap": 2, "shampoo": 2, "adam-mini": 1, "lamb": 2}
_MORE = ("muon", "soap", "shampoo")
"""optimizers whose states are others for some weights"""
FOREACH_TRAFFIC = 20 / 7
"""What a foreach AdamW step moves over what a fused one does. torch.optim's _multi_tensor_adamw makes eight passes over all elements:
weight decay of p (2 reads and writes of an element), lerp of m (3), decay of v (2), addcmul into v (3), root (2), bias correction (2),
epsilon (2), addcdiv into p (4): 20, where one pass reads g, p, m, v and writes p, m, v: 7.
Llama-3.1-8B pure bf16 on a B200: 40 B for each of 8.03e9 parameters in 46.6 ms (stas00/ml-engineering), 0.89 of the bandwidth."""
HALF_ADAM_ISSUES = 342.0
"""of a fused Adam step whose weights, gradients and moments all have 16 bits, for an element [FLOP]: `Memory.vector`. Lists of weights of a
Llama layer or of experts, PyTorch 2.11 on an H200 (November 2026): 5.0 to 5.2 ps an element at 14 B, where a copy of the same bytes
takes 3.3 ps; at 28 B, in fp32, 8.0 to 8.1 and 6.6 ps"""
_PER_PARAMETER = {"adam-8bit": 2, "adam-4bit": 1, "adafactor": 0}
"""bytes of states per parameter beside scales of blocks, and rows and columns, which are small"""
_QUANTISED_FROM = 4096
_QUANTISED = {"adam-8bit": (1, 256), "adam-4bit": (2, 128)}
"""elements of a moment in a byte, and in a block with a scale of its own"""
LAMB_TRAFFIC = 12 / 7
"""What a LAMB step moves over what Adam's does: the update of a tensor is written before its norm and that of the weights are known, and
then applied. NVIDIA/apex, csrc/multi_tensor_lamb.cu: stage 1 reads g, p, m, v and writes m, v, update; the norms read p and update; stage 2
reads p and update and writes p: 12, where Adam's one pass reads g, p, m, v and writes p, m, v: 7"""


@dataclass(frozen=True, slots=True)
class State:
    """One optimizer-state tensor of a parameter."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StateBytes:
    """What a trained parameter keeps, in bytes per parameter."""

    weight: int = 0
    gradient: int = 0
    master: int = 0
    optimizer: int = 0
    exact: bool = True
    """whether the optimizer keeps nothing beside these, such as scales of blocks"""

    @property
    def total(self) -> int:
        """Weight, gradient, master and optimizer states together [B]."""
        return self.weight + self.gradient + self.master + self.optimizer


def state_bytes(precision: Precision, optimizer: Optimizer) -> StateBytes:
    """Weight, gradient, master and optimizer states of a parameter [B]."""
    known = optimizer.name in MOMENTS
    exact = known and optimizer.name not in _MORE
    states = MOMENTS[optimizer.name] * precision.optimizer_element if known else _PER_PARAMETER[optimizer.name]
    return StateBytes(precision.parameters, precision.gradients, precision.master, states, exact)


def _halves(shape: tuple[int, ...], count: int) -> tuple[int, int]:
    columns = shape[-1]
    return max(1, count // columns), columns


def masters(precision: Precision, count: int) -> tuple[State, ...]:
    """The master copy of `count` elements, if there is one."""
    return (State("master", precision.master * count),) if precision.master else ()


def states(optimizer: Optimizer, precision: Precision, shape: tuple[int, ...], count: int) -> tuple[State, ...]:
    """State tensors for a parameter of `shape` with `count` local elements, the fp32 master first if there is one."""
    master = masters(precision, count)
    if optimizer.name in MOMENTS:
        names = ("exp_avg", "exp_avg_sq")[: MOMENTS[optimizer.name]]
        return master + tuple(State(name, precision.optimizer_element * count) for name in names)
    if optimizer.name in _QUANTISED:
        if count < _QUANTISED_FROM:
            return (*master, State("exp_avg", 4 * count), State("exp_avg_sq", 4 * count))
        packed, block = _QUANTISED[optimizer.name]
        codes, scales = -(-count // packed), 4 * -(-count // block)
        return (*master, State("exp_avg", codes), State("exp_avg_sq", codes), State("absmax", 2 * scales))
    if optimizer.name == "adafactor":
        if len(shape) < 2 or prod(shape) == 0:
            return (*master, State("exp_avg_sq", 4 * count))
        rows, columns = _halves(shape, count)
        return (*master, State("exp_avg_sq_row", 4 * rows), State("exp_avg_sq_col", 4 * columns))
    message = f"unknown optimizer {optimizer.name!r}"
    raise PlanError(
        Finding(
            message,
            "training.optimizer",
            optimizer.name,
            "known: sgd, momentum, adam, adamw, adam-8bit, adam-4bit, adam-mini, adafactor, lamb, lion, muon, soap, shampoo",
        )
    )


def flat_states(optimizer: Optimizer, precision: Precision, count: int, matrix: tuple[int, int] | None = None) -> tuple[State, ...]:
    """State tensors of a flat shard of `count` elements (ZeRO, FSDP).

    Adafactor's factors cannot be taken of a flat shard; `matrix` = (rows, columns) in total over the shard's matrices.
    """
    if optimizer.name == "adafactor" and matrix is not None:
        return (*masters(precision, count), State("exp_avg_sq_row", 4 * matrix[0]), State("exp_avg_sq_col", 4 * matrix[1]))
    return states(optimizer, precision, (count,), count)


def step_kernels(
    optimizer: Optimizer, precision: Precision, count: int, state_bytes: int, tensors: int, *, masters_only: bool = False, narrow: int = 0
) -> list[Memory]:
    """Memory-bound kernels of one optimizer step over `count` elements in `tensors` tensors with `state_bytes` of state, in order.

    Gradients narrower than the master weights are widened; fp16 ones are divided by the loss scale and searched for infinities; their
    norm is taken and they are scaled by it; the optimizer steps (fused: gradient, master or weight, and moments read once, the latter two
    written back); the masters are copied to the weights that the layers read. With `masters_only` there are no other weights to
    write and no gradients to widen: FSDP keeps both as wide as the masters, and casts what it gathers. `narrow` elements have weights in
    fp8 alone.
    Megatron-LM: optimizer.py, prepare_grads (_copy_model_grads_to_main_grads, _unscale_main_grads_and_check_for_nan, with
    torch._amp_foreach_non_finite_check_and_unscale_), clip_grads.py (multi_tensor_l2norm and multi_tensor_scale) and
    _copy_main_params_to_model_params; DeepSpeed: stage_1_and_2.py and stage3.py, step (single_grad_partition, has_overflow,
    unscale_and_clip_grads, then bit16 partitions are copied from the fp32 ones).
    """
    if not count:
        return []
    kernels = before_update(optimizer, precision, count, masters_only=masters_only)
    kernels.append(update(optimizer, precision, count, state_bytes, tensors))
    return kernels + behind_update(precision, count, masters_only=masters_only, narrow=narrow)


def before_update(optimizer: Optimizer, precision: Precision, count: int, *, masters_only: bool = False) -> list[Memory]:
    """What happens to `count` gradients before the optimizer reads them."""
    wide = max(precision.gradients, precision.master)
    kernels: list[Memory] = []
    if wide > precision.gradients and not masters_only:
        kernels.append(Memory(float((precision.gradients + wide) * count)))
    if precision.matmul == "fp16":
        kernels.append(Memory(2.0 * wide * count, flop=float(count)))
    if optimizer.clip_gradients:
        kernels.append(Memory(bytes=3.0 * wide * count, flop=3.0 * count, launches=3))
    return kernels


def update(optimizer: Optimizer, precision: Precision, count: int, state_bytes: int, tensors: int) -> Memory:
    """The update of `count` elements with `state_bytes` of state."""
    master = precision.master * count
    moments = state_bytes - master
    weight = precision.parameters * count
    bytes_moved = max(precision.gradients, precision.master) * count + 2 * (master or weight) + 2 * moments
    fused, foreach = optimizer.implementation == "fused", optimizer.implementation == "foreach"
    moved = float(bytes_moved) if fused else FOREACH_TRAFFIC * bytes_moved
    if optimizer.name == "lamb":
        moved *= LAMB_TRAFFIC
    launches = 1 if fused else 12 if foreach else 12 * tensors
    if optimizer.name in ("adam", "adamw") and (fused or foreach):
        issues = HALF_ADAM_ISSUES * count if fused and bytes_moved <= 14 * count else 0.0
        return AdamStep(moved, 12.0 * count, launches, optimizer.implementation, float(bytes_moved), vector=issues)
    return Memory(moved, 12.0 * count, launches)


def behind_update(precision: Precision, count: int, *, masters_only: bool = False, narrow: int = 0) -> list[Memory]:
    """The masters of `count` elements are copied to the weights that layers read, `narrow` of them in fp8."""
    if not precision.master or masters_only:
        return []
    return [Memory(float((precision.master + precision.parameters) * count - (precision.parameters - 1) * narrow))]


def step_temporary(optimizer: Optimizer, precision: Precision, count: int, largest: int) -> int:
    """Bytes that live only during the step: foreach keeps one fp32 copy of all updated elements, a loop of the largest tensor."""
    if optimizer.name == "sgd" or optimizer.implementation == "fused":
        return 0
    element = precision.master or precision.parameters
    return element * (count if optimizer.implementation == "foreach" else largest)


# -- weights as they are stored ---------------------------------------------------------------------------------------


def weight_bytes(weight: Weight, training: Training) -> int:
    """Bytes of one weight or buffer in memory [B]."""
    parameter = weight.parameter
    if parameter.storage in AS_READ:
        return round(training.precision.weight_copies * weight.count)
    if parameter.storage:
        rows = parameter.shape[0] if parameter.split == 1 else -(-weight.count // parameter.shape[-1])
        return stored_bytes(weight.count, parameter.storage, rows)
    if parameter.element or parameter.buffer:
        return weight.count * (parameter.element or 4)
    return weight.count * (frozen_element(training) if not parameter.trainable else training.precision.parameters)


def frozen_element(training: Training) -> int:
    """Bytes per element of a frozen weight that is not quantised."""
    recipe = training.finetune
    return 2 if recipe is not None and recipe.base else training.precision.parameters


def split_bytes(weights: Iterable[Weight], training: Training) -> tuple[int, int]:
    """(elements of trained weights and of frozen ones stored like them, bytes of all others [B])."""
    plain = other = 0
    for weight in weights:
        frozen = not weight.trains
        if not frozen or (not weight.parameter.storage and frozen_element(training) == training.precision.parameters):
            plain += weight.count
        else:
            other += weight_bytes(weight, training)
    return plain, other
