"""Where files lie and how they are read: shipped catalogues and the user's own, as plain trees with positions.

Everything that parsim reads is YAML 1.2 (JSON is a subset), limited in size and in expanded nodes, so that neither a huge file
nor an alias bomb can stall it. Nothing here knows what the keys mean.
"""

from __future__ import annotations

import copy
import datetime as dt
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from parsim.columns import printable
from parsim.errors import Finding, ScenarioError
from parsim.scenario.fullwidth import wide_key, wide_marks

KINDS = ("devices", "models", "software", "topologies", "scenarios", "comparisons")
SIZE_LIMIT = 10 * 10**6
"""largest file that is read [B]"""
NODE_LIMIT = 500_000
"""largest number of values after YAML aliases are expanded"""
DEPTH_LIMIT = 100
_PACKAGE = Path(__file__).resolve().parent.parent
_NOUN = {
    "devices": "device", "models": "model", "software": "software profile", "topologies": "topology", "scenarios": "scenario",
    "comparisons": "comparison",
}  # fmt: skip

Origin = tuple[str, int | None, int | None]
"""file (or command-line argument), line and column, both from 1"""


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed file: `tree` holds plain dicts, lists, str, int, float, bool and None; dates are ISO texts."""

    path: str
    tree: dict[str, Any]
    origins: Mapping[str, Origin]
    """dotted key path (list items by index, ``layers.0.linear``) -> where its key stands"""

    def locate(self, path: str) -> Origin:
        """Where `path` stands, or the nearest key above it that is written."""
        return nearest(self.origins, path) or (self.path, None, None)


def nearest(origins: Mapping[str, Origin], path: str) -> Origin | None:
    """The origin of `path` or of the closest key above it."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return None


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
    return data_root() / kind if kind in ("topologies", "scenarios") else _PACKAGE / "catalogue" / kind


def names(kind: str) -> list[str]:
    """The shipped names of `kind`, sorted."""
    return sorted(_shipped(kind))


def aliases(kind: str) -> dict[str, str]:
    """Every alias that a shipped file of `kind` declares under ``aliases:``, with the name it stands for."""
    return dict(_aliases(kind))


def find(kind: str, name: str, relative_to: str | Path | None = None) -> Path:
    """The file behind `name`: a shipped name, an alias, or a path (beside `relative_to`, else in the working directory).

    For models, a directory with a config.json counts as that file. Raises `ScenarioError` with the closest names where nothing fits.
    """
    shipped = _shipped(kind)
    if not name.strip() or "\0" in name:
        raise ScenarioError(Finding(f"a {_NOUN[kind]} needs a name or a path", value=name, suggestion=_offer(names(kind))))
    if name in shipped:
        return shipped[name]
    looks_like_path = Path(name).suffix in (".yaml", ".yml", ".json") or name.startswith((".", "~", "/"))
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
        raise ScenarioError(Finding(f"no such file {name!r}{beside}", value=name, suggestion=_did_you_mean(name, [*shipped, *known])))
    suggestion = _did_you_mean(name, [*shipped, *known]) or _offer(names(kind))
    raise ScenarioError(Finding(f"unknown {_NOUN[kind]} {name!r}", value=name, suggestion=suggestion))


def is_shipped(path: str | Path) -> bool:
    """Whether `path` is one of the files that come with parsim."""
    resolved = Path(path).resolve()
    return any(resolved.is_relative_to(home(kind).resolve()) for kind in KINDS)


def shown(path: str | Path) -> str:
    """The path as reports print it: ``catalogue/models/gpt2.yaml`` for shipped files, else relative to the working directory."""
    resolved = Path(path).resolve()
    for kind in KINDS:
        folder = home(kind).resolve()
        if resolved.is_relative_to(folder):
            return f"{'' if kind in ('topologies', 'scenarios') else 'catalogue/'}{kind}/{resolved.relative_to(folder).as_posix()}"
    return printable(resolved.relative_to(Path.cwd()).as_posix() if resolved.is_relative_to(Path.cwd()) else str(path))


def read(path: str | Path) -> Document:
    """The parsed file with the position of every key.

    Raises `ScenarioError`: missing, a directory, empty, too large, not UTF-8, bad YAML, duplicate keys, an alias bomb, no mapping.
    """
    path = Path(path)
    if is_shipped(path):
        cached = _read_shipped(path, path.stat().st_mtime_ns if path.exists() else 0)
        return Document(cached.path, copy.deepcopy(cached.tree), cached.origins)
    return parse_text(read_text(path), str(path), json=path.suffix == ".json")


