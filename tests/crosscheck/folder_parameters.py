"""Parameters of every ``config.json`` below a folder: parsim's count against the module that transformers builds on ``meta``.

python tests/crosscheck/folder_parameters.py FOLDER [--all | --totals]     # exit code 1 if a count differs
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_side import class_of, parameters, torch, transformers

from parsim.errors import InputError
from parsim.model.catalogue import build_model
from parsim.model.parameter_counts import parameter_count

NO_CLASS = "transformers has no class for it"


@dataclass(frozen=True)
class Compared:
    """How one file ended."""

    file: str
    model_type: str
    end: str
    """equal | equal to the text part | differs | refused by parsim | transformers has no class for it | transformers cannot build it

    A refusal also says whether transformers knows the model type.
    """
    ours: int | None = None
    theirs: int | None = None
    why: str = ""

    def __str__(self) -> str:
        counts = "" if self.theirs is None else f"  parsim {self.ours}, transformers {self.theirs}"
        return f"{self.end:40}  {self.model_type:20}  {self.file}{counts}  {self.why}".rstrip()


def compared(folder: Path) -> Iterator[Compared]:
    """Every JSON object with a ``model_type`` below `folder`."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if isinstance(tree, dict) and isinstance(tree.get("model_type"), str):
            yield compare(tree, path.relative_to(folder).as_posix())


def compare(tree: Mapping[str, Any], file: str) -> Compared:
    """One config."""
    kind = tree["model_type"]
    try:
        ours = parameter_count(build_model(tree, name=file, base_lookup=lambda _: {}))
    except InputError as error:
        finding = error.findings[0]
        known = ", known to transformers" if kind in transformers.CONFIG_MAPPING else ""
        return Compared(file, kind, f"refused by parsim{known}", why=f"{finding.path}: {finding.message}"[:120])
    try:
        theirs = counted(tree)
        if theirs is None:
            return Compared(file, kind, NO_CLASS, ours)
        if theirs != ours and isinstance(tree.get("text_config"), Mapping) and counted(tree["text_config"]) == ours:
            return Compared(file, kind, "equal to the text part", ours, theirs)
    except Exception as error:  # noqa: BLE001 - configs of strangers; what transformers says of them is shown
        return Compared(file, kind, "transformers cannot build it", ours, why=f"{type(error).__name__}: {error}".replace("\n", " ")[:120])
    return Compared(file, kind, "equal" if theirs == ours else "differs", ours, theirs)


def counted(tree: Mapping[str, Any]) -> int | None:
    """Parameters of the class that the config names, or of the usual one for training; None where transformers has none."""
    if tree["model_type"] not in transformers.CONFIG_MAPPING:
        return None
    # a quantised checkpoint's module is another class of layers; its weights are counted as they are trained
    values = {key: value for key, value in tree.items() if key not in ("architectures", "quantization_config", "auto_map")}
    config = transformers.AutoConfig.for_model(**values)
    config._attn_implementation = "eager"
    name = next(iter(tree.get("architectures") or ()), None)
    kind = getattr(transformers, name, None) if name else class_of(config)
    if kind is None:
        return None
    if not isinstance(config, kind.config_class):  # a class of the text part alone, as AutoModelForCausalLM makes it
        config = config.get_text_config()
    with torch.device("meta"):
        return parameters(kind._from_config(config))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/crosscheck/folder_parameters.py", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="show every file, not only counts that differ")
    parser.add_argument("--totals", action="store_true", help="name no file")
    given = parser.parse_args()
    ends: Counter[str] = Counter()
    for one in compared(given.folder):
        ends[one.end] += 1
        if given.all or (not given.totals and one.end in ("differs", "transformers cannot build it")):
            print(one)
    print("\n".join(f"{count:5} {end}" for end, count in ends.most_common()))
    return int(ends["differs"] > 0)


if __name__ == "__main__":
    sys.exit(main())
