"""Products whose input and output are clamped (the towers of Gemma 4's E2B and E4B).

Structure: huggingface/transformers ``models/gemma4/modeling_gemma4.py``, Gemma4ClippableLinear.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from parsim.kernel import Memory
from parsim.model.linear import Linear
from parsim.model.model import Layer, Save, Work
from parsim.model.row import Row
from parsim.model.transformer import TransformerConfig
from parsim.model.workload import Split, Workload, elements


@dataclass(frozen=True, slots=True)
class Clamp(Layer):
    """A tensor between two bounds, as often as products with bounds of their own read it (`copies`); the tensor is kept.

    Backward of bounds that are tensors (PyTorch, clamp_backward): two comparisons (read, 1 B written), both joined (2 B read, 1 B written),
    and the gradient where they hold (mask and gradient read, written). Fused kernels join what stands beside them. The bounds, four
    numbers of a product, are not counted.
    """

    features: int
    copies: int = 1
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        if at.fused:
            return Work(input_gradients=(0,))
        count = elements(at, self.features, self.split)
        size, n = count * at.element, self.copies
        forward, backward = Memory(2 * n * size, launches=n), Memory(n * (4 * size + 6 * count), launches=4 * n)
        saves = (Save(self.inputs[0], size),)
        return Work(
            (forward,), (backward,), output=n * size, input_gradients=(size,), saves=saves, backward_temporary=(n - 1) * size + count
        )


def add_product(config: TransformerConfig, row: Row, linear: Linear) -> str:
    """The product, between clamps where the architecture has them; returns the name of what it makes."""
    if not config.clamped_products:
        return row.add(linear)
    name, products = linear.name, len(linear.out_features)
    made: Split = "replicated" if linear.split == "row" else "column"
    read: Split = "column" if linear.split == "row" else "replicated"
    source = row.add(Clamp(f"{name}_input_clamp", linear.inputs, f"{name}_input_clamp", linear.in_features, products, read))
    row.add(replace(linear, inputs=(source,), after_norm=False))
    return row.add(Clamp(f"{name}_clamp", (row.last,), f"{name}_clamp", sum(linear.out_features), split=made))