@cache
def _read_shipped(path: Path, _modified: int) -> Document:
    return parse_text(read_text(path), str(path), json=path.suffix == ".json")


def parse_text(text: str, name: str, *, json: bool = False) -> Document:
    """`text` as a document called `name`; see `read` for errors. `json` allows tabs between tokens."""
    if json:
        text = text.replace("\t", " ")
    loaded = _load(text, name)
    if loaded is None:
        raise _error("the file is empty", name, suggestion="a scenario needs at least model and cluster")
    if not isinstance(loaded, dict):
        kind = "a list" if isinstance(loaded, list) else f"a single value ({str(loaded)[:40]!r})"
        raise _error(f"the top level is {kind}, expected a mapping of keys", name, 1, 1, suggestion="write 'key: value' lines")
    origins: dict[str, Origin] = {}
    return Document(name, _converted(loaded, name, origins), origins)


def parse_value(text: str) -> Any:
    """One YAML value, as on the command line: ``8``, ``1e9``, ``[1, 2]``, ``{a: 1}``, ``80 GiB``. Raises `ScenarioError`."""
    return _converted(_load(text, "command line"), "command line", {})


def _converted(loaded: Any, name: str, origins: dict[str, Origin]) -> Any:
    """ruamel's tree as plain values; keys with punctuation of Chinese input methods are refused, all at once."""
    converter = _Converter(name, origins)
    tree = converter.value(loaded, "", 1)
    if converter.findings:
        raise ScenarioError(converter.findings)
    return tree


