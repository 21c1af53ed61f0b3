"""Software profiles: what a training stack uses where the scenario says auto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from parsim.errors import Finding, ScenarioError
from parsim.model.low_precision import RECIPES
from parsim.parallel.runtime import Host, Runtime
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import KEPT
from parsim.scenario import files
from parsim.scenario.machine import HostSection, SoftwareSection
from parsim.scenario.precision import PRESETS, kept_parts
from parsim.scenario.schema import ScenarioSchema
from parsim.scenario.training import ATTENTIONS
from parsim.scenario.values import Choice, Flag, Number, Quantity, Whole, did_you_mean
from parsim.units import format_time

if TYPE_CHECKING:
    from parsim.hardware.device import Device

ACCUMULATE = ("ddp", "zero1", "fsdp", "hsdp", "pipeline")
"""keys of a profile's accumulate: data strategies that can wait (zero2 and zero3 cannot), and what a pipeline's schedule does instead"""
VOLTA, HOPPER = 7.0, 9.0
"""compute capability"""
HOST_TIMES = ("per_layer_forward", "per_layer_backward", "per_collective", "per_kernel_forward", "per_kernel_backward", "per_list_entry")
"""keys of software.host that are times"""


@dataclass(frozen=True, slots=True)
class Assumption:
    """A value that nobody stated: its name under ``assumptions:``, what it is, who says so and where that stands."""

    name: str
    value: str
    source: str
    origin: str


@dataclass(frozen=True, slots=True)
class SoftwareProfile:
    """The defaults of one training stack."""

    name: str
    precision: str
    kept: tuple[str, ...]
    """parts of a model whose products stay bf16 under fp8"""
    recipe: str
    """of fp8 products; see `parsim.model.low_precision`"""
    attention: tuple[str, ...]
    """in order of preference"""
    attention_hopper: tuple[str, ...]
    """the same from Hopper on, where that differs"""
    hopper: tuple[float, ...]
    """compute capabilities for which that holds; empty: Hopper's and later ones, and AMD's CDNA"""
    attention_cdna: tuple[str, ...]
    """the same on AMD's CDNA, where that differs"""
    fusion: str
    loss: str
    optimizer: str
    gradient_accumulation_fusion: bool
    tensor_overlap: str
    """none | backward | full | async: what runs beside tensor parallelism's collectives"""
    wide_experts: bool
    """experts that are spread over ranks are shared in width by the tensor-parallel ranks, too"""
    gathers_again: bool
    """sequence parallelism gathers a column's saved input again for its weight gradient instead of keeping the gathered one"""
    inner_sequence: bool
    """tokens are not the first dimension of activations, so that gathers and scatters of them copy whole tensors"""
    repeats_kv: bool
    """keys and values are copied to all query heads before the attention kernel"""
    vocabulary_divisor: int
    """vocabularies are padded to a multiple of this times the tensor size; 0 = they are not"""
    norm: str
    """persistent | two-pass: the norm kernels of the stack's fused layers"""
    train_metrics: int
    """cross entropies of the logits that the trainer computes as metrics"""
    accumulate: Mapping[str, str]
    """data strategy -> no_sync | every: when gradients of several micro-batches are reduced; ``pipeline``: under one, if that differs"""
    adapters: str
    """fp32 | model: type of the adapters of a 16-bit model (`training.finetune.adapter_dtype`)"""
    fsdp_version: Literal[1, 2]
    """which of PyTorch's fully sharded data parallels: FullyShardedDataParallel or fully_shard"""
    overlap_gather: bool
    """parameters that a sharded optimizer has stepped are gathered under the next forward"""
    host: Mapping[str, float]
    """what launching takes, by the keys of software.host [s]"""
    issue: float
    """what one torch.nn.functional.linear takes the thread for which that holds [s]; 0: `per_kernel_forward`"""
    launches_per_product: float
    """kernels in whose time a matrix product is launched"""
    holds_logits: bool
    """the training loop holds the logits until the micro-batch is done"""
    context: int
    """[B]"""
    context_sm70: int
    """the same on Volta [B]"""
    allocator: str
    """segments | expandable"""
    workspace: int
    """cuBLAS workspace per handle [B]"""
    workspace_sm90: int
    """the same on Hopper [B]"""
    sources: Mapping[str, str]
    """section -> source"""
    document: files.Document
    place: str
    """the file, as reports print it"""

    def attention_order(self, devices: Sequence[Device]) -> tuple[tuple[str, ...], str]:
        """Attention kernels in order of preference on `devices`, and the key that says so.

        On AMD's CDNA Transformer Engine takes its fused kernels (ROCm/TransformerEngine, README.rst: NVTE_FUSED_ATTN), as from Hopper on.
        """
        cdna = all(device.architecture.startswith("cdna") for device in devices)
        if self.attention_cdna and cdna:
            return self.attention_cdna, "attention.order_cdna"
        listed = all(device.compute_capability in self.hopper for device in devices)
        later = all(device.compute_capability >= HOPPER or device.architecture.startswith("cdna") for device in devices)
        if self.attention_hopper and (listed if self.hopper else later):
            return self.attention_hopper, "attention.order_hopper"
        return self.attention, "attention.order"

    def assumption(self, name: str, value: object, key: str) -> Assumption:
        """The record of a default taken from `key` of the profile."""
        line = self.document.locate(key)[1]
        origin = self.place + (f":{line}" if line is not None else "")
        return Assumption(name, str(value), self.sources.get(key.partition(".")[0], ""), origin)


