"""Attention: the core softmax(Q K^T) V, rotary embedding, and norms of queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parsim.kernel import Attention, Gemm, Kernel, Memory
from parsim.model.context import spread
from parsim.model.context_blocks import CoreSizes, SpreadCore
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.norms import eager_rms_norm, spelled_out
from parsim.model.workload import Split, Workload, shard


@dataclass(frozen=True, slots=True)
class AttentionCore(Layer):
    """softmax(Q K^T) V for `heads` query heads; `inputs` is one fused tensor, or query and key-value, or query, key, value; or
    query-key and value (`values_apart`).

    Eager attention keeps the softmax's output (with dropout also the dropped one and a mask) of b a s^2 elements;
    flash and memory-efficient kernels (2205.14135, 2112.05682) keep their output and the fp32 log-sum-exp of each row.
    Flash kernels lay their output out as the queries are (``at::empty_like``): heads-first queries cost a copy of it
    beside the kernel's own. A value that is a slice of a wider tensor (latent attention) keeps all of it, but eager
    products copy the slice. All of it equals what autograd saves under PyTorch 2.13, to the byte.
    Context parallelism: `parsim.model.context`; by heads (ulysses) it is the core of t x c tensor ranks on whole samples,
    with copies of its operands and output in that layout (Jacobs et al., 2309.14509).
    """

    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    window: int = 0
    """sliding window in tokens; 0 = all keys"""
    value_dim: int = 0
    """head size of V where it differs (latent attention); 0 = head_dim"""
    dropout: bool = False
    """the architecture drops attention probabilities when the workload's dropout is active"""
    upcast_softmax: bool = False
    """eager only: softmax in fp32, then cast back (Hugging Face's Llama line)"""
    heads_first: bool = False
    """queries are contiguous as [b, a, s, d] (unfused rotary embedding by torch.cat)"""
    softcap: bool = False
    """eager only: scores are bounded by cap * tanh(scores / cap), whose tanh is kept (Gemma 2)"""
    expand_kv: bool = False
    """keys and values are copied to all query heads (repeat_kv) instead of shared by the kernel; eager and mem-efficient always
    do (PyTorch's memory-efficient kernel has no grouped queries: ``enable_gqa`` in scaled_dot_product_attention's documentation)"""
    bounded: bool = False
    """eager only: scores are bounded below before the softmax, for which they are kept (XGLM)"""
    chunk: int = 0
    """a sample is cut into chunks of so many tokens that do not see each other (Llama 4); 0 = it is not"""
    sinks: bool = False
    """a learned score per head in every softmax, without a value (GPT-OSS)"""
    sinks_scale: bool = False
    """eager only: it does not join the softmax, but scales the output by sigmoid(log-sum-exp - score), which is the same (Granite)"""
    replaced: bool = False
    """queries and keys are no longer those of the fused product (rotated, normed), values are"""
    values_apart: bool = False
    """of two inputs, the first one holds queries and keys, the second one values"""
    split: Split = "heads"
    selective: str = "attention"
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """One score [heads] if there are sinks."""
        return (Parameter("sinks", (self.heads,), 0, trainable=self.trainable),) if self.sinks else ()

    def widths(self, at: Workload) -> tuple[int, int, int]:
        """Features of query, key and value on one rank."""
        heads, kv_heads = shard(self.heads, at), shard(self.kv_heads, at)
        return heads * self.head_dim, kv_heads * self.head_dim, kv_heads * (self.value_dim or self.head_dim)

    def training_work(self, at: Workload) -> Work:
        """Two products of s x s per head forward, four backward; fused kernels recompute the first."""
        if at.context > 1 and at.context_method == "ulysses":
            return self._by_heads(at)
        query, key, value = self.widths(at)
        token = at.tokens * at.element
        eight, casts = at.product_type("attention") == "fp8", at.casts
        pair = (query + key, value) if self.values_apart else (query, key + value)
        sizes = {1: (query + key + value,), 2: pair, 3: (query, key, value)}[len(self.inputs)]
        context = shard(self.heads, at) * (self.value_dim or self.head_dim) * token
        operands = tuple(Save(name, size * token) for name, size in zip(self.inputs, sizes, strict=True))
        if eight:  # such kernels keep what they were given, which is not what the projections made
            kept = at.tokens * (casts.attention_saved if casts is not None else 1.0)
            operands = tuple(Save(f"{self.name}.{name}_fp8", int(size * kept)) for name, size in zip(self.inputs, sizes, strict=True))
        eager = at.attention == "eager"
        expanded = 0
        if self.kv_heads < self.heads and (self._expands(at) or eager):
            group = shard(self.heads, at) // shard(self.kv_heads, at)
            expanded = group * (key + value) * token
            # a fused tensor cannot be kept in part: the copies stand for all of it
            operands = (Save(f"{self.name}.expanded", expanded + query * token),)
            if len(self.inputs) > 1 and not self.values_apart:
                operands = (Save(self.inputs[0], query * token), Save(f"{self.name}.expanded", expanded))
        kernels = self._eager if eager else self._fused
        work = kernels(at, operands, (query + key + value) * token, context)
        work = work._replace(output=context, input_gradients=tuple(size * token for size in sizes))
        if eight and casts is not None:
            given, made = (query + key + value) * at.tokens, context // at.element
            work = work._replace(
                forward=(*casts.attention_operands(given), *work.forward, *casts.attention_results(made)),
                backward_input=(*casts.attention_operands(made), *work.backward_input, *casts.attention_results(given)),
            )
        if self.replaced and at.interleaved and not eager and len(self.inputs) == 1:
            work = self._taken_apart(work, query * token, key * token, value * token)
        if expanded:
            copies = Memory(expanded + (key + value) * token, launches=2)
            work = work._replace(
                forward=(copies, *work.forward),
                backward_input=(*work.backward_input, copies),
                backward_temporary=work.backward_temporary + expanded,
            )
        return work

    def _taken_apart(self, work: Work, query: int, key: int, value: int) -> Work:
        """Copies around a product of queries, keys and values that lie side by side for every group of heads [B].

        Megatron-LM (megatron/core/transformer/attention.py: get_query_key_value_tensors) reshapes the queries of a group that has
        several into heads, which copies them; Transformer Engine (get_qkv_layout) makes values contiguous that do not lie as the
        rotated keys do; backward joins the three gradients (SplitAlongDim).
        """
        copied = value + (query if self.kv_heads < self.heads else 0)
        joined = query + key + value
        return work._replace(
            forward=(Memory(2.0 * copied, launches=1 + (copied > value)), *work.forward),
            backward_input=(*work.backward_input, Memory(2.0 * joined)),
            backward_temporary=work.backward_temporary + joined,
        )

    def _kernel(self, at: Workload, queries: int, keys: int, causal: bool, backward: bool) -> Kernel:
        heads, kv_heads = shard(self.heads, at), shard(self.kv_heads, at)
        dtype = at.product_type("attention")
        return Attention(
            at.batch, heads, kv_heads, queries, keys, self.head_dim, causal, backward, at.attention, dtype, self.value_dim, self.window
        )

    def _sample(self, at: Workload, backward: bool) -> tuple[Kernel, ...]:
        """The kernels of whole samples; one of a sample cut into chunks, or packed of documents, works on these as on samples."""
        part = min(self.chunk or at.sequence, at.document or at.sequence, at.sequence)
        whole, rest = divmod(at.sequence, part)
        kernels = (self._kernel(replace(at, batch=at.batch * whole), part, part, self.causal, backward),)
        return (*kernels, self._kernel(at, rest, rest, self.causal, backward)) if rest else kernels

    def _expands(self, at: Workload) -> bool:
        return self.expand_kv or at.repeats_kv or at.attention == "mem-efficient"

    def _copy(self, at: Workload) -> tuple[Kernel, ...]:
        """Brings the heads-first output of a flash kernel into the order of the tokens, and its gradient back."""
        if not self.heads_first or at.library or at.attention == "mem-efficient":
            return ()
        return (Memory(2 * self.sizes(at).output),)

    def sizes(self, at: Workload) -> CoreSizes:
        """The tensors of one rank's fused core [B]; keys and values as the kernel gets them, copied to all heads or not."""
        query, key, value = self.widths(at)
        token = at.tokens * at.element
        copies = shard(self.heads, at) // shard(self.kv_heads, at) if self._expands(at) else 1
        # PyTorch's memory-efficient kernel pads the rows of its log-sum-exp to 32 (kAlignLSE)
        rows = -(-at.sequence // 32) * 32 if at.attention == "mem-efficient" else at.sequence
        heads = shard(self.heads, at)
        output = heads * (self.value_dim or self.head_dim) * token
        return CoreSizes(query * token, copies * key * token, copies * value * token, output, 4 * at.batch * heads * rows)

    def spread(self, at: Workload) -> SpreadCore:
        """The fused core of one of several context ranks that do not split by heads."""
        part = spread(at, lambda *shape: self._kernel(at, *shape), self.sizes(at), causal=self.causal)
        return part.with_copy(self._copy(at))

    def _fused(self, at: Workload, operands: tuple[Save, ...], _: int, context: int) -> Work:
        state = 16 if at.attention == "mem-efficient" else 24
        copy = self._copy(at)
        result = Save(f"{self.name}.heads_first", context) if copy else Save(self.output, context)
        if at.product_type("attention") == "fp8" and (at.casts is None or at.casts.attention_in_fp8):
            result = Save(f"{self.name}.output_fp8", context // at.element)
        saves = (
            *operands,
            result,
            Save(f"{self.name}.log_sum_exp", self.sizes(at).statistics),
            Save(f"{self.name}.random_state", state),
        )
        if at.context > 1:
            part = self.spread(at)
            kernels = part.kernels(backward=False), part.kernels(backward=True)
            return Work(*kernels, saves=saves, forward_temporary=part.forward_temporary, backward_temporary=part.backward_temporary)
        return Work((*self._sample(at, False), *copy), (*copy, *self._sample(at, True)), saves=saves)

    def _by_heads(self, at: Workload) -> Work:
        whole = replace(at, sequence=at.sequence * at.context, tensor=at.tensor * at.context, context=1, sequence_parallel=False)
        work = self.work(whole)
        operands, output = sum(work.input_gradients), work.output
        if not at.backward:
            return work._replace(forward_temporary=work.forward_temporary + operands + output)
        exchanged = (*self.inputs, self.output)
        saves = [save._replace(tensor=f"{self.name}.{save.tensor} by heads") if save.tensor in exchanged else save for save in work.saves]
        return work._replace(saves=tuple(saves), backward_temporary=work.backward_temporary + operands + output)

    def _eager(self, at: Workload, operands: tuple[Save, ...], qkv: int, context: int) -> Work:
        heads, s, e = at.batch * shard(self.heads, at), at.sequence, at.element
        d, dv = self.head_dim, self.value_dim or self.head_dim
        scores, drop, upcast = heads * s * s, bool(self.dropout and at.dropout), self.upcast_softmax and e < 4 and not at.library

        def gemm(n: int, k: int) -> Gemm:
            # Q K^T and dO V^T reduce over the head size, along which both operands lie; the other products read V, K or Q across
            return Gemm(s, n, k, heads, at.product_type("attention"), e, layout="TN" if n == s else "NN")

        softmax_element, capped = 4 if upcast else e, e if self.softcap else 0
        saved = softmax_element + (e if upcast or drop else 0) + drop + capped
        saves = [Save(f"{self.name}.softmax", softmax_element * scores)]
        if capped:
            saves.append(Save(f"{self.name}.tanh", e * scores))
        if self.value_dim and len(self.inputs) == 3:
            operands = (*operands[:2], Save(f"{self.name}.value", self.widths(at)[2] * at.tokens * e))
        if drop:
            saves += [Save(f"{self.name}.dropped", e * scores), Save(f"{self.name}.mask", scores)]
        elif upcast:
            saves += [Save(f"{self.name}.cast", e * scores)]
        # the softmax; Megatron-LM's causal kernel loads what is not masked and stores whole rows, zeros included
        # (NVIDIA/Megatron-LM v2.3, megatron/fused_kernels/scaled_upper_triang_masked_softmax.h)
        forward, backward = (1.5 * e, 2.0 * e) if at.library and self.causal else (2.0 * e, 3.0 * e)
        launches = [1, 1]
        if not at.fused:  # scale and mask are kernels of their own
            forward, backward, launches = forward + 4 * e, backward + 2 * e, [3, 2]
        if upcast:
            forward, backward, launches = forward + 2 + 4 + e, backward + e + 4 + 8, [launches[0] + 1, launches[1] + 1]
        if drop:
            forward, backward, launches = forward + 2 * e + 1, backward + 2 * e + 1, [launches[0] + 1, launches[1] + 1]
        if self.bounded:
            forward, backward, launches = forward + 2 * e, backward + 4 * e, [launches[0] + 1, launches[1] + 2]
        if capped:
            forward, backward, launches = forward + 6 * e, backward + 7 * e, [launches[0] + 3, launches[1] + 3]
        if self.bounded:
            saves.append(Save(f"{self.name}.bounded", e * scores))
            saved += e
        scaled: tuple[tuple[Memory, ...], tuple[Memory, ...]] = ((), ())
        if self.sinks and self.sinks_scale:  # scores are kept for their log-sum-exp, the output for the product
            rows = heads * s
            saves += [Save(f"{self.name}.scores", e * scores), Save(f"{self.name}.unscaled", context)]
            saves.append(Save(f"{self.name}.sink_scale", (e + 4 + (e if e < 4 else 0)) * rows))
            scaled = (Memory(2 * e * scores, launches=4), Memory(2 * context)), (Memory(5 * context, launches=3), Memory(6 * e * scores))
            saved += e
        # peaks: two score tensors before the softmax is done; backward, dP beside everything kept, then the softmax's
        # output with its two gradients (and the mask)
        peak = max(saved + e, capped + softmax_element + 2 * e + drop, capped + 3 * softmax_element - (e if upcast else 0))
        return Work(
            (
                # Megatron-LM multiplies views of the fused tensor; only the context is copied, back into the order of the tokens
                Memory(2 * context) if at.library else Memory(2 * qkv + (4 if at.fused else 2) * context, launches=4),
                gemm(s, d),
                Memory(forward * scores, launches=launches[0]),
                gemm(dv, s),
                *scaled[0],
            ),
            (
                *scaled[1],
                gemm(dv, s),
                gemm(s, dv),
                Memory(backward * scores, launches=launches[1]),
                gemm(d, s),
                gemm(d, s),
                Memory(2 * qkv + context, launches=4),
            ),
            saves=(*operands, *saves),
            forward_temporary=max(0, 2 * e - saved) * scores,
            backward_temporary=(peak - saved) * scores,
        )


ROTARY_ISSUES = (160.0, 730.0)
"""of Transformer Engine's kernel of rotary positions, and of positions that are spelt out, for a rotated element, in either direction
[FLOP]: `Memory.vector`. Spelt out, 4,096 x 4 x 64 x 64 bf16 on an H100 SXM (PyTorch 2.11): 730 us of products, negation and join, 55 to
77 % of the issue slots and 28 to 45 % of the memory busy. Transformer Engine's kernel loads and stores elements one by one: 38 instructions
in the loop and 9 for cosines and sines that 16 elements share (fused_rope.cu, CUDA 13.0, disassembled for sm_90) are 94 FLOP in every
slot and 160 in 60 % of them; an H100 took 145 to 219 from many heads to few"""
EAGER_ROTARY_ISSUES = (1046.0, 1609.0)
"""the same of transformers' apply_rotary_pos_emb, forward and backward: every kernel walks views of heads element by element. Queries of
32 and keys of 8 heads of 64, 8 x 2,048 tokens, 16 bits, on an H200 (PyTorch 2.11, transformers 5.17, November 2026): 654 and 1,006 us, of
which 220, 90, 293, 178 and 237 for product, negation, join, product and sum of an element, and in backward 148 us for copies back into the
order of the tokens"""


@dataclass(frozen=True, slots=True)
class Rotary(Layer):
    """Rotary position embedding (2104.09864) of queries and keys inside the fused query-key-value tensor.

    New queries and keys replace the old ones, so the tensor keeps its name and size; nothing but the tables is saved.
    Where queries, keys and values came from one product, the old queries and keys stay as long as the values do: a
    fused attention kernel keeps the values as a slice of that product's whole result (GPT-NeoX, Phi-3 in Hugging Face).
    `kv_heads` 0: there are queries alone.
    """

    heads: int
    kv_heads: int
    rotary_dim: int
    """elements of a head that are rotated"""
    sliced_dim: int = 0
    """elements of a head where the input is one product's result of queries, keys and values; 0 = three products"""
    scaled: bool = False
    """cosines and sines are multiplied by a factor"""
    latent: bool = False
    """of latent attention, which has a kernel of its own (megatron/core/fusions/fused_mla_yarn_rope_apply.py)"""
    split: Split = "heads"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """One pass if fused; otherwise two products, a rotation by half and a sum.

        In Python (transformers ``models/llama/modeling_llama.py``, apply_rotary_pos_emb), of queries and of keys: product (read, written),
        half negated, halves joined, product, sum: 10 passes. Backward: both products, half negated, zeros and a copy for each half, their
        sum, the sum of both branches, a copy into the order of the tokens: 17.
        Megatron-LM spells the rotation out where cosines are scaled, because Transformer Engine's kernel takes no factor (megatron/core/
        models/common/embeddings/rope_utils.py: apply_rotary_pos_emb, _apply_rotary_pos_emb_bshd). Forward, of queries and of keys: product
        (read, written), half negated, halves joined, product, sum (two read, one written), a copy beside nothing that is not rotated: 12
        passes. Backward: two products, half negated, halves joined, sum, zeros for what is not rotated and one more sum: 14. Products,
        negation and the first join, and Transformer Engine's kernel, are bound by what the multiprocessors issue (`ROTARY_ISSUES`).
        """
        count = at.tokens * (shard(self.heads, at) + shard(self.kv_heads, at)) * self.rotary_dim
        size = count * at.element
        if self.scaled and at.library:
            issued = Memory(7 * size, launches=8, vector=ROTARY_ISSUES[1] * count)
            spelled = (issued, Memory(5 * size, launches=16)), (issued, Memory(7 * size, launches=6))
            return Work(*spelled, input_gradients=(0,) * len(self.inputs), forward_temporary=3 * size, backward_temporary=3 * size)
        forward = backward = (Memory(2 * size, vector=ROTARY_ISSUES[0] * count if at.library and not self.latent else 0.0),)
        if not at.fused:
            rotated = 1 + (self.kv_heads > 0)
            forward = (Memory(10 * size, launches=5 * rotated, vector=EAGER_ROTARY_ISSUES[0] * count),)
            backward = (Memory(17 * size, launches=10 * rotated, vector=EAGER_ROTARY_ISSUES[1] * count),)
        saves: tuple[Save, ...] = ()
        if self.sliced_dim and not at.library and at.attention != "eager":
            saves = (Save(f"{self.name}.unrotated", size // self.rotary_dim * self.sliced_dim),)
        gradients = (0,) * len(self.inputs)
        return Work(forward, backward, input_gradients=gradients, saves=saves, forward_temporary=size, backward_temporary=size)


@dataclass(frozen=True, slots=True)
class RotaryTables(Layer):
    """Cosines and sines [s, rotary_dim] that all layers share; stands once, behind the embedding."""

    rotary_dim: int
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Two small tables, kept until this operator's place in backward (torch.compile makes them again)."""
        size = 2 * at.sequence * self.rotary_dim * at.element
        saves = () if at.compiled else (Save(f"{self.name}.tables", size),)
        return Work((Memory(2 * size, launches=2),), input_gradients=(0,), saves=saves)


@dataclass(frozen=True, slots=True)
class QKNorm(Layer):
    """RMSNorm or LayerNorm of queries and keys inside the fused query-key-value tensor (2302.05442), which keeps its
    name and size; saves as `RMSNorm` and `LayerNorm` do. `over`: each head with one weight for all of them, each head with weights
    of its own (heads), or all heads together (projection). `kv_heads` 0: there are queries alone.
    """

    heads: int
    kv_heads: int
    head_dim: int
    parameter_names: tuple[str, str] = ("q_norm", "k_norm")
    weights: bool = True
    over: str = "head"
    kind: str = "rmsnorm"
    bias: bool = False
    wide: bool = False
    """it multiplies by the weights before it casts back; see `RMSNorm` and `LayerNorm`"""
    factor: bool = False
    """by 1 + weight"""
    by_power: bool = False
    """as of `RMSNorm`"""
    split: Split = "heads"
    selective: str = "norm"
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """One weight (and bias) for queries, one for keys: [head_dim], or [heads, head_dim], or [heads x head_dim]."""
        if not self.weights:
            return ()
        tensors = []
        for name, heads in zip(self.parameter_names, (self.heads, self.kv_heads), strict=True):
            if not heads:
                continue
            shapes = {"head": (self.head_dim,), "heads": (heads, self.head_dim), "projection": (heads * self.head_dim,)}
            shape, split = shapes[self.over], None if self.over == "head" else 0
            words = ("weight", "bias") if self.bias else ("weight",)
            tensors += [Parameter(f"{name}.{word}", shape, split, trainable=self.trainable) for word in words]
        return tuple(tensors)

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        heads = at.tokens * (shard(self.heads, at) + shard(self.kv_heads, at))
        count = heads * self.head_dim
        size, norms = count * at.element, 1 + (self.kv_heads > 0)
        rows = norms * at.tokens if self.over == "projection" else heads
        saves = [Save(f"{self.name}.statistics", (8 if self.kind == "layernorm" else 4) * rows)]
        weights = sum(parameter.local_count(at.tensor) for parameter in self.parameters())
        forward: tuple[Memory, ...]
        backward: tuple[Memory, ...]
        if self.kind == "layernorm" and self.wide and not at.fused:
            saves = list(spelled_out(self.name, count, weights, rows))
            forward, backward = (
                (Memory(48 * count + 4 * size, launches=10 * norms),),
                (Memory(112 * count + 4 * size, launches=18 * norms),),
            )
        elif at.fused or self.kind == "layernorm":
            forward, backward = (Memory(2 * size, launches=norms),), (Memory(3 * size, launches=norms),)
            # Transformer Engine's norm makes its input contiguous, and keys are a slice of the fused product
            if at.interleaved and self.kv_heads:
                keys = 2 * at.tokens * shard(self.kv_heads, at) * self.head_dim * at.element
                forward = (Memory(2 * size + keys, launches=3),)
            saves += [Save(f"{self.name}.input", size)]
        else:
            forward, backward = eager_rms_norm(count, at.element, norms, wide_weight=self.wide)
            saves.append(Save(f"{self.name}.fp32", 4 * count))
            if self.trainable and self.weights:  # only the weights' gradients need the normalised tensor
                saves.append(Save(f"{self.name}.normalised", 4 * count if self.wide else size))
            if self.by_power:
                saves.append(Save(f"{self.name}.mean", 4 * rows))
            if self.wide and (self.factor or (self.by_power and at.weight_element < 4)):
                saves.append(Save(f"{self.name}.factor", 4 * weights))
        return Work(forward, backward, input_gradients=(0,), saves=tuple(saves), forward_temporary=size, backward_temporary=size)
