"""Where files lie and how they are read: shipped catalogues and the user's own, as plain trees with positions.

What is in them is read by `parsim.scenario.yaml_tree`; their size is limited, so that a huge file cannot stall it.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from parsim.columns import printable
from parsim.errors import Finding, ScenarioError
from parsim.scenario.model_names import ANY_MODEL, misspelt_model
from parsim.scenario.yaml_tree import Origin, copied, load, nearest, plain, unreadable

KINDS = ("devices", "models", "software", "topologies", "scenarios", "comparisons", "studies", "variability", "failures")
_AT_THE_ROOT = ("topologies", "scenarios", "studies")
SIZE_LIMIT = 10 * 10**6
"""largest file that is read [B]"""
SEALED = "<text>"
"""where a text stands that may name no files; what is meant relative to it is in the catalogue, or nowhere"""
_PACKAGE = Path(__file__).resolve().parent.parent
_NOUN = {
    "devices": "device", "models": "model", "software": "software profile", "topologies": "topology", "scenarios": "scenario",
    "comparisons": "comparison", "studies": "study", "variability": "profile of variability", "failures": "list of failures",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed file: `tree` holds plain dicts, lists, str, int, float, bool and None; dates are ISO texts."""

    path: str
    tree: dict[str, Any]
    origins: Mapping[str, Origin]
    """dotted key path (list items by index, ``layers.0.linear``) -> where its key stands"""

    def section(self, key: str) -> dict[str, Any]:
        """The mapping under `key`, empty where there is none. Raises `ScenarioError` where something else stands there."""
        value = self.tree.get(key)
        if value is not None and not isinstance(value, dict):
            raise ScenarioError(Finding("expected a mapping", key, value).at(*self.locate(key)))
        return value or {}

    def locate(self, path: str) -> Origin:
        """Where `path` stands, or the nearest key above it that is written."""
        return nearest(self.origins, path) or (self.path, None, None)


def data_root() -> Path:
    """The directory that holds topologies/ and scenarios/: parsim/_data in an installed wheel, the repository root otherwise."""
    installed = _PACKAGE / "_data"
    return installed if installed.is_dir() else _PACKAGE.parent


def home(kind: str) -> Path:
    """The directory of the shipped files of `kind` (one of `KINDS`)."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind of file {kind!r}; known: {', '.join(KINDS)}")
    if kind == "comparisons":
        return data_root() / "scenarios" / kind
    return data_root() / kind if kind in _AT_THE_ROOT else _PACKAGE / "catalogue" / kind


def names(kind: str) -> list[str]:
    """The shipped names of `kind`, sorted."""
    return sorted(_shipped(kind))


def aliases(kind: str) -> dict[str, str]:
    """Every alias that a shipped file of `kind` declares under ``aliases:``, with the name it stands for."""
    return dict(_aliases(kind))


def exists(name: str) -> bool:
    """Whether there is a file of that name; a text that no file can be called, such as a long argument, is none."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def find(kind: str, name: str, relative_to: str | Path | None = None) -> Path:
    """The file behind `name`: a shipped name, an alias, or a path (beside `relative_to`, else in the working directory).

    Relative to `SEALED` only shipped names and aliases are found. For models, a directory with a config.json counts as that file.
    Raises `ScenarioError` with the closest names where nothing fits.
    """
    shipped = _shipped(kind)
    if not name.strip() or "\0" in name:
        raise ScenarioError(Finding(f"a {_NOUN[kind]} needs a name or a path", value=name, suggestion=_offer(names(kind))))
    if name in shipped:
        return shipped[name]
    looks_like_path = Path(name).suffix in (".yaml", ".yml", ".json") or name.startswith((".", "~", "/"))
    if looks_like_path and relative_to == SEALED:
        message = f"{name!r} names a file, and no files are read for this text"
        raise ScenarioError(Finding(message, value=name, suggestion=f"write the {_NOUN[kind]} itself, or one of the catalogue's names"))
    path = _own_file(kind, name, relative_to)
    if path is not None and looks_like_path:
        return path
    known = _aliases(kind)
    if name in known:
        return shipped[known[name]]
    folded = {candidate.casefold(): candidate for candidate in (*known, *shipped)}
    match = folded.get(name.casefold()) or folded.get(name.casefold().removesuffix(".yaml"))
    if match is not None:
        return shipped[known.get(match, match)]
    if path is not None:
        return path
    if looks_like_path:
        beside = f" beside {relative_to} or in {Path.cwd()}" if relative_to is not None else f" in {Path.cwd()}"
        if Path(name).is_dir():
            raise ScenarioError(Finding(f"{name!r} is a directory, expected a file", value=name, suggestion="name a file in it"))
        raise ScenarioError(Finding(f"no such file {name!r}{beside}", value=name, suggestion=_nearest(kind, name, [*shipped, *known])))
    if kind == "scenarios" and relative_to != SEALED and exists(name):  # no file, see above
        raise ScenarioError(Finding(f"{name!r} is a directory, expected a file", value=name, suggestion="name a file in it"))
    suggestion = _nearest(kind, name, [*shipped, *known]) or (ANY_MODEL if kind == "models" else _offer(names(kind)))
    if kind == "devices" and name.casefold().startswith(("tpu", "google tpu")):
        message = f"{name!r}: TPUs are not supported yet: no times of their kernels are published, and XLA's collectives are not NCCL's"
        raise ScenarioError(Finding(message, value=name, suggestion="use a GPU (parsim list devices)"))
    raise ScenarioError(Finding(f"unknown {_NOUN[kind]} {name!r}", value=name, suggestion=suggestion))


