"""What a transformer is made of: every architectural fact that decides parameters, work or memory.

A `TransformerConfig` is the common language of catalogue files, Hugging Face configs and users' own YAML; its
field names are the keys a user may change with ``{base: NAME, hidden: 8192}``. `parsim.model.blocks` turns it
into operators. Symbols as in `parsim.model.model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from parsim.errors import Finding, ModelError
from parsim.limits import LARGEST_SIZE, MOST_EXPERTS, MOST_LAYERS, beyond
from parsim.model.layer_kinds import ATTENTION, LinearMixer, wrong_kinds

LARGEST = 10**9
"""of the sizes of an architecture"""

Task = Literal[
    "causal-lm", "encoder", "masked-lm", "pretraining", "sequence-classification", "token-classification", "question-answering",
    "image-classification",
]  # fmt: skip
"""What stands after the last layer: a language-model head; nothing (encoders: a pooler); BERT's masked-LM head; masked LM
and next-sentence heads; a classifier over the pooled first token (decoders: scores of all tokens, of which the last one's count); one
over every token; scores of beginning and end for every token; a classifier over the first token of an image."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the MLP (Switch 2101.03961, Mixtral 2401.04088, DeepSeekMoE 2401.06066)."""

    count: int
    """experts per layer (E)"""
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
    norm: Literal["none", "layernorm", "rmsnorm"] = "none"
    norm_offset: bool = False
    """as `TransformerConfig.norm_offset`"""
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


class LayerKind(NamedTuple):
    """In what the layers of one architecture differ; equal kinds are one block."""

    mixture: bool
    window: int
    """sliding window in tokens; 0 = all keys"""
    chunk: int
    """tokens of a chunk that sees itself only; 0 = all keys"""
    rotates: bool
    """queries and keys are rotated, where the architecture does that"""
    letter: str
    """of the architecture's pattern; '' without one"""
    relative: bool = False
    """has the table of relative positions"""
    normed: bool = True
    """has the norm before attention, where the architecture has one"""


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """An architecture; zeros mean "derived", see `resolved`."""

    family: str
    """a name of `parsim.model.families`; decides the defaults of the fields below"""
    hidden: int
    layers: int
    heads: int
    vocabulary: int = 0
    """rows of the word table; 0 for images"""
    kv_heads: int = 0
    """0 = heads"""
    head_dim: int = 0
    """0 = hidden / heads"""
    mlp: int = 0
    """width of the dense MLP (f); 0 = 4 x hidden"""
    maximum_sequence: int = 0
    """positions the model was made for; learned positions have parameters for them"""
    vocab_divisible_by: int = 0
    """the vocabulary is padded to a multiple of this times the tensor size (Megatron's rule, on one rank too); 0 = as the stack does"""
    task: Task = "causal-lm"
    labels: int = 2
    """classes of a classification head"""
    pooler_activation: Literal["tanh", "relu", "gelu"] = "tanh"
    """behind the dense layer over the first token, before a classifier"""
    bare_pooler: bool = True
    """a model without a head ends in that dense layer (not DistilBERT, ELECTRA, ModernBERT)"""
    head_transform: bool = False
    """every head begins as that for masked words does: a dense layer (without a bias), an activation, a norm (ModernBERT)"""
    discriminates: bool = False
    """pretraining tells replaced words apart, one number per token (ELECTRA), in place of masked words and next sentences"""
    causal: bool = True
    position: Literal["learned", "rotary", "alibi", "none", "sinusoidal"] = "learned"
    """sinusoidal: a frozen table (Pegasus, Marian)"""
    position_offset: int = 0
    """extra rows of the position table (OPT: 2)"""
    relative_buckets: int = 0
    """rows of a table of biases per head and distance of positions, which the first layer of a stack has (T5, MPNet); 0 = none"""
    relative_per_layer: bool = False
    """every layer has such a table (UMT5)"""
    rotary_fraction: float = 1.0
    """share of each head that is rotated"""
    positions_per_sample: bool = False
    """position ids are made from the padding mask of every sample instead of once for all (OPT, RoBERTa)"""
    rotary_concatenates: bool = False
    """rotated queries and keys are new heads-first tensors, made by torch.cat of the rotated and the other part (GPT-NeoX, Phi)"""
    token_types: int = 0
    """rows of the segment embedding (BERT: 2)"""
    embedding_width: int = 0
    """width of the token embedding where a projection leads to `hidden` (OPT-350M); 0 = hidden"""
    embedding_projects_last: bool = False
    """that projection has a bias and stands behind tables, norm and dropout (ELECTRA)"""
    embedding_norm: bool = False
    normalisation: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_weights: bool = True
    """norms over the hidden dimension have weights (OLMo's have none)"""
    norm_bias: bool = True
    norm_offset: bool = False
    """RMSNorm: the normalised input is multiplied by 1 + weight, in fp32 (Gemma)"""
    norm_in_fp32: bool = False
    """norms, of queries and keys too, cast back behind the product with their weights, not before it; eager only. RMSNorm: OLMo 2;
    LayerNorm without weights on an fp32 copy: OLMo; LayerNorm spelled out in Python: Cohere"""
    norm_keeps_input: bool = False
    """RMSNorm: backward needs the input beside its fp32 copy (T5)"""
    norm_placement: Literal["pre", "post", "sandwich", "output"] = "pre"
    """pre: before each sublayer; post: after each residual sum (BERT); sandwich: before and after each sublayer (Gemma 2);
    output: behind each sublayer, before the sum (OLMo 2)"""
    parallel_residual: bool = False
    """attention and MLP read the same residual stream (GPT-NeoX, Phi-2)"""
    shared_norm: bool = False
    """with parallel_residual: both read one norm (Phi-2)"""
    first_norm: bool = True
    """the first layer has a norm before attention (not ModernBERT's, which stands behind that of the embedding)"""
    final_norm: bool = True
    activation: Literal["gelu", "gelu-new", "gelu-tanh", "relu", "relu2", "silu", "xielu", "quick-gelu"] = "gelu"
    """gelu-new is the unfused tanh formula of Hugging Face's GPT-2; gelu-tanh the fused kernel; xielu has two weights (Apertus)"""
    gated: bool = False
    """gate and up projections multiplied (SwiGLU, GeGLU)"""
    query_key_value_bias: bool = True
    key_bias: bool = True
    """with query_key_value_bias: keys have one too (not Whisper's)"""
    output_bias: bool = True
    mlp_bias: bool = True
    head_bias: bool = False
    fused_query_key_value: bool = True
    """one weight for q, k and v (GPT-2, Megatron) instead of three (Llama in Hugging Face)"""
    fused_gate_up: bool = False
    """gated: one weight for gate and up (Phi-3)"""
    clip_query_key_value: bool = False
    """queries, keys and values are clamped (DBRX, OLMo of 2024)"""
    query_key_norm: bool = False
    """RMSNorm over each query and key head (Qwen3)"""
    query_key_norm_weights: bool = True
    """that norm has weights (Llama 4's has none)"""
    query_key_norm_over: Literal["head", "heads", "projection"] = "head"
    """head: over each head, with one weight for all; heads: over each head, with weights of its own (Cohere);
    projection: over all heads together (OLMo 2)"""
    query_key_normalisation: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    query_key_norm_bias: bool = False
    query_key_norm_everywhere: bool = False
    """layers without rotary positions norm queries and keys, too (EXAONE 4)"""
    attention_sinks: bool = False
    """a learned score per head joins the softmax without a value (GPT-OSS)"""
    attention_window: int = 0
    """sliding window in tokens; 0 = all keys"""
    attention_chunk: int = 0
    """samples are cut into chunks of so many tokens that do not see each other (Llama 4); 0 = they are not"""
    full_attention_every: int = 0
    """with attention_window or attention_chunk: every n-th layer sees all keys (Gemma 2: 2); 0 = none does"""
    layer_pattern: str = ""
    """a letter for every layer, said once where it repeats: * attention to all keys, W a sliding window of attention_window
    (Gemma 3: WWWWW*), M the mixer (Qwen3-Next: MMM*); '' = as the two fields above say"""
    one_sublayer: bool = False
    """a layer is one sublayer: of the pattern's letters * and M have no MLP, - is an MLP and E experts (Nemotron-H: M-M-M-M*-...)"""
    mixer: LinearMixer | None = None
    """what M layers of the pattern have in place of attention"""
    attention_gate: bool = False
    """the core's output is multiplied by the sigmoid of a projection as wide as the queries (Qwen3-Next)"""
    no_rotary_every: int = 0
    """every n-th layer has neither rotary positions nor the norm of queries and keys (Llama 4: 4); 0 = all have them"""
    rotary_in_windows: bool = False
    """only layers with a sliding window have rotary positions (Cohere 2)"""
    tied_embeddings: bool = False
    dropout: float = 0.0
    """probability the recipe uses unless the scenario says otherwise"""
    attention_dropout: bool = True
    """attention probabilities are dropped too, where dropout is on"""
    embedding_dropout: bool = True
    """the embedding's output is dropped too, where dropout is on"""
    layer_scale: bool = False
    """what a sublayer adds is multiplied by a weight per feature first (DINOv2)"""
    activation_dropout: bool = False
    """the MLP's activations are dropped too, where dropout is on (T5, BART)"""
    final_dropout: bool = False
    """so is what comes out of the final norm (T5)"""
    upcast_softmax: bool = False
    """eager attention computes its softmax in fp32 (Hugging Face's Llama line)"""
    softcap_attention: bool = False
    """eager attention bounds its scores by cap * tanh(scores / cap) (Gemma 2)"""
    softcap_logits: bool = False
    """so is every logit (Gemma 2)"""
    scale_logits: bool = False
    """every logit is multiplied by a constant (Cohere, Granite)"""
    scale_residual: bool = False
    """every sublayer's output is, before the sum (Granite)"""
    expand_key_value: bool = False
    """keys and values are copied to all query heads before the kernel (Hugging Face's repeat_kv)"""
    mtp: int = 0
    """modules behind the last layer that predict one token more each (DeepSeek-V3, 2412.19437, section 2.2); at most one"""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    image: Image | None = None
    encoder: Encoder | None = None
    """of an encoder-decoder, whose decoder the other fields describe; its layers attend to what the encoder made, too"""
    vision: TransformerConfig | None = None
    """the tower that turns images into tokens among those of the text"""
    projector: Projector | None = None
    """with vision: what is between"""

    def resolved(self) -> TransformerConfig:
        """The same architecture with every derived size filled in."""
        experts = self.experts
        mlp = self.mlp or 4 * self.hidden
        if experts is not None and not experts.mlp:
            experts = replace(experts, mlp=mlp)
        head_dim = self.head_dim or self.hidden // self.heads
        if self.latent is not None:
            head_dim = self.latent.plain_dim + self.latent.rotary_dim
        encoder = self.encoder
        if encoder is not None:
            encoder = replace(encoder, heads=encoder.heads or self.heads, mlp=encoder.mlp or mlp)
        maximum_sequence = self.maximum_sequence if self.image is None else self.image.tokens
        return replace(
            self,
            maximum_sequence=maximum_sequence,
            kv_heads=self.kv_heads or self.heads,
            head_dim=head_dim,
            mlp=mlp,
            embedding_width=self.embedding_width or self.hidden,
            experts=experts,
            encoder=encoder,
            mixer=self.mixer.resolved(self.heads, head_dim) if self.mixer is not None else None,
        )

    def is_mixture(self, layer: int) -> bool:
        """Whether layer number `layer` (from 0) has experts."""
        if self.one_sublayer:
            return self.layer_letter(layer) == "E"
        experts = self.experts
        return experts is not None and layer >= experts.dense_layers and (layer + 1) % experts.every == 0

    def layer_letter(self, layer: int) -> str:
        """The letter of `layer_pattern` for layer number `layer` (from 0); '' without a pattern."""
        return self.layer_pattern[layer % len(self.layer_pattern)] if self.layer_pattern else ""

    @property
    def attention_layers(self) -> int:
        """Layers with an attention core."""
        if not self.layer_pattern:
            return self.layers
        return sum(self.layer_letter(layer) in ATTENTION for layer in range(self.layers))

    def kind(self, layer: int) -> LayerKind:
        """In what layer number `layer` (from 0) differs from others."""
        every = self.full_attention_every
        full = self.layer_letter(layer) == "*" if self.layer_pattern else bool(every) and (layer + 1) % every == 0
        window, chunk = (0, 0) if full else (self.attention_window, self.attention_chunk)
        rotates = not (self.no_rotary_every and (layer + 1) % self.no_rotary_every == 0)
        rotates &= not (self.rotary_in_windows and not window)
        relative = self.relative_buckets > 0 and (layer == 0 or self.relative_per_layer)
        normed = self.first_norm or layer > 0
        return LayerKind(self.is_mixture(layer), window, chunk, rotates, self.layer_letter(layer), relative, normed)


def configure(values: Mapping[str, Any], base: TransformerConfig | None = None, path: str = "model") -> TransformerConfig:
    """`base` with the fields named in `values` replaced (None: a new architecture); how users' words become one.

    Nested mappings (``experts``, ``latent``) change single fields of the base's record, or make a new record where
    the base has none; ``null`` removes it. Raises `ModelError` with a finding per unknown field (did you mean),
    missing field, wrong type, value outside a closed choice, or contradiction between fields.
    """
    findings: list[Finding] = []
    config = _replace(base, TransformerConfig, values, path, findings)
    if findings:
        raise ModelError(findings)
    check(config, path)
    return config  # type: ignore[no-any-return]


def check(config: TransformerConfig, path: str = "model") -> None:
    """Raise `ModelError` with every contradiction in `config` (sizes that do not divide, impossible experts)."""
    findings = [
        Finding(message, f"{path}.{name}", getattr(config, name), suggestion) for name, message, suggestion in _contradictions(config)
    ]
    if findings:
        raise ModelError(findings)


def _contradictions(config: TransformerConfig) -> list[tuple[str, str, str]]:
    wrong: list[tuple[str, str, str]] = []
    for name in ("hidden", "layers", "heads", "vocabulary"):
        low = 0 if name == "vocabulary" and config.image is not None else 1
        if getattr(config, name) < low:
            wrong.append((name, f"must be at least {low}, is {getattr(config, name)}", ""))
    sizes = {field.name: value for field in fields(config) if isinstance(value := getattr(config, field.name), int)}
    wrong += [(name, f"at most {LARGEST_SIZE:,}, is {value:.4g}", "") for name, value in sizes.items() if value > LARGEST_SIZE]
    wrong += wrong_kinds(config)
    experts = config.experts
    wrong += [
        (name, finding.message, "")
        for name, count, most in (
            ("layers", config.layers, MOST_LAYERS),
            ("experts", experts.count if experts is not None else 0, MOST_EXPERTS),
        )
        for finding in beyond(count, most, name, name)
    ]
    if wrong:
        return wrong
    heads, kv_heads = config.heads, config.kv_heads or config.heads
    if not config.head_dim and config.latent is None and config.hidden % heads:
        wrong.append(("heads", f"hidden / heads = {config.hidden} / {heads} is not whole", "give head_dim"))
    if heads % kv_heads:
        wrong.append(("kv_heads", f"heads / kv_heads = {heads} / {kv_heads} is not whole", "use a divisor of heads"))
    image = config.image
    if image is not None and (not image.patch or image.size % image.patch):
        wrong.append(("image", f"size / patch = {image.size} / {image.patch} is not whole", ""))
    if (image is not None) != (config.task == "image-classification"):
        wrong.append(("task", f"{config.task!r} {'does not take' if image else 'needs'} an image", "image goes with image-classification"))
    if config.position == "learned" and not config.maximum_sequence and image is None:
        wrong.append(("maximum_sequence", "learned positions need a maximum_sequence", ""))
    if (config.vision is None) != (config.projector is None):
        wrong.append(("vision", "a tower and its projector go together", "give both, or null for both"))
    if config.vision is not None:
        wrong += [("vision", f"{name}: {message}", hint) for name, message, hint in _contradictions(config.vision)]
    if config.encoder is not None:
        wrong += _encoder_contradictions(config, config.encoder)
    if config.encoder is not None and config.task != "causal-lm":
        wrong.append(
            (
                "task",
                f"{config.task!r} of an encoder-decoder is not supported yet",
                "train it to write a target: task causal-lm, in a config the class ...ForConditionalGeneration",
            )
        )
    if config.attention_window and config.attention_chunk:
        wrong.append(("attention_chunk", "layers have a sliding window or chunks, not both", "leave one of them out"))
    wrong += _latent_contradictions(config)
    if config.mtp and (config.task != "causal-lm" or config.tied_embeddings or config.embedding_width not in (0, config.hidden)):
        wrong.append(("mtp", "predicts further words with the embedding and head of a language model that are not tied", "leave it out"))
    if not 0.0 <= config.dropout < 1.0:
        wrong.append(("dropout", f"a probability in [0, 1), is {config.dropout}", ""))
    if experts is not None:
        if not 1 <= experts.top_k <= experts.count:
            wrong.append(("experts", f"top_k {experts.top_k} must be between 1 and count {experts.count}", ""))
        if experts.every < 1 or not 0 <= experts.dense_layers <= config.layers:
            wrong.append(("experts", f"every {experts.every} >= 1 and 0 <= dense_layers {experts.dense_layers} <= {config.layers}", ""))
        wrong += _group_contradictions(experts)
    return wrong


def _encoder_contradictions(config: TransformerConfig, encoder: Encoder) -> list[tuple[str, str, str]]:
    """Why there is no such encoder."""
    wrong = [("encoder", finding.message, "") for finding in beyond(encoder.layers, MOST_LAYERS, "layers", "encoder.layers")]
    if not encoder.layers:
        wrong.append(("encoder", "needs layers: at least 1", ""))
    if encoder.heads and not config.head_dim and config.hidden % encoder.heads:
        wrong.append(("encoder", f"hidden / heads = {config.hidden} / {encoder.heads} is not whole", "give head_dim"))
    if encoder.audio_channels and not encoder.tokens:
        wrong.append(("encoder", "a spectrogram has a fixed number of tokens", "give encoder.tokens, for Whisper 1500"))
    sizes = (encoder.mlp, encoder.tokens, encoder.audio_channels)
    return wrong + [("encoder", f"at most {LARGEST_SIZE:,}, is {size:.4g}", "") for size in sizes if size > LARGEST_SIZE]


def _latent_contradictions(config: TransformerConfig) -> list[tuple[str, str, str]]:
    """Why tokens cannot choose their keys so."""
    latent = config.latent
    if latent is None or not latent.chosen:
        return []
    wrong = []
    if not latent.query_rank:
        wrong.append(("latent", "an indexer reads the compressed query, but query_rank is 0", "give query_rank, or leave chosen out"))
    if not latent.index_heads or not latent.index_dim:
        wrong.append(("latent", "an indexer needs index_heads and index_dim", "leave them out for 64 heads of 128"))
    if not config.causal or config.attention_window or config.attention_chunk or config.attention_sinks:
        wrong.append(("latent", "chosen keys are among all before a token: causal, without window, chunks or sinks", "leave chosen out"))
    if latent.index_dim and latent.index_dim < latent.rotary_dim:
        text = f"index_dim {latent.index_dim} is narrower than its rotary part, rotary_dim {latent.rotary_dim}"
        wrong.append(("latent", text, "give more"))
    return wrong


def _group_contradictions(experts: Experts) -> list[tuple[str, str, str]]:
    """Why a token cannot choose among groups of experts so."""
    groups, kept = experts.groups, experts.groups_kept
    if not groups and not kept:
        return []
    if not 1 <= kept <= groups:
        return [("experts", f"1 <= groups_kept {kept} <= groups {groups} must hold", "give both, or neither")]
    if experts.count % groups:
        return [
            (
                "experts",
                f"count / groups = {experts.count} / {groups} is not whole",
                "use a divisor of count, or say groups: 0 and groups_kept: 0",
            )
        ]
    if (room := kept * experts.count // groups) < experts.top_k:
        return [
            (
                "experts",
                f"{kept} groups of {experts.count // groups} = {room} experts, fewer than top_k {experts.top_k}",
                "keep more, or say groups: 0 and groups_kept: 0",
            )
        ]
    return []


def _replace(base: Any, kind: type, values: Mapping[str, Any], path: str, findings: list[Finding]) -> Any:
    """`base` (None: a new `kind`) with `values` in place; problems go to `findings`."""
    types = _types(kind)
    changes: dict[str, Any] = {}
    for name, value in _respelled(kind, values).items():
        where = f"{path}.{name}"
        if name not in types:
            near = get_close_matches(str(name), types, n=1)
            findings.append(
                Finding(
                    f"unknown field {name!r}",
                    where,
                    value,
                    f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(types)}",
                )
            )
            continue
        current = None if base is None else getattr(base, name)
        changes[name] = _checked(types[name], current, value, where, findings)
    if base is not None:
        return replace(base, **changes)
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.name not in changes]
    findings.extend(Finding(f"{name} is required", f"{path}.{name}") for name in missing)
    return None if missing else kind(**changes)


