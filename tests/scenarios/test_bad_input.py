"""Bad input through the command line: exit code 2, every finding with place, rule and repair, nothing written, never a traceback."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from parsim.cli import execute
from parsim.errors import InputError
from parsim.run import simulate

GOOD = """\
model: gpt2
cluster: {topology: dgx-a100-80gb, gpus: 4}
training:
  sequence_length: 1024
  global_batch: 32
  micro_batch: 8
parallel:
  data: {strategy: ddp}
"""
OWN = """\
model: MODEL
cluster: {topology: TOPOLOGY}
training: {sequence_length: 128, global_batch: 32, micro_batch: 1}
"""
MACHINE = """\
name: mine
node:
  gpus: 4
  device: a100-sxm-80gb
  vertices: [nvswitch, nic0]
  edges:
    - {from: gpu*, to: nvswitch, kind: nvlink3, count: 12}
    - {from: gpu0, to: nic0, kind: pcie4-x16}
fabric: {kind: single-switch, nics: [nic0], link: wire}
links:
  wire: {medium: network, line_rate: 400 Gb/s, efficiency: 0.96, latency: 1 us}
"""
ISLANDS = """\
name: islands
vertices: [gpu0..3, nvswitch]
device: a100-sxm-80gb
edges:
  - {from: gpu0..1, to: nvswitch, kind: nvlink3, count: 12}
  - {from: gpu2, to: gpu3, kind: nvlink3, count: 12}
"""
DEVICE = """\
name: Mine
memory: {size: 32 GiB, visible: 31.75 GiB, bandwidth: 900 GB/s}
compute: {sms: 80, peak: {fp32: 15 TFLOP/s, fp16: 125 TFLOP/s}}
attention: {mem-efficient: {forward: 0.4, backward: 0.3}}
features: [p2p, mem-efficient]
links: {pcie: pcie3-x16}
"""
MODEL = "family: gpt2\nhidden: 128\nlayers: 4\nheads: 4\nvocabulary: 100\nmaximum_sequence: 1024\n"
CONFIG = {"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}


def good(old: str = "", new: str = "", *more: str) -> str:
    """The good scenario with texts replaced, two by two."""
    text = GOOD
    for before, after in zip((old, *more[::2]), (new, *more[1::2]), strict=True):
        assert not before or before in text
        text = text.replace(before, after) if before else text + after
    return text


def own(model: str = "gpt2", topology: str = "dgx-a100-80gb") -> str:
    """A scenario with a model or a topology of one's own."""
    return OWN.replace("MODEL", model).replace("TOPOLOGY", topology)


@dataclass(frozen=True)
class Bad:
    """Files, and what the first finding must say."""

    scenario: str | bytes
    place: str
    """file:line:column of the first finding"""
    path: str
    says: str
    """pattern in the message, or in the message and the suggestion"""
    files: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


def layers(entry: str) -> str:
    return good("gpt2", f"{{input: {{shape: [10], dtype: fp32}}, layers: [{entry}]}}", "  sequence_length: 1024\n", "")


def pipeline(inner: str) -> str:
    return good("  data: {strategy: ddp}", f"  pipeline: {{{inner}}}")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + level)}: &{chr(98 + level)} [{', '.join(['*' + chr(97 + level)] * 9)}]\n" for level in range(8)
)