def is_shipped(path: str | Path) -> bool:
    """Whether `path` is one of the files that come with parsim."""
    return _shelf(Path(path).resolve()) is not None


@cache
def _shelves() -> tuple[tuple[str, str], ...]:
    """(kind, its directory) of all kinds; the package does not move while it runs."""
    return tuple((kind, f"{home(kind).resolve()}{os.sep}") for kind in KINDS)


def _shelf(resolved: Path) -> tuple[str, str] | None:
    text = str(resolved)
    return next((shelf for shelf in _shelves() if text.startswith(shelf[1])), None)


def shown(path: str | Path) -> str:
    """The path as reports print it: ``catalogue/models/gpt2.yaml`` for shipped files, else relative to the working directory."""
    resolved = Path(path).resolve()
    if (shelf := _shelf(resolved)) is not None:
        kind, folder = shelf
        return f"{'' if kind in _AT_THE_ROOT else 'catalogue/'}{kind}/{resolved.relative_to(folder).as_posix()}"
    # in one line: reports write it into comments
    return printable(resolved.relative_to(Path.cwd()).as_posix() if resolved.is_relative_to(Path.cwd()) else str(path)).replace("\n", "\\n")


def read(path: str | Path) -> Document:
    """The parsed file with the position of every key.

    Raises `ScenarioError`: missing, a directory, empty, too large, not UTF-8, bad YAML, duplicate keys, an alias bomb, no mapping.
    """
    path = Path(path)
    return _shipped_document(path) if is_shipped(path) else _parsed(path)


def _shipped_document(path: Path) -> Document:
    """A file that comes with parsim, read once; whoever asks may change the tree."""
    known = _read_shipped(path, path.stat().st_mtime_ns if path.exists() else 0)
    return Document(known.path, copied(known.tree), known.origins)


def _parsed(path: Path) -> Document:
    return parse_text(read_text(path), str(path), json=path.suffix == ".json")


@cache
def _read_shipped(path: Path, _modified: int) -> Document:
    return _parsed(path)


def parse_text(text: str, name: str, *, json: bool = False, repeated: bool = False) -> Document:
    """`text` as a document called `name`; see `read` for errors. `json` allows tabs between tokens, `repeated` keys that stand twice."""
    if json:
        text = text.replace("\t", " ")
    loaded = load(text, name, repeated=repeated)
    if loaded is None:
        raise unreadable("the file is empty", name, suggestion="a scenario needs at least model and cluster")
    if not isinstance(loaded, dict):
        kind = "a list" if isinstance(loaded, list) else "a single value"
        raise unreadable(f"the top level is {kind}, expected a mapping of keys", name, 1, 1, suggestion="write 'key: value' lines")
    origins: dict[str, Origin] = {}
    return Document(name, plain(loaded, name, origins), origins)


