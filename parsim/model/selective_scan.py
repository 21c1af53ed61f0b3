"""Mamba's first selective state space (2312.00752): convolution, choice of step, B and C, and the scan, as one operator.

S_t = exp(step_t A) S_(t-1) + step_t B_t x_t, y_t = C_t S_t + D x_t, with a state of N elements for every channel, gated by SiLU(z).
Unlike the kinds of `parsim.model.linear_attention` it has no form in matrix products: state-spaces/mamba's kernel (``csrc/selective_scan``)
computes it element by element in fp32, 9 N FLOP per channel and token (appendix D there), and once more in backward, which makes twice
as much besides. It keeps the state at every 2048th token.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import ChunkScan, Gemm, Kernel, Memory
from parsim.model.linear_attention import LinearAttention, ScanFlop
from parsim.model.model import Parameter, Save, Work
from parsim.model.workload import Workload

_FLOP = 9.0
"""of one element of the state at one token"""
_SEGMENT = 2048
"""tokens after which the kernel keeps its state"""


@dataclass(frozen=True, slots=True)
class SelectiveScan(LinearAttention):
    """What stands between the two projections of a Mamba layer; `inputs` is the first one's output, channels and gate.

    heads: channels; key_dim: state size (N); value_dim 1. Keeps the projected channels and gate, the chosen step, B and C, and states.
    Convolution and steps are made again in backward (``mamba_inner_fn``), or kept, where norms stand between them (Jamba, Falcon Mamba).
    """

    step_rank: int = 0
    """width of the compressed step (R)"""
    convolution_bias: bool = True
    norms: str = ""
    """RMSNorm of step, B and C: weighted (Jamba) | plain, without weights (Falcon Mamba)"""

    def parameters(self) -> tuple[Parameter, ...]:
        """A_log [channels, N], D [channels], convolution, choice of step, B and C, expansion of the step, norms."""
        n, r, state = self.heads, self.step_rank, self.key_dim
        shapes: list[tuple[str, tuple[int, ...], int | None]] = [("A_log", (n, state), 0), ("D", (n,), 0)]
        shapes.append(("conv1d.weight", (n, 1, self.convolution), 0))
        shapes += [("conv1d.bias", (n,), 0)] if self.convolution_bias else []
        shapes += [("x_proj.weight", (r + 2 * state, n), 1), ("dt_proj.weight", (n, r), 0), ("dt_proj.bias", (n,), 0)]
        if self.norms == "weighted":
            shapes += [("dt_norm.weight", (r,), None), ("b_norm.weight", (state,), None), ("c_norm.weight", (state,), None)]
        return tuple(Parameter(f"{self.name}.{name}", shape, split, trainable=self.trainable) for name, shape, split in shapes)

    def flop(self, at: Workload | None = None) -> ScanFlop:
        """FLOP of one token in the scan alone."""
        scan = _FLOP * self.heads * self.key_dim
        return ScanFlop(scan, scan)

    def training_work(self, at: Workload) -> Work:
        """A convolution, two products and a scan; backward makes convolution and steps again where they were not kept."""
        m, n, r, chosen = at.tokens, self.heads, self.step_rank, self.step_rank + 2 * self.key_dim
        e, dtype = at.element, "bf16" if at.narrow else at.dtype
        wide, narrow = m * n * e, m * chosen * e
        states = -(-at.sequence // _SEGMENT) * at.batch * n * 2 * self.key_dim * 4

        def product(width: int, inner: int, *, transposed: bool = False) -> Gemm:
            return Gemm(m, width, inner, dtype=dtype, element=e, layout="NN" if transposed else "TN")

        def scan(passes: float, factor: float) -> ChunkScan:
            flop = self.flop()
            return ChunkScan(passes * wide + 2 * narrow + states, m * (flop.forward if factor == 1 else factor), 1, "fp32")

        convolve = Memory(2 * wide, flop=2.0 * self.convolution * m * n)
        normed = (Memory(2 * narrow, launches=3),) if self.norms else ()
        forward: tuple[Kernel, ...] = (convolve, product(chosen, n), *normed, product(n, r), scan(4, 1))
        again: tuple[Kernel, ...] = () if self.norms else (convolve, product(n, r))
        # reads channels, steps, gate, outputs and their gradient; writes three gradients
        backward: tuple[Kernel, ...] = (
            *again, scan(8, 3 * _FLOP * n * self.key_dim), product(r, n, transposed=True), *normed, product(n, chosen, transposed=True),
            Memory(3 * wide, flop=4.0 * self.convolution * m * n),
        )  # fmt: skip
        weight: tuple[Kernel, ...] = ()
        if self.trainable:
            weight = tuple(
                Gemm(rows, columns, m, dtype=dtype, element=e, weight_gradient=True, layout="NT") for rows, columns in ((n, r), (chosen, n))
            )
        saves = [Save(self.inputs[0], 2 * wide), Save(f"{self.name}.chosen", narrow), Save(f"{self.name}.states", states)]
        if self.norms:
            saves += [Save(f"{self.name}.convolved", wide), Save(f"{self.name}.steps", wide), Save(f"{self.name}.ungated", wide)]
            saves.append(Save(f"{self.name}.normed", narrow))
        return Work(
            forward, backward, weight, output=wide, input_gradients=(2 * wide,), saves=tuple(saves),
            forward_temporary=0 if self.norms else 2 * wide, backward_temporary=(2 if self.norms else 4) * wide,
        )  # fmt: skip
