"""Networks written layer by layer: counts of torchvision and PyTorch, the memory of a measured MLP, errors with their place."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.errors import ModelError
from parsim.model.activations import saved_bytes
from parsim.model.liveness import tape
from parsim.model.model import Model
from parsim.model.plain import plain_model
from parsim.model.workload import Workload

MIB = 2**20
MLP = [{"linear": {"out": 1024}}, {"linear": {"out": 1024}}, {"linear": {"out": 2048}}]
FP32 = Workload(10240, element=4, dtype="fp32", weight_element=4)


def mlp(layers: list[Any] | None = None, loss: str = "auto") -> Model:
    return plain_model({"input": {"shape": [1024], "dtype": "fp32"}, "layers": layers or MLP}, "mlp", loss)


def image(layers: list[Any], size: int = 224, loss: str = "auto") -> Model:
    return plain_model({"input": {"shape": [3, size, size]}, "layers": layers}, "net", loss)


def parameters(model: Model) -> int:
    return sum(p.count for block in model.blocks for p in block.parameters() if not p.buffer)


def resnet(word: str, depths: tuple[int, ...]) -> list[Any]:
    stem = [{"conv2d": {"out": 64, "kernel": 7, "stride": 2, "padding": 3, "bias": False}}, "batchnorm", {"relu": {"inplace": True}}]
    blocks = [
        {word: {"width": 64 * 2**stage, "stride": 2 if stage and not index else 1}} for stage, n in enumerate(depths) for index in range(n)
    ]
    return [*stem, {"maxpool": {"kernel": 3, "stride": 2, "padding": 1}}, *blocks, "global_avgpool", "flatten", {"linear": 1000}]


def vgg16() -> list[Any]:
    layers: list[Any] = []
    for channels, times in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        conv = {"conv2d": {"out": channels, "kernel": 3, "padding": 1}}
        layers += [{"repeat": {"times": times, "layers": [conv, {"relu": {"inplace": True}}]}}, {"maxpool": 2}]
    classifier = [{"linear": 4096}, "relu", "dropout", {"linear": 4096}, "relu", "dropout", {"linear": 1000}]
    return [*layers, {"adaptive_avgpool": 7}, "flatten", *classifier]


def test_parameter_counts() -> None:
    """torchvision's resnet18, resnet34, resnet50, resnet101, resnet152 and vgg16; the MLP 1024-1024-1024-2048."""
    assert parameters(mlp()) == 4_198_400
    assert parameters(image(vgg16())) == 138_357_544
    assert parameters(image(resnet("basic_block", (2, 2, 2, 2)))) == 11_689_512
    assert parameters(image(resnet("basic_block", (3, 4, 6, 3)))) == 21_797_672
    assert parameters(image(resnet("bottleneck", (3, 4, 6, 3)))) == 25_557_032
    assert parameters(image(resnet("bottleneck", (3, 4, 23, 3)))) == 44_549_160
    assert parameters(image(resnet("bottleneck", (3, 8, 36, 3)))) == 60_192_808


def test_saved_bytes_of_resnet50() -> None:
    """fp32, training mode, batch 32 of 224 x 224, loss not counted (PyTorch 2.13, measured)."""
    model = image(resnet("bottleneck", (3, 4, 6, 3)), loss="sum")
    assert saved_bytes(model, Workload(32, element=4, dtype="fp32")) == 2_749_316_608


@pytest.mark.parametrize(
    ("activation", "expected"), [(None, 125_829_120), ("relu", 125_829_120), ("gelu", 209_715_200), ("silu", 209_715_200)]
)
def test_saved_bytes_of_the_mlp(activation: str | None, expected: int) -> None:
    """Batch 10240: the inputs of three linears; ReLU's output is the next linear's input, GELU keeps its own input too."""
    first, second, last = MLP
    layers = MLP if activation is None else [first, activation, second, activation, last]
    assert saved_bytes(mlp(layers), FP32) == expected
    assert saved_bytes(mlp(layers), FP32, held=True) - expected == 83_886_080 + 4


