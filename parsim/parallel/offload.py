"""Model states outside the device: what goes where, which strategy may, and what moves when.

=============  ==============================================================================================
when           what moves (N data-parallel ranks, P parameters of a rank's tensor and pipeline share)
=============  ==============================================================================================
before a use   parameters off the device: the own share of the unit is copied to the device, then gathered
after a        the own share of the reduced gradients goes to the host, bucket by bucket (unit by unit) under
reduction      backward; a later micro-batch's is added on the device: what the host has comes back for it
step           the CPU steps the own share in host memory; drives: the states are read before and written after
after it       parameters on the device: the own share is copied back, then gathered
=============  ==============================================================================================

ZeRO-Offload (Ren et al., 2101.06840): optimizer and gradients of ZeRO-1 and 2. ZeRO-Infinity (Rajbhandari et al.,
2104.07857): ZeRO-3, also parameters, also drives. FullyShardedDataParallel(CPUOffload(offload_params=True)): all
three in host memory; under hybrid sharding a share leaves when it is summed over the shard groups (_reduce_grad in
torch/distributed/fsdp/_runtime_utils.py). What DeepSpeed refuses is refused here (deepspeed/runtime/zero/stage3.py: "parameter offload is
only available with optimizer state offload").
"""

from __future__ import annotations

from collections.abc import Sequence

from parsim.errors import Finding
from parsim.parallel.hooks import Emitter
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Offload, Precision, Training

DEEPSPEED = ("zero1", "zero2", "zero3")
FSDP = ("fsdp", "hsdp")
"""strategies of FullyShardedDataParallel"""
DEEPSPEED_CPU = ("adam", "adamw", "lion")
"""optimizers that DeepSpeed has a CPU kernel for (deepspeed/ops/adam/cpu_adam.py, ops/lion/cpu_lion.py; Adagrad is not modelled)"""
_ON_GPUS = {"adam-8bit": "bitsandbytes", "adam-4bit": "torchao"}
TORCH_CPU_TRAFFIC = 5.5
"""how many times as long a torch.optim step on the CPU takes as DeepSpeed's fused one (assumption). DeepSpeed gives its kernel
up to 6 times the throughput of torch.optim.Adam (microsoft/DeepSpeed issue 479); see also 2101.06840, table 4"""
SUB_GROUP = 1_000_000_000
"""elements that DeepSpeed steps at a time (sub_group_size): what host memory holds of states that live on drives"""
PARAMETER_BUFFERS = 500_000_000
"""elements of the host buffers through which parameters on drives pass (offload_param: buffer_count 5 x buffer_size 1e8)"""


def place(where: str, category: str) -> str:
    """The memory category of a state that is on the device (none), in host memory (cpu) or on drives (nvme)."""
    return {"none": category, "cpu": f"host {category}", "nvme": f"nvme {category}"}[where]


def host_gradient(precision: Precision) -> int:
    """Bytes of a gradient element on the host: fp32 where the master is, which the step reads (DeepSpeed's estimators count 4)."""
    return max(precision.gradients, precision.master)


def step_bytes(training: Training, strategy: str, count: int, state_bytes: int) -> int:
    """Bytes that a step of `count` elements moves in host memory: 28 per parameter for mixed-precision Adam.

    The gradient is read, master (or weight) and moments are read and written, the low-precision weight is written.
    """
    precision, optimizer = training.precision, training.optimizer
    weight = precision.parameters * count
    master = precision.master * count
    moved = precision.gradients * count + 2 * (master or weight) + 2 * (state_bytes - master) + (weight if master else 0)
    torch = strategy in FSDP and optimizer.implementation != "fused"
    return round(moved * (TORCH_CPU_TRAFFIC if torch else 1.0))


def host_buffers(at: Emitter, training: Training, count: int, state_bytes: int, total: int) -> list[str]:
    """Host memory through which what lives on drives passes: one sub-group's states, some parameters of `total`."""
    names = []
    offload, precision = training.offload, training.precision
    if offload.optimizer == "nvme" and count:
        part = min(1.0, SUB_GROUP / count)
        size = round(part * (state_bytes + host_gradient(precision) * count))
        names.append(at.tensor("sub-group buffer", size, "host buffers"))
    if offload.parameters == "nvme":
        names.append(at.tensor("parameter buffers", min(total, PARAMETER_BUFFERS) * precision.parameters, "host buffers"))
    return names


