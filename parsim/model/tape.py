"""A block's forward and backward as steps that allocate and free named tensors (liveness, as autograd does it).

Allocation happens at a step's start, release at its end. Steps never free the boundary tensors ``input`` and
``output``: who owns them depends on the neighbouring blocks, so the tape says when they were last used instead.
``grad_output`` is freed here, ``grad_input`` is allocated here and freed by the block before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from parsim.kernel import Kernel
from parsim.model.model import Operator


class TapeTensor(NamedTuple):
    """A tensor that lives inside one block for one micro-batch."""

    name: str
    bytes: int
    category: Literal["activations", "gradients", "temporaries"]
    """gradients here are gradients of activations (reported under temporaries); parameter gradients belong to the strategy"""


@dataclass(frozen=True, slots=True)
class Step:
    """One operator in one direction."""

    operator: Operator
    phase: Literal["forward", "recompute", "input", "weight"]
    kernels: tuple[Kernel, ...]
    allocates: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    communicates: bool = False
    """a recompute step around which the messages of forward are sent again"""


@dataclass(frozen=True, eq=False)
class Tape:
    """Everything the lowering needs to know about one block under one workload. Equal only to itself."""

    tensors: Mapping[str, TapeTensor]
    forward: tuple[Step, ...]
    """forward that keeps what backward needs (minus what selective recomputation drops)"""
    forward_unsaved: tuple[Step, ...]
    """forward that keeps nothing: evaluation, or under full recomputation; frees all but ``input``, ``output`` and `shown`"""
    backward: tuple[Step, ...]
    """reverse order; per operator the selective recompute steps, then its input step, then its weight step. Valid when
    all weight steps are postponed past all input steps too (frees stand at the last use under either order). Every
    operator with trainable parameters has a weight step, without kernels where the input step makes their gradients"""
    input_saved: bool
    """some operator keeps ``input`` for backward"""
    input_last_forward: int
    """index in `forward` (same operator order in `forward_unsaved`) of the last step that reads ``input``"""
    input_last_backward: int
    """index in `backward` of the last step that reads ``input``; -1 if not saved"""
    output_saved: bool
    output_last_backward: int
    held: tuple[str, ...] = ()
    """tensors that the training script holds until the micro-batch's backward has ended: inner ones, and ``input`` where
    the model returns it (then `input_last_backward` is -1 although it is saved); the block's ``output`` is not listed"""
    shown: tuple[str, ...] = ()
    """tensors that `forward_unsaved` leaves for blocks behind: until this block is made again, or the end of a pass without backward"""
    saved: tuple[str, ...] = ()
    """tensors (not boundary) that `forward` keeps for backward; of `held` only those that backward needs too"""