def _load(text: str, name: str) -> Any:
    """The round-trip tree of ruamel, its errors as findings."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="rt").load(text)
    except DuplicateKeyError as error:
        raise ScenarioError(_duplicates(text, name) or Finding(str(error.problem), file=name)) from None
    except MarkedYAMLError as error:
        if wide := wide_marks(text, name):
            raise ScenarioError(wide) from None
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(part) for part in (error.problem, error.context) if part)
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        raise _error(f"not valid YAML: {problem}", name, line, column, suggestion=_yaml_hint(text, problem)) from None
    except RecursionError:
        raise _error("nested too deeply", name, suggestion=f"at most {DEPTH_LIMIT} levels are read") from None
    except (YAMLError, ValueError, TypeError, AttributeError, IndexError) as error:
        summary = " ".join(str(error).split())[:200]
        raise _error(f"not valid YAML: {summary}", name) from None


class _Converter:
    """ruamel's tree to plain values, noting the position of every key and counting what aliases expand to."""

    def __init__(self, name: str, origins: dict[str, Origin]) -> None:
        self.name = name
        self.origins = origins
        self.nodes = 0
        self.findings: list[Finding] = []

    def value(self, node: Any, path: str, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > NODE_LIMIT:
            raise _error(f"expands to more than {NODE_LIMIT:,} values", self.name, suggestion="do not multiply YAML aliases (*name)")
        if depth > DEPTH_LIMIT:
            raise _error(f"nested more than {DEPTH_LIMIT} levels deep", self.name, suggestion="do not let a YAML alias contain itself")
        if isinstance(node, (dict, list)):
            self._refuse_tag(node, path)
            return self._mapping(node, path, depth) if isinstance(node, dict) else self._sequence(node, path, depth)
        return self._scalar(node, path)

    def _mapping(self, node: dict[Any, Any], path: str, depth: int) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in node.items():
            below = f"{path}.{key}" if path else str(key)
            position = _key_position(node, key)
            if position is not None:
                self.origins[below] = (self.name, position[0] + 1, position[1] + 1)
            if isinstance(key, bool) or not isinstance(key, (str, int, float)):
                where = self.origins.get(below, (self.name, None, None))
                raise _error(f"the key {key!r} is not a text", *where, suggestion="put it in quotes")
            if wide := wide_key(str(key)):
                self.findings.append(replace(wide, path=path).at(*self.origins.get(below, (self.name, None, None))))
            plain[str(key)] = self.value(item, below, depth + 1)
        return plain

    def _sequence(self, node: list[Any], path: str, depth: int) -> list[Any]:
        plain = []
        for index, item in enumerate(node):
            below = f"{path}.{index}" if path else str(index)
            marks = getattr(node, "lc", None)
            if marks is not None and marks.data and index in marks.data:
                line, column = marks.item(index)
                self.origins[below] = (self.name, line + 1, column + 1)
            plain.append(self.value(item, below, depth + 1))
        return plain

    def _scalar(self, node: Any, path: str) -> Any:
        from ruamel.yaml.scalarbool import ScalarBoolean

        if node is None:
            return None
        if isinstance(node, (bool, ScalarBoolean)):
            return bool(node)
        if isinstance(node, str):
            return printable(str(node))
        for kind in (int, float):
            if isinstance(node, kind):
                return kind(node)
        if isinstance(node, dt.datetime):
            return node.isoformat(" ")
        if isinstance(node, dt.date):
            return node.isoformat()
        raise self._tagged(path)

    def _refuse_tag(self, node: Any, path: str) -> None:
        tag = getattr(node, "tag", None)
        if tag is not None and tag.value is not None and tag.value not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise self._tagged(path)

    def _tagged(self, path: str) -> ScenarioError:
        where = nearest(self.origins, path) or (self.name, None, None)
        return _error("a YAML tag (!name) or a binary value is not supported here", *where, suggestion="write a plain value")


def _key_position(node: dict[Any, Any], key: Any) -> tuple[int, int] | None:
    """Line and column (from 0) of `key`, also where it comes from a merged mapping (``<<: *base``)."""
    marks = getattr(node, "lc", None)
    if marks is not None and marks.data and key in marks.data:
        line, column = marks.key(key)
        return line, column
    for merged in getattr(node, "merge", None) or ():
        source = merged[1] if isinstance(merged, tuple) else merged
        if isinstance(source, dict) and source is not node and key in source:
            return _key_position(source, key)
    return None


def _duplicates(text: str, name: str) -> list[Finding]:
    """One finding for every key that a mapping writes twice, with both positions."""
    from ruamel.yaml import YAML

    loader = YAML(typ="rt")
    loader.allow_duplicate_keys = True
    found: list[Finding] = []
    seen: dict[int, None] = {}
    todo: list[tuple[Any, str]] = [(loader.compose(text), "")]
    while todo:
        node, path = todo.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = None
        if node.id == "sequence":
            todo += [(item, f"{path}.{index}" if path else str(index)) for index, item in enumerate(node.value)]
        if node.id != "mapping":
            continue
        first: dict[str, Any] = {}
        for key, item in node.value:
            label = str(key.value)
            below = f"{path}.{label}" if path else label
            mark = key.start_mark
            if label in first and key.id == "scalar":
                before = first[label]
                message = f"the key is written twice: first at line {before.line + 1}, column {before.column + 1}"
                found.append(Finding(message, below, None, "keep one of them", name, mark.line + 1, mark.column + 1))
            first.setdefault(label, mark)
            todo.append((item, below))
    return sorted(found, key=lambda finding: (finding.line or 0, finding.column or 0))


def read_text(path: Path) -> str:
    """The text of `path`, read with a size limit. Raises `ScenarioError`: see `read`."""
    name = str(path)
    try:
        if path.is_dir():
            raise _error("is a directory, expected a file", name)
        size = path.stat().st_size
        if size > SIZE_LIMIT:
            raise _error(f"the file has {size:,} bytes; at most {SIZE_LIMIT:,} are read", name, suggestion="is it the right file?")
        with path.open("rb") as stream:
            raw = stream.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        siblings = [item.name for item in _siblings(path)]
        raise _error("no such file", name, suggestion=_did_you_mean(path.name, siblings)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _error(f"cannot be read: {reason}", name) from None
    if len(raw) > SIZE_LIMIT:
        raise _error(f"the file has more than {SIZE_LIMIT:,} bytes", name, suggestion="is it the right file?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        message = f"not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise _error(message, name, line, column, suggestion=_encoding_hint(raw)) from None


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


def _shipped(kind: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted(home(kind).glob("*.yaml"))}


def _aliases(kind: str) -> dict[str, str]:
    folder = home(kind)
    stamp = tuple((path.name, path.stat().st_mtime_ns) for path in sorted(folder.glob("*.yaml")))
    return _scan_aliases(folder, stamp)


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


def _yaml_hint(text: str, problem: str) -> str:
    if "\\t" in problem or ("\t" in text and "cannot start any token" in problem):
        return "YAML is indented with spaces, not tabs"
    if "mapping values are not allowed" in problem:
        return "check the indentation, and put texts that contain ': ' in quotes"
    return ""


def _error(message: str, file: str, line: int | None = None, column: int | None = None, *, suggestion: str = "") -> ScenarioError:
    return ScenarioError(Finding(message, suggestion=suggestion, file=file, line=line, column=column))
