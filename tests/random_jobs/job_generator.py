"""Random jobs: a scenario for every pair of a seed and a number.

A job is first drawn by hand-written rules that know what goes together (sizes that divide, models with the layers that the pipeline
needs), so that most are legal; then a few keys get a word of the JSON Schema or a number, so that every word meets every other.
What the scenario refuses is drawn again by `job_runs`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from typing import Any

from parsim.parallel.schedules import ENDLESS, INTERLEAVED, V_SHAPED, ZERO_BUBBLE, chunks, schedule, to_text
from parsim.scenario.json_schema import schema

Tree = dict[str, Any]

FAMILIES: dict[str, Tree] = {
    "gpt2": {},
    "bert-base": {},
    "roberta-base": {},
    "opt-125m": {},
    "bloom-560m": {},
    "mpt-125m": {},
    "pythia-160m": {},
    "phi-2": {"mlp": 512},
    "llama-3-8b": {"mlp": 512, "kv_heads": 4},
    "qwen2.5-0.5b": {"mlp": 512, "kv_heads": 4},
    "mistral-7b": {"mlp": 512, "kv_heads": 4},
    "gemma-2-2b": {"mlp": 512, "kv_heads": 4, "head_dim": 32},
    "mixtral-8x7b": {"mlp": 512, "kv_heads": 4, "experts": {"count": 4}},
    "qwen3-30b-a3b": {"mlp": 512, "kv_heads": 4, "head_dim": 32, "experts": {"count": 8, "top_k": 2, "mlp": 128}},
    "deepseek-v2-lite": {"mlp": 512, "experts": {"count": 4, "top_k": 2, "mlp": 128, "shared": 256, "dense_layers": 1}},
    "vit-base": {"image": {"size": 64, "patch": 16}},
}
"""model of the catalogue -> what else makes it small"""
IMAGES = ("images", "rows", "stages")
"""models without sequences"""
MACHINES: tuple[tuple[Any, int], ...] = (
    ("dgx-a100-80gb", 8), ("dgx-a100-40gb", 8), ("hgx-h100", 8), ("hgx-h200", 8), ("hgx-b200", 8), ("dgx-1-v100", 8), ("mi300x-8", 8),
    ("8x-rtx-4090-pcie", 8), ("8x-l40s-pcie", 8), ("4x-v100-pcie", 4), ("workstation-2x-rtx-3090", 2), ("aws:p4d.24xlarge", 8),
    ("gcp-a3-mega", 8), ("single-a100", 1), ("4x v100-32gb", 4),
    ({"gpu": "a100-sxm-80gb", "count": 2, "nic": "ib-hdr"}, 2),
    ({"gpu": "rtx-3090", "count": 6, "interconnect": "pcie3-x8", "p2p": False, "nic": "ib-edr"}, 6),
    ({"gpu": "h100-sxm-80gb", "count": 4, "nic": "ib-ndr", "nics": 4}, 4),
)  # fmt: skip
"""a topology and its GPUs per node"""
SINGLE = ("8x-rtx-4090-pcie", "8x-l40s-pcie", "4x-v100-pcie", "workstation-2x-rtx-3090", "single-a100", "4x v100-32gb", "mi300x-8")
"""machines without a network"""
SCHEDULES = (
    "1f1b", "gpipe", "naive", "pipedream", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "interleaved-zb",
    "looped-bfs", "dualpipev", "dualpipe", "pipedream-2bw", "own",
)  # fmt: skip
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp", "torch-data-parallel", "parameter-server")
PROFILES = ("pytorch-2", "deepspeed", "megatron-core", "megatron-2021", "megatron-2022", "llm-foundry-2023")

NEEDED = {"cluster.background.rate", "cluster.background.bytes"}
"""what a stream or a transfer must say"""
INSISTENT = 30
"""drawings in which a job insists on its word of the schema"""

NUMBERS: dict[str, tuple[Any, ...]] = {
    "training.mean_sequence_length": (33, 64),
    "training.document_length": (16, 60),
    "training.dropout": (0.0, 0.1),
    "training.loss.chunks": (1, 2, 4, 7),
    "training.recompute": ({"every": 1}, {"every": 2}, {"one_in": 2}, {"blocks": 1}),
    "training.data_loading": ("1 ms", "20 us"),
    "training.finetune.rank": (1, 8),
    "training.finetune.dropout": (0.05,),
    "training.finetune.targets": (["q", "v"],),
    "training.finetune.freeze": ({"layers": 1}, {"spread": 1}, ["embedding"]),
    "parallel.data.bucket": ("1 MiB", "100000 elements", "25 MiB"),
    "parallel.data.first_bucket": ("4 MiB",),
    "parallel.data.prefetch": (0, 2, 5),
    "parallel.data.limit_gathers": (1, 3),
    "cluster.fabric.oversubscription": (2, 4),
    "cluster.fabric.leaf_ports": (8, 16),
    "cluster.fabric.link": ("ib-ndr",),
    "cluster.memory_reserve": ("1 GiB",),
    "cluster.set": (
        {"device": {"memory": {"bandwidth": "x0.5"}}},
        {"node": {"p2p": False}},
        {"device": {"memory": {"size": "256 MiB", "visible": "200 MiB"}}},
    ),
    "software.profile": PROFILES,
    "software.host.per_layer_forward": ("50 us",),
    "software.host.per_layer_backward": ("50 us",),
    "software.host.per_collective": ("20 us",),
    "software.host.per_kernel_forward": ("0 s", "30 us"),
    "software.host.per_kernel_backward": ("3 us",),
    "software.boundary": ("1 ms",),
    "software.step_constant": ("2 ms",),
    "software.memory.context": ("1 GiB",),
    "software.memory.communicators": ("100 MiB",),
    "software.memory.workspace": ("64 MiB", "0 B"),
    "software.memory.overhead": ("1 GiB",),
    "variability.seed": (7,),
    "training.tokens": ("1G", "20M"),
    "economics.gpu_hour": (2.0, "3.5 USD"),
    "economics.purchase": ({"node": 100_000}, {"gpu": 20_000, "years": 3, "utilisation": 0.8, "upkeep": 0.1}),
    "economics.power_price": (0.2,),
    "economics.mtbf_per_gpu": ("50000 h",),
    "economics.checkpoint_time": ("60 s",),
    "economics.checkpoint_bandwidth": ("1 GB/s",),
    "economics.carbon_intensity": (0.4,),
}
"""keys without words of their own -> what to write there"""


def under(tree: Tree, path: str, value: Any) -> None:
    """Write `value` at a dotted path; a text on the way (a short form) makes room for a mapping."""
    *sections, key = path.split(".")
    for section in sections:
        if not isinstance(tree.get(section), dict):
            tree[section] = {}
        tree = tree[section]
    tree[key] = value


@cache
def words() -> dict[str, tuple[Any, ...]]:
    """Every key that the JSON Schema gives words (enumerations, constants, flags) -> those words; of a list: of its entries."""
    whole = schema()
    found: dict[str, dict[str, Any]] = {}

    def walk(node: Mapping[str, Any], path: str) -> None:
        reference = node.get("$ref", "")
        if reference.startswith("#") and not reference.endswith("/Partial"):  # another file's words are that file's
            walk(whole["definitions"][reference.rpartition("/")[2]], path)
        listed = [
            *node.get("enum", ()),
            *([node["const"]] if "const" in node else []),
            *([True, False] if node.get("type") == "boolean" else []),
        ]
        found.setdefault(path, {}).update({json.dumps(word): word for word in listed})
        for part in (*node.get("allOf", ()), *node.get("anyOf", ()), *([node["items"]] if "items" in node else [])):
            walk(part, path)
        for key, child in node.get("properties", {}).items():
            walk(child, f"{path}.{key}" if path else key)

    walk(whole, "")
    return {path: tuple(listed.values()) for path, listed in found.items() if listed}


def written(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a scenario with its dotted path; entries of a list have that of the list."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from written(value, f"{path}.{key}" if path else key)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from written(value, path)
    else:
        yield path, tree


class Draw:
    """One scenario, drawn from `generator`."""

    def __init__(self, generator: random.Random) -> None:
        self.random = generator
        self.tree: Tree = {}
        self.one_of = generator.choice

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def scenario(self, insist: tuple[str, Any] | None = None) -> Tree:
        """The whole of it; `insist`: a key and a word that it must have."""
        tree = self.tree
        tree["name"] = "random job"
        kind = self.one_of([*FAMILIES, "images", "rows", "stages"])
        self._parallel(kind)
        self._model(kind)
        self._training(kind)
        self._cluster()
        self._rest(kind)
        for _ in range(self.one_of((0, 0, 1, 1, 2, 3))):
            path = self.one_of(sorted({*words(), *NUMBERS} - NEEDED))
            self._sprinkle(path, self.one_of((*words().get(path, ()), *NUMBERS.get(path, ()))))
        if insist is not None:
            self._sprinkle(*insist)
        return tree

    # sizes -----------------------------------------------------------------------------------------------------------------------

    def _parallel(self, kind: str) -> None:
        splits = kind not in ("images", "rows", "stages")
        tensor = self.one_of((1, 1, 2, 2, 4)) if splits else 1
        context = self.one_of((1, 1, 1, 2, 4)) if splits and kind != "vit-base" else 1
        pipeline = self.one_of((1, 1, 2, 2, 3, 4))
        data = self.one_of((1, 2, 2, 3, 4, 8))
        while (ranks := tensor * context * pipeline * data) > 32:
            data, context = max(1, data // 2), max(1, context // 2)
        name = self.one_of(STRATEGIES if ranks == data else STRATEGIES[:6]) if data * context > 1 else self.one_of(("ddp", "none", "fsdp"))
        section: Tree = {"data": {"strategy": name}}
        if tensor > 1:
            section["tensor"] = {"size": tensor}
            if self.chance(0.5):
                section["tensor"]["sequence_parallel"] = True
        if context > 1:
            section["context"] = {"size": context, "method": self.one_of(("ring", "all-gather", "ulysses"))}
        if name == "hsdp" and self.chance(0.7):
            section["data"]["shard_size"] = self.one_of([n for n in range(2, data * context + 1) if data * context % n == 0])
        if name in ("fsdp", "hsdp", "zero3") and self.chance(0.4):
            under(section, f"data.{self.one_of(('unit', 'unit', 'reshard_after_forward'))}", self.one_of(("block", "model", "layer")))
            if "reshard_after_forward" in section["data"]:
                section["data"]["reshard_after_forward"] = False
        if "experts" in FAMILIES.get(kind, {}) and name in ("none", "ddp", "zero1", "zero2") and self.chance(0.6):
            self._experts(section, FAMILIES[kind]["experts"]["count"], tensor * context * data)
        self.sizes = {"tensor": tensor, "context": context, "pipeline": pipeline, "data": data}
        self.chunks = pipeline
        self.multiple = 1
        if pipeline > 1:
            self._pipeline(section)
        self.tree["parallel"] = section

    def _experts(self, section: Tree, count: int, ranks: int) -> None:
        """Experts on a grid of their own over the ranks of a stage."""
        size = self.one_of([n for n in range(1, count + 1) if count % n == 0 and ranks % n == 0])
        section["expert"] = {"size": size}
        if self.chance(0.5):
            section["expert"]["tensor"] = self.one_of([n for n in (1, 2, 4) if ranks // size % n == 0])
        if size > 1 and self.chance(0.3):
            section["expert"]["imbalance"] = self.one_of((1.5, {"zipf": 0.7}))
        if self.chance(0.3):
            section["expert"] |= {"dispatcher": "allgather", "dispatch_dtype": self.one_of(("bf16", "fp8"))}
        if "tensor" in section:
            section["tensor"]["sequence_parallel"] = True

    def _pipeline(self, section: Tree) -> None:
        stages = self.sizes["pipeline"]
        name = self.one_of([name for name in SCHEDULES if name != "dualpipe" or stages % 2 == 0])
        section["pipeline"] = {"size": stages, "schedule": name}
        if name in ENDLESS:
            section["data"] = {"strategy": "ddp" if self.sizes["data"] * self.sizes["context"] > 1 else "none"}
        if name in (*INTERLEAVED, *V_SHAPED):
            virtual = 2 if name in V_SHAPED else self.one_of((2, 3))
            self.chunks, self.multiple = stages * virtual, stages if name in INTERLEAVED else 1
            section["pipeline"]["virtual_stages"] = virtual
        if name == "dualpipe":
            self.multiple = 2
        if name in ZERO_BUBBLE and self.chance(0.2):
            section["pipeline"]["post_validation"] = True
        for key in ("overlap_sends", "scatter_sends"):
            if self.chance(0.2):
                section["pipeline"][key] = False

    # the model -------------------------------------------------------------------------------------------------------------------

    def _model(self, kind: str) -> None:
        self.layers = self.chunks + self.one_of((0, 0, 1, 2, 3))
        if kind == "stages":
            self.tree["model"] = {"stages": [self._stage() for _ in range(self.one_of((1, self.chunks)))]}
            self.layers = self.chunks
        elif kind == "rows":
            layers: list[Any] = [{"linear": {"out": self.one_of((64, 256, 1000))}} for _ in range(max(2, self.layers))]
            layers = [part for layer in layers for part in (layer, *self.one_of(([], ["relu"], ["layernorm"], [{"dropout": 0.1}])))]
            self.tree["model"] = {"input": {"shape": [self.one_of((64, 512))], "dtype": "fp32"}, "layers": layers}
        elif kind == "images":
            body: list[Any] = [self.one_of(({"basic_block": {"width": 16}}, {"conv2d": {"out": 16, "kernel": 3, "padding": 1}}))]
            body = [{"conv2d": {"out": 16, "kernel": 3, "padding": 1}}, "batchnorm", "relu", *body * max(2, self.layers)]
            body += ["global_avgpool", "flatten", {"linear": 10}]
            self.tree["model"] = {"input": {"shape": [3, 16, 16], "dtype": "fp32"}, "layers": body}
        else:
            small: Tree = {"base": kind, "layers": self.layers, "hidden": 256, "heads": 8, **FAMILIES[kind]}
            if kind != "vit-base":
                small["vocabulary"] = self.one_of((512, 1000, 2048))
            if kind.startswith("deepseek"):
                small["layers"] = self.layers = max(2, self.layers)
            self.tree["model"] = small
        pipeline = self.tree["parallel"].get("pipeline")
        if pipeline and self.chance(0.3):
            pipeline["split"] = self.one_of(("balanced", "even", self._uneven()))

    def _stage(self) -> Tree:
        times = {key: f"{self.random.randint(1, 40) / 10} ms" for key in ("forward", "backward_input", "backward_weight")}
        if self.chance(0.3):
            del times["backward_input"]
            times["backward"] = times.pop("backward_weight")
        more: Tree = {"activation": "10 MiB", "parameters": self.random.randint(0, 10**6)}
        more |= {"send": "0.1 ms"} if self.chance(0.3) else {"output": "1 MiB"} if self.chance(0.7) else {}
        return {**times, **more}

    def _uneven(self) -> list[int]:
        counts = [1] * self.chunks
        for _ in range(self.layers - self.chunks):
            counts[self.random.randrange(self.chunks)] += 1
        return counts

    # the recipe ------------------------------------------------------------------------------------------------------------------

    def _training(self, kind: str) -> None:
        training: Tree = {"micro_batch": self.one_of((1, 1, 2, 3))}
        if kind not in IMAGES:
            training["sequence_length"] = 64 * self.one_of((1, 2, 4))
        steps = self.multiple * self.one_of((1, 2, 4)) if self.multiple > 1 else self.one_of((1, 2, 3, 4, 5, 8))
        section = self.tree["parallel"].get("pipeline", {})
        if section.get("schedule") in ENDLESS:
            steps += self.sizes["pipeline"]
        if section.get("schedule") in ("dualpipev", "dualpipe"):
            steps += 2 * self.sizes["pipeline"]
        if section.get("schedule") == "own":
            name = self.one_of(("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v", "v-half"))
            section["schedule"] = to_text(schedule(name, self.sizes["pipeline"], steps, chunks(name)))
            if name in V_SHAPED:
                section["virtual_stages"] = 2
        if self.chance(0.6):
            training["gradient_accumulation"] = steps
        else:
            training["global_batch"] = training["micro_batch"] * steps * self.sizes["data"]
            if self.chance(0.3) and training["micro_batch"] > 1 and kind != "stages":
                training["global_batch"] -= self.sizes["data"]
                training["partial_micro_batch"] = True
        if self.chance(0.35):
            training["recompute"] = self.one_of(("full", "selective", {"every": 2}, {"blocks": 1}, {"selective": ["attention", "mlp"]}))
        if self.chance(0.25):
            place = self.one_of(("cpu", "cpu", "nvme"))
            states: Any = ("optimizer",), ("optimizer", "gradients"), ("optimizer", "gradients", "parameters"), ("activations",)
            states = states if "expert" not in self.tree["parallel"] else states[-1:]
            training["offload"] = dict.fromkeys(self.one_of(states), place)
            if "activations" in training["offload"]:
                training["recompute"] = "full"
        if self.chance(0.25) and kind not in IMAGES and "expert" not in self.tree["parallel"]:
            training["finetune"] = {"method": self.one_of(("lora", "lora", "qlora", "freeze"))}
            if training["finetune"]["method"] != "freeze" and self.chance(0.5):
                training["finetune"]["rank"] = self.one_of((2, 8))
        if self.chance(0.5):
            training["precision"] = self.one_of(words()["training.precision"])
        if self.chance(0.4):
            training["optimizer"] = self.one_of(words()["training.optimizer.name"])
        for path, share in (("iteration", 0.1), ("step", 0.1), ("backward", 0.05)):
            if self.chance(share):
                training[path] = "first" if path == "iteration" else False
        self.tree["training"] = training

    # the machine -----------------------------------------------------------------------------------------------------------------

    def _cluster(self) -> None:
        ranks = prod(self.sizes.values())
        known = [(name, gpus) for name, gpus in MACHINES if gpus >= ranks or name not in SINGLE]
        topology, gpus = self.one_of(known)
        nodes = -(-ranks // gpus)
        cluster: Tree = {"topology": topology, "gpus": ranks}
        if topology not in SINGLE and self.chance(0.3):
            nodes += self.one_of((1, 2, 3))
            cluster["placement"] = self.one_of(("scattered", "packed", self.random.sample(range(gpus * nodes), ranks)))
        if nodes > 1:
            cluster["nodes"] = nodes
        if nodes > 1 and self.chance(0.3):
            cluster["fabric"] = {"kind": self.one_of(words()["cluster.fabric.kind"])}
            if self.chance(0.5):
                cluster["fabric"] |= {"routing": self.one_of(("ecmp", "spray"))}
            if cluster["fabric"]["kind"] == "torus":
                cluster["fabric"]["dims"] = [nodes]
        if gpus * nodes > 1 and self.chance(0.1):
            ends = self.random.sample(range(gpus * nodes), 2)
            stream: Tree = {"from": f"gpu{ends[0]}", "to": f"gpu{ends[1]}"}
            stream |= {"rate": "5 GB/s"} if self.chance(0.5) else {"bytes": "3 MB", "every": "1 ms", "at": self.one_of((0, "0.3 ms"))}
            cluster["background"] = [stream]
        self.tree["cluster"] = cluster

    def _rest(self, kind: str) -> None:
        tree, ranks = self.tree, prod(self.sizes.values())
        if self.chance(0.5):
            tree["software"] = {"profile": self.one_of(PROFILES)}
        if self.chance(0.08):
            tree["variability"] = {"slow": [{"rank": self.random.randrange(ranks), "speed": self.one_of((0.5, 0.8, 1.0))}]}
        if self.chance(0.1):
            under(tree, "training.tokens" if kind not in IMAGES else "training.examples", 10**7)
            tree["economics"] = self.one_of(
                ({"gpu_hour": 2.0, "mtbf_per_gpu": "50000 h", "checkpoint_time": "60 s"}, {"purchase": {"gpu": 20_000}, "power_price": 0.2})
            )

    def _sprinkle(self, path: str, value: Any) -> None:
        """A key gets a word of the schema, or a number."""
        if path == "parallel.order":
            value = self.random.sample(words()[path], 4)
        if path == "training.recompute.selective":
            value = [value]
        if path == "training.precision.recipe":  # of a job in fp8
            self.tree["training"]["precision"] = {"preset": "fp8"}
        if path == "training.precision.keep_layers":
            self.tree["training"]["precision"] = {"preset": "fp8", "recipe": "current"}
        if path == "parallel.tensor.overlap" and value in ("full", "async"):
            self.tree["parallel"].setdefault("tensor", {"size": 2})["sequence_parallel"] = True
        if path == "training.precision.keep":  # of a job in fp8, whose norms are kept in any case
            value = [value] if value == "norm" else [value, "norm"]
            self.tree["training"]["precision"] = {"preset": "fp8"}
        if path.startswith("cluster.background."):
            for stream in self.tree["cluster"].get("background", ()):
                stream[path.rpartition(".")[2]] = value
            return
        if path == "parallel.zero":
            self.tree["parallel"]["data"].pop("strategy", None)
        if path.startswith("training.finetune.") and "finetune" not in self.tree["training"]:
            self.tree["training"]["finetune"] = {"method": "freeze" if "freeze" in path else "qlora" if "quant" in path else "lora"}
        if path.startswith("training.optimizer.") and isinstance(self.tree["training"].get("optimizer"), str):
            self.tree["training"]["optimizer"] = {"name": self.tree["training"]["optimizer"]}
        under(self.tree, path, value)


def draw(seed: int, number: int, attempt: int = 0) -> Tree:
    """The scenario of a job; the next `attempt` where the one before is refused.

    The words of the schema take turns: each job has the next one, unless `INSISTENT` drawings with it were refused.
    """
    pairs = [(path, word) for path, listed in words().items() if path not in NEEDED for word in listed]
    insist = pairs[number % len(pairs)] if attempt < INSISTENT else None
    return Draw(random.Random(f"{seed}/{number}/{attempt}")).scenario(insist)