def gradients_out(at: Emitter, training: Training, count: int, name: str, reduced: int, *, adds: bool, frees: Sequence[str]) -> int:
    """Send `count` reduced gradient elements to the host once `reduced` has ended; `adds` to what is there already."""
    size = count * training.precision.gradients
    after = [reduced]
    kept = list(frees)
    if adds:  # added on the device: adding in host memory is slower than fetching it (deepspeed/runtime/zero/stage3.py)
        before = at.tensor(f"{name} of earlier micro-batches", size, "temporaries", per_micro_batch=True)
        after.append(at.copy("h2d", size, f"{name} so far", after=[reduced], allocates=[before]))
        kept.append(before)
    out = at.copy("d2h", size, name, after=after, frees=kept)
    return at.copy("nvme_write", size, name, after=[out]) if training.offload.gradients == "nvme" else out


def wait_for_gradients(at: Emitter, offload: Offload) -> None:
    """Hold the compute lane until all gradients are on the host, where the step reads them."""
    at.wait_for_lane("d2h")
    if offload.gradients == "nvme":
        at.wait_for_lane("nvme_write")


def step_on_host(at: Emitter, training: Training, strategy: str, count: int, states: tuple[int, Sequence[str]]) -> None:
    """Step `count` elements on the CPU; `states` are their bytes and the tensors that the first step makes."""
    offload, precision = training.offload, training.precision
    size, names = states
    if not count:  # nothing is trained on this rank
        return
    begin: list[int] | None = None
    if offload.optimizer == "nvme":
        begin = [at.copy("nvme_read", size + count * precision.gradients, "optimizer states", after=begin)]
    first = list(names) if training.iteration == "first" else []
    moved = step_bytes(training, strategy, count, size)
    done = at.copy("cpu_step", moved, "optimizer", after=begin, allocates=first, frees=first)
    last = [done]
    weights = count * precision.parameters
    stored = (size if offload.optimizer == "nvme" else 0) + (weights if offload.parameters == "nvme" else 0)
    if stored:
        last.append(at.copy("nvme_write", stored, "stepped states", after=[done]))
    if offload.parameters == "none":
        last.append(at.copy("h2d", weights, "stepped weights", after=[done]))
    at.wait(*last)


# -- what may go where ----------------------------------------------------------------------------------------------


def offload_findings(training: Training, parallelism: Parallelism, runtime: Runtime) -> list[Finding]:
    """Everything that is wrong with `training.offload` under this strategy."""
    offload, strategy = training.offload, parallelism.data.strategy
    findings = _activations(training, strategy)
    if not offload.states:
        return findings
    where = "training.offload.optimizer" if offload.optimizer != "none" else "training.offload.parameters"
    value = offload.optimizer if offload.optimizer != "none" else offload.parameters
    if offload.optimizer == offload.parameters == "none":
        text = "gradients can be offloaded only with an optimizer on the CPU"
        return [*findings, Finding(text, "training.offload.gradients", offload.gradients, f"add optimizer: {offload.gradients}")]
    if runtime.megatron:
        text = f"the optimizer of {runtime.profile} stays on the device"
        return [*findings, Finding(text, where, value, "use software.profile deepspeed or pytorch-2")]
    alone = parallelism.data.size == parallelism.context.size == parallelism.tensor.size == parallelism.pipeline.size == 1
    if parallelism.data.custom is not None:
        return [*findings, Finding(f"{strategy} is your own strategy, which keeps states on the device", where, value, "leave it out")]
    if strategy not in (*DEEPSPEED, *FSDP) and not (alone and strategy in ("none", "ddp")):
        text = f"{strategy} keeps whole model states on every device"
        return [*findings, Finding(text, where, value, "use parallel.zero 1, 2 or 3, or parallel.data.strategy fsdp")]
    if not (training.step and training.backward):
        return [*findings, Finding("there is no optimizer step, so there is no state to offload", where, value, "set training.step: true")]
    return findings + (_fsdp(training, parallelism) if strategy in FSDP else _deepspeed(training, strategy, parallelism))


