"""The norm of values (Gemma 4): RMSNorm over each value head, without weights.

Structure: huggingface/transformers ``models/gemma4/modeling_gemma4.py``, Gemma4TextAttention.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Memory
from parsim.model.model import Layer, Save, Work
from parsim.model.norms import eager_rms_norm
from parsim.model.workload import Split, Workload, shard


@dataclass(frozen=True, slots=True)
class ValueNorm(Layer):
    """RMSNorm over each of `kv_heads` heads of `head_dim` elements; saves as `RMSNorm` does, but nothing for weights.

    The values lie inside the fused query-key-value tensor, which keeps its name and size, or are a tensor of their own that is made of the
    keys' product (`from_keys`), which the norm of keys reads, too.
    """

    kv_heads: int
    head_dim: int
    from_keys: bool = False
    by_power: bool = False
    """as of `RMSNorm`"""
    split: Split = "heads"
    selective: str = "norm"

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        heads = at.tokens * shard(self.kv_heads, at)
        count = heads * self.head_dim
        size = count * at.element
        forward: tuple[Memory, ...] = (Memory(2 * size),)
        backward: tuple[Memory, ...] = (Memory(3 * size),)
        saves = [Save(f"{self.name}.statistics", 4 * heads)]
        if at.fused:
            saves.append(Save(f"{self.name}.input", size))
        else:
            forward, backward = eager_rms_norm(count, at.element, weights=False)
            if self.by_power:
                saves.append(Save(f"{self.name}.mean", 4 * heads))
            if not (self.from_keys and at.element == 4):  # in fp32 the copy is the product itself, which the norm of keys keeps
                saves.append(Save(f"{self.name}.fp32", 4 * count))
        if self.from_keys:
            return Work(forward, backward, output=size, input_gradients=(size,), saves=tuple(saves), backward_temporary=size)
        return Work(forward, backward, input_gradients=(0,), saves=tuple(saves), forward_temporary=size, backward_temporary=size)
