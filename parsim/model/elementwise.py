"""Operators without matrix products: activations, dropout, sums, copies and views.

Traffic of memory-bound kernels counts each operand read once and each result written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from parsim.kernel import MIXED, WIDENED, Memory
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.workload import Split, Workload, elements, rows


class _Cost(NamedTuple):
    """An activation: private saves and traffic, in tensors of its width."""

    forward: int = 2
    backward: int = 3
    launches: tuple[int, int] = (1, 1)
    saves_output: bool = False
    extra: tuple[str, ...] = ()
    """tensors an unfused formula keeps beside input or output"""


_FUSED_KERNEL = _Cost()
_ACTIVATIONS = {
    "relu": _Cost(saves_output=True),
    "tanh": _Cost(saves_output=True),
    "sigmoid": _Cost(saves_output=True),
    # relu, then square (Nemotron): both keep what relu made
    "relu2": _Cost(4, 6, (2, 3)),
    "gelu": _FUSED_KERNEL,
    "gelu-tanh": _FUSED_KERNEL,
    "silu": _FUSED_KERNEL,
    "clamp": _FUSED_KERNEL,
    # 0.5 * x * (1 + tanh(c * (x + 0.044715 * x**3))) in Python: transformers/activations.py, NewGELUActivation
    "gelu-new": _Cost(18, 33, (8, 12), extra=("half", "tanh", "one_plus_tanh")),
    # x * sigmoid(1.702 * x): QuickGELUActivation
    "quick-gelu": _Cost(7, 12, (3, 5), extra=("sigmoid",)),
    # XIELUActivation of the same file: three branches of one input, of which the square's, the exponential's and the choice are kept
    "xielu": _Cost(24, 40, (11, 18), extra=("positive", "exponential", "difference")),
}
BACKWARD_ISSUES = (257.0, 288.0)
"""of the gradient of a gated activation, and of one that the router weights, for an element of its output [FLOP]: `Memory.vector`.
torch.compile's kernel of swiglu_back(g * weights, y), 65,536 x 2,048 bf16 on an H100 SXM: 575 us, 92 % of the issue slots and 71 % of the
memory busy (Nsight Compute; PyTorch 2.11); 768 to 2,048 columns and 32,768 to 65,536 rows 287 to 297, quick GELU 274. That kernel computes
both halves of a row for every element and keeps one. Without the weights it has 0.89 of the instructions: 104 instead of 117 for an
element of the output, or 133 instead of 149 in blocks of eight warps (the same kernel in Triton 3.9, disassembled for sm_90)"""
CLAMP_ISSUES = (370.0, 856.0)
"""of the bounds of Megatron's experts, for an element of the activation's output [FLOP]: forward two, backward five of PyTorch's kernels
that walk halves of rows element by element. 65,536 x 2,880 bf16 on an H100 SXM: 1,043 and 2,411 us, 64 to 68 % of the issue slots and 36
to 53 % of the memory busy"""
ACTIVATIONS = tuple(kind for kind in _ACTIVATIONS if kind not in ("clamp", "xielu"))
"""kinds that `Activation` knows and plain layers are made of"""


@dataclass(frozen=True, slots=True)
class Activation(Layer):
    """An elementwise function. ReLU, tanh and sigmoid keep their output, the others their input (and, where Python spells
    the formula out and kernels are not fused, intermediate tensors).
    """

    features: int
    kind: str = "gelu"
    """relu | tanh | sigmoid | gelu | gelu-tanh | silu | clamp | gelu-new | quick-gelu | xielu (2411.13010)"""
    split: Split = "replicated"
    selective: str = ""
    per_sample: bool = False
    inplace: bool = False
    copies: int = 0
    """behind a router: experts each token visits (`mixture_of_experts`)"""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """xielu's two slopes."""
        names = ("alpha_p", "alpha_n") if self.kind == "xielu" else ()
        return tuple(Parameter(f"{self.name}.{name}", (1,), trainable=self.trainable) for name in names)

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        cost = _ACTIVATIONS[self.kind]
        if at.fused and cost.extra:
            cost = _FUSED_KERNEL
        count = elements(at, self.features, self.split, self.per_sample, self.copies)
        if self.kind == "gelu-new" and at.autocast and at.element < 4 and not at.fused:
            return self._widened(count)
        size = count * at.element
        saved = self.output if cost.saves_output else self.inputs[0]
        return Work(
            forward=(Memory(cost.forward * size, launches=cost.launches[0]),),
            backward_input=(Memory(cost.backward * size, launches=cost.launches[1]),),
            output=0 if self.inplace else size,
            input_gradients=(size,),
            saves=(Save(saved, size), *(Save(f"{self.name}.{extra}", size) for extra in cost.extra)),
        )

    def _widened(self, count: int) -> Work:
        """gelu-new under autocast, which raises to powers in fp32 (PyTorch, Automatic Mixed Precision, ops that autocast to float32).

        All behind the power is fp32, up to the cast by the next product. Forward: half (4 B), a cast (6), cube, factor (8 each), the sum
        of 16-bit and fp32 (10), factor, tanh, one added (8 each), the product of 16-bit and fp32 (10), the cast to 16 bits (6). Backward:
        a cast (6), the products with half and with the sum (10, 12), a cast (6), tanh (12), factor, factor (8 each), a cast (6), the
        cube's (8 + 8 + 12, and a cast of 6), the half's (4) and two sums in 16 bits (6 each).
        """
        forward = (
            Memory(26.0 * count, launches=3, vector=(WIDENED + 2 * MIXED) * count),
            Memory(50.0 * count, launches=7),
        )
        backward = (Memory(16.0 * count, launches=2, vector=(WIDENED + MIXED) * count), Memory(102.0 * count, launches=13))
        saves = tuple(
            Save(f"{self.name}.{name}", width * count) for name, width in (("fp32", 4), ("half", 2), ("tanh", 4), ("one_plus_tanh", 4))
        )
        return Work(
            forward,
            backward,
            output=2 * count,
            input_gradients=(2 * count,),
            saves=saves,
            forward_temporary=8 * count,
            backward_temporary=8 * count,
        )


