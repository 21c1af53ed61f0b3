"""What one exporter has decided so far, key by key: said, said approximately, not sayable, refused; and the job that it says.

And what every tool says or refuses alike: a simulator's own keys, the batch, the launcher's grid.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from parsim.errors import Finding, InputError, PlanError, ScenarioError
from parsim.hardware.kernels import kernel_time
from parsim.interop.keys import KeyTable
from parsim.model.catalogue import read_architecture
from parsim.model.families import FAMILIES
from parsim.model.model import OUTER
from parsim.model.transformer import TransformerConfig
from parsim.parallel.plan import plan
from parsim.parallel.training import KEPT, Precision
from parsim.scenario.build import build
from parsim.scenario.built import Built, clock_of
from parsim.scenario.precision import PRESETS
from parsim.scenario.references import folder, lookup, model_tree
from parsim.scenario.scenario import flow
from parsim.scenario.schema import ScenarioSchema, sections

if TYPE_CHECKING:
    from parsim.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Destination:
    """What became of one key of the scenario."""

    kind: Literal["exported", "in the script", "no counterpart"]
    text: str
    """where it went (``--tensor-model-parallel-size 8``), or why nowhere"""


@dataclass(frozen=True, slots=True)
class Exported:
    """A scenario as a configuration of another tool."""

    target: str
    """megatron | deepspeed | fsdp | torchtitan"""
    text: str
    """the file"""
    notes: tuple[Finding, ...]
    """what the target says only approximately, and what it cannot say here, by key"""
    keys: Mapping[str, Destination]
    """every key of the scenario that has been decided on"""
    launch: str
    """the command that starts the job"""
    script: tuple[str, ...]
    """calls of the training script that say what the file cannot"""


def comments(text: str, width: int = 120) -> list[str]:
    """`text` as comment lines; whatever it holds, nothing of it gets out of the comment."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return [f"# {line}" for line in textwrap.wrap(plain, width - 2)]


@dataclass(frozen=True)
class ExportJob:
    """One training job as another tool's launcher sees it."""

    scenario: Scenario
    built: Built
    architecture: TransformerConfig | None
    """None: not a transformer"""
    layers: tuple[int, ...]
    """transformer layers of every stage (p x v of them), in forward order"""
    gpus_per_node: tuple[int, ...]
    """GPUs in use on each node"""
    elements_per_layer: int
    """parameters of the largest transformer layer on one tensor-parallel rank"""
    elements: int
    """parameters of the model"""

    @property
    def settings(self) -> ScenarioSchema:
        """The sections as written, autos unresolved."""
        return self.scenario.settings

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters, or share them: data x context."""
        return self.built.parallelism.data.size * self.built.parallelism.context.size

    @property
    def precision(self) -> str:
        """The preset with these bytes and types; an empty text where there is none."""
        return preset_name(self.weights)

    @property
    def weights(self) -> Precision:
        """The precision of a model's weights: fp32 adapters beside 16-bit ones are PEFT's doing, and no key's."""
        training = self.built.training
        wide = training.finetune is not None and training.finetune.fp32_adapters and not training.precision.cached_casts
        return PRESETS.get(training.precision.name, training.precision) if wide else training.precision

    @property
    def stored(self) -> str:
        """Bytes per parameter in words, and what runs in fp8 beyond what stacks do by themselves."""
        precision = self.built.training.precision
        beyond = [part for part in KEPT if precision.narrow and part not in precision.keep]
        return self.built.bytes_per_parameter + (f" with {' and '.join(beyond)} in fp8" if beyond else "")

    @property
    def family(self) -> str:
        """The model's family; an empty text for models layer by layer."""
        return self.architecture.family if self.architecture is not None else ""


def preset_name(precision: Precision) -> str:
    """The preset that `precision` is, whatever it is called."""
    matmul = "fp8" if precision.narrow else precision.matmul  # what it is exactly, the recipe says
    plain = replace(precision, quantisation=None, matmul=matmul, keep_layers=(0, 0), gathers_narrow=False, stores_narrow=False)
    return next((name for name, preset in PRESETS.items() if replace(plain, name=name) == preset), "")