def automatic(settings: ScenarioSchema, *, transformer: bool) -> tuple[str, str]:
    """The profile that ``auto`` means for a strategy, and why."""
    strategy = settings.parallel.data.strategy
    sizes = settings.parallel.tensor.size, settings.parallel.context.size, settings.parallel.pipeline.size
    model_parallel = max(sizes) > 1
    offloaded = settings.training.offload.optimizer != "none"  # Megatron's optimizer stays on the device
    if transformer and model_parallel and not offloaded and strategy not in ("fsdp", "hsdp", "zero3"):
        return "megatron-core", "tensor, context or pipeline parallelism of a transformer is usually run with Megatron-Core"
    if strategy == "zero1" and settings.training.optimizer.name in (names := {"muon": "Muon", "soap": "SOAP"}):
        return (
            "megatron-core",
            f"{names[settings.training.optimizer.name]} with whole matrices on ranks is Megatron-Core's layer-wise optimizer",
        )
    if settings.parallel.data.optimizer_instances > 1:
        return "megatron-core", "several instances of a sharded optimizer are Megatron-Core's"
    if strategy in ("zero1", "zero2", "zero3"):
        return "deepspeed", f"{strategy} is usually run with DeepSpeed"
    if ".py:" in strategy:
        return "pytorch-2", "a strategy of your own; PyTorch is assumed around it"
    return "pytorch-2", f"{strategy} is part of PyTorch" if strategy != "none" else "one process is plain PyTorch"