@dataclass(frozen=True, slots=True)
class GatedActivation(Layer):
    """activation(gate) * up, from one tensor holding both or from two (SwiGLU, GeGLU: 2002.05202).

    PyTorch keeps gate, up and activation(gate); a fused kernel keeps gate and up.

    Megatron-LM bounds both by PyTorch's kernels, outside its fused one, which keeps what they made (megatron/core/fusions/
    fused_bias_geglu.py: weighted_bias_quick_geglu_impl). Forward: each bounded (read, written), both joined. Backward, for a bound on both
    sides: two comparisons (read, 1 B written), both joined (2 B read, 1 B written), and where they hold the gradient (mask and gradient
    read, written); for a bound on one side a comparison and that; the gradients of both joined (ATen: clamp_backward, SplitBackward).
    Transformer Engine's fused experts do all of it inside the products (`Workload.fused_experts`).

    Megatron-LM has backward compiled by torch.compile (fused_bias_swiglu.py: swiglu_back), in one kernel. Of experts the router's weights
    are part of it (weighted_swiglu_back), and a second kernel reads all three once more for their gradient. The first, and PyTorch's
    kernels for halves of a row, are bound by what the multiprocessors issue (`BACKWARD_ISSUES`, `CLAMP_ISSUES`).
    """

    features: int
    """width of the product"""
    kind: str = "silu"
    split: Split = "column"
    selective: str = "mlp"
    copies: int = 0
    """behind a router: experts each token visits (`mixture_of_experts`)"""
    clamp: bool = False
    """both are bounded first"""
    bounded: bool = False
    """what the activation makes of the gate, and up, are bounded"""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        cost = _ACTIVATIONS[self.kind]
        count = elements(at, self.features, self.split, copies=self.copies)
        size = count * at.element
        each = 2 * size // len(self.inputs)
        saves = tuple(Save(name, each) for name in self.inputs)
        if self.copies and at.fused_experts:
            return Work(output=0, input_gradients=(each,) * len(self.inputs), saves=saves)
        forward, backward = Memory(3 * size), Memory(5 * size)
        if at.library:
            weighted = self.copies > 0 and at.exchanges_tokens
            kernels, gradients = [forward], [Memory(5 * size, vector=BACKWARD_ISSUES[weighted] * count)]
            if weighted:
                gradients.append(Memory(3 * size))
            if self.clamp:
                issued = [each_way * count for each_way in CLAMP_ISSUES]
                kernels = [Memory(4 * size, launches=2, vector=issued[0]), Memory(4 * size), *kernels]
                gradients += [Memory(7 * size + 5 * count, launches=5, vector=issued[1]), Memory(4 * size + 3 * count, launches=2)]
                saves += (Save(f"{self.name}.clamped", 2 * size),)
            return Work(tuple(kernels), tuple(gradients), output=size, input_gradients=(each,) * len(self.inputs), saves=saves)
        if not at.fused:
            saves += (Save(f"{self.name}.activated", size), *(Save(f"{self.name}.{extra}", size) for extra in cost.extra))
            forward = Memory((cost.forward + 3) * size, launches=cost.launches[0] + 1)
            backward = Memory((cost.backward + 6) * size, launches=cost.launches[1] + 2)
            if self.bounded:  # both are kept a second time, as they were
                saves += (Save(f"{self.name}.bounded", 2 * size),)
                forward = Memory(forward.bytes + 4 * size, launches=forward.launches + 2)
                backward = Memory(backward.bytes + 6 * size, launches=backward.launches + 4)
        return Work((forward,), (backward,), output=size, input_gradients=(each,) * len(self.inputs), saves=saves)