def job_of(scenario: Scenario) -> ExportJob:
    """The job that `scenario` describes. Raises an `InputError` with every finding where it cannot be planned."""
    built = build(scenario)
    if built.model.facts.get("encoder") or built.model.facts.get("vision"):
        text = f"not supported yet: exporting {built.model.name}, a model of several stacks"
        raise ScenarioError(scenario.findings_at([Finding(text, "model", built.model.name, "write the launch by hand")]))
    clock = clock_of(built) if built.effects_of_kinds else partial(kernel_time, built.cluster.device(built.gpus[0]))
    try:
        planned = plan(built.model, built.cluster, built.training, built.parallelism, built.runtime, clock, built.gpus, dict(built.slow))
    except InputError as error:
        raise type(error)(scenario.findings_at(error.findings)) from None
    blocks = planned.model.blocks  # a profiled stage stands for all of them in built.model
    layers = [[block for block in chunk.blocks if blocks[block].kind not in OUTER] for chunk in planned.chunks]
    nodes = Counter(built.cluster.node_of(gpu) for gpu in built.gpus)
    return ExportJob(
        scenario=scenario,
        built=built,
        architecture=_architecture(scenario) if built.model.facts.get("family") in FAMILIES else None,
        layers=tuple(map(len, layers)),
        gpus_per_node=tuple(nodes[node] for node in sorted(nodes)),
        elements_per_layer=max(
            sum(p.rank_count(planned.workload) for p in blocks[block].parameters() if not p.buffer) for chunk in layers for block in chunk
        ),
        elements=sum(p.count for block in blocks for p in block.parameters() if not p.buffer and not p.tied),
    )


def _architecture(scenario: Scenario) -> TransformerConfig:
    relative = folder(scenario.origins, "model", scenario.source)
    tree, _, beside = model_tree(scenario.settings.model, relative)
    return read_architecture(tree, base_lookup=lookup("models", beside)).resolved()


SECTIONS = ("training", "parallel")
"""sections whose every key ends somewhere"""


class ExportDraft:
    """Collects the fates of keys; nothing that the user changed may be left without one."""

    def __init__(self, job: ExportJob, tool: str, table: KeyTable) -> None:
        self.job = job
        self.tool = tool
        """the target as its users call it"""
        self.table = table
        self.keys: dict[str, Destination] = {}
        self.notes: list[Finding] = []
        self.refused: list[Finding] = []
        self.script: list[str] = []
        """calls of the training script that say what the target's file cannot"""
        self._changed = dict(changed(job))

    def says(self, path: str, text: str) -> str:
        """The target says `path` as `text`, which is handed back."""
        self.keys[path] = Destination("exported", text)
        return text

    def remarks(self, path: str, message: str) -> None:
        """The target says it only approximately: `message` says what differs."""
        self.notes.append(Finding(message, path, self.value(path)))

    def lacks(self, path: str, why: str) -> None:
        """The target's configuration has no such key; worth a note where the user changed it."""
        self.keys[path] = Destination("no counterpart", why)
        if path in self._changed:
            self.notes.append(Finding(f"no counterpart in {self.tool}: {why}", path, self._changed[path]))

    def lacks_below(self, prefix: str, *but: str) -> None:
        """What the table says to have no counterpart below `prefix`, without the keys `but`."""
        for path, why in self.table.lacks.items():
            if path.startswith(prefix) and path not in but:
                self.lacks(path, why)

    def option(self, path: str, value: Any = True) -> str:
        """The option of a command line that says `path`, as `written`; the fate of `path`."""
        return self.says(path, self.written(path, value))

    def written(self, path: str, value: Any = True) -> str:
        """The option of a row, which may be one of several that say a key: ``--clip-grad 1.0``, or a bare flag."""
        row = self.table.rows[path]
        name, word = f"--{row.name.replace('_', '-')}", row.theirs(value)
        return name if row.kind in ("flag", "inverted") or word is True else f"{name} {word}"

    def entry(self, document: dict[str, Any], path: str, value: Any) -> None:
        """Put what says `path` into `document`; that is its fate."""
        name = self.put(document, path, value)
        word = self.table.rows[path].theirs(value)
        self.says(path, f"{name}: {word if isinstance(word, str) else flow(word)}")

    def put(self, document: dict[str, Any], path: str, value: Any) -> str:
        """Put the value of a row, which may be one of several that say a key, into its section of `document`; the name of its key."""
        row = self.table.rows[path]
        *sections, name = row.name.split(".")
        for section in sections:
            document = document.setdefault(section, {})
        document[name] = row.theirs(value)
        return row.name

    def pair(self, path: str, value: Any) -> dict[str, Any]:
        """The key of a row without its section, and its value."""
        row = self.table.rows[path]
        return {row.name.rpartition(".")[2]: row.theirs(value)}

    def scripted(self, path: str, text: str) -> str:
        """The training script says `path`, as `text` beside the target's file; `text` is handed back."""
        self.keys[path] = Destination("in the script", text)
        return text

    def refuses(self, path: str, why: str, suggestion: str) -> None:
        """The job cannot be run by this tool as it was simulated."""
        self.keys[path] = Destination("no counterpart", why)
        self.refused.append(Finding(f"{flow(self.value(path))}: {why}", path, self.value(path), suggestion))

    def value(self, path: str) -> Any:
        """The value of a key as the scenario spells it; None where there is none."""
        holder: Any = self.job.scenario.tree
        for key in path.split("."):
            if not isinstance(holder, dict) or key not in holder:
                return None
            holder = holder[key]
        return holder

    def exported(self, target: str, text: str, launch: str) -> Exported:
        """The result. Raises `PlanError` with everything that was refused."""
        if self.refused:
            raise PlanError(self.job.scenario.findings_at(self.refused))
        for path, value in self._changed.items():
            if path not in self.keys:  # a key of a later version: said, never dropped
                self.keys[path] = Destination("no counterpart", "not known to this exporter")
                self.notes.append(Finding(f"no counterpart in {self.tool}: not known to this exporter", path, value))
        return Exported(target, text, tuple(self.job.scenario.findings_at(self.notes)), self.keys, launch, tuple(self.script))