def parse_value(text: str) -> Any:
    """One YAML value, as on the command line: ``8``, ``1e9``, ``[1, 2]``, ``{a: 1}``, ``80 GiB``. Raises `ScenarioError`."""
    return copied(_value_of(text))


@lru_cache(maxsize=1024)
def _value_of(text: str) -> Any:
    """The same few values are written in the overrides of all variants of a study."""
    return plain(load(text, "command line"), "command line", {})


_SIGNS = {
    "models": ("base", "family", "model_type", "architectures", "input", "stages"),
    "topologies": ("node", "gpu", "vertices"),
    "devices": ("compute", "memory"),
    "software": ("kernels", "precision", "attention", "vocabulary", "tensor", "accumulate", "fsdp", "fp8", "host", "memory"),
    "scenarios": ("model", "cluster", "training", "parallel", "software", "extends", "study"),
}  # fmt: skip
"""keys by which a file of a kind is told from any other; one of them is enough"""


def read_referenced(kind: str, path: Path) -> Document:
    """A file of `kind` that another file names, as `read` gives it.

    What it holds is only quoted once it is plain that it is of that kind: a scenario of somebody else's may name any file here.
    Raises `ScenarioError` as `read` does.
    """
    if is_shipped(path):
        return _shipped_document(path)
    if not path.is_file():
        raise unreadable("is no regular file", str(path))
    try:
        document = _parsed(path)
    except ScenarioError as error:
        raise ScenarioError(
            [Finding(_unquoted(one.message), "", None, "", one.file, one.line, one.column) for one in error.findings]
        ) from None
    if not any(sign in document.tree for sign in _SIGNS[kind]):
        message = f"is no {_NOUN[kind]}: it has none of the keys {', '.join(_SIGNS[kind])}"
        raise unreadable(message, str(path), suggestion="is it the right file?")
    return document


def _unquoted(message: str) -> str:
    """`message` without what it quotes, single characters apart."""
    return re.sub(r"""'[^']{3,}'|"[^"]{3,}\"""", "...", message)


def open_input(path: Path) -> BinaryIO:
    """A file to read from. A pipe is read as far as somebody writes to it (``parsim run <(...)``), and never waited for in vain.

    Raises `ScenarioError` for a directory, a device or a pipe without a writer; `OSError` for what the system refuses.
    """
    name = str(path)
    kind = path.stat().st_mode
    if stat.S_ISDIR(kind):
        raise unreadable("is a directory, expected a file", name)
    if stat.S_ISREG(kind):
        return path.open("rb")
    if not stat.S_ISFIFO(kind):
        raise unreadable("is a device, expected a file", name)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        first = os.read(descriptor, 1)
    except BlockingIOError:  # whoever writes has not begun yet
        first = None
    if first == b"":
        os.close(descriptor)
        raise unreadable("is a pipe without a writer, expected a file", name)
    os.set_blocking(descriptor, True)
    rest = os.fdopen(descriptor, "rb")
    if first is None:
        return rest
    with rest:
        return BytesIO(first + rest.read(SIZE_LIMIT))


