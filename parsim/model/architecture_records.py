"""Parts of an architecture that some have: experts, latent attention, an encoder, pictures and what joins them to the text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the MLP (Switch 2101.03961, Mixtral 2401.04088, DeepSeekMoE 2401.06066)."""

    count: int
    """experts per layer (E); the most of any, with `counts`"""
    top_k: int
    """experts each token visits"""
    mlp: int = 0
    """width of one expert (f_e); 0 = the model's MLP width"""
    shared: int = 0
    """width of the MLP every token visits (all shared experts together)"""
    shared_gate: bool = False
    """a sigmoid gate of h weights on the shared MLP (Qwen2-MoE)"""
    dense_layers: int = 0
    """this many first layers keep a dense MLP (DeepSeek)"""
    every: int = 1
    """every n-th layer is a mixture"""
    router_bias: bool = False
    """a buffer of E routing biases per layer (DeepSeek-V3's auxiliary-loss-free balancing)"""
    router_bias_counted: bool = False
    """those biases are a parameter that gets no gradient, and count as one (ERNIE 4.5)"""
    router_dtype: Literal["activations", "fp32"] = "activations"
    """type of the router's product; fp32: made from copies of tokens and weights (DeepSeek)"""
    renormalise: bool = False
    """the weights of the chosen experts are divided by their sum (Mixtral; ``norm_topk_prob``)"""
    groups: int = 0
    """groups of neighbouring experts among which a token chooses first (DeepSeek's ``n_group``); 0: it chooses among all experts"""
    groups_kept: int = 0
    """groups it chooses (``topk_group``)"""
    bias: bool = False
    """router and experts have biases (GPT-OSS)"""
    clamp: bool = False
    """gate and up are bounded before they are multiplied (GPT-OSS's ``swiglu_limit``)"""
    latent: int = 0
    """width to which tokens are brought before they are sent to experts, which have it as their own (Nemotron 3); 0 = the model's"""
    beside: bool = False
    """the dense MLP stands beside the experts, not in their place: router and experts read the residual stream, each through a norm of
    its own, and what MLP and experts make is normed before it is added (Gemma 4)"""
    scaled: bool = False
    """the weights of the chosen experts are multiplied by a learned number per expert (Gemma 4)"""
    wide_sum: bool = False
    """what they and the shared MLP make is added in fp32 (Hy3); eager only"""
    output_norm: bool = False
    """what they and the shared MLP make is normed (A.X K1)"""
    counts: tuple[int, ...] = ()
    """experts of every mixture layer, where they differ (the pyramid of PR-MoE, 2201.05596); () = `count` everywhere"""


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Heads of the layers that see all keys, where they are others than those of a sliding window (Gemma 4); zeros mean "as there"."""

    heads: int = 0
    """of queries (Laguna)"""
    kv_heads: int = 0
    head_dim: int = 0
    rotary_fraction: float = 0.0
    values_from_keys: bool = False
    """keys and values are made of one product, by the norm and the rotation of keys and by the norm of values (``attention_k_eq_v``)"""

    def resolved(self, heads: int, kv_heads: int, head_dim: int, rotary_fraction: float) -> FullAttention:
        """With what the other layers have in place of zeros."""
        return replace(
            self,
            heads=self.heads or heads,
            kv_heads=self.kv_heads or kv_heads,
            head_dim=self.head_dim or head_dim,
            rotary_fraction=self.rotary_fraction or rotary_fraction,
        )


@dataclass(frozen=True, slots=True)
class PerLayerInputs:
    """What every layer reads beside the residual stream (Gemma 4's E2B and E4B): of each token a row of a second table, which has a part
    for every layer, plus a projection of its embedding.
    """

    width: int
    """of a layer's part (``hidden_size_per_layer_input``)"""
    vocabulary: int = 0
    """rows of the second table; 0 = the model's vocabulary"""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, 2405.04434): low-rank queries, keys and values."""

    key_rank: int
    """rank of the compressed keys and values (r_kv)"""
    query_rank: int = 0
    """rank of the compressed queries (r_q); 0 = a full projection"""
    plain_dim: int = 128
    """query and key elements per head without rotary embedding (d_n)"""
    rotary_dim: int = 64
    """query and key elements per head with rotary embedding (d_r); the key part is shared by all heads"""
    value_dim: int = 128
    """value elements per head (d_v)"""
    chosen: int = 0
    """keys that a token reads, chosen by an indexer (DeepSeek-V3.2's ``index_topk``); 0 = all before it"""
    index_heads: int = 64
    """heads of the indexer (``index_n_heads``)"""
    index_dim: int = 128
    """width of each (``index_head_dim``)"""
    indexers: str = ""
    """F for a layer with an indexer, S for one that reads the keys which the last indexer chose, said once where it repeats (GLM-5.2's
    ``indexer_types``); '' = every layer has one"""

    def has_indexer(self, layer: int) -> bool:
        """Whether layer number `layer` (from 0) chooses keys by itself."""
        return not self.indexers or self.indexers[layer % len(self.indexers)] == "F"


@dataclass(frozen=True, slots=True)
class Disentangled:
    """Attention whose scores have products of words with relative positions, too (DeBERTa, 2006.03654)."""

    buckets: int
    """distances to either side (``position_buckets``): the table of relative positions has twice as many rows"""
    shared: bool = True
    """the layer's own projections make queries and keys of the table's rows (``share_att_key``); false: two further ones do"""
    normed: bool = True
    """the table passes a norm before the first layer (``norm_rel_ebd: layer_norm``)"""


@dataclass(frozen=True, slots=True)
class Image:
    """Square images cut into patches in place of words (ViT, 2010.11929)."""

    size: int = 224
    """pixels along one side"""
    patch: int = 16
    """pixels along one side of a patch"""
    channels: int = 3
    class_tokens: int = 1
    """tokens before the patches"""
    mask_token: bool = False
    """a learned token for patches that are hidden (DINOv2)"""
    pools_patches: bool = False
    """a classifier reads the first token and the mean of the patches (DINOv2)"""
    frames: int = 1
    """pictures that one patch spans; a still image is repeated (Qwen2-VL: 2)"""
    bias: bool = True
    """of the product that turns patches into features"""
    positions: int = -1
    """rows of the table of positions; -1 = one per token; 0 = no table"""
    any_size: bool = False
    """images have the size that the scenario gives them (Qwen2-VL, Pixtral)"""
    usual_size: int = 448
    """with `any_size`: pixels along one side where the scenario does not say it"""

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.size // self.patch) ** 2

    @property
    def tokens(self) -> int:
        """Tokens of one image."""
        return self.patches + self.class_tokens


@dataclass(frozen=True, slots=True)
class Encoder:
    """The stack whose output the layers of an encoder-decoder attend to; zeros mean "as in the decoder"."""

    layers: int
    heads: int = 0
    mlp: int = 0
    audio_channels: int = 0
    """its input is a spectrogram of so many channels, over which two convolutions run (Whisper); 0 = words of the decoder's table"""
    tokens: int = 0
    """of a sample, where the architecture fixes them (Whisper: 1500); 0 = as many as the scenario says"""


@dataclass(frozen=True, slots=True)
class Projector:
    """What turns the output of a vision tower into tokens of a text model."""

    merge: int = 1
    """patches along each side that become one token"""
    pools: bool = False
    """by their mean, not side by side (Gemma 3)"""
    pools_by_product: bool = False
    """that mean is an fp32 product with a matrix of zeros and shares, because patches lie where their positions say (Gemma 4)"""
    standardised: bool = False
    """with `pools_by_product`: what is pooled is shifted and multiplied, feature by feature, by numbers that no gradient updates"""
    norm: Literal["none", "layernorm", "rmsnorm"] = "none"
    norm_offset: bool = False
    """as `TransformerConfig.norm_offset`"""
    norm_weights: bool = True
    """that norm has weights (not Gemma 4's)"""
    norm_merged: bool = False
    """the norm is over merged patches (InternVL), not over each"""
    merging: bool = False
    """a product without bias brings merged patches back to the tower's width (Mistral 3)"""
    first: int = 0
    """width of the first product, behind which there is an activation; 0 = there is one product only"""
    second: int = 0
    """of a second one (Llama 4)"""
    bias: bool = True
    extra: int = 0
    """further projectors with norms over merged patches, whose results join the text (Qwen3-VL's deepstack)"""
    newline: bool = False
    """a learned row behind every line of an image (LLaVA-NeXT)"""
