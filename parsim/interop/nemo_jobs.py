"""What a file of NeMo, NeMo-Aligner or Megatron-Bridge trains: jobs that parsim does not simulate are refused, each by its name.

NVIDIA/NeMo, examples/nlp/language_modeling; NVIDIA/NeMo-Aligner, examples/nlp/gpt/conf. Adapters: `parsim.interop.nemo_adapters`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key

NOTHING: tuple[Any, ...] = (None, "none", "None", "null", False, {}, [])
SCHEMES = ("model.peft.peft_scheme", "peft._target_", "peft.peft_scheme")
"""keys that choose an adapter"""
ADAPTERS = ("peft.", "model.peft.")
OVERRIDDEN = ("peft.dim", "peft.target_modules")
"""keys of Megatron-Bridge's LoRA in a file that overrides a recipe, whose Python code names the class (tutorials/recipes/llama)"""
_TEACHERS = ("model.teacher.", "model.kd_config.", "trainer.knowledge_distillation.", "model.knowledge_distillation.")
_ALIGNED = re.compile(r"trainer\.(\w+)\.(max_steps|max_epochs|gradient_clip_val)")
_PARTS = re.compile(r"model\.([\w.]+)\.(num_layers|hidden_size|num_attention_heads|n_layers|d_model)")
_SIZED = re.compile(r"model\.(config|encoder|decoder|mm_cfg|shape|p_tuning|prompt_encoder)")
_FROZEN = re.compile(r"model\.(freeze_\w+)")
SERVERS = ("server", "web_server", "web_port")
"""keys of examples that generate texts (examples/nlp/language_modeling/tuning/conf/megatron_gpt_generate_config.yaml)"""
RETRIEVED = ("neighbors", "retro_num_neighbors", "num_neighbors")
"""chunks of text beside a sample (examples/nlp/language_modeling/conf/megatron_retro_config.yaml)"""
QUANTISED = ("quantization.algorithm", "quantization.enable")
"""examples/nlp/language_modeling/tuning/conf/megatron_gpt_qat_config.yaml"""


def chosen_scheme(keys: Iterable[Key]) -> Key | None:
    """The key that chooses an adapter; None where everything is trained."""
    said = {key.name: key for key in keys if key.value not in NOTHING}
    return next((said[name] for name in (*SCHEMES, *OVERRIDDEN) if name in said), None)


def of_job(draft: ImportDraft, keys: list[Key]) -> list[Key]:
    """The keys without those of adapters; errors for other jobs than the training of one decoder."""
    scheme = chosen_scheme(keys)
    parts = dict.fromkeys(match[1] for key in keys if (match := _PARTS.fullmatch(key.name)) and not _SIZED.match(key.name))
    found: list[Key] = []
    for key in keys:
        aligned, frozen = _ALIGNED.fullmatch(key.name), _FROZEN.fullmatch(key.name)
        if key.name.startswith(ADAPTERS):
            if scheme is None:
                draft.harmless(key, "no adapter is chosen")
            elif key.name == scheme.name or not key.name.endswith("_target_"):
                found.append(key)
        elif key.name.startswith(_TEACHERS) and key.value not in NOTHING:
            draft.refuse(key, "a teacher that runs beside the model", "leave the section out")
        elif aligned is not None and aligned[1] != "sft":
            draft.refuse(key, f"NeMo-Aligner's training by {aligned[1]}", "parsim reads its supervised fine-tuning (trainer.sft)")
        elif frozen is not None and key.value is True:
            draft.refuse(key, f"a part of the model that is not trained ({frozen[1]})", "write training.finetune.freeze in the scenario")
        elif key.name.startswith("model.mm_cfg.") and key.value is not None:
            draft.refuse(key, "an encoder beside the decoder", "parsim reads NeMo's GPT")
        elif parts and _PARTS.fullmatch(key.name) and not _SIZED.match(key.name):
            draft.refuse(key, f"a model of several parts ({', '.join(parts)})", "parsim reads NeMo's GPT, T5 and BERT")
        elif key.name.rpartition(".")[2] in RETRIEVED and key.value is not None:
            draft.refuse(key, "RETRO, a GPT that reads what a retriever finds", "parsim reads NeMo's GPT, T5 and BERT")
        elif key.name in SERVERS:
            draft.refuse(key, "a server or an evaluation, which trains nothing", "parsim reads trainings")
        elif key.name in ("model.encoder_tokenizer.library", "model.reward_model_type") and key.value not in NOTHING:
            what = "a translation model" if "encoder" in key.name else "a reward model of NeMo-Aligner"
            draft.refuse(key, what, "parsim reads NeMo's GPT, T5 and BERT")
        else:
            found.append(key)
    return found


def check_trained(draft: ImportDraft, keys: Iterable[Key]) -> None:
    """An error where a model is evaluated, or trained with weights that are quantised on the way."""
    said = {key.name: key for key in keys}
    tested = next((key for name, key in said.items() if ".test_ds." in f".{name}"), None)
    if tested is not None and not any(".train_ds." in f".{name}" for name in said):
        draft.refuse(tested, "an evaluation: there is a test set and no training set", "parsim reads trainings")
    chosen, switch = (said.get(name) for name in QUANTISED)
    if chosen is not None and chosen.value not in NOTHING and (switch is None or switch.value is not False):
        what = "weights that every forward pass quantises (quantisation-aware training)"
        draft.refuse(chosen, what, "leave the section out to simulate the training without it")
