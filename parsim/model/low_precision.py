"""Recipes of products in eight bits and in four: what they cost beside themselves, and what they keep.

A linear layer y = x W^T multiplies three times: y from x and W, dx from dy and W, dW from dy and x. Each operand is quantised from
bf16, most of them in two directions: Hopper's fp8 products want both operands contiguous along the sum (TN), so that W, dy and x are
needed transposed as well, and blocks along rows are not blocks along columns on any device.

=============  ===================  ==========================================================  =======================================
recipe         library              scales                                                      passes over x (T x K), bytes an element
=============  ===================  ==========================================================  =======================================
delayed        Transformer Engine   one, from the largest values of steps before                2 read, 1 written, 1 for a transpose
current        Transformer Engine   one, from the largest value (2 read)                        2 read, 1 written, 1 for a transpose
blockwise      Transformer Engine   fp32, of 1 x 128 (weights: 128 x 128)                       2 read, 2 x (1 + 4/128) written
mxfp8          both                 8 bit, of 1 x 32                                            2 read, 1 + 1/32 written a direction
nvfp4          Transformer Engine   8 bit, of 1 x 16, and one (largest value: 2 read)           2 read, 1/2 + 1/16 written a direction
tensorwise     torchao              one, from the largest value (2 read)                        2 read, 1 written a direction
deepseek-v3    DeepSeek             fp32, of 1 x 128 (weights: 128 x 128)                       2 read, 1 + 4/128 written, twice for x
rowwise        torchao              fp32, of a row or a column of the operand                   2 read, 1 written; columns 2 read more
int8           torchao              the same, in int8                                           the same
=============  ===================  ==========================================================  =======================================

Transformer Engine (``pytorch/module/linear.py``, ``layernorm_linear.py``, ``csrc/quantizer.cpp``, ``csrc/extensions/normalization.cpp``)
keeps x in fp8 in the direction that dW needs. Weights are quantised in the step's first micro-batch and kept (``is_first_microbatch``),
under FSDP in every pass. A norm that feeds one product writes fp8 itself (delayed) or finds the largest value (current). With sequence
parallelism x and dy are quantised before they are gathered, in fp8; one scale per tensor goes with rows only, so that what dW needs is
transposed after the gather. dy is quantised for dW only if W trains. NVFP4's columns of x and dy pass through a Hadamard transform of
16 x 16 in the kernel that casts them, and so the largest values are those behind it, which no norm knows; dy is rounded stochastically,
a weight has one scale for 16 x 16 elements but stores one for every 16, and both operands of every product are contiguous along the sum
(``common/recipe``: NVFP4BlockScaling; ``csrc/quantizer.cpp``: NVFP4Quantizer::quantize_impl; ``csrc/extensions/normalization.cpp``).

DeepSeek-V3 (2412.19437, section 3.3) quantises blocks as `blockwise` does, but caches x by rows: backward reads it, takes the scales back,
transposes it and quantises it once more by columns (section 3.5.2). That its weights are quantised once a step and that no norm or
activation writes fp8 is an assumption: the program is not public.

torchao (``float8/float8_linear.py``: matmul_with_hp_or_float8_args) keeps x and W in bf16 and casts them again in backward; every pass
casts weights. Its casts are torch.compile's kernels (assumption: a cast and the copy into the layout that ``torch._scaled_mm`` wants are
one kernel; a largest value over a row joins it, one over a column or a tensor is a pass before). Its int8 products (torchao/prototype/
quantized_training/int8_mixed_precision.py: output, grad_input and grad_weight, all three by default) have the casts of rowwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Kernel, Memory

TRANSFORMER_ENGINE, TORCHAO, DEEPSEEK = "transformer-engine", "torchao", "deepseek"
RECIPES: dict[str, tuple[str, ...]] = {
    "delayed": (TRANSFORMER_ENGINE,),
    "current": (TRANSFORMER_ENGINE,),
    "blockwise": (TRANSFORMER_ENGINE,),
    "mxfp8": (TRANSFORMER_ENGINE, TORCHAO),
    "nvfp4": (TRANSFORMER_ENGINE,),
    "deepseek-v3": (DEEPSEEK,),
    "rowwise": (TORCHAO,),
    "tensorwise": (TORCHAO,),
    "int8": (TORCHAO,),
}
"""recipe -> libraries that have it"""
PRODUCTS = {"nvfp4": "fp4", "int8": "int8"}
"""recipe -> type of its products; fp8 of all others"""
NARROW = {"fp8": 1.0, "fp4": 0.5, "int8": 1.0}
"""types of products that need a recipe: bytes of an operand's element"""
_PER_TENSOR = ("delayed", "current")
_SCALES = {"blockwise": 4 / 128, "deepseek-v3": 4 / 128, "mxfp8": 1 / 32, "nvfp4": 1 / 16}
"""bytes of scales per element of an activation, in one direction"""
_WEIGHT_SCALES = {"blockwise": 4 / 128**2, "deepseek-v3": 4 / 128**2, "mxfp8": 1 / 32, "nvfp4": 1 / 16}
_LARGEST_FIRST = {"current": 4, "nvfp4": 8}
"""recipes that read a tensor for its largest value first: bytes on which ranks agree that gather it (nvfp4: of rows and of columns)"""


