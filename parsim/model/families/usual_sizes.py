"""Sizes that a Hugging Face config may leave out: the defaults of its class (huggingface/transformers ``configuration_*.py`` of 5.23;
fla-org/flash-linear-attention ``fla/models`` for ``transformer``, ``retnet``, ``gla`` and ``gated_deltanet``).

A config that leaves out its width or its number of layers describes no model, unless it is a part of another one: LLaVA's first files
name no size of their text but the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.model.families.family import Family

_TABLE = """
gpt2 gpt_bigcode: n_embd 768 n_layer 12 n_head 12 vocab_size 50257
opt: hidden_size 768 num_hidden_layers 12 num_attention_heads 12 vocab_size 50272 ffn_dim 3072
bloom: hidden_size 64 n_layer 2 vocab_size 250880 n_head 8
gpt_neox: hidden_size 6144 num_hidden_layers 44 intermediate_size 24576 num_attention_heads 64 vocab_size 50432
phi: hidden_size 2048 num_hidden_layers 24 intermediate_size 8192 num_attention_heads 32 vocab_size 51200
mpt: d_model 2048 n_layers 24 n_heads 16 vocab_size 50368
llama granitemoehybrid hyperclovax granite: hidden_size 4096 num_hidden_layers 32 intermediate_size 11008 num_attention_heads 32
  vocab_size 32000
iquestcoder: hidden_size 5120 num_hidden_layers 80 intermediate_size 27648 num_attention_heads 40 vocab_size 76800 num_key_value_heads 8
mistral ministral: hidden_size 4096 num_hidden_layers 32 intermediate_size 14336 num_attention_heads 32 vocab_size 32000
  num_key_value_heads 8
qwen2 qwen3: hidden_size 4096 num_hidden_layers 32 intermediate_size 22016 num_attention_heads 32 vocab_size 151936
gemma: hidden_size 3072 num_hidden_layers 28 intermediate_size 24576 num_attention_heads 16 vocab_size 256000
gemma2 vaultgemma: hidden_size 2304 num_hidden_layers 26 intermediate_size 9216 num_attention_heads 8 vocab_size 256000
  num_key_value_heads 4
phi3: hidden_size 3072 num_hidden_layers 32 intermediate_size 8192 num_attention_heads 32 vocab_size 32064
mixtral: hidden_size 4096 num_hidden_layers 32 intermediate_size 14336 num_attention_heads 32 vocab_size 32000 num_key_value_heads 8
  num_local_experts 8 num_experts_per_tok 2
qwen2_moe: hidden_size 2048 num_hidden_layers 24 intermediate_size 5632 num_attention_heads 16 vocab_size 151936 num_experts 60
  num_experts_per_tok 4 moe_intermediate_size 1408 shared_expert_intermediate_size 5632
qwen3_moe: hidden_size 2048 num_hidden_layers 24 intermediate_size 6144 num_attention_heads 32 vocab_size 151936 num_key_value_heads 4
  num_local_experts 128 num_experts_per_tok 8 moe_intermediate_size 768
deepseek_v3 deepseek_v32: hidden_size 7168 num_hidden_layers 61 intermediate_size 18432 num_attention_heads 128 vocab_size 129280
  q_lora_rank 1536 kv_lora_rank 512 n_routed_experts 256 num_experts_per_tok 8 moe_intermediate_size 2048 first_k_dense_replace 3
gpt_oss: hidden_size 2880 num_hidden_layers 36 intermediate_size 2880 num_attention_heads 64 vocab_size 201088 num_key_value_heads 8
  num_local_experts 128 num_experts_per_tok 4
llama4_text: hidden_size 5120 num_hidden_layers 48 intermediate_size 8192 num_attention_heads 40 vocab_size 202048 num_key_value_heads 8
  intermediate_size_mlp 16384 num_local_experts 16 num_experts_per_tok 1
glm4_moe_lite: hidden_size 2048 num_hidden_layers 47 intermediate_size 10240 num_attention_heads 20 vocab_size 154880 q_lora_rank 768
  kv_lora_rank 512 qk_nope_head_dim 192 v_head_dim 256 n_routed_experts 64 num_experts_per_tok 4 moe_intermediate_size 1536
