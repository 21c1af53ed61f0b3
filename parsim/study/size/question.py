"""What is asked, typed: flags of the command line and a file's ``size:`` give the same `SizeQuestion`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count
from parsim.scenario import files
from parsim.scenario.economics import Money

OBJECTIVES = ("cost", "gpus", "energy", "time")
"""what may be minimised"""
RECOMPUTE = ("auto", "none", "mlp", "full")
"""of activations; auto: every one of them, mlp (the MLPs alone) where all layers have one"""
SHARDING = ("auto", "zero1", "fsdp")
"""auto: ZeRO-1, and FSDP without tensor or pipeline parallelism; fsdp: also with tensor parallelism, which no published run here has"""
SCHEDULES = ("1f1b", "interleaved")
TOP = 3
"""configurations of a machine that are shown"""


@dataclass(frozen=True)
class Purchase:
    """Hardware that is bought, as ``economics.purchase`` of a scenario has it."""

    price: Money
    per: str = "gpu"
    """gpu | node"""


@dataclass(frozen=True)
class Machine:
    """A kind of machine that may be rented or bought."""

    label: str
    topology: str
    """name, alias or path of a topology, or a box such as ``8x h100-sxm``"""
    settings: tuple[tuple[str, Any], ...] = ()
    """scenario keys and their values: cluster.set.node.nics, cluster.fabric.oversubscription, ..."""
    gpu_hour: Money | None = None
    """rent of one GPU for one hour; None: the topology's dated example price, if it has one"""
    purchase: Purchase | None = None
    gpus: tuple[int, ...] = ()
    """counts to look at; empty: as many as it takes"""
    variability: Mapping[str, Any] | None = None
    """section of the scenario; None: nothing varies on it"""

    def document(self) -> Mapping[str, Any]:
        """What was asked about the machine, as JSON has it."""
        return {
            "machine": self.label, "topology": self.topology, "set": dict(self.settings), "gpus": list(self.gpus) or None,
            "gpu_hour": None if self.gpu_hour is None else str(self.gpu_hour),
            "buy": None if self.purchase is None else f"{self.purchase.price}/{self.purchase.per}",
            **({} if self.variability is None else {"variability": dict(self.variability)}),
        }  # fmt: skip


@dataclass(frozen=True)
class SizeQuestion:
    """A training, what it may take, and on what it may run."""

    model: str
    tokens: float
    machines: tuple[Machine, ...]
    sequence_length: int | None = None
    global_batch: int | str | None = None
    """samples, or a text such as "4M tokens"; None: a published batch or a rule"""
    micro_batches: tuple[int, ...] = (1, 2)
    precision: str | None = None
    software: str = "megatron-core"
    recompute: tuple[str, ...] = ("auto",)
    schedules: tuple[str, ...] = ("1f1b",)
    sharding: tuple[str, ...] = ("auto",)
    max_gpus: int | None = None
    deadline: float | None = None
    """[s]"""
    budget: Money | None = None
    power_price: Money | None = None
    """of one kWh"""
    pue: float | None = None
    mtbf: float | None = None
    """mean time between failures of one GPU [s]; None: published"""
    checkpoint_time: float | None = None
    """[s]"""
    restart_time: float | None = None
    """[s]"""
    goodput: float | None = None
    """useful time over all time, fixed; None: from failures and checkpoints"""
    years: float | None = None
    """after which bought hardware is worth nothing"""
    minimise: str = ""
    """one of `OBJECTIVES`; empty: time where only a budget is given, else cost, or gpus where nothing has a price"""
    top: int = TOP
    exhaustive: bool = False
    """simulate every candidate instead of bounding them away"""
    currency: str = "USD"
    runs: int | None = None
    """disturbed steps of each configuration, where anything varies"""
    trust_code: bool = False
    """whether Python files that its keys name may run"""

    @property
    def disturbed(self) -> bool:
        """Whether configurations are ranked by disturbed steps."""
        return any(machine.variability is not None for machine in self.machines)

    def document(self) -> Mapping[str, Any]:
        """What was asked, as JSON has it: keys as in a file, but for machines, which say what is theirs."""
        document: dict[str, Any] = {"model": self.model, "tokens": self.tokens, "on": [machine.document() for machine in self.machines]}
        if self.deadline is not None:
            document["days"] = self.deadline / 86400.0
        if self.budget is not None:
            document["budget"] = str(self.budget)
        for key in ("sequence_length", "global_batch", "precision", "max_gpus", "pue", "goodput", "years", "runs"):
            if (value := getattr(self, key)) is not None:
                document[key] = value
        for key, value in (("mtbf", self.mtbf), ("checkpoint_time", self.checkpoint_time), ("restart_time", self.restart_time)):
            if value is not None:
                document[key] = f"{value:.15g} s"
        if self.power_price is not None:
            document["power_price"] = str(self.power_price)
        document |= {
            "micro_batch": list(self.micro_batches), "software": self.software, "recompute": list(self.recompute),
            "schedule": list(self.schedules), "sharding": list(self.sharding), "minimise": self.minimise, "currency": self.currency,
        }  # fmt: skip
        return document


_SCALE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}
_AMOUNT = r"(?P<number>[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+]?[0-9]+)?) ?(?P<scale>[kKMB]?)"
_MONEY = re.compile(rf"(?:(?P<before>[A-Za-z]{{3}}) +)?{_AMOUNT}(?: ?(?P<after>[A-Za-z]{{3}}))?")
_LARGEST = 1e12