def read_profile(name: str, relative_to: str | None) -> SoftwareProfile:
    """The profile called `name` (or of that path). Raises `ScenarioError` with every problem in it."""
    try:
        document = files.read_referenced("software", files.find("software", name, relative_to))
    except ScenarioError as error:
        raise ScenarioError(
            [
                problem if problem.file else Finding(problem.message, "software.profile", name, problem.suggestion)
                for problem in error.findings
            ]
        ) from None
    reader = _ProfileReader(document)
    profile = SoftwareProfile(
        name=str(document.tree.get("name", name)),
        precision=reader.get("precision.preset", Choice(tuple(PRESETS)), "bf16"),
        kept=reader.get("fp8.keep", _Parts(), KEPT),
        recipe=reader.get("fp8.recipe", Choice(tuple(RECIPES)), "delayed"),
        attention=tuple(reader.get("attention.order", _Order(), ["flash2", "mem-efficient", "eager"])),
        attention_hopper=tuple(reader.get("attention.order_hopper", _Order(), [])),
        hopper=reader.get("attention.hopper", _Capabilities(), []),
        attention_cdna=tuple(reader.get("attention.order_cdna", _Order(), [])),
        fusion=reader.get("kernels.fusion", Choice(("eager", "compiled", "fused")), "eager"),
        loss=reader.get("kernels.loss", Choice(("eager", "fused", "vocab-parallel", "vocab-parallel-fused")), "eager"),
        optimizer=reader.get("kernels.optimizer", Choice(("fused", "foreach", "loop")), "foreach"),
        gradient_accumulation_fusion=reader.get("kernels.gradient_accumulation_fusion", Flag(), default=False),
        tensor_overlap=reader.get("tensor.overlap", Choice(("none", "backward", "full", "async")), "none"),
        wide_experts=reader.get("experts.width", Choice(("shared", "whole")), "whole") == "shared",
        gathers_again=reader.get("tensor.gathers_again", Flag(), default=True),
        inner_sequence=reader.get("tensor.inner_sequence", Flag(), default=False),
        repeats_kv=reader.get("attention.repeat_kv", Flag(), default=False),
        vocabulary_divisor=reader.get("vocabulary.divisible_by", _Divisor(), "none"),
        norm=reader.get("kernels.norm", Choice(("persistent", "two-pass")), "persistent"),
        train_metrics=reader.get("kernels.train_metrics", Whole(0, 16), 0),
        accumulate={key: value for key in ACCUMULATE if (value := reader.get(f"accumulate.{key}", _Reduction(), ""))},
        adapters=reader.get("adapters.dtype", Choice(("fp32", "model")), "model"),
        fsdp_version=reader.get("fsdp.version", Whole(1, 2), 2),
        overlap_gather=reader.get("accumulate.overlap_gather", Flag(), default=False),
        host={key: reader.get(f"host.{key}", Quantity("time", 1.0), "0 s") for key in HOST_TIMES},
        issue=reader.get("host.issue", Quantity("time", 1.0), "0 s"),
        launches_per_product=reader.get("host.launches_per_product", Number(1.0, 100.0), 1.0),
        holds_logits=reader.get("kernels.hold_logits", Flag(), default=True),
        context=reader.get("memory.context", Quantity("bytes", 10**12), "0.5 GiB"),
        context_sm70=reader.get("memory.context_sm70", Quantity("bytes", 10**12), "0 B"),
        allocator=reader.get("memory.allocator", Choice(("segments", "expandable")), "segments"),
        workspace=reader.get("memory.workspace", Quantity("bytes", 10**12), "8519680 B"),
        workspace_sm90=reader.get("memory.workspace_sm90", Quantity("bytes", 10**12), "32 MiB"),
        sources={section: str(value.get("source", "")) for section, value in document.tree.items() if isinstance(value, Mapping)},
        document=document,
        place=files.shown(document.path),
    )
    reader.close()
    return profile


@dataclass(frozen=True, slots=True)
class Issue:
    """What the host of a measured device needs to issue one operation."""

    seconds: float
    source: str
    """who measured it"""
    origin: str
    """where that stands"""


def issue_of(device: Device, documents: Mapping[str, files.Document]) -> Issue | None:
    """What launching takes on the machine where a device was measured, with its place in `documents`; None if its host was not."""
    launch = device.measured.launch if device.measured is not None else None
    if device.measured is None or launch is None or launch.issue is None:
        return Issue(device.issue, device.issue_source, device.name) if device.issue else None
    origin = device.name
    for document in documents.values():
        if document.tree.get("name") == device.name:
            file, line, _ = document.locate("measured.launch.issue")
            origin = files.shown(file) + (f":{line}" if line is not None else "")
    return Issue(launch.issue, device.measured.source or "measured on such a device", origin)