def _activations(training: Training, strategy: str) -> list[Finding]:
    offload, path = training.offload, "training.offload.activations"
    if offload.activations == "none":
        return []
    if offload.activations == "nvme":
        hint = "use cpu (DeepSpeed's cpu_checkpointing, PyTorch's save_on_cpu and offload_wrapper)"
        return [Finding("stored activations go to host memory, not to drives", path, "nvme", hint)]
    if not training.backward:
        return [Finding("without a backward pass no activations are stored", path, "cpu", "leave it out")]
    if training.recompute.mode in ("none", "selective"):
        text = f"offloading activations moves checkpoints, the inputs of recomputed layers, and recompute is {training.recompute.mode}"
        return [Finding(text, path, "cpu", "add training.recompute: full, or {every: k}")]
    if strategy == "torch-data-parallel":
        return [Finding(f"{strategy} is one process whose threads share one host", path, "cpu", "use ddp")]
    return []


def _deepspeed(training: Training, strategy: str, parallelism: Parallelism) -> list[Finding]:
    offload = training.offload
    findings = []
    if offload.parameters != "none" and strategy != "zero3":
        text = f"parameters are whole on every device under {strategy}; offload_param is ZeRO-3's"
        findings.append(Finding(text, "training.offload.parameters", offload.parameters, "use parallel.zero 3"))
    elif offload.parameters != "none" and offload.optimizer == "none":
        text = "parameter offload needs optimizer offload (DeepSpeed, stage3.py)"
        findings.append(Finding(text, "training.offload.parameters", offload.parameters, "add optimizer: cpu"))
    if offload.optimizer == "nvme" and strategy != "zero3":
        text = f"states on drives (ZeRO-Infinity) need ZeRO-3, not {strategy}"
        findings.append(Finding(text, "training.offload.optimizer", "nvme", "use parallel.zero 3, or offload to cpu"))
    if offload.gradients != offload.optimizer:
        text = f"DeepSpeed keeps gradients where the optimizer is ({offload.optimizer})"
        findings.append(Finding(text, "training.offload.gradients", offload.gradients, f"use {offload.optimizer}, or leave it out"))
    name = training.optimizer.name
    if offload.optimizer != "none" and name not in DEEPSPEED_CPU:
        text = f"DeepSpeed has no CPU kernel for {name}"
        findings.append(Finding(text, "training.optimizer", name, f"use one of {', '.join(DEEPSPEED_CPU)}"))
    if parallelism.pipeline.size > 1 and strategy in ("zero2", "zero3"):
        text = f"DeepSpeed's pipeline engine refuses {strategy}"
        findings.append(Finding(text, "parallel.data.strategy", strategy, "use zero1 with pipeline parallelism"))
    return findings


def _fsdp(training: Training, parallelism: Parallelism) -> list[Finding]:
    offload = training.offload
    findings = []
    if "nvme" in (offload.parameters, offload.gradients, offload.optimizer):
        findings.append(Finding("CPUOffload knows host memory only", "training.offload.optimizer", "nvme", "use cpu, or parallel.zero 3"))
    elif (offload.parameters, offload.gradients, offload.optimizer) != ("cpu", "cpu", "cpu"):
        text = "CPUOffload(offload_params=True) moves parameters, gradients and the optimizer together"
        key, value = ("parameters", "none") if offload.parameters == "none" else ("optimizer", offload.optimizer)
        hint = "write offload: {parameters: cpu, gradients: cpu, optimizer: cpu}, or use parallel.zero"
        findings.append(Finding(text, f"training.offload.{key}", value, hint))
    if (name := training.optimizer.name) in _ON_GPUS:
        findings.append(Finding(f"{_ON_GPUS[name]} runs the optimizer on the GPU only", "training.optimizer", name, "use adamw"))
    if parallelism.data.accumulate == "every" and training.micro_batches > 1:
        text = "FSDP with CPUOffload does not accumulate gradients outside no_sync (PyTorch's FullyShardedDataParallel notes)"
        findings.append(Finding(text, "parallel.data.accumulate", "every", "use accumulate: no_sync"))
    return findings