BAD: dict[str, Bad] = {
    # keys and values
    "unknown section": Bad(good("", "paralell: {}\n"), "s.yaml:9:1", "paralell", "unknown key; did you mean 'parallel'"),
    "unknown key": Bad(good("strategy", "stratgy"), "s.yaml:8:10", "parallel.data.stratgy", "unknown key; did you mean 'strategy'"),
    "another tool's key": Bad(
        good("  micro_batch", "  train_micro_batch_size_per_gpu"), "s.yaml:6:3", "training.", "write training.micro_batch"
    ),
    "duplicate key": Bad(
        good("  micro_batch: 8", "  micro_batch: 8\n  micro_batch: 4"),
        "s.yaml:7:3",
        "training.micro_batch",
        "twice: first at line 6, column 3; keep one",
    ),
    "wrong unit": Bad(
        good("", "software: {step_constant: 3 GiB}\n"), "s.yaml:9:12", "software.step_constant", "size in B, expected a time in s; write"
    ),
    "no unit": Bad(
        good("", "software: {memory: {context: 512}}\n"),
        "s.yaml:9:21",
        "software.memory.context",
        "512 has no unit, expected a size in B; write",
    ),
    "bits for a rate": Bad(
        good("gpus: 4}", "nodes: 2, set: {links: {ib-hdr: {line_rate: 400 Gb}}}}"),
        "s.yaml:2:69",
        "cluster.set.links.ib-hdr.line_rate",
        '"400 Gb" is a size in B, expected a bandwidth in B/s; write for example "400 Gb/s"',
    ),
    "bits for a rate in a file": Bad(
        own(topology="mine.yaml"),
        "mine.yaml:11:27",
        "cluster.topology.links.wire.line_rate",
        "expected a bandwidth in B/s; write",
        {"mine.yaml": MACHINE.replace("400 Gb/s", "400 Gb")},
    ),
    "dp": Bad(good("strategy: ddp", "strategy: dp"), "s.yaml:8:10", "parallel.data.strategy", "'dp' is not one of .*; say which one"),
    "nan": Bad(
        good("global_batch: 32", "global_batch: .nan"), "s.yaml:5:3", "training.global_batch", "nan is not a number of samples from 1 to"
    ),
    "infinite": Bad(
        good("sequence_length: 1024", "sequence_length: .inf"), "s.yaml:4:3", "training.sequence_length", "inf is not a whole number from 1"
    ),
    "digits of another script": Bad(
        good("micro_batch: 8", "micro_batch: ٨"), "s.yaml:6:3", "training.micro_batch", "'٨' is not a whole number from 1"
    ),
    "400 digits": Bad(
        good("micro_batch: 8", "micro_batch: " + "9" * 400),
        "s.yaml:6:3",
        "training.micro_batch",
        "'999.*' is larger than the limit of 1e30",
    ),
    "400 digits in a model": Bad(
        own(model="mine.yaml"), "mine.yaml:2:1", "", "larger than the limit of 1e30", {"mine.yaml": MODEL.replace("128", "-" + "9" * 400)}
    ),
    "no tokens": Bad(good("global_batch: 32", "global_batch: 32\n  tokens: 0"), "s.yaml:6:3", "training.tokens", "less than 1"),
    "a link slower than any": Bad(
        own(topology="mine.yaml"),
        "mine.yaml:11:27",
        "cluster.topology.links.wire.line_rate",
        "'1e-300 B/s' is beyond any machine: a bandwidth is 1 kB/s to 1 EB/s",
        {"mine.yaml": MACHINE.replace("400 Gb/s", "1e-300 B/s")},
    ),
    "a link slowed beyond any": Bad(
        good("gpus: 4}", "gpus: 4, set: {links: {nvlink3: {bandwidth: x1e-9}}}}"),
        "s.yaml:2:59",
        "cluster.set.links.nvlink3.per_direction",
        "beyond any machine: a bandwidth is",
    ),
    "memory of one byte per second": Bad(
        own(topology="{gpu: mine.yaml, count: 2}"),
        "mine.yaml:2:44",
        "memory.bandwidth",
        "beyond any machine: a bandwidth is 1 kB/s",
        {"mine.yaml": DEVICE.replace("900 GB/s", "1 B/s")},
    ),
    "vertices that are no list": Bad(
        own(topology="mine.yaml"),
        "mine.yaml:5:3",
        "cluster.topology.node.vertices",
        "expected a list",
        {"mine.yaml": MACHINE.replace("[nvswitch, nic0]", "18")},
    ),
    "edges that are no list": Bad(
        own(topology="mine.yaml"),
        "mine.yaml:4:1",
        "cluster.topology.edges",
        "expected a list",
        {"mine.yaml": ISLANDS[: ISLANDS.index("edges")] + "edges: 18\n"},
    ),
    "negative": Bad(good("micro_batch: 8", "micro_batch: -8"), "s.yaml:6:3", "training.micro_batch", "-8 is not a whole number from 1"),
    "zero": Bad(good("global_batch: 32", "global_batch: 0"), "s.yaml:5:3", "training.global_batch", "0 is not a number of samples from 1"),
    "huge": Bad(
        good("sequence_length: 1024", "sequence_length: 1" + "0" * 30),
        "s.yaml:4:3",
        "training.sequence_length",
        "is not a whole number from 1 to 100,000,000",
    ),
    "huger": Bad(
        good("micro_batch: 8", "micro_batch: 1e300"), "s.yaml:6:3", "training.micro_batch", "is not a whole number from 1 to 1,000,000"
    ),
    "many nodes": Bad(good("gpus: 4", "nodes: 10000000000"), "s.yaml:2:36", "cluster.nodes", "is not a whole number from 1 to 1,000,000"),
    "true": Bad(good("micro_batch: 8", "micro_batch: true"), "s.yaml:6:3", "training.micro_batch", "True is not a whole number"),
    "sexagesimal": Bad(good("micro_batch: 8", "micro_batch: 1:30"), "s.yaml:6:3", "training.micro_batch", "'1:30' is not a whole number"),
    "negative probability": Bad(
        good("  micro_batch: 8", "  micro_batch: 8\n  dropout: -0.1"),
        "s.yaml:7:3",
        "training.dropout",
        r"-0\.1 is not a number in \[0, 1\)",
    ),
    "speed nan": Bad(
        good("", "variability: {slow: [{rank: 0, speed: .nan}]}\n"),
        "s.yaml:9:32",
        "variability.slow.0.speed",
        r"nan is not a number in \[0, 1\]",
    ),
    "speed zero": Bad(
        good("", "variability: {slow: [{rank: 0, speed: 0}]}\n"),
        "s.yaml:9:22",
        "variability.slow.0",
        r"speed 0 stops the rank: give from and to",
    ),
    "negative link": Bad(
        own(topology="mine.yaml"),
        "mine.yaml:11:27",
        "cluster.topology.links.wire.line_rate",
        "'-400 Gb/s' is negative",
        {"mine.yaml": MACHINE.replace("400", "-400")},
    ),
    "zero link": Bad(
        own(topology="mine.yaml"),
        "mine.yaml:11:27",
        "cluster.topology.links.wire.line_rate",
        "must be greater than 0",
        {"mine.yaml": MACHINE.replace("400 Gb/s", "0 Gb/s")},
    ),
    "efficiency nan": Bad(
        own(topology="mine.yaml"),
        "mine.yaml:11:48",
        "cluster.topology.links.wire.efficiency",
        "nan is outside",
        {"mine.yaml": MACHINE.replace("0.96", ".nan")},
    ),
    "multiplied by nothing": Bad(
        good("gpus: 4", "gpus: 4, set: {device: {memory: {bandwidth: x0}}}"),
        "s.yaml:2:69",
        "cluster.set.device.memory.bandwidth",
        "a multiplier must be a positive number",
    ),
    "unknown key of a device": Bad(
        good("gpus: 4", "gpus: 4, set: {device: {memroy: {size: 3 GiB}}}"),
        "s.yaml:2:60",
        "cluster.set.device.memroy",
        "unknown key; did you mean 'memory'",
    ),
    "unknown assumption": Bad(
        good("", "assumptions: {context_memry: 1 GiB}\n"), "s.yaml:9:15", "assumptions.context_memry", "did you mean 'context_memory'"
    ),
    "not built yet": Bad(good("", "report: {ranks: [0, 1]}\n"), "s.yaml:9:10", "report.ranks", "not supported yet: the choice of ranks"),
    # sizes that do not go together
    "indivisible batch": Bad(
        good("global_batch: 32", "global_batch: 30"),
        "s.yaml:5:3",
        "training.global_batch",
        r"global_batch 30 / \(micro_batch 8 x data 4\) = 30 / 32 = 0\.9375 is not whole; use 32 or 64",
    ),
    "indivisible heads": Bad(
        good("gpus: 4", "gpus: 8", "  data: {strategy: ddp}", "  tensor: {size: 8}"),
        "s.yaml:8:12",
        "parallel.tensor.size",
        r"12 heads / tensor size 8 = 1\.5 is not whole; use 4 or 6",
    ),
    "wider than heads": Bad(
        good("gpus: 4", "nodes: 2", "  data: {strategy: ddp}", "  tensor: {size: 16}"),
        "s.yaml:8:12",
        "parallel.tensor.size",
        r"12 heads / tensor size 16 = 0\.75 is not whole; use 6 or 12",
    ),
    "more stages than layers": Bad(
        pipeline("size: 16").replace("gpus: 4", "nodes: 2"),
        "s.yaml:8:14",
        "parallel.pipeline.size",
        "12 layers cannot fill .* = 16 stages; use at most 12",
    ),
    "indivisible micro-batches": Bad(
        pipeline("size: 4, schedule: interleaved, virtual_stages: 3").replace("global_batch: 32", "global_batch: 48"),
        "s.yaml:8:23",
        "parallel.pipeline.schedule",
        r"m % p = 0\), but 6 % 4 = 2; use 4 or 8",
    ),
    "layers do not add up": Bad(
        pipeline("size: 4, split: [3, 3, 3, 4]"),
        "s.yaml:8:23",
        "parallel.pipeline.split",
        r"3 \+ 3 \+ 3 \+ 4 = 13 layers, but the model has 12",
    ),
    "more ranks than GPUs": Bad(
        good("strategy: ddp", "strategy: ddp, size: 16"),
        "s.yaml:8:25",
        "parallel.data.size",
        "x data 16 = 16, but 4 GPUs are used .*; use data.size 4",
    ),
    "more GPUs than there are": Bad(
        good("gpus: 4", "gpus: 40"), "s.yaml:2:36", "cluster.gpus", "40 GPUs wanted, dgx-a100-80gb has 1 x 8 = 8; use cluster.gpus 8"
    ),
    "sequence too long": Bad(
        good("sequence_length: 1024", "sequence_length: 4096"),
        "s.yaml:4:3",
        "training.sequence_length",
        "4096 tokens, but gpt2 has 1024 learned positions; use at most 1024",
    ),
    "no bf16": Bad(
        good("dgx-a100-80gb", "dgx-1-v100", "  micro_batch: 8", "  micro_batch: 8\n  precision: bf16"),
        "s.yaml:7:3",
        "training.precision",
        "has no bf16: .*; use precision: fp16",
    ),
    "a slow rank that is not there": Bad(
        good("", "variability: {slow: [{rank: 9, speed: 0.5}]}\n"), "s.yaml:9:15", "variability.slow", r"rank 9 does not exist \(0 to 3\)"
    ),
    "two ranks on one GPU": Bad(
        good("gpus: 4", "placement: [0, 0, 1, 2]"), "s.yaml:2:36", "cluster.placement", "ranks 0 and 1 are both on GPU 0"
    ),
    # schedules
    "bad slot": Bad(
        pipeline("size: 4, schedule: mine.txt"),
        "mine.txt:2:6",
        "parallel.pipeline.schedule",
        "'Q1.0' is not a slot; write F0.3",
        {"mine.txt": "F0.0 B0.0\nF1.0 Q1.0\n"},
    ),
    "backward before forward": Bad(
        pipeline("size: 2, schedule: mine.txt").replace("gpus: 4", "gpus: 2").replace("global_batch: 32", "global_batch: 8"),
        "s.yaml:8:23",
        "parallel.pipeline.schedule",
        "rank 0 position 0, B0.0: comes before F0.0",
        {"mine.txt": "B0.0 F0.0\nF1.0 B1.0\n"},
    ),
    "no schedule file": Bad(
        pipeline("size: 4, schedule: nowhere.txt"), "s.yaml:8:23", "parallel.pipeline.schedule", "no such schedule file; write naive"
    ),
    # topologies
    "unknown topology": Bad(good("dgx-a100-80gb", "dgx-a100-80g"), "s.yaml:2:11", "cluster.topology", "did you mean 'dgx-a100-80gb'"),
    "a topology file that is not there": Bad(
        own(topology="./nowhere.yaml"), "s.yaml:2:11", "cluster.topology", "no such file './nowhere.yaml' beside s.yaml"
    ),
    "an unknown device": Bad(
        own(topology="mine.yaml"),
        "mine.yaml:4:3",
        "cluster.topology.node.device",
        "unknown device 'a1000'; did you mean 'a100'",
        {"mine.yaml": MACHINE.replace("a100-sxm-80gb", "a1000")},
    ),
    "an unknown device in a box": Bad(
        own(topology="4x a1000"), "s.yaml:2:11", "cluster.topology.gpu", "unknown device 'a1000'; did you mean"
    ),
    "a bad device file": Bad(
        own(topology="{gpu: gpu.yaml, count: 2}"),
        "gpu.yaml:2:44",
        "memory.bandwidth",
        '"900 GB" is a size in B, expected a bandwidth in B/s; write',
        {"gpu.yaml": DEVICE.replace("900 GB/s", "900 GB")},
    ),
    "an unknown link": Bad(
        own(topology="mine.yaml"),
        "mine.yaml:7:34",
        r"cluster.topology.node.edges[0].kind",
        "unknown kind of link 'nvlnk3'; did you mean 'nvlink3'",
        {"mine.yaml": MACHINE.replace("kind: nvlink3", "kind: nvlnk3")},
    ),
    "an unknown vertex": Bad(
        own(topology="mine.yaml"),
        "mine.yaml:8:20",
        r"cluster.topology.node.edges[1].to",
        "no vertex matches 'nick0'; did you mean 'nic0'",
        {"mine.yaml": MACHINE.replace("to: nic0", "to: nick0")},
    ),
    "an unknown key of a topology": Bad(
        own(topology="mine.yaml"),
        "mine.yaml:12:1",
        "cluster.topology.fabrik",
        "unknown key; did you mean 'fabric'",
        {"mine.yaml": MACHINE + "fabrik: {}\n"},
    ),
    "no link between two GPUs": Bad(
        own(topology="mine.yaml"), "s.yaml:2:1", "cluster", "no path from GPU 0 to GPU 2; connect them with an edge", {"mine.yaml": ISLANDS}
    ),
    # models
    "unknown model": Bad(good("gpt2", "gtp2"), "s.yaml:1:1", "model", "unknown model 'gtp2'; did you mean 'gpt2'"),
    "a model file that is not there": Bad(own("./nowhere.yaml"), "s.yaml:1:1", "model", "no such file './nowhere.yaml' beside s.yaml"),
    "a model without a width": Bad(
        own("mine.yaml"), "mine.yaml:1:1", "model.hidden", "hidden is required", {"mine.yaml": MODEL.replace("hidden: 128\n", "")}
    ),
    "indivisible width": Bad(
        own("mine.yaml"),
        "mine.yaml:4:1",
        "model.heads",
        "hidden / heads = 128 / 3 is not whole; give head_dim",
        {"mine.yaml": MODEL.replace("heads: 4", "heads: 3")},
    ),
    "unknown field of a model": Bad(
        own("mine.yaml"),
        "mine.yaml:1:1",
        "model.hiden",
        "unknown field 'hiden'; did you mean 'hidden'",
        {"mine.yaml": "hiden: 128\n" + MODEL},
    ),
    "unknown field of a base": Bad(own("{base: gpt2, layres: 2}"), "s.yaml:1:21", "model.layres", "did you mean 'layers'"),
    "negative layers": Bad(own("{base: gpt2, layers: -1}"), "s.yaml:1:21", "model.layers", "must not be negative; is -1"),
    "width nan": Bad(own("{base: gpt2, hidden: .nan}"), "s.yaml:1:21", "model.hidden", "must be a whole number; is nan"),
    "unknown family": Bad(
        own("mine.yaml"),
        "mine.yaml:1:1",
        "model.family",
        "unknown family 'gtp2'; did you mean 'gpt2'",
        {"mine.yaml": MODEL.replace("gpt2", "gtp2")},
    ),
    "a foreign config of an unknown type": Bad(
        own("config.json"),
        "config.json:1:2",
        "model.model_type",
        "architecture 'llamaa' is not known, so it is not supported yet",
        {"config.json": json.dumps({**CONFIG, "model_type": "llamaa"})},
    ),
    "a foreign config with a key missing": Bad(
        own("config.json"),
        "config.json:1:1",
        "model.hidden_size",
        "hidden_size is required",
        {"config.json": json.dumps({key: value for key, value in CONFIG.items() if key != "hidden_size"})},
    ),
    "a foreign config cut off": Bad(
        own("config.json"), "config.json:1:25", "", "not valid YAML", {"config.json": '{"model_type": "llama", '}
    ),
    "unknown layer": Bad(layers("{linaer: {out: 5}}"), "s.yaml:1:53", "model.layers[0]", "unknown layer; .*did you mean linear"),
    "an image layer on a vector": Bad(layers("{conv2d: {out: 5, kernel: 3}}"), "s.yaml:1:54", "model.layers[0].conv2d", "needs an image"),
    "a stage time without a unit": Bad(
        good("gpt2", "{stages: [{forward: 1, backward: 2 s}]}", "  sequence_length: 1024\n", ""),
        "s.yaml:1:19",
        "model.stages[0].forward",
        "1 has no unit, expected a time in s; write",
    ),
    # files
    "extends in a circle": Bad(
        "extends: b.yaml\n" + GOOD, "b.yaml:1:1", "extends", "in a circle: s.yaml -> b.yaml -> s.yaml", {"b.yaml": "extends: s.yaml\n"}
    ),
    "extends itself": Bad("extends: s.yaml\n" + GOOD, "s.yaml:1:1", "extends", "in a circle: s.yaml -> s.yaml"),
    "extends nothing": Bad("extends: nowhere.yaml\n" + GOOD, "s.yaml:1:1", "extends", "no such file 'nowhere.yaml' beside s.yaml"),
    "Latin-1": Bad(GOOD.encode() + b"name: caf\xe9\n", "s.yaml:9:10", "", "not UTF-8: byte 0xe9 at offset 169; save the file as UTF-8"),
    "UTF-16": Bad(GOOD.encode("utf-16"), "s.yaml:1:1", "", "not UTF-8"),
    "binary": Bad(b"\x00\x01\x02\xff", "s.yaml:1:4", "", "not UTF-8"),
    "a zero byte": Bad(GOOD + 'name: "a\0b"\n', "s.yaml:9:9", "", "the character U\\+0000 is not allowed in YAML"),
    "a number of many digits": Bad(
        good("micro_batch: 8", "micro_batch: " + "1" * 5000), "s.yaml:6:16", "", "a number of 5,000 digits: at most 30 are read"
    ),
    "two documents": Bad(GOOD + "---\n" + GOOD, "s.yaml:9:1", "", "expected a single document in the stream, but found another"),
    "dots in a file": Bad(
        good("gpus: 4}", "gpus: 4, set: {device.memory.capacity: 40 GiB}}"),
        "s.yaml:2:51",
        "cluster.set.device.memory.capacity",
        "on the command line only; write device: {memory: {capacity: ...}}",
    ),
    "more passes than are simulated": Bad(
        good("batch: 32", "batch: 64000000"),
        "s.yaml:3:1",
        "training.gradient_accumulation",
        "2,000,000 forward passes",
    ),
    "empty": Bad("", "s.yaml", "", "the file is empty; a scenario needs at least"),
    "a list": Bad("- a\n- b\n", "s.yaml:1:1", "", "the top level is a list, expected a mapping"),
    "a word": Bad("hello\n", "s.yaml:1:1", "", "the top level is a single value"),
    "tabs": Bad(GOOD + "\tname: x\n", "s.yaml:9:1", "", "not valid YAML: .*; YAML is indented with spaces, not tabs"),
    "cut off": Bad(GOOD + "software: {profile: [\n", "s.yaml:10:1", "", "not valid YAML"),
    "a hundred megabytes": Bad(
        b"#" * 100_000_000, "s.yaml", "", "has 100,000,000 bytes; at most 10,000,000 are read; is it the right file"
    ),
    "a YAML bomb": Bad(BOMB + GOOD, "s.yaml", "", "expands to more than 500,000 values"),
    "an alias in itself": Bad("extends: &a [*a]\n" + GOOD, "s.yaml:1:14", "", "is inside the value that it stands for"),
    "nested without end": Bad("name: " + "[" * 300 + "]" * 300 + "\n" + GOOD, "s.yaml", "", "nested"),
    "a YAML tag": Bad(
        "name: !!python/object/apply:os.system ['touch hacked']\n" + GOOD, "s.yaml:1:1", "", "a YAML tag .* is not supported"
    ),
    # arguments
    "a bad argument": Bad(
        GOOD, "command line: nonsense", "nonsense", "not of the form key.key=value; for example", arguments=("nonsense",)
    ),
    "an unknown argument": Bad(
        GOOD,
        "command line: training.micro_bach=3",
        "training.micro_bach",
        "did you mean 'micro_batch'",
        arguments=("training.micro_bach=3",),
    ),
    "an open bracket": Bad(
        GOOD, "command line: training.recompute={", "training.recompute", "put the value in quotes", arguments=("training.recompute={",)
    ),
    "an unknown override": Bad(
        GOOD + "overrides: {large: {}}\n", "--override lage", "overrides", "did you mean 'large'", arguments=("--override", "lage")
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_good_scenario_is_good(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each bad one differs from a scenario that runs."""
    files = {"s.yaml": GOOD, "own.yaml": own("mine.yaml", "machine.yaml"), "mine.yaml": MODEL, "machine.yaml": MACHINE}
    files |= {"box.yaml": own(topology="{gpu: gpu.yaml, count: 2}"), "gpu.yaml": DEVICE}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("s.yaml", "own.yaml", "box.yaml"):
        assert execute(["check", name]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = BAD[name]
    scenario = bad.scenario if isinstance(bad.scenario, bytes) else bad.scenario.encode()
    for file, content in {"s.yaml": scenario, **{file: text.encode() for file, text in bad.files.items()}}.items():
        (folder / file).write_bytes(content)
    before = sorted(folder.iterdir())
    began = time.process_time()
    assert execute(["run", "s.yaml", "--json", *bad.arguments]) == 2
    assert time.process_time() - began < 60  # 3 s for an alias bomb: what is exponential takes hours
    out, err = capsys.readouterr()
    errors = json.loads(out)["errors"]
    assert sorted(folder.iterdir()) == before, "nothing is written"
    assert "Traceback" not in err
    assert err.endswith(f"{len(errors)} problem{'s' if len(errors) > 1 else ''}. Nothing was simulated.\n")
    said = [f"{error['message']}; {error['suggestion']}" for error in errors]
    found = [number for number, text in enumerate(said) if re.search(bad.says, text)]
    assert found, said
    error = errors[found[0]]
    assert ":".join(str(part) for part in (error["file"], error["line"], error["column"]) if part is not None) == bad.place
    assert error["path"].startswith(bad.path) if bad.path.endswith(".") else error["path"] == bad.path
    assert err.splitlines()[found[0]].startswith(bad.place)


def test_a_file_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.yaml").write_text(GOOD, encoding="utf-8")
    assert execute(["run", "nime.yaml"]) == 2
    assert "no such file 'nime.yaml'" in capsys.readouterr().err
    assert execute(["run", str(folder)]) == 2
    assert "is a directory, expected a file" in capsys.readouterr().err


def test_all_problems_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = good("strategy: ddp", "strategy: dp", "micro_batch: 8", "micro_batch: -8", "gpt2", "gtp2", "gpus: 4", "gpsu: 4")
    (folder / "s.yaml").write_text(text, encoding="utf-8")
    assert execute(["run", "s.yaml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[0] for line in lines[:-1]] == ["s.yaml:1:1", "s.yaml:2:36", "s.yaml:6:3", "s.yaml:8:10"]


def test_the_name_of_a_topology_is_not_read_as_a_box(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``8x-rtx-4090-pcie`` is a machine, not eight GPUs called -rtx-4090-pcie."""
    (folder / "s.yaml").write_text(own(topology="8x-rtx-4090-pcie"), encoding="utf-8")
    assert execute(["run", "s.yaml", "--json"]) == 0
    assert {row["kind"] for row in json.loads(capsys.readouterr().out)["links"]} >= {"pcie4-x16", "host-memory"}
    for box in ("8x rtx-4090", "8xrtx-4090", "8 x rtx-4090-24gb"):
        (folder / "s.yaml").write_text(own(topology=box), encoding="utf-8")
        assert execute(["run", "s.yaml", "--json"]) == 0, box
        assert json.loads(capsys.readouterr().out)["ranks"]["total"] == 8


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_a_file_that_may_not_be_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "s.yaml"
    path.write_text(GOOD, encoding="utf-8")
    path.chmod(0)
    try:
        path.read_bytes()
    except PermissionError:
        assert execute(["run", "s.yaml"]) == 2
        assert "cannot be read: Permission denied" in capsys.readouterr().err
    else:
        pytest.skip("root reads everything")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster": {"topology": "dgx-a100-80gb", "nodes": 100_000}}, "800,000 GPUs; at most 131,072"),
        ({"training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 900_000}}, "at most 15,000,000"),
    ],
)
def test_what_would_not_fit_in_this_machine(changes, words):
    tree = {"model": "gpt2", "training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 1}, "cluster": "1x a100-80gb"}
    with pytest.raises(InputError, match=words):
        simulate({**tree, **changes})