youtu: hidden_size 2048 num_hidden_layers 32 intermediate_size 6144 num_attention_heads 16 vocab_size 128256 q_lora_rank 1536
  kv_lora_rank 512
minicpm3: hidden_size 2560 num_hidden_layers 62 intermediate_size 6400 num_attention_heads 40 vocab_size 73448 q_lora_rank 768
  kv_lora_rank 256 qk_nope_head_dim 64 qk_rope_head_dim 32 v_head_dim 64
glm_moe_dsa: hidden_size 6144 num_hidden_layers 78 intermediate_size 12288 num_attention_heads 64 vocab_size 154880 q_lora_rank 2048
  kv_lora_rank 512 qk_nope_head_dim 192 v_head_dim 256 n_routed_experts 256 num_experts_per_tok 8 moe_intermediate_size 2048
glm4_moe: hidden_size 4096 num_hidden_layers 46 intermediate_size 10944 num_attention_heads 96 vocab_size 151552 num_key_value_heads 8
  n_routed_experts 128 num_experts_per_tok 8 moe_intermediate_size 1408 first_k_dense_replace 1
bert: hidden_size 768 num_hidden_layers 12 intermediate_size 3072 num_attention_heads 12 vocab_size 30522
roberta: hidden_size 768 num_hidden_layers 12 intermediate_size 3072 num_attention_heads 12 vocab_size 50265 max_position_embeddings 512
  type_vocab_size 2
xlm-roberta camembert: hidden_size 768 num_hidden_layers 12 intermediate_size 3072 num_attention_heads 12 vocab_size 30522
  max_position_embeddings 512 type_vocab_size 2
distilbert: dim 768 n_layers 6 vocab_size 30522 hidden_dim 3072 n_heads 12
electra: hidden_size 256 num_hidden_layers 12 intermediate_size 1024 num_attention_heads 4 vocab_size 30522 embedding_size 128
mpnet: hidden_size 768 num_hidden_layers 12 intermediate_size 3072 num_attention_heads 12 vocab_size 30527
nomic_bert: hidden_size 768 num_hidden_layers 12 intermediate_size 3072 num_attention_heads 12 vocab_size 30528
modernbert: hidden_size 768 num_hidden_layers 22 intermediate_size 1152 num_attention_heads 12 vocab_size 50368
mamba falcon_mamba: hidden_size 768 num_hidden_layers 32 vocab_size 50280
jamba: hidden_size 4096 num_hidden_layers 32 intermediate_size 14336 num_attention_heads 32 vocab_size 65536
rwkv: hidden_size 4096 num_hidden_layers 32 vocab_size 50277
mamba2: hidden_size 4096 num_hidden_layers 64 vocab_size 32768
qwen3_next: hidden_size 2048 num_hidden_layers 48 intermediate_size 5632 num_attention_heads 16 vocab_size 151936 num_key_value_heads 2
  num_experts 512 num_experts_per_tok 10 moe_intermediate_size 512 shared_expert_intermediate_size 512
qwen3_5_text: hidden_size 4096 num_hidden_layers 32 intermediate_size 12288 num_attention_heads 16 vocab_size 248320
qwen3_5_moe_text: hidden_size 2048 num_hidden_layers 40 num_attention_heads 16 vocab_size 248320
bamba: hidden_size 4096 num_hidden_layers 32 intermediate_size 14336 num_attention_heads 32 vocab_size 128000
falcon_h1: hidden_size 4096 num_hidden_layers 32 intermediate_size 14336 num_attention_heads 32 vocab_size 128000 num_key_value_heads 8
nemotron_h: hidden_size 4096 intermediate_size 21504 num_attention_heads 32 vocab_size 131072 num_key_value_heads 8 n_routed_experts 8
  num_experts_per_tok 2 moe_intermediate_size 7688