def leaves(*names: str) -> Iterator[str]:
    """Every key of these sections that holds a value, in the schema's order."""
    known = dict(sections(ScenarioSchema, ""))
    for section, kind in known.items():
        if section.partition(".")[0] in names:
            yield from (f"{section}.{key}" for key in kind.model_fields if f"{section}.{key}" not in known)


def changed(job: ExportJob) -> Iterator[tuple[str, Any]]:
    """The keys of `SECTIONS` that are not at their defaults, with their values as the scenario spells them."""
    kinds = dict(sections(ScenarioSchema, ""))
    for path in leaves(*SECTIONS):
        section, _, key = path.rpartition(".")
        holder: Any = job.settings
        tree: Any = job.scenario.tree
        for part in section.split("."):
            holder, tree = getattr(holder, part), (tree or {}).get(part)
            if holder is None:
                break
        if holder is not None and (path == "training.finetune.method" or getattr(holder, key) != getattr(kinds[section](), key)):
            yield path, tree.get(key, getattr(holder, key))


NO_TOOL = "no tool has it by configuration"


def simulator_only(draft: ExportDraft) -> None:
    """Keys that only a simulator has: what kind of step is looked at, how long the training is, properties of the data."""
    training = draft.job.settings.training
    if not training.backward:
        draft.refuses("training.backward", "a training job always has a backward pass", "leave it out")
    if not training.step:
        draft.refuses("training.step", "a training job always steps its optimizer", "leave it out")
    if training.objective in ("auto", "language-modelling"):
        draft.says("training.objective", "the default: next tokens")
    else:
        text = f"{training.objective} is in the training script, not in the configuration"
        draft.refuses("training.objective", text, "export without it, and give the configuration to TRL or LLaMA-Factory")
    draft.lacks("training.iteration", "it says which step is simulated, not how to train")
    draft.lacks("training.mean_sequence_length", "it describes the data")
    draft.lacks("training.document_length", "it describes the data")
    draft.lacks("training.data_loading", "it is a time, not a setting")
    draft.lacks("training.tokens", "the length of the training is the script's")
    draft.lacks("parallel.expert.imbalance", "it describes the data")
    draft.lacks("parallel.expert.routing", "it is a benchmark's, in place of the router's")
    for key in ("size", "local_steps", "fragments", "overlap_steps", "dtype"):
        draft.says(f"parallel.data.outer.{key}", "the default: all replicas step together")
    if draft.job.built.parallelism.data.outer.size > 1:
        draft.refuses("parallel.data.outer.size", f"groups of replicas that step alone: {NO_TOOL}", "leave parallel.data.outer out")
    draft.says("parallel.fully_connected", "the default: no layer is shared")
    if draft.job.settings.parallel.fully_connected > 1:
        draft.refuses("parallel.fully_connected", f"shared fully connected layers: {NO_TOOL}", "leave it out")
    draft.says("parallel.data.batch_split", "the default: equal parts")
    if draft.job.built.training.shares:
        text = f"replicas with different numbers of micro-batches: {NO_TOOL}"
        draft.refuses("parallel.data.batch_split", text, "use batch_split: even")
    for path in ("training.backward", "training.step"):
        if path not in draft.keys:
            draft.says(path, "always")


def partial_batch(draft: ExportDraft, otherwise: str = "") -> None:
    """A smaller last micro-batch; `otherwise` says who decides it, an empty text: the tool refuses it."""
    path = "training.partial_micro_batch"
    last = draft.job.built.training.last_micro_batch
    if last and not otherwise:
        batch = draft.job.built.batch_arithmetic
        text = f"the last micro-batch has {last} samples ({batch}); every micro-batch has the same size there"
        draft.refuses(path, text, "use a global_batch of whole micro-batches, or --to fsdp")
    elif last:
        draft.lacks(path, otherwise)
    else:
        draft.says(path, "not needed: all micro-batches are whole")