@dataclass(frozen=True, slots=True)
class Dropout(Layer):
    """Keeps a mask of 1 B per element. Does nothing where the workload's probability is 0; fused kernels write over
    their input (bias-dropout-add of Megatron-LM).
    """

    features: int
    split: Split = "replicated"
    selective: str = ""
    per_sample: bool = False

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        if not at.dropout:
            return Work(input_gradients=(0,))
        count = elements(at, self.features, self.split, self.per_sample)
        size = count * at.element
        return Work(
            forward=(Memory(count if at.fused else 2 * size + count, launches=0 if at.fused else 1),),
            backward_input=(Memory(2 * size + count),),
            output=0 if at.fused else size,
            input_gradients=(size,),
            saves=(Save(f"{self.name}.mask", count),),
        )


@dataclass(frozen=True, slots=True)
class ResidualAdd(Layer):
    """The sum of two or more tensors of equal shape; its gradient is passed on to all of them without a copy."""

    features: int
    split: Split = "replicated"
    selective: str = ""
    inplace: bool = False
    """adds into the first input"""
    wide: bool = False
    """in fp32: inputs are cast, and so is the sum; eager only"""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound forward, nothing backward but for a cast under autocast."""
        size = elements(at, self.features, self.split) * at.element
        adds = len(self.inputs) - 1
        forward = Memory(3 * adds * size, launches=0 if at.compiled else adds)
        backward: tuple[Memory, ...] = ()
        if self.wide and at.element < 4 and not at.fused:
            count, inputs = size // at.element, len(self.inputs)
            casts = (4 + at.element) * (inputs + 1)
            forward = Memory((casts + 12 * adds) * count, launches=inputs + adds + 1)
            backward = (Memory(casts * count, launches=inputs + 1),)
            gradients = (size,) * inputs
            return Work((forward,), backward, output=size, input_gradients=gradients, forward_temporary=4 * (inputs + adds) * count)
        if at.wide_stream and at.sequence > 1:  # an fp32 stream and what a product made; its gradient is cast
            count = size // at.element
            forward = Memory(10 * adds * count, launches=adds, vector=MIXED * adds * count)
            backward = (Memory(6 * adds * count, launches=adds),)
            size = 4 * count
        return Work((forward,), backward, output=0 if self.inplace else size, input_gradients=(0,) * len(self.inputs))


@dataclass(frozen=True, slots=True)
class Scale(Layer):
    """A product with a constant; fused and compiled it joins the kernel behind it. Nothing is kept."""

    features: int
    split: Split = "replicated"
    selective: str = ""
    buffer: str = ""
    """name of the number, where the checkpoint has it (Gemma 4's ``layer_scalar``), which is then multiplied in place"""
    inside: bool = False
    """of a wider tensor, which keeps its name and size: values among queries and keys"""

    def parameters(self) -> tuple[Parameter, ...]:
        """The number, which no gradient updates, where it has a name."""
        return (Parameter(self.buffer, (1,), trainable=False, buffer=True),) if self.buffer else ()

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        if at.fused:
            return Work(input_gradients=(0,))
        size = elements(at, self.features, self.split) * at.element
        kernels = (Memory(2 * size),), (Memory(2 * size),)
        if self.inside:
            return Work(*kernels, input_gradients=(0,), forward_temporary=size, backward_temporary=size)
        return Work(*kernels, output=0 if self.buffer else size, input_gradients=(size,))


@dataclass(frozen=True, slots=True)
class Concatenate(Layer):
    """Tensors joined along the features into a new one (the two key parts of multi-head latent attention)."""

    features: tuple[int, ...]
    """width of each input as it appears in the output"""
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """A copy both ways."""
        sizes = tuple(elements(at, width, self.split) * at.element for width in self.features)
        copy = Memory(2 * sum(sizes))
        return Work((copy,), (copy,), output=sum(sizes), input_gradients=sizes)


@dataclass(frozen=True, slots=True)
class Prefix(Layer):
    """Image patches [b, s-tokens, h] become a sequence [b, s, h]: class tokens before them, learned positions added."""

    width: int
    positions: int
    """rows of the position table (the sequence length)"""
    tokens: int = 1
    """class tokens"""
    mask_token: bool = False
    """a row for patches that are hidden"""
    split: Split = "replicated"
    selective: str = ""
    trainable: bool = True
    buffer: bool = False
    """the positions are no parameter"""

    def parameters(self) -> tuple[Parameter, ...]:
        """Class tokens and positions."""
        shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, self.tokens, self.width)} if self.tokens else {}
        if self.mask_token:
            shapes["mask_token"] = (1, self.width)
        shapes["position_embeddings"] = (1, self.positions, self.width)
        return tuple(
            Parameter(f"{self.name}.{name}", shape, trainable=self.trainable, buffer=self.buffer) for name, shape in shapes.items()
        )

    def training_work(self, at: Workload) -> Work:
        """A copy and an add."""
        size = at.tokens * self.width * at.element
        patches = at.batch * (at.sequence - self.tokens) * self.width * at.element
        return Work((Memory(5 * size, launches=2),), (Memory(3 * size, launches=2),), (), size, (patches,), forward_temporary=size)