_ROWS = {"mxfp8": 32, "nvfp4": 64, "deepseek-v3": 128}
"""recipe -> what an expert's rows are a multiple of; 16 of all others. NVIDIA/Megatron-LM: get_fp8_align_size in fp8_utils.py (32, 16),
get_fp4_align_size in fp4_utils.py (64); pytorch/torchtitan, TOKEN_GROUP_ALIGN_SIZE_M (16, mxfp8 32); deepseek-ai/DeepGEMM, README: 128"""


CAST_ISSUES = (41.5, 62.4)
"""of Transformer Engine's mxfp8 casts, for an element in one direction, in two [FLOP]: `Memory.vector`. The kernel is bound by
arithmetic, not by memory (NVIDIA/TransformerEngine pull request 1628): 8,192 x 8,192 bf16 on a B200 take 34.8 us by rows and 52.3 us by
rows and columns (ROCm/TransformerEngine pull request 598, column B200)"""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How the products of a job are made in eight or four bits."""

    recipe: str
    library: str
    tn_only: bool
    """the device multiplies such operands only if both are contiguous along the sum"""
    caches_weights: bool
    """a weight is quantised once a step instead of in every pass"""
    arrives: bool = False
    """weights arrive in fp8 from whoever shares them"""

    @property
    def _engine(self) -> bool:
        return self.library != TORCHAO

    @property
    def _again(self) -> bool:
        """The columns of x are made of what was kept of its rows."""
        return self.recipe == "deepseek-v3"

    @property
    def _tensor_scale(self) -> bool:
        return self.recipe in _PER_TENSOR

    @property
    def products(self) -> str:
        """Type of the products."""
        return PRODUCTS.get(self.recipe, "fp8")

    @property
    def _element(self) -> float:
        """Bytes of an activation's element in one direction."""
        return NARROW[self.products] + _SCALES.get(self.recipe, 0.0)

    @property
    def _weight_element(self) -> float:
        """Bytes of a weight's element in one direction."""
        return NARROW[self.products] + _WEIGHT_SCALES.get(self.recipe, 0.0)

    @property
    def layouts(self) -> tuple[str, str]:
        """Layouts of the products of the input's and of the weight's gradient."""
        return ("TN", "TN") if self.tn_only or not self._engine or self.recipe == "nvfp4" else ("NN", "NT")

    @property
    def padding(self) -> int:
        """Rows that an expert's own are filled up with on average: half of what they are a multiple of."""
        return _ROWS.get(self.recipe, 16) // 2

    @property
    def takes_lists(self) -> bool:
        """One kernel quantises the rows of all experts."""
        return self.recipe == "delayed"

    @property
    def pads_by_itself(self) -> bool:
        """Rows are filled up by kernels of their own (``Fp8Padding`` and ``Fp8Unpadding``), not where tokens are put in order."""
        return self.library == TRANSFORMER_ENGINE

    # -- what is kept and sent ------------------------------------------------------------------------------------

    @property
    def saved(self) -> float:
        """Bytes per element of the input that is kept for the weight's gradient; 0: the bf16 input itself."""
        return self._element if self._engine else 0.0

    @property
    def weight_copies(self) -> float:
        """Bytes per element of a weight's quantised copies that stay through the step."""
        if not self.caches_weights:
            return 0.0
        return self._weight_element * (2 if self.tn_only or not self._tensor_scale else 1)

    def sent(self, *, backward: bool = False) -> float:
        """Bytes per element that tensor parallelism gathers of an input, or (`backward`) of an output's gradient; 0: bf16.

        torchtitan gathered in fp8 with tensorwise scales only (enable_float8_tensorwise_tp, until February 2026; torchao's
        Float8ColwiseParallel and Float8RowwiseParallel).
        """
        if not self._engine:
            return 1.0 if self.recipe == "tensorwise" else 0.0
        return self._element * (2 if backward and not self._tensor_scale else 1)

    @property
    def agreed(self) -> int:
        """Bytes of the largest values on which the ranks agree that gather a tensor; 0: they need none."""
        return _LARGEST_FIRST.get(self.recipe, 0)

    # -- kernels --------------------------------------------------------------------------------------------------

    def input(self, count: int, *, trains: bool, gathers: bool, after_norm: bool) -> tuple[Kernel, ...]:
        """Quantise the `count` elements of the input that a rank has, before the product.

        `gathers`: the other ranks' elements are gathered behind it; `after_norm`: a norm makes them for this product alone.
        """
        if not self._engine:
            return self._pass(count)
        if not self._tensor_scale:
            return (*self._largest(count), self._both(count, trains and not self._again))
        transposed = trains and self.tn_only and not gathers
        if after_norm and self.recipe == "delayed":  # the norm writes one byte for two; the transpose reads and writes one each
            return (Memory(float(count)),) if transposed else ()
        return (*(() if after_norm else self._largest(count)), Memory(float(count * (3 + transposed))))

    def weight(self, count: int) -> tuple[Kernel, ...]:
        """Quantise a weight of `count` elements in every direction that a step needs, where that is done once a step."""
        if not self._tensor_scale:
            return (*self._largest(count), self._cast(count, self._weight_element, 2))
        return (*self._largest(count), Memory(float(count * (3 + self.tn_only))))

    def behind_gather(self, count: int) -> tuple[Kernel, ...]:
        """Of a weight that has arrived in fp8, once a step: its copy by columns."""
        return (Memory(2.0 * count),) if self.tn_only or not self._tensor_scale else ()

    def before_gather(self, count: int, master: int) -> tuple[Kernel, ...]:
        """Of the own share of weights that are stored in fp8 alone: their largest values, where the recipe looks for them first.

        The cast is the optimizer's copy of its masters, of `master` bytes.
        """
        return (Memory(float(master * count), launches=2),) if self.recipe in ("current", "blockwise") else ()

    @property
    def in_layers_only(self) -> bool:
        """Experts do not travel in fp8: torchao converts linear layers alone for that."""
        return not self._engine

    def weight_in_pass(self, count: int, *, backward: bool) -> tuple[Kernel, ...]:
        """The same where every pass does it for itself; none where weights are kept."""
        if self.caches_weights:
            return ()
        if self.arrives and not self._engine:  # torch._scaled_mm reads the other operand by columns
            return (Memory(2.0 * count),) if backward else ()
        if not self._engine:
            return self._pass(count, columns=backward, again=backward)
        if not self._tensor_scale:
            return (*self._largest(count), self._cast(count, self._weight_element, 1))
        return (*self._largest(count), Memory(count * (2 + self._weight_element + (backward and self.tn_only))))

    def gradient(self, count: int, *, trains: bool, gathers: bool) -> tuple[Kernel, ...]:
        """Quantise the `count` elements of the output's gradient that a rank has, before the products of backward."""
        if not self._engine:
            return self._pass(count)
        if not self._tensor_scale:
            return (*self._largest(count), self._both(count, trains))
        transposed = trains and self.tn_only and not gathers
        return (*self._largest(count), Memory(float(count * (3 + transposed))))

    def before_weight(self, inputs: int, gradients: int, *, input_gathered: bool, gradient_gathered: bool) -> tuple[Kernel, ...]:
        """What the weight's gradient needs beyond that: transposes of what was gathered, or torchao's second casts.

        `inputs` and `gradients` count the elements of the whole operands.
        """
        if not self._engine:
            second = () if self.recipe == "tensorwise" else self._pass(gradients, columns=True)
            once_more = (Memory(3.0 * gradients),) if self.recipe == "tensorwise" else ()
            return (*second, *once_more, *self._pass(inputs, columns=True, again=True))
        if self._again:
            return (Memory(2 * self._element * inputs),)
        if not (self._tensor_scale and self.tn_only):
            return ()
        return tuple(Memory(2.0 * count) for count, was in ((inputs, input_gathered), (gradients, gradient_gathered)) if was)

    # -- around attention in eight bits ---------------------------------------------------------------------------

    @property
    def attention_saved(self) -> float:
        """Bytes per element of the queries, keys and values that a kernel of attention in fp8 keeps: mxfp8 in both directions."""
        return 2 * self._element if self.recipe == "mxfp8" else 1.0

    @property
    def attention_in_fp8(self) -> bool:
        """The kernel writes its output and its gradients in fp8, from which they are taken back; else in 16 bit."""
        return self.recipe == "delayed"

    def attention_operands(self, count: int) -> tuple[Kernel, ...]:
        """Quantise `count` elements for a kernel of attention: queries, keys and values forward, the output's gradient backward.

        Transformer Engine, pytorch/attention/dot_product_attention/backends.py (FusedAttnFunc) and utils.py (combine_and_quantize).
        Backward reads what forward quantised. Recipes that have no form for attention take that of current scaling (assumption).
        """
        if self.recipe == "mxfp8":
            return (self._cast(count, self._element, 2),)
        largest = () if self.recipe == "delayed" else (Memory(2.0 * count, launches=2),)
        return (*largest, Memory(3.0 * count))

    def attention_results(self, count: int) -> tuple[Kernel, ...]:
        """Take `count` elements of the output (forward) or of the gradients of queries, keys and values (backward) back to 16 bit."""
        return (Memory(3.0 * count),) if self.attention_in_fp8 else ()

    @property
    def fuses_bias(self) -> bool:
        """The bias's gradient is summed by the kernel that quantises dy (``bgrad_quantize``)."""
        return self._engine and self.recipe not in ("blockwise", "nvfp4", "deepseek-v3")

    def _largest(self, count: int) -> tuple[Kernel, ...]:
        """The pass that finds the largest value, and the kernel that makes a scale of it."""
        return (Memory(2.0 * count, launches=2),) if self.recipe in _LARGEST_FIRST else ()

    def _both(self, count: int, trains: bool) -> Memory:
        """Rows and, for a weight's gradient, columns in one kernel."""
        return self._cast(count, self._element, 1 + trains)

    def _cast(self, count: int, element: float, ways: int) -> Memory:
        """One kernel that makes `element` bytes of each of `count` elements in one direction or in two."""
        issued = CAST_ISSUES[ways - 1] * count if (self.recipe, self.library) == ("mxfp8", TRANSFORMER_ENGINE) else 0.0
        return Memory(count * (2 + ways * element), vector=issued)

    def _pass(self, count: int, *, columns: bool = False, again: bool = False) -> tuple[Kernel, ...]:
        """torchao: one cast. `columns`: scales run across the rows of memory; `again`: a tensor's scale is known from forward."""
        before = not again if self.recipe == "tensorwise" else columns and self.recipe in ("rowwise", "int8")
        largest = (Memory(2.0 * count),) if before else ()
        return (*largest, Memory(count * (2 + self._element)))
