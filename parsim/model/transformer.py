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
from typing import Any, Literal, get_args, get_origin, get_type_hints

from parsim.errors import Finding, ModelError
from parsim.model.architecture_records import (
    Disentangled,
    Encoder,
    Experts,
    FullAttention,
    Image,
    LatentAttention,
    PerLayerInputs,
    Projector,
)
from parsim.model.contradictions import contradictions
from parsim.model.layer_kinds import ATTENTION, LayerKind, LinearMixer

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
    value_dim: int = 0
    """elements of a value head where it is not as wide as a key's (MiMo-V2); 0 = head_dim"""
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
    positions_computed: bool = False
    """with sinusoidal: the table is a buffer (XGLM)"""
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
    norm_by_power: bool = False
    """RMSNorm: the root is a power, which keeps what it is taken of, and 16-bit weights are copied to fp32 (Gemma 4); eager only"""
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
    """the first layer has a norm before attention (not ModernBERT's, which comes after that of the embedding)"""
    final_norm: bool = True
    activation: Literal["gelu", "gelu-new", "gelu-tanh", "relu", "relu2", "silu", "xielu", "quick-gelu"] = "gelu"
    """gelu-new is the unfused tanh formula of Hugging Face's GPT-2; gelu-tanh the fused kernel; xielu has two weights (Apertus)"""
    gated: bool = False
    """gate and up projections multiplied (SwiGLU, GeGLU)"""
    clamp_mlp: bool = False
    """what the activation makes of the gate, and up, are bounded, in experts, too (Step 3.5)"""
    channel_mixing: bool = False
    """the MLP reads each token mixed with the one before it, and a projection of a second such mix gates what it makes (RWKV)"""
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
    clamped_products: bool = False
    """what every product of a layer reads and makes is clamped, by bounds of its own (the towers of Gemma 4's E2B and E4B)"""
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
    value_norm: bool = False
    """RMSNorm without weights over each value head (Gemma 4)"""
    scale_values: bool = False
    """values are multiplied by a constant (MiMo-V2)"""
    attention_sinks: bool = False
    """a learned score per head joins the softmax without a value (GPT-OSS)"""
    sinks_in_windows: bool = False
    """with attention_sinks: layers that see all keys have none (MiMo-V2)"""
    sinks_scale: bool = False
    """with attention_sinks: they scale what attention makes by sigmoid(log-sum-exp - score), which is the same (Granite); eager only"""
    rotary_scaled: bool = False
    """cosines and sines are multiplied by a factor (YaRN, 2309.00071, as GPT-OSS has it), which no fused kernel of rotary positions does"""
    attention_window: int = 0
    """sliding window in tokens; 0 = all keys"""
    attention_chunk: int = 0
    """samples are cut into chunks of so many tokens that do not see each other (Llama 4); 0 = they are not"""
    full_attention_every: int = 0
    """with attention_window or attention_chunk: every n-th layer sees all keys (Gemma 2: 2); 0 = none does"""
    full_attention: FullAttention | None = None
    """heads of the layers that see all keys, where they are others than in windows (Gemma 4)"""
    shared_key_values: int = 0
    """so many last layers have neither keys nor values of their own: each reads those of the last layer before them that sees as many keys
    as it does (Gemma 4's ``num_kv_shared_layers``)"""
    shared_key_value_mlp: int = 0
    """width of the dense MLP in those layers; 0 = mlp"""
    per_layer_inputs: PerLayerInputs | None = None
    """a second embedding, of which every layer has a part"""
    layer_pattern: str = ""
    """a letter for every layer, said once where it repeats: * attention to all keys, W a sliding window of attention_window
    (Gemma 3: WWWWW*), M the mixer (Qwen3-Next: MMM*), H attention and mixer side by side (Falcon-H1); '' = as the two fields above say"""
    one_sublayer: bool = False
    """a layer is one sublayer: of the pattern's letters * and M have no MLP, - is an MLP and E experts (Nemotron-H: M-M-M-M*-...)"""
    mixer: LinearMixer | None = None
    """what M layers of the pattern have in place of attention"""
    attention_gate: bool = False
    """the core's output is multiplied by the sigmoid of a projection as wide as the queries (Qwen3-Next)"""
    head_gate: Literal["none", "sigmoid", "softplus"] = "none"
    """every head of it is multiplied by one number, this function of a projection (Step 3.5: sigmoid; Laguna: softplus)"""
    no_rotary_every: int = 0
    """every n-th layer has neither rotary positions nor the norm of queries and keys (Llama 4: 4); 0 = all have them"""
    rotary_in_windows: bool = False
    """only layers with a sliding window or a chunk have rotary positions (Cohere 2)"""
    rotary_in_dense: bool = False
    """with rotary_in_windows: so have layers without experts (Command A+)"""
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
    bounded_scores: bool = False
    """eager attention keeps its scores to bound them below (XGLM)"""
    softcap_logits: bool = False
    """so is every logit (Gemma 2)"""
    scale_logits: bool = False
    """every logit is multiplied by a constant (Cohere, Granite)"""
    scale_residual: bool = False
    """every sublayer's output is, before the sum (Granite)"""
    scale_projections: bool = False
    """so are what attention and a mixer side by side read, and what the mixer projects (Falcon-H1)"""
    scale_layer: bool = False
    """what leaves a layer is multiplied by one number, which no gradient updates (Gemma 4)"""
    expand_key_value: bool = False
    """keys and values are copied to all query heads before the kernel (Hugging Face's repeat_kv)"""
    mtp: int = 0
    """modules behind the last layer that predict one token more each (DeepSeek-V3, 2412.19437, section 2.2)"""
    mtp_pattern: str = ""
    """letters of `layer_pattern` for the sublayers of a module, where every layer is one; empty elsewhere: a layer like the last one"""
    mtp_repeated: bool = False
    """the modules are one, whose weights serve every further token (Megatron-LM's ``--mtp-use-repeated-layer``)"""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    disentangled: Disentangled | None = None
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
        full = self.full_attention
        if full is not None:
            full = full.resolved(self.heads, self.kv_heads or self.heads, head_dim, self.rotary_fraction)
        second = self.per_layer_inputs
        if second is not None:
            second = replace(second, vocabulary=second.vocabulary or self.vocabulary)
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
            full_attention=full,
            per_layer_inputs=second,
            mixer=self.mixer.resolved(self.heads, head_dim) if self.mixer is not None else None,
        )

    def is_mixture(self, layer: int) -> bool:
        """Whether layer number `layer` (from 0) has experts."""
        if self.one_sublayer:
            return self.layer_letter(layer) == "E"
        experts = self.experts
        return experts is not None and layer >= experts.dense_layers and (layer + 1) % experts.every == 0

    def experts_of(self, layer: int) -> int:
        """Experts of layer number `layer` (from 0); 0 where it is no mixture."""
        if self.experts is None or not self.is_mixture(layer):
            return 0
        counts = self.experts.counts
        return counts[sum(map(self.is_mixture, range(layer)))] if counts else self.experts.count

    def layer_letter(self, layer: int) -> str:
        """The letter of `layer_pattern` for layer number `layer` (from 0); '' without a pattern."""
        return self.layer_pattern[layer % len(self.layer_pattern)] if self.layer_pattern else ""

    @property
    def attention_layers(self) -> int:
        """Layers with an attention core."""
        if not self.layer_pattern:
            return self.layers
        return sum(self.layer_letter(layer) in ATTENTION for layer in range(self.layers))

    def full_heads(self, kind: LayerKind) -> FullAttention | None:
        """The heads of a layer of this kind, where they are not the architecture's usual ones."""
        windowed = kind.window or kind.chunk or kind.letter not in ("", *ATTENTION)
        return None if windowed else self.full_attention

    def kind(self, layer: int) -> LayerKind:
        """In what layer number `layer` (from 0) differs from others."""
        window, chunk = self._sees(layer)
        rotates = not (self.no_rotary_every and (layer + 1) % self.no_rotary_every == 0)
        dense = self.rotary_in_dense and not self.is_mixture(layer)
        rotates &= not (self.rotary_in_windows and not (window or chunk or dense))
        relative = self.relative_buckets > 0 and (layer == 0 or self.relative_per_layer)
        normed = self.first_norm or layer > 0
        letter, experts = self.layer_letter(layer), self.experts_of(layer)
        chooses = self.latent is None or self.latent.has_indexer(layer)
        return LayerKind(experts > 0, window, chunk, rotates, letter, relative, normed, experts, chooses, self._keys(layer))

    def _sees(self, layer: int) -> tuple[int, int]:
        """Window and chunk of layer number `layer`; zeros: all keys."""
        every = self.full_attention_every
        full = self.layer_letter(layer) in ("*", "H") if self.layer_pattern else bool(every) and (layer + 1) % every == 0
        return (0, 0) if full else (self.attention_window, self.attention_chunk)

    def _keys(self, layer: int) -> Literal["own", "shown", "read"]:
        """Whose keys and values layer number `layer` has."""
        first = self.layers - self.shared_key_values
        if layer >= first:
            return "read"
        last = self.shared_key_values and not any(self._sees(layer) == self._sees(other) for other in range(layer + 1, first))
        return "shown" if last else "own"

    @property
    def lonely_readers(self) -> tuple[int, ...]:
        """Layers that would read keys and values which no layer before the sharing ones has."""
        first = self.layers - self.shared_key_values
        shown = {self._sees(layer) for layer in range(first)}
        return tuple(layer for layer in range(max(0, first), self.layers) if self._sees(layer) not in shown)


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
        Finding(message, f"{path}.{name}", getattr(config, name), suggestion) for name, message, suggestion in contradictions(config)
    ]
    if findings:
        raise ModelError(findings)


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
    if get_origin(kind) is tuple:
        whole = isinstance(value, (list, tuple)) and all(type(each) is int and 0 < each <= LARGEST for each in value)
        if not whole:
            findings.append(Finding(f"must be a list of whole numbers; is {value!r}", path, value))
        return tuple(value) if whole else current
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
