"""The scenario that `parsim new` writes: a strategy that fits where one does, and comments that say what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parsim.errors import Finding, ScenarioError, attempt
from parsim.scenario.files import parse_value
from parsim.scenario.values import did_you_mean
from parsim.study.fit import FitAnswer, find_alternatives, verdict
from parsim.study.fit_question import FitQuestion, Tree, scenario_of
from parsim.study.fit_text import asked

SCHEMA = "# yaml-language-server: $schema=parsim.schema.json"
"""what an editor with the YAML extension reads"""
AUTO = "auto"
STRATEGIES: Mapping[str, str] = {
    AUTO: "the first of zero1 and zero3 that fits; else the fastest change that does, another optimizer or types last",
    "ddp": "everything on every GPU",
    "zero1": "the optimizer's states sharded",
    "zero2": "and the gradients",
    "zero3": "and the parameters (DeepSpeed)",
    "fsdp": "the same (PyTorch)",
}
"""choice of --strategy -> what it does"""
_STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
_COMMENTS = {
    "model": "`parsim list models`, the path of a Hugging Face config.json, or a mapping",
    "cluster.topology": "`parsim list topologies`, a box such as 4x a100-80gb, or the path of your own",
    "cluster.nodes": "machines",
    "cluster.gpus": "of them; the others are idle",
    "training.sequence_length": "tokens per sample",
    "training.micro_batch": "samples per forward pass of one replica: more is faster and needs more memory",
    "training.gradient_accumulation": "micro-batches per optimizer step",
    "training.recompute": "none, selective or full: less memory for activations, more time",
    "training.precision": "bf16, fp16, fp8 ...",
    "training.optimizer": "adamw, adam-8bit, adafactor, lion, momentum, sgd",
    "training.offload": "what lies in the host's memory",
    "parallel.tensor": "GPUs that share every layer; inside a machine",
    "parallel.pipeline": "stages of layers",
    "parallel.data.strategy": "ddp, zero1, zero2, zero3 or fsdp",
}
_LAST = ("training.optimizer", "training.precision", "training.sequence_length", "training.micro_batch", "training.offload")
"""changes that come after all others: another optimizer, other types, samples or batches, states in the host's memory"""
_COLUMN = 36


@dataclass(frozen=True)
class New:
    """A scenario to write."""

    text: str
    answer: FitAnswer
    """of the scenario: whether it fits"""
    change: str
    """what was added to make it fit; empty: nothing"""


def new_scenario(question: FitQuestion, strategy: str = AUTO) -> New:
    """The scenario of a model on a cluster.

    Raises:
        ScenarioError: with everything that is wrong with model, cluster and strategy.
    """
    findings: list[Finding] = []
    if strategy not in STRATEGIES:
        hint = did_you_mean(strategy, list(STRATEGIES)) or f"choose from {', '.join(STRATEGIES)}"
        findings.append(Finding(f"there is no strategy {strategy!r}", "--strategy", strategy, hint, file="command line"))
    attempt(lambda: scenario_of(question), findings)
    if findings:
        raise ScenarioError(findings)
    tried: list[FitAnswer] = []
    for one in _questions(question, strategy):
        answer = _verdict(one, strategy)
        tried.append(answer)
        if answer.fits:
            return New(_text(answer), answer, "")
    alternatives = [one for one in find_alternatives(tried[-1], []) if not one.changes("cluster.", "training.finetune")]
    if strategy != AUTO:
        alternatives = [one for one in alternatives if not one.changes("parallel.data.strategy")]
    if not alternatives:
        return New(_text(tried[-1]), tried[-1], "")
    best = min(alternatives, key=lambda one: one.changes(*_LAST))
    answer = _of_tree(question, _changed(tried[-1].tree, best.overrides))
    return New(_text(answer), answer, best.change)


def _questions(question: FitQuestion, strategy: str) -> Sequence[FitQuestion]:
    if strategy == AUTO:
        return replace(question, zero=1), replace(question, zero=None)
    return (replace(question, zero=_STAGES.get(strategy)),)


def _verdict(question: FitQuestion, strategy: str) -> FitAnswer:
    """The answer of `fit`; FSDP is written where it was asked for."""
    answer = verdict(question)
    if strategy != "fsdp" or answer.tree["parallel"]["data"]["strategy"] in ("fsdp", "none"):
        return answer
    return _of_tree(question, _changed(answer.tree, ("parallel.data.strategy=fsdp",)))


def _of_tree(question: FitQuestion, tree: Tree) -> FitAnswer:
    from parsim.run import simulate
    from parsim.scenario import load

    return FitAnswer(question, tree, simulate(load(tree)))


def _changed(tree: Tree, overrides: Sequence[str]) -> Tree:
    """A copy with ``key=value`` written into it."""
    copied: Tree = {key: _copied(value) for key, value in tree.items()}
    for override in overrides:
        path, _, value = override.partition("=")
        *sections, last = path.split(".")
        at = copied
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = parse_value(value)
    return copied


def _copied(value: Any) -> Any:
    return {key: _copied(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def _text(answer: FitAnswer) -> str:
    tree = {name: answer.tree[name] for name in ("model", "cluster", "training", "parallel")}
    head = [
        SCHEMA,
        f"# {asked(answer)}.",
        "# Change what you like, then: parsim run FILE. Without editing: parsim run FILE training.micro_batch=2",
        "# All keys with their defaults: parsim show FILE. An editor checks and completes keys with parsim.schema.json, beside this file.",
        f"name: {_scalar(f'{answer.question.model} on {answer.question.on}')}",
    ]
    lines = [line for key, value in tree.items() for line in ("", *_lines(key, value, 0, key))]
    return "\n".join([*head, *lines, ""])


def _lines(key: str, value: Any, depth: int, path: str) -> Iterator[str]:
    """A key with what is below it, as YAML with comments."""
    margin = "  " * depth
    comment = _COMMENTS.get(path, "")
    line = f"{margin}{key}:" if isinstance(value, Mapping) and value else f"{margin}{key}: {_scalar(value)}"
    yield f"{line:<{_COLUMN}} # {comment}" if comment else line
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _lines(name, one, depth + 1, f"{path}.{name}")


def _scalar(value: Any) -> str:
    """A plain scalar where it reads back as itself, else JSON, which is YAML."""
    from json import dumps

    if isinstance(value, str) and value.replace("-", "").replace(".", "").replace("_", "").isalnum() and parse_value(value) == value:
        return value
    return dumps(value, ensure_ascii=False)