def host_of(section: HostSection, profile: SoftwareProfile, assumptions: list[Assumption], issue: Issue | None = None) -> Host:
    """The launch floor; what nobody stated is added to `assumptions`.

    Per kernel it is the profile's, times what `issue` is over the profile's where the device's host was measured.
    """
    if section.graphs is True:
        return Host()
    times = {key: getattr(section, key) for key in HOST_TIMES}
    for key, value in times.items():
        if value != "auto":
            continue
        times[key] = profile.host[key]
        if times[key] and issue is not None and key.startswith("per_kernel"):
            times[key] *= issue.seconds / (profile.issue or profile.host["per_kernel_forward"])
            assumptions.append(Assumption(f"host_{key}", format_time(times[key]), issue.source, issue.origin))
        elif times[key]:
            assumptions.append(profile.assumption(f"host_{key}", format_time(times[key]), f"host.{key}"))
    products = section.launches_per_product
    if products == "auto":
        products = profile.launches_per_product
        if products != 1.0 and times["per_kernel_forward"]:
            assumptions.append(profile.assumption("launches_per_product", f"{products:g}", "host.launches_per_product"))
    return Host(**times, launches_per_product=products, blocking=section.blocking, graphs=section.graphs or ())


def runtime_of(
    section: SoftwareSection,
    profile: SoftwareProfile,
    devices: Sequence[Device],
    documents: Mapping[str, files.Document],
    assumptions: list[Assumption],
    *,
    logits: bool = True,
) -> Runtime:
    """Kernels, memory and host of the stack on `devices`; what the profile decides is added to `assumptions`.

    `logits`: a backward leaves whole logits behind, of which a trainer can compute metrics.
    """
    memory = section.memory
    context, workspace = memory.context, memory.workspace
    if context == "auto":
        volta = profile.context_sm70 and all(device.compute_capability == VOLTA for device in devices)
        context, key = (profile.context_sm70, "memory.context_sm70") if volta else (profile.context, "memory.context")
        assumptions.append(profile.assumption("context_memory", f"{context} B", key))
    if workspace == "auto":
        hopper = any(device.has("flash3") for device in devices)
        workspace = profile.workspace_sm90 if hopper else profile.workspace
        key = "memory.workspace_sm90" if hopper else "memory.workspace"
        assumptions.append(profile.assumption("workspace_memory", f"{workspace} B", key))
    if memory.communicators == "auto":
        text = "0.3 GiB for the first communicator of a rank and 0.2 GiB for each further one"
        source = "NCCL buffers reported at 0.5 to 0.7 GB per group on A100 (NVIDIA/nccl issue 964)"
        assumptions.append(Assumption("communicator_memory", text, source, "default"))
    allocator = profile.allocator if memory.allocator == "auto" else memory.allocator
    if allocator not in (memory.allocator, "segments"):
        assumptions.append(profile.assumption("allocator", allocator, "memory.allocator"))
    fusion, accumulate = section.fusion, section.gradient_accumulation_fusion
    if fusion == "auto":
        fusion = profile.fusion
        assumptions.append(profile.assumption("kernel_fusion", fusion, "kernels.fusion"))
    if accumulate == "auto":
        accumulate = profile.gradient_accumulation_fusion
        record = profile.assumption("gradient_accumulation_fusion", str(accumulate).lower(), "kernels.gradient_accumulation_fusion")
        assumptions.append(record)
    norm = section.norm
    if norm == "auto":
        norm = "two-pass" if fusion == "eager" else "persistent" if fusion == "compiled" else profile.norm
        if fusion == "fused":
            assumptions.append(profile.assumption("norm_kernels", norm, "kernels.norm"))
    metrics = section.train_metrics
    if metrics == "auto":
        metrics = profile.train_metrics if logits else 0
        if metrics:
            assumptions.append(profile.assumption("train_metrics", metrics, "kernels.train_metrics"))
    return Runtime(
        profile=profile.name,
        context=context,
        communicators=None if memory.communicators == "auto" else memory.communicators,
        overhead=memory.overhead,
        workspace=workspace,
        allocator=cast(Literal["segments", "expandable", "exact"], allocator),
        gradient_accumulation_fusion=accumulate,
        gathers_again=profile.gathers_again,
        inner_sequence=profile.inner_sequence,
        repeats_kv=profile.repeats_kv,
        fused=fusion != "eager",
        compiled=fusion == "compiled",
        host=host_of(section.host, profile, assumptions, issue_of(devices[0], documents)),
        two_pass_norm=norm == "two-pass",
        train_metrics=metrics,
        step_constant=section.step_constant,
        boundary=section.boundary,
    )