gptj codegen: n_embd 4096 n_layer 28 n_head 16 vocab_size 50400
gpt_neo: hidden_size 2048 num_layers 24 vocab_size 50257 num_heads 16
starcoder2: hidden_size 3072 num_hidden_layers 30 intermediate_size 12288 num_attention_heads 24 vocab_size 49152 num_key_value_heads 2
falcon: hidden_size 4544 num_hidden_layers 32 num_attention_heads 71 vocab_size 65024
stablelm: hidden_size 2560 num_hidden_layers 32 intermediate_size 6912 num_attention_heads 32 vocab_size 50304
persimmon: hidden_size 4096 num_hidden_layers 36 intermediate_size 16384 num_attention_heads 64 vocab_size 262144
cohere cohere2: hidden_size 8192 num_hidden_layers 40 intermediate_size 22528 num_attention_heads 64 vocab_size 256000
phimoe: hidden_size 4096 num_hidden_layers 32 intermediate_size 6400 num_attention_heads 32 vocab_size 32064 num_key_value_heads 8
  num_local_experts 16 num_experts_per_tok 2
dbrx: d_model 2048 n_layers 24 n_heads 16 vocab_size 32000
openai-gpt: n_embd 768 n_layer 12 n_head 12 vocab_size 40478
cwm: hidden_size 6144 num_hidden_layers 64 intermediate_size 21504 num_attention_heads 48 vocab_size 128256 num_key_value_heads 8
jais2: hidden_size 3328 num_hidden_layers 32 intermediate_size 26624 num_attention_heads 26 vocab_size 150272
flex_olmo: hidden_size 4096 num_hidden_layers 32 intermediate_size 11008 num_attention_heads 32 vocab_size 100352 num_experts 7
  num_experts_per_tok 5
solar_open: hidden_size 4096 num_hidden_layers 48 num_attention_heads 64 vocab_size 196608 num_key_value_heads 8 n_routed_experts 128
  num_experts_per_tok 8 moe_intermediate_size 1280
exaone_moe: hidden_size 4096 num_hidden_layers 32 intermediate_size 16384 num_attention_heads 32 vocab_size 102400 num_experts 64
  num_experts_per_tok 8 moe_intermediate_size 1024
gemma3_text: hidden_size 2304 num_hidden_layers 26
gemma4_text: hidden_size 2304 num_hidden_layers 30
glm glm4: hidden_size 4096 num_hidden_layers 40 intermediate_size 13696 num_attention_heads 32 vocab_size 151552 num_key_value_heads 2
olmo olmo2 olmo3: hidden_size 4096 num_hidden_layers 32 intermediate_size 11008 num_attention_heads 32 vocab_size 50304
exaone4: hidden_size 4096 num_hidden_layers 32 intermediate_size 16384 num_attention_heads 32 vocab_size 102400
smollm3: hidden_size 2048 num_hidden_layers 36 intermediate_size 11008 num_attention_heads 16 vocab_size 128256 num_key_value_heads 4
helium: hidden_size 2560 num_hidden_layers 24 intermediate_size 7040 num_attention_heads 20 vocab_size 48000
arcee: hidden_size 2560 num_hidden_layers 32 intermediate_size 18432 num_attention_heads 32 vocab_size 32000
apertus: hidden_size 4096 num_hidden_layers 32 intermediate_size 14336 num_attention_heads 32 vocab_size 131072
nemotron: hidden_size 6144 num_hidden_layers 32 intermediate_size 24576 num_attention_heads 48 vocab_size 256000
hunyuan_v1_dense hunyuan_v1_moe: hidden_size 4096 num_hidden_layers 32 intermediate_size 11008 num_attention_heads 32 vocab_size 290943
ernie4_5: hidden_size 1024 num_hidden_layers 18 intermediate_size 3072 num_attention_heads 16 vocab_size 103424 num_key_value_heads 2
seed_oss: hidden_size 4096 num_hidden_layers 64 intermediate_size 27648 num_attention_heads 80 vocab_size 155136 num_key_value_heads 8
ministral3: hidden_size 4096 num_hidden_layers 34 intermediate_size 14336 num_attention_heads 32 vocab_size 131072 num_key_value_heads 8
olmoe: hidden_size 2048 num_hidden_layers 16 intermediate_size 2048 num_attention_heads 16 vocab_size 50304 num_experts 64
  num_experts_per_tok 8
granitemoe granitemoeshared: hidden_size 4096 num_hidden_layers 32 intermediate_size 11008 num_attention_heads 32 vocab_size 32000
  num_local_experts 8 num_experts_per_tok 2