@dataclass(frozen=True, slots=True)
class LayerScale(Layer):
    """A weight per feature (CaiT, 2103.17239): keeps its input for the weight."""

    features: int
    split: Split = "replicated"
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight [features]."""
        return (Parameter(f"{self.name}.lambda1", (self.features,), trainable=self.trainable),)

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways; the weight's gradient is a product summed over rows."""
        size = elements(at, self.features) * at.element
        weight = (Memory(5 * size, launches=2),) if self.trainable else ()
        saves = (Save(self.inputs[0], size, "weight"),) if self.trainable else ()
        return Work((Memory(2 * size),), (Memory(2 * size),), weight, size, (size,), saves)


@dataclass(frozen=True, slots=True)
class PoolPatches(Layer):
    """The first token beside the mean of the patches behind `tokens` of an image: [b, 2 h]."""

    features: int
    tokens: int = 1
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Reads all tokens; their gradient is a tensor of full size."""
        size, row = elements(at, self.features) * at.element, at.batch * self.features * at.element
        return Work((Memory(size + 4 * row, launches=2),), (Memory(2 * size, launches=3),), output=2 * row, input_gradients=(size,))


@dataclass(frozen=True, slots=True)
class SelectToken(Layer):
    """A view of each sample's first token; its gradient is a zeroed tensor of full size."""

    features: int
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Nothing forward."""
        size = elements(at, self.features) * at.element
        return Work(backward_input=(Memory(size),), input_gradients=(size,))


@dataclass(frozen=True, slots=True)
class Flatten(Layer):
    """Another shape of the same memory."""

    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Nothing."""
        return Work(input_gradients=(0,))


@dataclass(frozen=True, slots=True)
class SharedGate(Layer):
    """sigmoid(x w) * y with one weight vector: the gate of Qwen2-MoE's shared expert; `inputs` is (x, y)."""

    features: int
    parameter_name: str = ""
    split: Split = "replicated"
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight [1, features]."""
        return (Parameter(f"{self.parameter_name or self.name}.weight", (1, self.features), trainable=self.trainable),)

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways: the product with one column reads its operand once."""
        size, row = elements(at, self.features) * at.element, rows(at) * at.element
        return Work(
            (Memory(4 * size + 4 * row, flop=2 * size / at.element, launches=3),),
            (Memory(7 * size + 6 * row, flop=4 * size / at.element, launches=5),),
            output=size,
            input_gradients=(size, size),
            saves=(Save(self.inputs[0], size), Save(self.inputs[1], size), Save(f"{self.name}.sigmoid", row)),
        )


# norms over the hidden dimension