def blocking_findings(section: HostSection, parallel: Parallelism) -> list[Finding]:
    """A thread that waits for every kernel waits for collectives too: nothing may be asked to overlap."""
    if not section.blocking:
        return []
    path, data = "software.host.blocking", parallel.data
    findings = []
    if section.graphs:
        findings.append(
            Finding(
                "a CUDA graph is a single launch, so the host cannot wait for single kernels",
                path,
                True,
                "use host.graphs or host.blocking",
            )
        )
    asked = (
        (parallel.tensor.size > 1 and parallel.tensor.overlap != "none", "parallel.tensor.overlap", "none"),
        (parallel.pipeline.size > 1 and parallel.pipeline.overlap_sends, "parallel.pipeline.overlap_sends", "false"),
        (data.strategy in ("ddp", "zero1", "zero2") and data.size > 1 and data.overlap_reduce, "parallel.data.overlap_reduce", "false"),
        (data.overlap_gather, "parallel.data.overlap_gather", "false"),
    )
    text = "the host waits for every kernel, including those of collectives, so nothing overlaps"
    findings += [Finding(text, path, True, f"write {key}: {value}") for applies, key, value in asked if applies]
    if data.strategy in ("zero3", "fsdp", "hsdp"):
        findings.append(Finding(f"not supported yet: {data.strategy} without prefetching", path, True, "use zero1, zero2 or ddp"))
    return findings


class _Order:
    """A list of attention kernels."""

    def check(self, value: Any) -> list[str]:
        kernels = value if isinstance(value, list) else [value]
        return [Choice(ATTENTIONS).check(kernel) for kernel in kernels]


class _Capabilities:
    """A list of compute capabilities."""

    def check(self, value: Any) -> tuple[float, ...]:
        return tuple(Number(1.0, 100.0).check(item) for item in (value if isinstance(value, list) else [value]))


class _Reduction:
    """When gradients are reduced; empty where the profile does not say."""

    def check(self, value: Any) -> str:
        return "" if value == "" else Choice(("no_sync", "every")).check(value)


class _Divisor:
    """A whole number, or none (0)."""

    def check(self, value: Any) -> int:
        number = Whole(1, 10**6, ("none",)).check(value)
        return 0 if number == "none" else int(number)


class _Parts:
    """A list of parts of a model that stay bf16 under fp8."""

    def check(self, value: Any) -> tuple[str, ...]:
        return kept_parts(value)


class _ProfileReader:
    """Reads a profile key by key and collects what is wrong with it."""

    def __init__(self, document: files.Document) -> None:
        self.document = document
        self.findings: list[Finding] = []
        self.known: dict[str, list[str]] = {"": ["name", "description", "aliases", "source"]}

    def get(self, key: str, kind: Any, default: Any) -> Any:
        section, _, name = key.partition(".")
        self.known.setdefault(section, ["source"]).append(name)
        if section not in self.known[""]:
            self.known[""].append(section)
        holder = self.document.tree.get(section)
        value = holder.get(name, default) if isinstance(holder, Mapping) else default
        try:
            return kind.check(value)
        except ValueError as error:
            message, _, hint = str(error).partition("; ")
            self.findings.append(Finding(message, key, value, hint, *self.document.locate(key)))
            return kind.check(default)

    def close(self) -> None:
        """Raise what was collected, unknown keys included."""
        for section, value in self.document.tree.items():
            if section not in self.known[""]:
                self._unknown(section, value, self.known[""])
            elif section in self.known and not isinstance(value, Mapping):
                self.findings.append(Finding("expected a mapping", section, value, "", *self.document.locate(section)))
            elif section in self.known:
                for key, item in value.items():
                    if key not in self.known[section]:
                        self._unknown(f"{section}.{key}", item, self.known[section])
        if self.findings:
            raise ScenarioError(self.findings)

    def _unknown(self, path: str, value: Any, known: list[str]) -> None:
        hint = did_you_mean(path.rpartition(".")[2], known) or f"known here: {', '.join(known)}"
        self.findings.append(Finding("unknown key", path, value, hint, *self.document.locate(path)))
