"""`parallel.data.strategy: FILE.py:CLASS`: what it means, and what goes wrong in it, is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parsim.cli import execute
from parsim.errors import InputError
from parsim.run import simulate
from parsim.scenario import load
from parsim.study.what_if import tried

HEAD = """
from parsim.parallel.ddp import DistributedDataParallel
from parsim.parallel.fsdp import FullyShardedDataParallel
from parsim.parallel.replicated import Replicated
from parsim.parallel.single_process import ParameterServer
from parsim.parallel.zero import ZeroOptimizer

class Same(DistributedDataParallel):
    pass

class Stage1(ZeroOptimizer):
    pass

class Sharded(FullyShardedDataParallel):
    pass

class Nothing:
    pass

"""
TREE: dict[str, Any] = {
    "name": "own",
    "model": {"family": "gpt2", "hidden": 256, "layers": 2, "heads": 4, "vocabulary": 1024, "maximum_sequence": 512},
    "cluster": {"topology": "dgx-a100-80gb", "nodes": 2},
    "training": {"sequence_length": 256, "micro_batch": 2, "gradient_accumulation": 2},
    "software": {"profile": "pytorch-2"},
}


def tree(strategy: str, **data: Any) -> dict[str, Any]:
    return {**TREE, "parallel": {"data": {"strategy": strategy, **data}}}


def scenario(folder: Path, strategy: str, code: str = "", **data: Any) -> Path:
    """A scenario file beside its strategy file."""
    (folder / "mine.py").write_text(HEAD + code, encoding="utf-8")
    (folder / "job.yaml").write_text(json.dumps(tree(strategy, **data)), encoding="utf-8")
    return folder / "job.yaml"


def answer(document: dict[str, Any]) -> dict[str, Any]:
    """A report without what repeats the input, and without what published runs of a known strategy say."""
    apart = ("scenario", "provenance", "assumptions", "warnings", "confidence", "estimate")
    left = {key: value for key, value in document.items() if key not in apart}
    del left["simulation"]["wall_s"]
    return left


@pytest.mark.parametrize(
    ("name", "shipped", "data"),
    [
        ("Same", "ddp", {}),
        ("Stage1", "zero1", {}),
        ("Sharded", "hsdp", {}),
        ("Sharded", "hsdp", {"shard_size": 4}),
        ("Sharded", "fsdp", {"shard_size": 16}),
    ],
)
def test_a_class_derived_from_a_shipped_one_does_the_same(tmp_path: Path, name: str, shipped: str, data: dict[str, Any]) -> None:
    own = simulate(scenario(tmp_path, f"mine.py:{name}", **data), trust_code=True).document()
    other = simulate(tree(shipped, **(data if shipped == "hsdp" else {}))).document()
    assert answer(own) == answer(other)
    assert own["confidence"]["status"] == "unvalidated", "nobody has measured it"
    assert simulate(own["scenario"], trust_code=True).step_time == own["step_time_s"], "the resolved scenario knows where the file is"


def test_other_processes_read_the_file_too(tmp_path: Path) -> None:
    mine = load(scenario(tmp_path, "mine.py:Same"), trust_code=True)
    first, second = (one.answer for one in tried(mine, [(), ("training.micro_batch=4",)], jobs=2))
    assert first.step_time == simulate(tree("ddp")).step_time
    assert second.samples == 2 * first.samples


def test_one_replica_needs_no_strategy(tmp_path: Path) -> None:
    file = scenario(tmp_path, "mine.py:Fails", "class Fails(Replicated):\n    def step(self, at):\n        raise RuntimeError\n")
    assert simulate(load(file, "cluster.gpus=1", trust_code=True)).step_time == simulate(load(tree("none"), "cluster.gpus=1")).step_time


def test_a_node_that_is_no_equal_part_makes_one_group(tmp_path: Path) -> None:
    file = scenario(tmp_path, "mine.py:Sharded")
    twelve = simulate(load(file, "cluster.gpus=12", trust_code=True)).document()
    assert {row["group_size"] for row in twelve["collectives"]} == {12}


BAD = "class Bad(Replicated):\n"
BROKEN = {
    "no such file": ("other.py:Same", "", "there is no file 'other.py'"),
    "no class named": ("mine.py", "", "say which class: mine.py:NAME"),
    "no such class": ("mine.py:Same2", "", "has no class 'Same2'; it has Same, Stage1, Sharded"),
    "no strategy": ("mine.py:Nothing", "", "Nothing of {file} is not a strategy; derive it from Replicated"),
    "central": ("mine.py:ParameterServer", "", "is not a strategy"),
    "syntax": ("mine.py:Same", "class Broken(:\n", "failed with SyntaxError"),
    "a hook fails": (
        "mine.py:Bad", BAD + "    def after_backward(self, unit, at):\n        at.nothing()\n",
        "{file}:22  parallel.data.strategy  Bad failed with AttributeError: 'PassBuilder' object has no attribute 'nothing'",
    ),
    "a hook with other arguments": (
        "mine.py:Bad", BAD + "    def step(self):\n        pass\n",
        "{file}  parallel.data.strategy  Bad failed with TypeError: Bad.step() takes 1 positional argument but 2 were given",
    ),
    "a hook that gives nothing": (
        "mine.py:Bad", BAD + "    def resident(self, at):\n        pass\n", "{file}  parallel.data.strategy  Bad failed with TypeError: ",
    ),
    "a file that ends the program": ("mine.py:Same", "raise SystemExit(0)\n", "failed with SystemExit: 0"),
    "an unknown axis": (
        "mine.py:Bad", BAD + "    def finish_gradients(self, at):\n        at.collective('all_reduce', 'node', 8, 'g')\n",
        "parallel.data.strategy  a collective along 'node', which is no axis; use one of tensor, context, data, pipeline, shard, replica",
    ),
    "an unknown collective": (
        "mine.py:Bad", BAD + "    def finish_gradients(self, at):\n        at.collective('sum', 'data', 8, 'g')\n",
        "parallel.data.strategy  unknown collective 'sum'",
    ),
    "freed twice": (
        "mine.py:Bad", BAD + "    def step(self, at):\n        self._drop_gradients(at)\n        self._drop_gradients(at)\n",
        "frees what does not exist (freed twice, or never allocated)",
    ),
    "a size that is none": (
        "mine.py:Bad", BAD + "    def finish_gradients(self, at):\n        at.collective('all_reduce', 'data', -8, 'g')\n",
        "parallel.data.strategy  a all_reduce of -8 bytes",
    ),
    "a tensor that was never declared": (
        "mine.py:Bad", BAD + "    def step(self, at):\n        at.compute('x', 'compute', (), frees=['nothing'])\n",
        "{file}:22  parallel.data.strategy  Bad failed with KeyError: 'nothing'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("strategy", "code", "said"), BROKEN.values(), ids=list(BROKEN))
def test_what_is_wrong_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], strategy: str, code: str, said: str) -> None:
    file = scenario(tmp_path, strategy, code)
    assert execute(["run", str(file), "--trust-code", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said.replace("{file}", str(tmp_path / "mine.py")) in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_what_it_does_not_go_with(tmp_path: Path) -> None:
    file = scenario(tmp_path, "mine.py:Same")
    with pytest.raises(InputError, match="your own strategy, which keeps states on the device"):
        simulate(load(file, "training.offload.optimizer=cpu", trust_code=True))
    with pytest.raises(InputError, match=r"16 replicas .* / shard_size 3 = 5.333 is not whole"):
        simulate(load(file, "parallel.data.shard_size=3", trust_code=True))
    with pytest.raises(InputError, match="pipedream updates after every micro-batch"):
        simulate(load(file, "parallel.pipeline.size=2", "parallel.pipeline.schedule=pipedream", trust_code=True))