def read_text(path: Path) -> str:
    """The text of `path`, read with a size limit. Raises `ScenarioError`: see `read`."""
    name = str(path)
    try:
        size = path.stat().st_size
        if size > SIZE_LIMIT and path.is_file():
            raise unreadable(f"the file has {size:,} bytes; at most {SIZE_LIMIT:,} are read", name, suggestion="is it the right file?")
        with open_input(path) as stream:
            raw = stream.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        siblings = [item.name for item in _siblings(path)]
        raise unreadable("no such file", name, suggestion=_did_you_mean(path.name, siblings)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise unreadable(f"cannot be read: {reason}", name) from None
    if len(raw) > SIZE_LIMIT:
        raise unreadable(f"the file has more than {SIZE_LIMIT:,} bytes", name, suggestion="is it the right file?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        message = f"not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise unreadable(message, name, line, column, suggestion=_encoding_hint(raw)) from None


def _encoding_hint(raw: bytes) -> str:
    """How to make UTF-8 of it: editors of Chinese Windows save GBK, Notepad's "Unicode" is UTF-16."""
    hint = "save the file as UTF-8"
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return f"{hint}; it is UTF-16: iconv -f utf-16 -t utf-8"
    try:
        raw.decode("gb18030")
    except UnicodeDecodeError:
        return hint
    return f"{hint}; if it is GBK: iconv -f gb18030 -t utf-8"


def _siblings(path: Path) -> Iterator[Path]:
    try:
        yield from sorted(item for item in path.parent.iterdir() if item.suffix in (".yaml", ".yml", ".json"))
    except OSError:
        return


def _own_file(kind: str, name: str, relative_to: str | Path | None) -> Path | None:
    """The user's own file called `name`, if there is one."""
    if relative_to == SEALED:
        return None
    bases = [Path()]
    if relative_to is not None:
        base = Path(relative_to)
        bases.insert(0, base if base.is_dir() else base.parent)
    for base in bases:
        try:
            path = base / Path(name).expanduser()
            if kind == "models" and (path / "config.json").is_file():
                return path / "config.json"
            if path.exists() and not path.is_dir():
                return path
        except (OSError, RuntimeError, ValueError):
            continue
    return None


def _shipped(kind: str) -> Mapping[str, Path]:
    folder = home(kind)
    modified = folder.stat().st_mtime_ns if folder.is_dir() else 0
    if time.time_ns() - modified < 1e9:  # it may change again within one tick of its clock
        return _listed(folder)
    return _known(folder, modified)


@lru_cache(maxsize=32)
def _known(folder: Path, _modified: int) -> Mapping[str, Path]:
    return _listed(folder)


def _listed(folder: Path) -> Mapping[str, Path]:
    return MappingProxyType({path.stem: path for path in sorted(folder.glob("*.yaml"))})


def _aliases(kind: str) -> dict[str, str]:
    stamp = tuple((path.name, path.stat().st_mtime_ns) for path in _shipped(kind).values())
    return _scan_aliases(home(kind), stamp)


@lru_cache(maxsize=32)
def _scan_aliases(folder: Path, stamp: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """Aliases of every file in `folder`; only the ``aliases:`` lines are parsed, a whole catalogue would be slow."""
    found: dict[str, str] = {}
    for file_name, _ in stamp:
        match = re.search(r"^aliases:.*(?:\n(?:[ \t-]|\]|$).*)*", (folder / file_name).read_text(encoding="utf-8"), re.MULTILINE)
        if match is None:
            continue
        listed = parse_text(match[0], str(folder / file_name)).tree["aliases"] or []
        for alias in [listed] if isinstance(listed, str) else listed:
            found.setdefault(str(alias), Path(file_name).stem)
    return found


def _nearest(kind: str, name: str, known: list[str]) -> str:
    return misspelt_model(name, known) if kind == "models" else _did_you_mean(name, known)


def _did_you_mean(name: str, known: list[str]) -> str:
    """The closest known names as a question, or an empty text."""
    folded = {candidate.casefold(): candidate for candidate in reversed(known)}
    wanted = name.casefold()
    close = difflib.get_close_matches(wanted, list(folded), n=3, cutoff=0.6)
    if not close and len(wanted) >= 3:
        close = [candidate for candidate in folded if wanted in candidate][:3]
    return f"did you mean {' or '.join(repr(folded[match]) for match in close)}?" if close else ""


def _offer(known: list[str]) -> str:
    if not known:
        return ""
    more = f" and {len(known) - 12} more" if len(known) > 12 else ""
    return f"known: {', '.join(known[:12])}{more}; or the path of a file"
