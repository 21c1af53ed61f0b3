"""The words of the command line: what each option is called in all commands, and which other word it was called by before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

FIGURES = (".svg", ".pdf", ".png", ".pgf", ".eps", ".gif", ".jpg", ".jpeg")
"""what the name of a picture ends in; which of them can be drawn, the command says"""
_SEQUENCE = {"--sequence-length": "--sequence", "--seq": "--sequence"}
FORMER: Mapping[str, Mapping[str, str]] = {
    "calibrate": {"--out": "--save"},
    "collective": {"--topology": "--on", "--plot": "--figure", "--compare": "--nccl-log", "--profile": "--basis"},
    "compare": {"--jobs": "--workers"},
    "diagnose": {"--trace": "--profile"},
    "explain": {"--jobs": "--workers"},
    "export": {"--out": "--save"},
    "fit": {**_SEQUENCE, "--mbs": "--micro-batch", "--zero": "--strategy", "--finetune": "--train", "--infer": "--inference"},
    "flops": {**_SEQUENCE, "--batch": "--micro-batch"},
    "import": {**_SEQUENCE, "--out": "--save", "--device": "--gpu"},
    "mfu": _SEQUENCE,
    "plan": _SEQUENCE,
    "schedule": {"--pdf": "--figure", "--out": "--figure"},
    "size": {**_SEQUENCE, "--sharding": "--strategy"},
    "validate": {"--jobs": "--workers", "--plot": "--figure", "--profile": "--basis"},
}
"""command -> former spelling -> what it is called now; the former ones go with version 2"""
DRAWS = ("timeline", "topology")
"""commands where --out may still name a figure's file"""


def modern(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments with former spellings replaced, and a note on each."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    former = FORMER.get(command, {})
    words: list[str] = []
    notes: dict[str, None] = {}
    rest: Iterator[str] = iter(arguments)
    for word in rest:
        if word == "--":
            words += [word, *rest]
            break
        option, equals, value = word.partition("=")
        if option == "--out" and (now := _of_file(command, value if equals else _next(arguments, len(words)))):
            notes[f"note: --out names a folder; the file is now called {now}"] = None
        else:
            now = former.get(option, "")
            if now:
                notes[f"note: {option} is now called {now}"] = None
        words.append(f"{now}{equals}{value}" if now else word)
    return words, list(notes)


def _next(arguments: Sequence[str], place: int) -> str:
    return arguments[place + 1] if place + 1 < len(arguments) else ""


def _of_file(command: str, value: str) -> str:
    """What ``--out VALUE`` is called where the value is a file and not a folder; empty where it is a folder."""
    suffix = PurePath(value).suffix.lower()
    if command in DRAWS and suffix in FIGURES:
        return "--figure"
    return "--save" if command == "trace" and suffix in (".json", ".gz") else ""


PANELS: Mapping[str, Sequence[str]] = {
    "The job": (
        "--on", "--nodes", "--gpus", "--gpu", "--model", "--sequence", "--micro-batch", "--global-batch", "--precision", "--dtype",
        "--tokens", "--override", "--set", "--software", "--train", "--optimizer", "--gradient-accumulation", "--examples", "--vocabulary",
        "--tokenizer", "--from",
    ),
    "The strategy": ("--strategy", "--tp", "--pp", "--ep", "--etp", "--recompute", "--offload", "--host-memory", "--schedule"),
    "Inference": ("--inference", "--batch", "--context-length", "--paged-block", "--beams", "--kv-dtype", "--prefill-tokens"),
    "Goals": ("--days", "--hours", "--budget", "--minimise", "--maximise", "--where", "--max", "--max-gpus", "--headroom"),
    "Money": ("--gpu-hour", "--buy", "--years", "--power-price", "--pue"),
    "Failures": ("--mtbf", "--checkpoint-time", "--restart-time", "--goodput"),
    "Measurements": (
        "--step-time", "--peak-memory", "--profile", "--steps", "--nccl-log", "--data", "--source", "--grade",
        "--tokens-per-s", "--samples-per-s", "--tflops", "--claimed", "--paper-tokens-per-s", "--paper-mfu",
    ),
    "How it is computed": (
        "--workers", "--dask", "--runs", "--until", "--seeds", "--unfolded", "--sensitivity", "--exhaustive", "--within", "--resume",
        "--trust-code",
    ),
    "What comes out": (
        "--out", "--save", "--figure", "--trace", "--no-pictures", "--format", "--width", "--title", "--top", "--reports", "--perfetto",
        "--explain", "--summary", "--json", "--quiet", "--allow-oom", "--strict", "--debug", "--help", "--version",
    ),
}  # fmt: skip
"""heading of ``--help`` -> the options beneath it; what is in none of them is the command's own and stands first"""
