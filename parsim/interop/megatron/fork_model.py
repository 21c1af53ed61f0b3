"""What Megatron-DeepSpeed's models have beside Megatron-LM's: DeepSpeed's mixtures of experts, other gated MLPs, a norm of the embedding.

deepspeedai/Megatron-DeepSpeed, megatron/model/transformer.py: get_num_experts_per_layer, ParallelTransformerLayer;
bigscience-workshop/Megatron-DeepSpeed, megatron/model/glu_activations.py and language_model.py.
"""

from __future__ import annotations

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Source
from parsim.units import is_digits

_ROWS = ("top_k", "every", "kind")


def read_fork(draft: ImportDraft, source: Source) -> None:
    """Gated MLPs, the embedding's norm and experts."""
    glu = source.of("model.activation.gated")
    activation = None if glu is None else source.table.rows["model.activation.gated"].ours(glu.text)
    if activation is not None:
        draft.write("model.activation", activation, glu)
        draft.write("model.gated", True, glu)
        draft.write("model.fused_gate_up", True, glu, note="one linear layer makes both")
        if draft.value("model.mlp") is None and isinstance(hidden := draft.value("model.hidden"), int):
            draft.write("model.mlp", 4 * hidden, note="--ffn-hidden-size is 4 x hidden if not given, gated or not")
    elif glu is not None:
        draft.errors.append(glu.finding(f"{glu.value!r} is not supported yet", "swiglu, geglu or reglu"))
    draft.take(source, "model.embedding_norm")
    _read_experts(draft, source)


def _read_experts(draft: ImportDraft, source: Source) -> None:
    """``--num-experts 128``: of every second layer; 1 is a dense model, and several numbers are PR-MoE's pyramid."""
    key = source.of("model.experts.count")
    words = [] if key is None else key.text.replace(",", " ").split()
    if key is None or set(words) <= {"1"}:
        draft.harmless(key, "one expert is a dense MLP" if words else "it has no value")
        for row in source.table.below("model.experts."):
            draft.harmless(source.of(row.path), "there are no experts")
        return
    if not all(is_digits(word) for word in words):
        draft.errors.append(key.finding("it is no number", key.hint or "give one number of experts for all layers, or one for each"))
        return
    counts = [int(word) for word in words]
    if 1 in counts:
        draft.errors.append(key.finding("not supported yet: layers of one expert among others", "give every mixture layer two or more"))
        return
    draft.write("model.experts.count", max(counts), key)
    if len(set(counts)) > 1:
        draft.write("model.experts.counts", counts, key, note="of every layer with experts")
    for path, default in (("top_k", 1), ("every", 2)):
        if draft.take(source, f"model.experts.{path}") is None:
            name = source.table.rows[f"model.experts.{path}"].name.replace("_", "-")
            draft.write(f"model.experts.{path}", default, note=f"--{name} is {default} if not given")
    if draft.value("model.experts.top_k") == 2:
        draft.write("model.experts.renormalise", True, note="DeepSpeed's top-2 gate divides by the sum")
    if draft.value("model.mlp_bias") is not False:
        draft.write("model.experts.bias", True, note="no --disable-bias-linear")
    kind, width = source.of("model.experts.kind"), draft.value("model.mlp") or 4 * (draft.value("model.hidden") or 0)
    if kind is not None and kind.text == "residual":
        draft.write("model.experts.shared", width, kind, note="a dense MLP beside every expert")
        draft.remark(
            "the two weights per token that mix experts and the dense MLP (--mlp-type residual) are not modelled", "model.experts.shared"
        )
    else:
        draft.only_if(kind, ("standard",), "parsim knows standard and residual", "that is what parsim models")