def rounded(size: int) -> int:
    """Blocks of PyTorch's caching allocator."""
    return -(-size // 512) * 512


def peak_of_training(model: Model, at: Workload) -> tuple[int, int, str]:
    """Peak of one step without workspaces, bytes afterwards (input, output, loss and gradients still there), and the peak's step."""
    resident = sum(rounded(p.count * 4) for block in model.blocks for p in block.parameters())
    alive = {"x0": tape(model.blocks[0], at, (), input_gradient=False).tensors["input"].bytes}
    peak, where, gradients = 0, "", 0

    def name(block: int, tensor: str) -> str:
        ends = {"input": f"x{block}", "output": f"x{block + 1}", "grad_input": f"dx{block}", "grad_output": f"dx{block + 1}"}
        return ends.get(tensor, f"{block}.{tensor}")

    def look(place: str) -> None:
        nonlocal peak, where
        total = resident + gradients + sum(map(rounded, alive.values()))
        if total > peak:
            peak, where = total, place

    tapes = [tape(block, at, (), input_gradient=index > 0) for index, block in enumerate(model.blocks)]
    for index, entry in enumerate(tapes):
        for step in entry.forward:
            alive.update({name(index, t): entry.tensors[t].bytes for t in step.allocates})
            look(f"{step.operator.name} forward")
            for t in step.frees:
                del alive[name(index, t)]
    alive[f"dx{len(tapes)}"] = 4
    for index, entry in reversed(list(enumerate(tapes))):
        for place, step in enumerate(entry.backward):
            if step.phase == "weight":
                gradients += sum(rounded(p.count * 4) for p in step.operator.parameters())
            alive.update({name(index, t): entry.tensors[t].bytes for t in step.allocates})
            look(f"layer {index} {step.operator.name} {step.phase}")
            for t in step.frees:
                del alive[name(index, t)]
            if place == entry.input_last_backward and index:
                del alive[name(index, "input")]
    look("end")
    return peak, resident + gradients + sum(map(rounded, alive.values())), where


def test_peak_of_the_measured_mlp() -> None:
    """360.2744140625 MiB measured on a GPU with two cuBLAS workspaces of 8.125 MiB: parameters 16.015625, x 40, two hidden
    tensors 40, output 80, loss and its gradient 512 B each, the output's gradient 80, the last hidden one's 40 and the last
    layer's parameter gradients. Afterwards 168.28173828125 MiB."""
    peak, after, where = peak_of_training(mlp(), FP32)
    assert peak / MIB + 2 * 8.125 == 360.2744140625
    assert where == "layer 2 linear weight"
    assert after / MIB + 2 * 8.125 == 168.28173828125


def test_inference_of_the_measured_mlp() -> None:
    """184.140625 MiB while the last layer runs, with parameters 16.015625 and one workspace of 8.125."""
    model = mlp()
    at = Workload(10240, element=4, dtype="fp32", backward=False)
    alive, peak = {"0.input": 40 * MIB}, 0
    for index, block in enumerate(model.blocks):
        entry = tape(block, at)
        for position, step in enumerate(entry.forward_unsaved):
            alive.update({f"{index + (t == 'output')}.{'input' if t == 'output' else t}": entry.tensors[t].bytes for t in step.allocates})
            peak = max(peak, sum(map(rounded, alive.values())))
            for t in step.frees:
                del alive[f"{index}.{t}"]
            if index and position == entry.input_last_forward:
                del alive[f"{index}.input"]
    assert peak / MIB + 16.015625 + 8.125 == 184.140625


def test_blocks_are_layers_with_weights() -> None:
    assert len(mlp([{"linear": 8}, "relu", {"dropout": {}}, {"linear": 8}]).blocks) == 2
    resnet50 = image(resnet("bottleneck", (3, 4, 6, 3)))
    assert len(resnet50.blocks) == 1 + 16 + 1
    # the pool behind the last residual block joins it
    assert len({id(block) for block in resnet50.blocks}) == 1 + 2 + 2 + 2 + 3 + 1
    assert [len(block.operators) for block in resnet50.blocks[:3]] == [4, 12, 10]
    assert resnet50.facts["output_shape"] == (1000,)
    assert resnet50.facts["input_elements"] == 3 * 224 * 224


def test_forward_flops_of_resnet50() -> None:
    """4.089 G multiply-adds per image (torchvision's model table)."""
    at = Workload(1, element=4, dtype="fp32")
    model = image(resnet("bottleneck", (3, 4, 6, 3)))
    total = sum(
        kernel.flop for block in model.blocks for step in tape(block, at).forward for kernel in step.kernels if hasattr(kernel, "flop")
    )
    assert total / 2e9 == pytest.approx(4.089, abs=5e-4)


def test_residual_with_shortcut() -> None:
    layers = [
        {"residual": {"layers": [{"linear": 512}, "gelu", {"linear": 1024}]}},
        {"residual": {"layers": [{"linear": 64}], "shortcut": [{"linear": 64}]}},
    ]
    model = mlp([*layers, {"linear": 10}], "cross_entropy")
    assert parameters(model) == 1024 * 512 * 2 + 1536 + 2 * (1024 * 64 + 64) + 650
    for block in model.blocks:
        entry = tape(block, FP32)
        assert entry.input_saved


def test_views_stay_in_one_block() -> None:
    model = image(["flatten", {"linear": 8}], size=4)
    assert len(model.blocks) == 1
    assert saved_bytes(model, Workload(2, element=4)) > 0


@pytest.mark.parametrize(
    ("tree", "path", "message"),
    [
        ({"input": {"shape": [8]}}, "model.layers", "at least one layer"),
        ({"layers": MLP}, "model.input", "needs a mapping"),
        ({"input": {"shape": [8, 8]}, "layers": MLP}, "model.input.shape", "without the batch"),
        ({"input": {"shape": [8], "dtype": "int4"}, "layers": MLP}, "model.input.dtype", "one of fp32"),
        ({"input": {"shape": [8]}, "layers": MLP, "loss": 1}, "model.loss", "unknown key"),
        ({"input": {"shape": [8]}, "layers": ["lineer"]}, "model.layers[0]", "did you mean linear"),
        ({"input": {"shape": [8]}, "layers": [{"linear": {"out": 8, "width": 1}}]}, "model.layers[0].linear.width", "unknown setting"),
        ({"input": {"shape": [8]}, "layers": [{"linear": {}}]}, "model.layers[0].linear.out", "whole number"),
        ({"input": {"shape": [8]}, "layers": [{"linear": {"out": -1}}]}, "model.layers[0].linear.out", "whole number"),
        ({"input": {"shape": [8]}, "layers": [{"conv2d": {"out": 8, "kernel": 3}}]}, "model.layers[0].conv2d", "needs an image"),
        ({"input": {"shape": [3, 8, 8]}, "layers": [{"linear": 8}]}, "model.layers[0].linear", "put flatten before it"),
        ({"input": {"shape": [3, 8, 8]}, "layers": [{"conv2d": {"out": 8, "kernel": 9}}]}, "model.layers[0].conv2d.kernel", "larger than"),
        (
            {"input": {"shape": [3, 8, 8]}, "layers": [{"conv2d": {"out": 8, "kernel": 3, "groups": 2}}]},
            "model.layers[0].conv2d.groups",
            "divide",
        ),
        ({"input": {"shape": [8]}, "layers": [{"residual": {"layers": [{"linear": 4}]}}]}, "model.layers[0].residual", "cannot add shapes"),
        ({"input": {"shape": [8]}, "layers": [{"residual": {"layers": ["what"]}}]}, "model.layers[0].residual.layers[0]", "unknown layer"),
        ({"input": {"shape": [8]}, "layers": [{"gelu": {"inplace": True}}]}, "model.layers[0].gelu.inplace", "only relu"),
        ({"input": {"shape": [8]}, "layers": [{"repeat": {"layers": ["relu"]}}]}, "model.layers[0].repeat.times", "whole number"),
    ],
)
def test_errors_name_the_place(tree: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        plain_model(tree, "net")
    assert caught.value.findings[0].path == path


def test_dropout_is_the_models_own_probability() -> None:
    model = mlp([{"linear": 8}, {"dropout": 0.1}, "dropout", {"linear": 8}, {"dropout": {"p": 0}}])
    assert model.facts["dropout"] == 0.5
    assert [len(block.operators) for block in model.blocks] == [3, 2]
    with pytest.raises(ModelError, match="probability"):
        mlp([{"linear": 8}, {"dropout": 1.5}])


def test_unknown_loss() -> None:
    with pytest.raises(ModelError, match="one of auto"):
        mlp(loss="hinge")