minimax_m2: hidden_size 3072 num_hidden_layers 62 intermediate_size 1536 num_attention_heads 48 vocab_size 200064 num_key_value_heads 8
  num_local_experts 256 num_experts_per_tok 8
ernie4_5_moe: hidden_size 2560 num_hidden_layers 28 intermediate_size 12288 num_attention_heads 20 vocab_size 103424 num_key_value_heads
  4 moe_num_experts 64 moe_k 6 moe_intermediate_size 1536
mimo_v2_flash: hidden_size 4096 num_hidden_layers 48 intermediate_size 16384 num_attention_heads 64 vocab_size 152576 num_key_value_heads 4
  n_routed_experts 256 num_experts_per_tok 8 moe_intermediate_size 2048
hy_v3: hidden_size 4096 num_hidden_layers 80 intermediate_size 13312 num_attention_heads 64 vocab_size 120832 num_key_value_heads 8
  num_experts 192 num_experts_per_tok 8 moe_intermediate_size 1536
axk1: hidden_size 7168 num_hidden_layers 61 intermediate_size 18432 num_attention_heads 64 vocab_size 163840 q_lora_rank 1536
  kv_lora_rank 512 n_routed_experts 192 num_experts_per_tok 8 moe_intermediate_size 2048
laguna: hidden_size 2048 num_hidden_layers 40 intermediate_size 8192 num_attention_heads 48 vocab_size 100352 num_key_value_heads 8
  num_experts 256 num_experts_per_tok 8 moe_intermediate_size 512 shared_expert_intermediate_size 512
step3p5: hidden_size 4096 num_hidden_layers 45 intermediate_size 11264 num_attention_heads 64 vocab_size 128815 num_key_value_heads 8
  n_routed_experts 288 num_experts_per_tok 8 moe_intermediate_size 1280 share_expert_dim 1280
granite_swa: hidden_size 2560 num_hidden_layers 24 intermediate_size 8192 num_attention_heads 20 vocab_size 100352 num_key_value_heads 4
granitemoe_swa: hidden_size 4096 num_hidden_layers 32 intermediate_size 11008 num_attention_heads 32 vocab_size 32000
  num_local_experts 8 num_experts_per_tok 2
mellum: hidden_size 2304 num_hidden_layers 28 intermediate_size 7168 num_attention_heads 32 vocab_size 98304 num_key_value_heads 4
  num_experts 64 num_experts_per_tok 8 moe_intermediate_size 896
afmoe: hidden_size 2048 num_hidden_layers 32 intermediate_size 6144 num_attention_heads 16 vocab_size 200192 num_experts 64
  num_experts_per_tok 6 moe_intermediate_size 1408
cohere2_moe: hidden_size 8192 num_hidden_layers 40 intermediate_size 22528 num_attention_heads 64 vocab_size 256000 num_experts 8
  num_experts_per_tok 2
nanochat: hidden_size 768 num_hidden_layers 12 intermediate_size 8192 num_attention_heads 6 vocab_size 50304
biogpt: hidden_size 1024 num_hidden_layers 24 intermediate_size 4096 num_attention_heads 16 vocab_size 42384
xglm: d_model 1024 num_layers 24 attention_heads 16 vocab_size 256008 ffn_dim 4096
lfm2: hidden_size 2560 num_hidden_layers 32 intermediate_size 12288 num_attention_heads 32 vocab_size 65536 num_key_value_heads 8
lfm2_moe: hidden_size 2048 num_hidden_layers 32 intermediate_size 7168 num_attention_heads 32 vocab_size 65536 num_key_value_heads 8
  num_experts 32 num_experts_per_tok 4 moe_intermediate_size 1792
kimi_linear: hidden_size 2304 num_hidden_layers 27 intermediate_size 9216 num_attention_heads 32 vocab_size 163840 kv_lora_rank 512
  num_experts 256 num_experts_per_token 8 moe_intermediate_size 1024
modernbert-decoder: hidden_size 768 num_hidden_layers 22 intermediate_size 1152 num_attention_heads 12 vocab_size 50368
megatron-bert: hidden_size 1024 num_hidden_layers 24 intermediate_size 4096 num_attention_heads 16 vocab_size 29056
roberta-prelayernorm: hidden_size 768 num_hidden_layers 12 intermediate_size 3072 num_attention_heads 12 vocab_size 50265
  max_position_embeddings 512 type_vocab_size 2
