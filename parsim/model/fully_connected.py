"""Fully connected layers whose outputs ranks share, behind convolutions that are replicated: "one weird trick" (Krizhevsky 2014).

Convolutions have most of the work and few of the parameters, fully connected layers the reverse (1404.5997). N replicas that have
b samples each share the outputs of a fully connected layer: every one has 1/N of the rows of the weight and multiplies the
samples of all (his scheme a). Nothing of these weights is reduced. Instead the layer's inputs are gathered and its outputs go
back to the ranks of their samples, so that activations, dropout and loss between stay those of b samples.

=============  ===========================================  ==================================================
pass           product on a rank                            messages (`parsim.parallel.fully_connected`)
=============  ===========================================  ==================================================
forward        [N b, in] x [in, out / N]                    all-gather of N b in, all-to-all of b out
input          [N b, out / N] x [out / N, in]               all-to-all of b out, reduce-scatter of N b in
weight         [out / N, N b] x [N b, in]                   none: the gathered input is kept
=============  ===========================================  ==================================================
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from parsim.kernel import Gemm, Kernel, Memory
from parsim.model.linear import Linear
from parsim.model.model import Block, Model, Operator, Parameter, Save, Work
from parsim.model.workload import Workload


@dataclass(frozen=True, slots=True)
class SharedLinear(Linear):
    """A fully connected layer of a plain network over ``Workload.expert_width`` replicas; over one it is `Linear`.

    Its parameters are told apart as experts' are: split over ranks that are replicas of everything else.
    """

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight [out, in] and bias [out], split by outputs."""
        return tuple(replace(p, split=0, expert=True) for p in Linear.parameters(self))

    def training_work(self, at: Workload) -> Work:
        """The products of the module's text."""
        ranks = at.expert_width
        if ranks == 1:
            return Linear.training_work(self, at)
        own, out, e = at.tokens, sum(self.out_features), at.element
        rows, n, k = own * ranks, -(-out // ranks), self.in_features
        weight: tuple[Kernel, ...] = (Gemm(n, k, rows, dtype=at.dtype, element=e, weight_gradient=True, layout="NT"),)
        if self.bias:
            weight += (Memory(rows * n * e),)
        return Work(
            forward=(Gemm(rows, n, k, dtype=at.dtype, element=e),),
            backward_input=(Gemm(rows, k, n, dtype=at.dtype, element=e, layout="NN"),),
            backward_weight=weight if self.trainable else (),
            output=own * out * e,
            input_gradients=(own * k * e,),
            saves=(Save(f"{self.name}.gathered", rows * k * e, "weight"),) if self.trainable else (),
            forward_temporary=rows * n * e,
            backward_temporary=rows * n * e + rows * k * e,
        )


def share_outputs(model: Model) -> Model:
    """`model` with every fully connected layer as a `SharedLinear`."""
    made = {block: _shared(block) for block in model.distinct_blocks}
    return replace(model, blocks=tuple(made[block] for block in model.blocks))


def _shared(block: Block) -> Block:
    operators: list[Operator] = []
    for operator in block.operators:
        if isinstance(operator, Linear):
            values = {field.name: getattr(operator, field.name) for field in fields(operator)}
            operators.append(SharedLinear(**values))
        else:
            operators.append(operator)
    return block if operators == list(block.operators) else Block(block.kind, tuple(operators), block.registration)
