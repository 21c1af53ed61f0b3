"""The software stack beside its kernels: memory of its own, and the thread that launches.

The scenario's `software` section as domain objects: field names are the YAML keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

COPY_TO_HOST = 10e-6
"""of a few bytes, until the thread that waits for them goes on [s]; a cudaMemcpyAsync takes 8 to 12 us end to end (assumption)"""


@dataclass(frozen=True, slots=True)
class Host:
    """The CPU thread that launches kernels: a block's pass takes no less than launching it."""

    per_layer_forward: float = 0.0
    """floor under one layer's forward, and under its recomputation [s]"""
    per_layer_backward: float = 0.0
    """floor under one layer's backward [s]"""
    per_collective: float = 0.0
    """added to the floor for each collective between a block's operators [s]"""
    per_kernel_forward: float = 0.0
    """added for each kernel of any block's forward: interpreter, dispatcher and launch [s]"""
    per_kernel_backward: float = 0.0
    """the same in backward, which autograd issues without the interpreter [s]"""
    launches_per_product: float = 1.0
    """kernels in whose time the thread launches one matrix product"""
    per_list_entry: float = 0.0
    """for each tensor of a list that a collective works on: a view, a copy and their bookkeeping [s]"""
    blocking: bool = False
    """the thread waits for every kernel (CUDA_LAUNCH_BLOCKING=1): launches take time besides the kernels"""
    graphs: tuple[str, ...] = ()
    """parts of a layer that are CUDA graphs, one launch each: attention, mamba, mlp, router, experts"""

    @property
    def answer(self) -> float:
        """From a number on the device to the kernel that the thread launches once it knows it [s]; 0 for a thread that is never seen."""
        known = self.per_kernel_forward + self.per_collective + self.per_layer_forward
        return COPY_TO_HOST + self.per_kernel_forward + self.per_collective if known else 0.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """The `software` section that costs memory or time outside kernels."""

    profile: str = "pytorch-2"
    context: int = 512 * 2**20
    """CUDA context and kernels [B]"""
    communicators: int | None = None
    """NCCL buffers [B]; None: 0.3 GiB for the first communicator of a rank and 0.2 GiB for each further one"""
    overhead: int = 0
    """named extra memory [B]"""
    workspace: int = 8_519_680
    """cuBLAS workspace per handle [B]; one in the forward thread, one in the autograd thread"""
    allocator: Literal["segments", "expandable", "exact"] = "segments"
    gradient_accumulation_fusion: bool = True
    gathers_again: bool = True
    """sequence parallelism gathers a column's saved input again for its weight gradient (Megatron-LM, Transformer Engine)"""
    inner_sequence: bool = False
    """activations are [b, s, h], not [s, b, h]: collectives along their tokens copy whole tensors (PyTorch's DTensor)"""
    repeats_kv: bool = False
    """keys and values are copied to all query heads before the attention kernel (repeat_kv)"""
    fused: bool = False
    """fused norm and activation kernels (software.fusion)"""
    compiled: bool = False
    """with `fused`: by torch.compile"""
    host: Host = field(default_factory=Host)
    """launch floor; all zero with CUDA graphs"""
    two_pass_norm: bool | None = None
    """norm kernels read a row twice (software.norm); None: as eager PyTorch's do, and fused ones do not"""
    train_metrics: int = 0
    """cross entropies of the logits that the trainer reports, each of them computed once more behind every backward"""
    step_constant: float = 0.0
    """seconds added to every step"""
    boundary: float = 0.0
    """seconds per 1e9 local parameters at the optimizer step"""

    @property
    def transformer_engine(self) -> bool:
        """Layers are Transformer Engine's."""
        return self.profile in ("megatron-core", "nemo")

    @property
    def torch_context(self) -> bool:
        """Context parallelism is PyTorch's `context_parallel`."""
        return self.torchtitan

    @property
    def torchtitan(self) -> bool:
        """The training loop is torchtitan's."""
        return self.profile.startswith("torchtitan")

    @property
    def deepspeed(self) -> bool:
        """The engine is DeepSpeed's."""
        return self.profile.startswith("deepspeed")

    @property
    def lists_weights(self) -> bool:
        """ZeRO-3 communicates every weight by itself, through lists of tensors (DeepSpeed before v0.5.9)."""
        return self.profile == "deepspeed-2021"

    @property
    def sends_alone(self) -> bool:
        """Pipeline messages are single sends and receives, not batches of them."""
        return self.deepspeed

    @property
    def holds_stage_outputs(self) -> bool:
        """A stage keeps what it has sent until its backward has run: DeepSpeed (runtime/pipe/engine.py, pipe_buffers["outputs"]), PyTorch
        (torch/distributed/pipelining/stage.py, fwd_cache) and Megatron-LM before deallocate_output_tensor (Korthikanti et al. 2022,
        2205.05198, appendix B), which frees it behind the send.
        """
        return not self.megatron or self.profile == "megatron-2021"

    @property
    def megatron(self) -> bool:
        """Gradients and buckets are Megatron-LM's."""
        return self.profile.startswith("megatron") or self.profile == "nemo"