internlm3: hidden_size 4096 num_hidden_layers 48 intermediate_size 10240 num_attention_heads 32 vocab_size 128512 num_key_value_heads 2
t5: d_model 512 num_layers 6 vocab_size 32128 d_ff 2048 num_heads 8
mt5 umt5: d_model 512 num_layers 8 vocab_size 250112 d_kv 64 d_ff 1024 num_heads 6
bart mbart pegasus: d_model 1024 decoder_layers 12 vocab_size 50265 encoder_layers 12 decoder_attention_heads 16 decoder_ffn_dim 4096
marian: d_model 1024 decoder_layers 12 vocab_size 58101 encoder_layers 12 decoder_attention_heads 16 decoder_ffn_dim 4096
whisper: d_model 384 decoder_layers 4 vocab_size 51865 encoder_layers 4 decoder_attention_heads 6 decoder_ffn_dim 1536
vit deit: hidden_size 768 num_hidden_layers 12 intermediate_size 3072 num_attention_heads 12
clip_vision_model: hidden_size 768 num_hidden_layers 12 intermediate_size 3072 num_attention_heads 12
clip_text_model: hidden_size 512 num_hidden_layers 12 intermediate_size 2048 num_attention_heads 8 vocab_size 49408
dinov2: hidden_size 768 num_hidden_layers 12 num_attention_heads 12
deepseek_v2: hidden_size 4096 num_hidden_layers 32 intermediate_size 11008 num_attention_heads 32 vocab_size 102400
m2m_100: d_model 1024 decoder_layers 12 vocab_size 128112 encoder_layers 12 decoder_attention_heads 16 decoder_ffn_dim 4096
transformer: hidden_size 2048 num_hidden_layers 24 num_heads 32 vocab_size 32000
gla: hidden_size 2048 num_hidden_layers 24 num_heads 4 vocab_size 32000
gated_deltanet: hidden_size 2048 num_hidden_layers 21 num_heads 6 vocab_size 32000
retnet: hidden_size 2048 num_hidden_layers 24 num_heads 8 vocab_size 32000
"""
"""model types: key and size, key and size ...; a line that begins with a space goes on with the one above"""


def _read(table: str) -> dict[str, dict[str, int]]:
    sizes: dict[str, dict[str, int]] = {}
    for line in table.strip().replace("\n ", " ").splitlines():
        kinds, _, rest = line.partition(":")
        words = rest.split()
        own = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        sizes |= dict.fromkeys(kinds.split(), own)
    return sizes


USUAL_SIZES: Mapping[str, Mapping[str, int]] = _read(_TABLE)
"""``model_type`` -> config key -> its default"""
_CORE = {"hidden", "layers", "encoder.layers"}


def assumed_sizes(family: Family, tree: Mapping[str, Any], *, part: bool = False) -> dict[str, int]:
    """Sizes that `tree` leaves out, by the key that it would have said them under; `part`: it is the text of another model's config.

    A null is no gap: classes have a meaning for it.
    """
    kind = str(tree.get("model_type"))
    usual = USUAL_SIZES.get(kind, {})
    gaps = {key: size for key, size in usual.items() if not _said(family, tree, key)}
    if not part and any(_fields(family, key) & _CORE for key in gaps):
        return {}
    if kind == "mamba2" and "num_heads" not in tree:  # the class has no other number of heads that fits the width
        gaps |= _heads_of_mamba2({**gaps, **tree})
    return gaps


def _said(family: Family, tree: Mapping[str, Any], key: str) -> bool:
    """Whether the config has the key, or another spelling of it."""
    fields = _fields(family, key)
    return any(other in tree for other in family.keys if other == key or _fields(family, other) & fields)


def _fields(family: Family, key: str) -> set[str]:
    return set(family.keys.get(key, "").split())


def _heads_of_mamba2(tree: Mapping[str, Any]) -> dict[str, int]:
    hidden, expand, size = tree.get("hidden_size"), tree.get("expand", 2), tree.get("head_dim", 64)
    if not all(isinstance(number, int | float) and number > 0 for number in (hidden, expand, size)):
        return {}
    return {"num_heads": int(hidden * expand) // int(size)}