def _respelled(kind: type, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """`values` with the older spelling of `Experts.router_dtype`, a flag, in today's."""
    if kind is not Experts or not isinstance(values.get("router_fp32"), bool):
        return values
    rest = {name: value for name, value in values.items() if name != "router_fp32"}
    return {**rest, "router_dtype": "fp32" if values["router_fp32"] else "activations"}


def _checked(kind: Any, current: Any, value: Any, path: str, findings: list[Finding]) -> Any:
    """`value` as the field's type `kind`; a mapping becomes (a changed copy of) the record the field holds."""
    options = get_args(kind)
    if get_origin(kind) is Literal:
        if value in options:
            return value
        near = get_close_matches(str(value), map(str, options), n=1)
        message = f"must be one of {', '.join(map(str, options))}; is {value!r}"
        findings.append(Finding(message, path, value, f"did you mean {near[0]!r}?" if near else ""))
        return current
    if NoneType in options:
        record: type = next(option for option in options if option is not NoneType)
        if value is None or isinstance(value, record):
            return value
        if isinstance(value, Mapping):
            return _replace(current, record, value, path, findings)
        findings.append(Finding(f"must be a mapping with {', '.join(_types(record))} or null; is {value!r}", path, value))
        return current
    accepted: Any = {float: (int, float), int: int, bool: bool, str: str}[kind]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        word = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}[kind]
        findings.append(Finding(f"must be {word}; is {value!r}", path, value))
        return current
    if kind is int and value < 0:
        findings.append(Finding(f"must not be negative; is {value}", path, value))
        return current
    if kind in (int, float) and not abs(value) <= LARGEST:
        findings.append(Finding(f"must be at most {LARGEST:,}; is {value:.3g}", path, value))
        return current
    return kind(value)


@cache
def _types(kind: type) -> dict[str, Any]:
    """Field name -> type, in declaration order."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}
