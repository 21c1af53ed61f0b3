"""Torchtitan's fault tolerance with DiLoCo: every job of the file is a group of replicas that steps alone, and then they exchange.

Keys: pytorch/torchtitan, torchtitan/components/ft/config/job_config.py and torchtitan/config/job_config.py (FaultTolerance), 2025. What
they do: pytorch/torchft, torchft/local_sgd.py (DiLoCo) and torchft/collectives.py (allreduce_quantized).
"""

from __future__ import annotations

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source

PATH = "parallel.data.outer"
SECTION = "fault_tolerance"
_STARTING = ("min_replica_size", "replica_id", "process_group_timeout_ms")


def write_outer(draft: ImportDraft, source: Source) -> int | None:
    """Write the exchange between groups; how many groups there are, 1 without them, None where the file does not say."""
    method, on = _key(source, "semi_sync_method"), _key(source, "enable")
    if method is None or on is None or not draft.flag(on):
        return 1
    word = str(method.value).lower()
    if word != "diloco":
        what = "weights that groups average without an outer optimizer" if word == "local_sgd" else f"the method {method.value}"
        draft.refuse(method, what, "parsim has diloco")
        return 1
    groups = draft.whole(_key(source, "group_size"), 0) or None
    if groups == 1:
        for key in source.keys:
            if key.name.startswith(f"{SECTION}."):
                draft.harmless(key, "one group of replicas has nobody to exchange with")
        return 1
    if groups is None:
        draft.fill(f"{PATH}.size", "jobs of this file that train together, 2 or more (group_size is not given)", method, on)
    else:
        draft.write(f"{PATH}.size", groups, _key(source, "group_size"), method, on)
    steps = draft.whole(_key(source, "sync_steps"), 1)
    draft.write(f"{PATH}.local_steps", steps or 5, _key(source, "sync_steps"), note="" if steps else "sync_steps is 5 if not given")
    parts, lists = _key(source, "num_fragments"), _key(source, "module_fqns_per_model_fragment")
    if lists is not None and isinstance(lists.value, list) and lists.value:
        draft.write(f"{PATH}.fragments", len(lists.value), lists, note="taken for equal parts")
        draft.harmless(parts, "the fragments are listed")
    else:
        draft.write(f"{PATH}.fragments", draft.whole(parts, 1) or 1, parts, note="" if parts else "num_fragments is 1 if not given")
        draft.harmless(lists, "no fragments are listed")
    delay = _key(source, "fragment_sync_delay")
    if waits := draft.whole(delay):
        draft.write(f"{PATH}.overlap_steps", waits, delay)
    draft.harmless(delay, "all wait for an exchange, as the scenario has it")
    narrow = _key(source, "should_quantize")
    if draft.flag(narrow):
        draft.write(f"{PATH}.dtype", "int8", narrow, note="fp8 there: one byte an element")
    draft.harmless(narrow, "fp32 is exchanged")
    draft.harmless(_key(source, "fragment_update_alpha"), "changes what the weights become, not the work")
    draft.only_if(
        _key(source, "process_group"), ("nccl",), "exchanges through gloo, by way of host memory; here by NCCL", "as parsim exchanges"
    )
    if _key(source, "process_group") is None:
        text = "fault_tolerance.process_group is gloo if not given: exchanges go by way of host memory there, by NCCL here"
        draft.remark(text, PATH)
    for name in _STARTING:
        draft.harmless(_key(source, name), "how the job starts and restarts")
    text = "torchft keeps the parameters of the last exchange in host memory; here they are on the device, 4 B for each trained one"
    draft.remark(text, PATH)
    return groups


def _key(source: Source, name: str) -> Key | None:
    return source.get(f"{SECTION}.{name}")
