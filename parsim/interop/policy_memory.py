"""The memory that vLLM keeps on the GPUs of a training that generates its own answers.

huggingface/trl, trl/generation and trl/trainer/grpo_config.py: beside the training (``colocate``) it takes a share of all memory of every
GPU, for its weights and its cache, and gives it back for the update in sleep mode alone; a server has GPUs of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from parsim.errors import InputError
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source
from parsim.interop.trl_versions import VERSION
from parsim.scenario.machines import machines

PATH = "cluster.memory_reserve"
SERVER = ("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_device", "vllm_host", "vllm_port")
"""keys of a vLLM that has GPUs of its own"""
SHARE, SLEEP = "vllm_gpu_memory_utilization", ("vllm_enable_sleep_mode", "sleep_level")


def write_vllm(draft: ImportDraft, source: Source, default: Callable[[str], tuple[Any, str] | None], *, used: bool) -> None:
    """Write what vLLM keeps of every GPU as memory that stays free; `used`: whether it generates where no key says so."""
    use, mode, share, sleeps = source.get("use_vllm"), source.get("vllm_mode"), source.get(SHARE), source.all(*SLEEP)
    if not (draft.flag(use) if use is not None else used):
        draft.harmless(use, "switched off")
        return
    place, note = _place(source, mode, default)
    if place == "server":
        for key in (use, mode):
            draft.harmless(key, "vLLM's server has GPUs of its own, which do not train")
        return
    if any(not key.off for key in sleeps):
        for key in (use, mode, share, *sleeps):
            draft.harmless(key, "vLLM sleeps while the policy is updated, and has given its memory back")
        return
    for key in sleeps:
        draft.harmless(key, "switched off")
    known = default(SHARE)
    part = draft.number(share) if share is not None else known[0] if known is not None else None
    if part is not None and share is not None and not 0 < part <= 1:
        draft.errors.append(share.finding(f"{share.value} is no share of a GPU's memory", "write one from 0 to 1"))
    elif part is not None:
        _keep(draft, part, [use, mode, share], note, place)


def _place(source: Source, mode: Key | None, default: Callable[[str], tuple[Any, str] | None]) -> tuple[str | None, str]:
    """``server``, ``colocate`` or None, where it depends on the version of TRL; with a note."""
    if mode is not None:
        return str(mode.value), ""
    if any((key := source.get(name)) is not None and not key.off for name in SERVER):
        return "server", ""
    known = default("vllm_mode")
    return (None, "") if known is None else (str(known[0]), known[1])


def _keep(draft: ImportDraft, part: float, keys: list[Key | None], note: str, place: str | None) -> None:
    words = f"{part:g} x the memory of a GPU, which vLLM keeps beside the training"
    if place is None:
        draft.fill(PATH, f"{words}; 0 B with a server of vLLM's, which TRL before 1.0 has where vllm_mode is not given", *keys)
        draft.causes[PATH] = VERSION
    elif (size := _memory(draft)) is None:
        draft.fill(PATH, words, *keys)
        draft.causes[PATH] = "cluster.topology"
    else:
        text = f"{part:g} of {size / 2**30:.4g} GiB, which vLLM keeps beside the training"
        draft.write(PATH, f"{part * size / 2**30:.4g} GiB", *keys, note="; ".join(filter(None, (text, note))))


def _memory(draft: ImportDraft) -> int | None:
    """What a GPU of the user's machine shows of its memory [B]; None where no machine is said."""
    if draft.given.on is not None:
        with suppress(InputError):  # loading the scenario says what is wrong with it
            return machines(draft.given.on).device(0).visible_memory
    return None
