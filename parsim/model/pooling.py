"""Patches of an image that become the tokens of a text by a product with a matrix of shares (Gemma 4)."""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Gemm, Memory
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.workload import Split, Workload


@dataclass(frozen=True, slots=True)
class PoolByPosition(Layer):
    """Means of the patches of each token, whose positions say where they lie: [b, patches, h] become [b, tokens, h].

    A matrix [b, patches, tokens] of zeros and shares times the patches, both in fp32 (transformers ``models/gemma4/modeling_gemma4.py``,
    Gemma4VisionPooler); the result, times a constant and `standardised`, stays fp32 until it is cast back.
    """

    features: int
    tokens: int
    standardised: bool = False
    split: Split = "replicated"
    selective: str = ""

    def parameters(self) -> tuple[Parameter, ...]:
        """Shift and factor [h] of every feature, which no gradient updates."""
        names = ("std_bias", "std_scale") if self.standardised else ()
        return tuple(Parameter(f"{self.name}.{name}", (self.features,), trainable=False, buffer=True) for name in names)

    def training_work(self, at: Workload) -> Work:
        """Matrix made (indices of 8 B, shares of 4), patches masked and cast, product, what follows on its result; the matrix is kept."""
        patches = at.tokens * self.features
        pooled, matrix = at.batch * self.tokens * self.features, at.tokens * self.tokens
        e, cast = at.element, 2 if at.element < 4 else 0
        after = 8 + cast * (e + 4) + 16 * self.standardised
        saves = [Save(f"{self.name}.matrix", 4 * matrix), Save(f"{self.name}.padding", at.tokens)]
        if self.standardised and at.weight_element < 4:
            saves.append(Save(f"{self.name}.factor", 4 * self.features))
        return Work(
            (
                Memory((8 + 12 + 8) * matrix + (2 * e + cast * (e + 4) // 2) * patches, launches=6),
                Gemm(self.tokens, self.features, at.sequence, at.batch, "fp32", 4, layout="NN"),
                Memory(after * pooled, launches=2 + cast + 2 * self.standardised),
            ),
            (
                Memory(after * pooled, launches=2 + cast + self.standardised),
                Gemm(at.sequence, self.features, self.tokens, at.batch, "fp32", 4, layout="NN"),
                Memory((2 * e + cast * (e + 4) // 2) * patches, launches=2),
            ),
            output=pooled * e,
            input_gradients=(patches * e,),
            saves=tuple(saves),
            forward_temporary=4 * (patches + pooled) + 8 * matrix,
            backward_temporary=4 * (patches + pooled),
        )
