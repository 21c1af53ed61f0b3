"""The answer of `mfu` as text: the arithmetic, the conventions, what explains a claimed number, published runs."""

from __future__ import annotations

from collections.abc import Iterator

from parsim.report.table import Column, Content, Table
from parsim.study.mfu import CLOSE, MfuAnswer
from parsim.units import format_flops, format_time


def text(answer: MfuAnswer) -> str:
    """The whole answer."""
    lines = [*_head(answer), "", *_conventions(answer), "", *_sparse(answer)]
    if answer.time_to_train is not None:
        lines += ["", *_time(answer)]
    if answer.claimed is not None:
        lines += ["", *_claimed(answer)]
    if answer.share_of_paper is not None:
        lines += ["", *_methods(answer)]
    if answer.published:
        lines += ["", *_published(answer)]
    return "\n".join(lines)


def _head(answer: MfuAnswer) -> Iterator[str]:
    question, of, row = answer.question, answer.of, answer.usual
    length = f", {of.sequence:,} tokens per sample" if of.model.sequence else ""
    yield f"{of.model.name}: {of.parameters:,} parameters{length}, recomputation {question.recompute}"
    yield f"{question.gpus:,} x {answer.device.name}, {answer.dtype}: dense peak {format_flops(row.peak)} each"
    yield answer.arithmetic
    for warning in answer.warnings:
        yield f"warning: {warning}"
    name = row.counted.name
    if question.tflops is not None:
        yield f"share of peak = {question.tflops:g} / {row.peak / 1e12:g} = {_percent(row.mfu)}, an MFU if model FLOP were counted"
        return
    per_gpu = row.units_per_s / question.gpus
    yield f"{per_gpu:,.6g} {of.unit}s/s per GPU"
    product = f"{row.units_per_s:,.10g} x {row.counted.flop:,.15g} / ({question.gpus:,} x {row.peak / 1e12:g}e12)"
    yield f"MFU ({name}) = {of.unit}s/s x FLOP/{of.unit} / (GPUs x peak) = {product} = {_percent(row.mfu)}"


def _conventions(answer: MfuAnswer) -> Iterator[str]:
    unit, rated = answer.of.unit, answer.question.tflops is not None
    columns = [
        Column("convention", align="left"), Column(f"FLOP/{unit}", write=lambda flop: f"{flop:,.15g}"),
        Column("TFLOP/s per GPU", write=lambda flops: f"{flops / 1e12:.1f}"), Column("MFU", write=_percent), Column("HFU", write=_percent),
    ]  # fmt: skip
    rows: list[tuple[Content, ...]] = [(row.counted.name, row.counted.flop, row.model_flops, row.mfu, row.hfu) for row in answer.rows]
    if rated:
        columns.append(Column(f"{unit}s/s per GPU", write=lambda rate: f"{rate:,.1f}"))
        rows = [(*cells, row.units_per_s / row.gpus) for cells, row in zip(rows, answer.rows, strict=True)]
    columns.append(Column("formula", align="left", margin=2))
    yield Table(columns, [(*cells, row.counted.formula) for cells, row in zip(rows, answer.rows, strict=True)]).text()
    if answer.question.recompute == "none":
        yield "HFU = MFU without recomputation; say --recompute full or selective if the run repeats forward work."


def _sparse(answer: MfuAnswer) -> Iterator[str]:
    row, sparse = answer.usual, answer.sparse_peak
    if sparse is None:
        yield f"The {answer.device.name} has no peak with sparsity in {answer.dtype}: nothing to confuse."
        return
    value = _percent(row.mfu * row.peak / sparse)
    yield (
        f"Datasheets also print {format_flops(sparse)} with 2:4 sparsity, which training does not use; over it {row.counted.name} would"
        f" read {value}. A number half as large as expected was probably divided by it."
    )


def _time(answer: MfuAnswer) -> Iterator[str]:
    seconds, gpus = answer.time_to_train or 0.0, answer.question.gpus
    rate = answer.usual.units_per_s
    yield f"Time to train: {answer.tokens:,.15g} tokens / {rate:,.10g} tokens/s = {seconds:,.6g} s = {format_time(seconds)}"
    yield f"  {gpus:,} GPUs x {seconds / 3600:,.6g} h = {seconds * gpus / 3600:,.6g} GPU-hours"


def _claimed(answer: MfuAnswer) -> Iterator[str]:
    ways = answer.explanations()
    near = [way for way in ways if way[0] <= CLOSE]
    claimed = _percent(answer.claimed or 0.0)
    if near:
        yield f"Claimed {claimed} is, within {100 * CLOSE:g} %:"
        yield from (f"  {what} over {peak} ({100 * error:.2f} % off)" for error, what, peak in near)
        return
    error, what, peak = ways[0]
    yield f"Claimed {claimed} is nothing of the above; the closest is {what} over {peak} ({100 * error:.1f} % off)"


def _methods(answer: MfuAnswer) -> Iterator[str]:
    share, paper = answer.share_of_paper or 0.0, answer.question.paper_tokens_per_s
    own = answer.usual.units_per_s / answer.question.gpus
    yield f"Share of a published speed: {own:,.6g} / {paper:,.6g} tokens/s per GPU = {100 * share:.3f} %"
    yield "  This is no utilisation: it takes the published run for 100 %. Times that run's own MFU it is one:"
    if answer.paper_mfu is not None:
        yield f"  {100 * share:.3f} % x {_percent(answer.paper_mfu)} (stated) = {_percent(share * answer.paper_mfu)}"
    for row in answer.rows:
        theirs = answer.paper_utilisation(row)
        yield f"  {100 * share:.3f} % x {_percent(theirs)} ({row.counted.name}, same model and GPU) = {_percent(share * theirs)}"


def _published(answer: MfuAnswer) -> Iterator[str]:
    columns = [
        Column("published run", align="left"), Column("GPUs", write=lambda count: f"{count:,}"), Column(""),
        Column("tokens", write=lambda count: f"{count:,}"), Column("type"), Column("recompute"), Column("reached", write=_percent),
        Column("yours", write=_percent), Column("  counted as"), Column("how known", align="left", margin=2),
    ]  # fmt: skip
    rows = []
    for row in answer.published:
        value, how = row.utilisation
        counted = f"  {row.compared or 'not said'}".ljust(len("  megatron-hardware"))
        yours = answer.yours(row)
        rows.append(
            (row.model, row.gpus, row.device, row.sequence, row.precision, row.recompute or "not said", value,
             "-" if yours is None else yours, counted, f"{how}; {row.source}")
        )  # fmt: skip
    title = "Published runs of similar size, GPU and scale; `yours` is this run counted as they count"
    yield Table(columns, rows, title).text()


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"