def parse_money(text: object, example: str = "2.50 USD") -> Money:
    """The amount in a text or number.

    Raises `ValueError` with the rule and an example for anything else, negative amounts and amounts beyond 1e12.

    >>> parse_money("5M USD"), parse_money(2.5)
    (Money(amount=5000000.0, currency='USD'), Money(amount=2.5, currency=''))
    """
    rule = f"{text!r} is no amount of money; write for example {example!r}"
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise ValueError(rule)
    match = _MONEY.fullmatch(str(text).strip())
    if match is None or (match["before"] and match["after"]):
        signs = {"$": "USD", "€": "EUR", "£": "GBP"}
        hint = next((f"; write {code} instead of {sign}" for sign, code in signs.items() if sign in str(text)), "")
        raise ValueError(rule + (hint or ("; write thousands without commas" if "," in str(text) else "")))
    amount = float(match["number"].replace("_", "")) * _SCALE[match["scale"]]
    if not amount <= _LARGEST:
        raise ValueError(f"{text!r} is more than 1e12")
    return Money(amount, (match["before"] or match["after"] or "").upper())


SEQUENCE = 2048
"""tokens of a sample where neither the question nor the model says more"""
MTBF = 16384 * 54 * 86400 / 419
"""mean time between failures of one GPU with its share of everything else [s]: 419 unexpected interruptions in 54 days on 16,384 GPUs"""
MTBF_SOURCE = "419 unexpected interruptions in 54 days on 16,384 H100 (Llama team 2024, arXiv 2407.21783, section 3.3.4)"
CHECKPOINT = 60.0
"""time for which training stands still while a checkpoint is written [s]"""
_BATCHES = ((100e9, 3.2e6), (6e9, 2e6), (1e9, 1e6), (0.0, 0.5e6))
"""parameters from which so many tokens are in a batch"""
_BATCHES_SOURCE = "the rule of GPT-3's models by size (Brown et al. 2020, arXiv 2005.14165, table 2.1)"


@dataclass(frozen=True, slots=True)
class Assumed:
    """A value that the question did not give."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training with nothing left open."""

    sequence_length: int
    global_batch: int
    """samples"""
    mtbf: float | None
    """of one GPU [s]; None: nothing fails"""
    checkpoint_time: float | None
    assumed: tuple[Assumed, ...]

    @property
    def tokens_per_step(self) -> int:
        """Of the whole job."""
        return self.global_batch * self.sequence_length


def recipe(question: SizeQuestion, model: Model) -> Recipe:
    """The recipe of a question about `model`.

    Raises:
        ScenarioError: the model has no sequences.
    """
    if not model.sequence:
        raise without_tokens(question)
    assumed: list[Assumed] = []
    length = question.sequence_length
    if length is None:
        length = model.maximum_sequence if model.maximum_sequence and model.maximum_sequence <= 8192 else SEQUENCE
        source = (
            "the model's positions" if length == model.maximum_sequence else "usual in pre-training; the model has more positions or none"
        )
        assumed.append(Assumed("sequence length", f"{length} tokens", source))
    batch = _batch(question, model, length, assumed)
    mtbf, checkpoint = question.mtbf, question.checkpoint_time
    if question.goodput is not None:
        mtbf = checkpoint = None
    else:
        if mtbf is None:
            mtbf = MTBF
            assumed.append(Assumed("MTBF of a GPU", f"{MTBF / 3600:,.0f} h", MTBF_SOURCE))
        if checkpoint is None:
            checkpoint = CHECKPOINT
            assumed.append(
                Assumed("training stands still for a checkpoint", f"{CHECKPOINT:g} s", "assumption; --checkpoint-time changes it")
            )
    return Recipe(length, batch, mtbf, checkpoint, tuple(assumed))


def without_tokens(question: SizeQuestion) -> ScenarioError:
    """What to say of a model without sequences."""
    text = f"{question.model} has no tokens to be trained on"
    return ScenarioError(Finding(text, "MODEL", question.model, "choose a language model (`parsim list models`)"))


def published_batches() -> dict[str, tuple[float, str]]:
    """Model -> (tokens per step, source), of catalogue/batches.yaml."""
    tree = files.read(Path(files.home("models")).parent / "batches.yaml").tree
    return {name: (float(entry["tokens"]), str(entry["source"])) for entry in tree["batches"] for name in entry["models"]}


def _batch(question: SizeQuestion, model: Model, length: int, assumed: list[Assumed]) -> int:
    wanted = question.global_batch
    if isinstance(wanted, int):
        return wanted
    if isinstance(wanted, str):
        tokens = float(wanted.split()[0])
        samples = _power_of_two(tokens / length)
        if samples * length != tokens:
            assumed.append(
                Assumed("global batch", f"{samples} samples of {length} tokens", f"the power of two nearest to {tokens:g} tokens")
            )
        return samples
    known = published_batches().get(question.model)
    if known is None:
        parameters = parameter_count(model)
        tokens = next(tokens for least, tokens in _BATCHES if parameters >= least)
        source = _BATCHES_SOURCE
    else:
        tokens, source = known
    samples = _power_of_two(tokens / length)
    assumed.append(
        Assumed("global batch", f"{samples} samples of {length} tokens", f"nearest power of two to {tokens / 1e6:g}M tokens: {source}")
    )
    return samples


def _power_of_two(samples: float) -> int:
    """The nearest one by ratio, at least 1: it divides among most numbers of replicas."""
    return 1 << max(0, round(log2(max(samples, 1.0))))