def strategy_of_nobody(draft: ExportDraft) -> bool:
    """Refuse strategies and schedules that exist in no tool; True where the strategy was one."""
    path, strategy = "parallel.data.strategy", draft.job.built.parallelism.data.strategy
    if ".py:" in strategy:
        draft.refuses(path, f"a strategy of your own runs nowhere but here; {NO_TOOL}", "export ddp, zero1, zero2, zero3 or fsdp")
    elif strategy in ("torch-data-parallel", "parameter-server"):
        who = "torch.nn.DataParallel is a call in the script" if strategy == "torch-data-parallel" else NO_TOOL
        draft.refuses(path, f"{draft.tool} runs one process per GPU; {who}", "use ddp")
    else:
        return False
    return True


def sixteen_bits(draft: ExportDraft) -> None:
    """Tools that send weights and gradients as they are: refuse ZeRO++."""
    data = draft.job.built.parallelism.data
    for key, off in (("quantised_weights", False), ("quantised_gradients", False), ("secondary_partition", 1)):
        if getattr(data, key) == off:
            draft.says(f"parallel.data.{key}", "never")
        else:
            draft.refuses(f"parallel.data.{key}", "ZeRO++ is DeepSpeed's", "use --to deepspeed, or leave it out")


FACTORS = ("precondition_frequency", "max_preconditioner_dim")
"""keys of optimizers with preconditioners"""


def no_muon(draft: ExportDraft) -> bool:
    """Refuse Muon, SOAP and Shampoo, which the tool's configuration does not know; True where one was asked for."""
    names = {"muon": "Muon", "soap": "SOAP", "shampoo": "Shampoo"}
    asked = names.get(draft.job.built.training.optimizer.name, "")
    for key in ("newton_schulz_steps", "tensor_mode", "split_query_key_value", "split_gate_up", "padded_parts"):
        draft.says(f"training.optimizer.{key}", "the optimizer is not Muon")
    for key in FACTORS:
        draft.says(f"training.optimizer.{key}", "the optimizer has no preconditioner")
    if asked:
        hint = "keep it in the script" if asked == "Shampoo" else "use --to megatron"
        draft.refuses("training.optimizer.name", f"{asked} is in the training script, not in the configuration", hint)
    return bool(asked)


def one_instance(draft: ExportDraft) -> None:
    """Tools whose optimizer is sharded over all replicas."""
    path, instances = "parallel.data.optimizer_instances", draft.job.built.parallelism.data.optimizer_instances
    if instances > 1:
        draft.refuses(path, "only Megatron-Core's distributed optimizer has instances", "use --to megatron, or 1")
    else:
        draft.says(path, "one, always")


def grid(draft: ExportDraft) -> tuple[int, int]:
    """Nodes, and processes on each; unequal nodes are refused, ranks in an order of the user's own are remarked."""
    per_node = draft.job.gpus_per_node
    cluster = draft.job.settings.cluster
    if len(set(per_node)) > 1:
        counts = ", ".join(map(str, per_node))
        text = f"the nodes run {counts} processes; the launcher starts equally many on each"
        draft.refused.append(Finding(text, "cluster.gpus", cluster.gpus, f"use a multiple of {len(per_node)} GPUs"))
    if cluster.placement != "packed":
        text = "the launcher numbers ranks node by node (packed): give the nodes another order, or set CUDA_VISIBLE_DEVICES"
        draft.remarks("cluster.placement", text)
    draft.says("parallel.data.size", f"follows from {sum(per_node)} processes")
    return len(per_node), per_node[0]


def order(draft: ExportDraft, known: dict[tuple[str, ...], str], elsewhere: str) -> str:
    """What says the rank order `known`; an order of axes of size 1 does not matter. Anything else is refused."""
    parallelism = draft.job.built.parallelism
    wide = tuple(axis for axis in parallelism.order if getattr(parallelism, axis).size > 1)
    for axes, text in known.items():
        if wide == tuple(axis for axis in axes if axis in wide):
            draft.says("parallel.order", text or "the tool's own order")
            return text
    orders = " or ".join(", ".join(axes) for axes in known)
    draft.refuses("parallel.order", f"ranks are numbered {orders} there; {elsewhere}", "use the default order")
    return ""


def torchrun(nodes: int, processes: int) -> list[str]:
    """torchrun's options; where a node finds the others is taken from the environment."""
    options = [f"--nnodes {nodes}", f"--nproc-per-node {processes}"]
    if nodes > 1:
        options += ['--node-rank "${NODE_RANK:-0}"', '--master-addr "${MASTER_ADDR:-localhost}"', '--master-port "${MASTER_PORT:-29500}"']
    return options
