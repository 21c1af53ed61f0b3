"""The text of docs/glossary.md: every metric's definition, and the words of the field with the key that says them."""

from __future__ import annotations

from parsim.report.definitions import DEFINITIONS, Definition

HEAD = """\
# Glossary

`parsim explain NAME` prints the definition of a number, `parsim explain` all of them.
The first part is generated from `parsim/report/definitions.toml`; the names are keys of `report.json`.

## Numbers of the report
"""
WORDS_HEAD = """
## Terms

| term | meaning | key |
|---|---|---|
"""
WORDS: tuple[tuple[str, str, str], ...] = (
    ("activation checkpointing", "see recomputation", "training.recompute"),
    ("activations", "tensors that forward saves for backward", "training.recompute"),
    ("all-gather", "every rank ends with the shards of all ranks", ""),
    ("all-reduce", "every rank ends with the sum over all ranks", ""),
    ("bubble", "time in which a rank neither computes nor communicates because it waits for others", ""),
    ("bucket", "gradients that are reduced together", "parallel.data.bucket"),
    ("bus bandwidth", "busbw of nccl-tests: comparable for any number of ranks", ""),
    ("chunk, virtual stage, model chunk", "one of several parts of the model on a pipeline rank", "parallel.pipeline.virtual_stages"),
    ("context parallelism", "the tokens of a sample are split over ranks", "parallel.context.size"),
    ("critical path", "the chain of passes, messages and waits that determines the step time", ""),
    ("data parallelism", "ranks with the same parameters and different samples", "parallel.data.size"),
    ("exposed", "communication during which the rank computes nothing; the rest is hidden", ""),
    ("flush", "the pipeline drains before the optimizer step", "parallel.pipeline.schedule"),
    ("FSDP", "fully sharded data parallelism: parameters are gathered unit by unit, as in ZeRO-3", "parallel.data.strategy"),
    ("global batch", "samples per optimizer step, all ranks together", "training.global_batch"),
    ("goodput", "the useful share of the time, after failures and checkpoints", "economics.mtbf_per_gpu"),
    ("gradient accumulation", "micro-batches per optimizer step and replica", "training.gradient_accumulation"),
    ("HSDP", "sharded inside a group, replicated between groups", "parallel.data.shard_size"),
    ("in flight", "micro-batches whose activations a rank holds", ""),
    ("interference", "communication slows compute that runs at the same time", "cluster.interference"),
    ("master weights", "the fp32 copy that the optimizer updates", "training.precision"),
    ("micro-batch", "samples of one forward pass of a replica", "training.micro_batch"),
    ("offloading", "states or checkpoints are kept in host memory or on drives", "training.offload"),
    ("oversubscription", "a leaf switch has this many times more bandwidth down than up", "cluster.fabric.oversubscription"),
    ("p2p, send", "a message of one rank to another, between pipeline stages", "parallel.pipeline.overlap_sends"),
    ("pipeline parallelism", "consecutive layers are on different ranks", "parallel.pipeline.size"),
    ("rail", "the NICs with the same index in all nodes, connected to one switch", "cluster.fabric.kind"),
    ("rank", "one process on one GPU", ""),
    ("recomputation", "activations are discarded and computed again in backward", "training.recompute"),
    ("reduce-scatter", "every rank ends with its shard of the sum", ""),
    ("replica", "the ranks that hold one whole copy of the parameters", "parallel.data.size"),
    (
        "sequence parallelism",
        "norms and dropout process a shard of the tokens; used with tensor parallelism",
        "parallel.tensor.sequence_parallel",
    ),
    ("stage", "the layers of one pipeline rank", "parallel.pipeline.split"),
    ("step", "one optimizer step: all micro-batches, then the update", ""),
    ("straggler", "a rank slower than the others", "variability.slow"),
    ("tensor parallelism", "every layer is split over ranks", "parallel.tensor.size"),
    ("weight version", "copies of the weights that a schedule without a flush keeps", "parallel.pipeline.schedule"),
    ("world size", "used GPUs: tensor x pipeline x context x data", "cluster.gpus"),
    ("ZeRO-1, 2, 3", "optimizer states, then also gradients, then also parameters are sharded over the replicas", "parallel.data.strategy"),
)
"""(word, meaning, scenario key)"""


def entry(definition: Definition) -> str:
    """One metric."""
    lines = [f"### `{definition.name}` [{definition.unit}]", "", definition.text, ""]
    details = [f"- formula: `{definition.formula}`"] if definition.formula else []
    details += [f"- source: {definition.source}"] if definition.source else []
    return "\n".join([*lines, *details, ""])


def glossary() -> str:
    """The page."""
    metrics = "\n".join(entry(definition) for definition in DEFINITIONS.values())
    rows = "".join(f"| {word} | {text} | {f'`{key}`' if key else ''} |\n" for word, text, key in WORDS)
    return f"{HEAD}\n{metrics}{WORDS_HEAD}{rows}"
