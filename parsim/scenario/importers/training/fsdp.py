"""PyTorch's FullyShardedDataParallel as accelerate and transformers configure it.

The strategies: torch.distributed.fsdp.ShardingStrategy. SHARD_GRAD_OP keeps gathered parameters until the backward is done with them, which
is ``reshard_after_forward: false``.
"""

from __future__ import annotations

from collections.abc import Callable

from parsim.scenario.importers.training.draft import Draft
from parsim.scenario.importers.training.keys import Key, Source

STRATEGIES = {
    "FULL_SHARD": ("fsdp", True), "SHARD_GRAD_OP": ("fsdp", False), "NO_SHARD": ("ddp", None),
    "HYBRID_SHARD": ("hsdp", True), "HYBRID_SHARD_ZERO2": ("hsdp", False),
}  # fmt: skip
"""name -> parallel.data.strategy and reshard_after_forward"""
NUMBERS = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "NO_SHARD", "4": "HYBRID_SHARD", "5": "HYBRID_SHARD_ZERO2"}
"""older files write numbers"""
START = ("sync_module_states", "cpu_ram_efficient_loading", "state_dict_type", "ignored_modules", "ignored_parameters")


def write_fsdp(draft: Draft, source: Source, prefix: str, switch: Key | None) -> None:
    """Write strategy, units and prefetching; keys are called `prefix` + name. `switch` is transformers' ``fsdp``."""

    def get(name: str) -> Key | None:
        return source.get(f"{prefix}{name}", f"fsdp_{name}", *([f"fsdp_config.{name}"] if switch is not None else []))

    _strategy(draft, get("sharding_strategy"), get("reshard_after_forward"), switch)
    _units(draft, get, switch)
    offload = get("offload_params")
    words = _words(switch)
    if (offload is not None and draft.flag(offload)) or "offload" in words:
        for path in ("parameters", "gradients", "optimizer"):
            draft.write(f"training.offload.{path}", "cpu", offload, switch if "offload" in words else None)
    else:
        draft.harmless(offload, "nothing is offloaded")
    again = get("activation_checkpointing")
    if again is not None and draft.flag(again):
        draft.write("training.recompute", "full", again)
    else:
        draft.harmless(again, "switched off")
    backward, forward, limit = get("backward_prefetch"), get("forward_prefetch"), get("limit_all_gathers")
    if backward is not None:
        late = str(backward.value).upper() in ("NO_PREFETCH", "NONE", "3")
        after = str(backward.value).upper() in ("BACKWARD_POST", "2")
        if after:
            draft.unmodelled(backward, "parsim gathers the next unit beside the current one (BACKWARD_PRE), or not ahead at all")
        else:
            draft.write("parallel.data.prefetch", 0 if late else 1, backward)
    draft.only_if(forward, (False,), "the order in which the host asks for gathers")
    if limit is not None and draft.flag(limit):
        draft.write("parallel.data.limit_gathers", 2, limit)
    else:
        draft.harmless(limit, "what is gathered ahead is limited by prefetching")
    for name in START:
        draft.harmless(get(name), "loading and checkpoints")
    draft.harmless(get("version"), "both versions shard, gather and reduce alike")
    draft.harmless(get("use_orig_params"), "the same work in another form of the parameters")
    xla = get("xla")
    draft.only_if(xla, (False,), "PyTorch/XLA's own sharding")


def _words(switch: Key | None) -> list[str]:
    if switch is None or isinstance(switch.value, bool):
        return []
    value = switch.value
    return [str(word) for word in value] if isinstance(value, list) else str(value).replace(",", " ").split()


def _strategy(draft: Draft, key: Key | None, reshard: Key | None, switch: Key | None) -> None:
    words = [word.upper() for word in _words(switch) if word.upper() in STRATEGIES]
    source = key if key is not None else switch
    name = words[0] if words else "FULL_SHARD" if key is None else str(key.value).rpartition(".")[2].upper()
    name = NUMBERS.get(name, name)
    if name not in STRATEGIES and source is not None:
        draft.errors.append(source.finding(f"{name} is no sharding strategy", f"one of {', '.join(STRATEGIES)}"))
        return
    strategy, keeps = STRATEGIES[name]
    note = "" if key is not None or words or switch is not None else "FULL_SHARD if not given"
    draft.write("parallel.data.strategy", strategy, key, switch, note=note)
    if reshard is not None and strategy != "ddp":
        text = str(reshard.value).upper()
        if text in STRATEGIES:
            draft.write("parallel.data.strategy", STRATEGIES[text][0], key, switch, reshard)
            draft.write("parallel.data.reshard_after_forward", bool(STRATEGIES[text][1]), reshard)
        else:
            draft.write("parallel.data.reshard_after_forward", draft.flag(reshard, default=True), reshard)
    elif reshard is not None:
        draft.harmless(reshard, "nothing is sharded")
    elif keeps is False:
        draft.write("parallel.data.reshard_after_forward", False, key or switch)


def _units(draft: Draft, get: Callable[[str], Key | None], switch: Key | None) -> None:
    """What is wrapped: every layer, or the model as one unit."""
    policy, names, size = get("auto_wrap_policy"), get("transformer_layer_cls_to_wrap"), get("min_num_params")
    word = str(policy.value).upper() if policy is not None else ""
    if word == "NO_WRAP":
        draft.write("parallel.data.unit", "model", policy)
        draft.harmless(names, "nothing is wrapped")
        draft.harmless(size, "nothing is wrapped")
        return
    if word == "SIZE_BASED_WRAP" or (names is None and size is not None and str(size.value) not in ("0", "auto")):
        for key in (policy, size):
            draft.unmodelled(key, "parsim wraps layers, not everything above a size")
        draft.harmless(names, "units are wrapped by size")
        return
    if policy is not None or names is not None:
        draft.write("parallel.data.unit", "layer", policy, names)
    elif switch is not None and _words(switch) and "auto_wrap" not in _words(switch):
        draft.write("parallel.data.unit", "model", switch, note="without auto_wrap")
    draft.harmless(size, "layers are wrapped by their class")
