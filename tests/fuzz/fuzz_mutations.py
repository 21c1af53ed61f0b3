"""Changes of a document: gentle ones, after which it often is still legal, hostile ones, and some that must be refused."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fuzz_trees import Form, Pairs, Raw, Slot, slots

SECRET = "the-content-of-another-file"
"""what stands in SECRET_FILE; nobody asked for it, so no message may show it"""
SECRET_FILE = "private.txt"
CODE_FILE = "planted.py"
"""runs if something runs it, which nobody has allowed"""
ESCAPE = "\x1b]0;renamed\x07\x1b[31mred"
REMARKS = ("source", "note", "name", "title", "description", "date", "year", "aliases", "assumptions", "vendor", "versions", "", "what")
"""keys whose values are read by people"""

NAMES_FILES = ("strategy", "schedule", "model", "topology", "device", "extends", "base", "profile", "scenario", "deepspeed", "gpu", "")
"""keys whose values may be the names of files; arguments without an option may be, too"""

_NUMBER = re.compile(r"([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(\s*[A-Za-zµ].*)?")
_UNITS = (
    ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "Gb/s", "GiB/s"),
    ("B", "KiB", "MiB", "GiB", "TiB", "MB", "GB"),
    ("s", "ms", "us", "ns", "min", "h"),
    ("FLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"),
    ("W", "kW", "MW"),
)
_IMPOSSIBLE = {
    "B/s": ("1e-300 B/s", "1 B/s", "1e20 B/s", "-3 GB/s"),
    "FLOP/s": ("1 FLOP/s", "1e25 FLOP/s", "-1 TFLOP/s"),
    "s": ("-1 s", "-5 us"),
    "B": ("-1 GiB",),
}
"""beyond any machine, or negative, by unit"""
_AT_KEY = {"latency": ("11 s", "1 h"), "visible": ("1 B", "2048 PiB"), "host_memory": ("1 B", "2048 PiB")}
"""the same where only the key says what the quantity is"""
BOXES = ("topology", "cluster", "on", "--on", "cluster.topology=")
"""keys whose values may be boxes, such as 4x v100-32gb"""
_UNSOLD = tuple(f"{count}x {gpu}" for count in (100, 128, 512) for gpu in ("h100", "a100-80gb", "v100-32gb", "rtx-4090", "l40s"))
"""boxes larger than any machine that is sold with such GPUs; 64 of some are in one"""
_FOREIGN = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
_WIDE = str.maketrans("0123456789", "０１２３４５６７８９")

HOSTILE: tuple[Any, ...] = (
    None, True, False, "", " ", "x", "none", "auto", "nan", "inf", "yes", "0x10", "1_000", "1,5", "~", ".", "..", "/", "*",
    0, 1, -1, 7, 18, 0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"), 2**31, 2**63, 2**64, 10**9, 10**18, 10**30,
    10**400, -(10**400), Raw("1e400"), Raw("-1e400"), "9" * 400, "1e999 GB/s", "nan GB/s", "1e-300 B/s", "1 B/s", "0 s", "1e30 s", "-1 ms",
    "80 GB", "3 parsecs", "12 apples", "x2", "x0", "xnan", "x1e400", "١٢", "١٢ GB/s", "３", "²", "½",
    [], [[]], [None], [1], [7, "x"], Pairs(), Pairs([["x", 1]]), Pairs([[None, None]]), Pairs([["source", "y"]]), ["gelu", 7],
    ESCAPE, "\x9b31m", "a\rb", "a\nb", "\u202etxt.exe", "\u0000", "\ud800", "é" * 30, "显存", "A" * 5000, "%s%n", "{0}", "../" * 20,
    "/etc/hostname", "/dev/null", "/proc/self/environ", SECRET_FILE, "./" + SECRET_FILE, "/", "no-such-file.yaml", "s.yaml", "./s.yaml",
    f"{CODE_FILE}:Planted", f"{CODE_FILE}:planted", f"./{CODE_FILE}:planted", CODE_FILE, "2024-01-01", "12:30:45", "1e9", "1M", "4M tokens",
    "gpu0..99999999", "gpu*", "0..3", "1-4", "64x a100-80gb", "100000x h100", "0x a100-80gb", "a=b", "a.b", "<<", "&a", "!tag",
)  # fmt: skip
KEYS: tuple[Any, ...] = (
    "",
    "x",
    ESCAPE,
    "a.b",
    "__class__",
    "0",
    0,
    None,
    True,
    1.5,
    "source",
    "<<",
    "A" * 300,
    "\u202e",
    "ｎａｍｅ",
    "extends",
)


@dataclass(frozen=True)
class Mutant:
    """A changed document."""

    text: str
    raw: bytes | None
    """what the file holds where that is no longer the bytes of a text"""
    changes: tuple[str, ...]
    refuse: bool
    """a value stands in it that no machine has or no number is written like"""
    accept: bool = False
    """it is as legal as the document that it was made from"""


@dataclass(frozen=True)
class Donors:
    """What other documents of the same kind hold, which often is legal elsewhere."""

    values: Mapping[str, Sequence[Any]]
    """by `Slot.place`"""
    trees: Sequence[Any]
    words: Mapping[str, Sequence[str]]
    """the legal words of a key"""


def donors(trees: Sequence[Any], words: Mapping[str, Sequence[str]]) -> Donors:
    """The donors of a kind: its seeds, and the legal `words` of each key."""
    values: dict[str, list[Any]] = {}
    for tree in trees:
        for slot in slots(tree):
            values.setdefault(slot.place, []).append(slot.value)
    return Donors(values, trees, words)


Legal = Callable[[Any, random.Random], str]
"""A change after which a legal tree of a kind is legal still."""


def mutate(seed: str, form: Form, others: Donors, dice: random.Random, *, strict: bool, boxes: bool, legal: Legal | None = None) -> Mutant:
    """A mutant of `seed`.

    `strict`: every value of such a document is checked, so an impossible one can be planted; `boxes`: at least a box that nobody sells.
    """
    tree = form.tree(seed)
    share = dice.random()
    if legal is not None and dice.random() < 0.2:
        change = legal(tree, dice)
        return Mutant(form.text(tree), None, (change,), refuse=False, accept=True)
    if boxes and dice.random() < 0.04 and (change := _unsold(tree, dice)):
        return Mutant(form.text(tree), None, (change,), refuse=True)
    if share < 0.08:
        return _bytes(form.text(tree), form, dice)
    if strict and share < 0.16:
        change = _impossible(tree, dice)
        if change:
            return Mutant(form.text(tree), None, (change,), refuse=True)
    count = 0 if 0.68 < share < 0.84 else 1
    if share < 0.68:
        steps = [dice.choice(GENTLE) for _ in range(dice.choice((1, 1, 2, 3)))]
    else:
        steps = [dice.choice(GENTLE)] * count + [dice.choice(ROUGH)]
    changes = tuple(step(tree, others, dice) for step in steps)
    return Mutant(form.text(tree), None, changes, refuse=False)


def _pick(tree: Any, dice: random.Random, fits: Callable[[Slot], bool] = lambda slot: True) -> Slot | None:
    found = [slot for slot in slots(tree) if fits(slot)]
    return dice.choice(found) if found else None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, float)) or (isinstance(value, str) and _NUMBER.fullmatch(value.strip()) is not None)


def _scale(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice, lambda slot: _is_number(slot.value))
    if slot is None:
        return "nothing to scale"
    value = slot.value
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    text = match[1] if match else str(value)
    whole = re.fullmatch(r"[+-]?\d+", text) is not None
    number = int(text) if whole else float(text)
    beside = (number // 2, number + 1, number - 1) if whole else (number / 2, number * 0.9)
    number = dice.choice((number * 2, number * 3, number * 1.5, number * 10, *beside))
    number = int(number) if whole else number
    slot.value = f"{number}{match[2] or ''}" if match else number
    return f"{'.'.join(slot.keys)}: {value!r} scaled to {slot.value!r}"


def _unit(tree: Any, others: Donors, dice: random.Random) -> str:
    def has_unit(slot: Slot) -> bool:
        match = _NUMBER.fullmatch(slot.value.strip()) if isinstance(slot.value, str) else None
        return bool(match and match[2])

    slot = _pick(tree, dice, has_unit)
    if slot is None:
        return "no unit to change"
    match = _NUMBER.fullmatch(slot.value.strip())
    unit = match[2].strip()
    others_of = next((family for family in _UNITS if unit in family), ("s", "B", "GB/s"))
    before, slot.value = slot.value, f"{match[1]} {dice.choice(others_of)}"
    return f"{'.'.join(slot.keys)}: {before!r} became {slot.value!r}"


def _remove(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice)
    if slot is None:
        return "nothing to remove"
    del slot.holder[slot.index]
    return f"{'.'.join(slot.keys)}: removed"


def _donated(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice, lambda slot: len(others.values.get(slot.place, ())) > 1)
    if slot is None:
        return "no donor"
    value = copy.deepcopy(dice.choice(others.values[slot.place]))
    slot.value = value
    return f"{'.'.join(slot.keys)}: {_short(value)} from elsewhere"


def _word(tree: Any, others: Donors, dice: random.Random) -> str:
    """Another legal word: other strategies, schedules and optimizers, in combinations that nobody has tried."""
    slot = _pick(tree, dice, lambda slot: slot.key in others.words and isinstance(slot.value, str))
    if slot is None:
        return "no word"
    slot.value = dice.choice(others.words[slot.key])
    return f"{'.'.join(slot.keys)}: {slot.value}"


def _inserted(tree: Any, others: Donors, dice: random.Random) -> str:
    """A pair of another document of the kind, at the same place."""
    donor = dice.choice(others.trees)
    holders = {slot.keys[:-1]: slot.holder for slot in slots(tree)}
    found = [slot for slot in slots(donor) if slot.keys[:-1] in holders]
    if not found:
        return "nothing to insert"
    slot = dice.choice(found)
    holder = holders[slot.keys[:-1]]
    item = copy.deepcopy(slot.holder[slot.index])
    known = [str(pair[0]) for pair in holder] if isinstance(holder, Pairs) else []
    if isinstance(holder, Pairs) and isinstance(item, list) and str(item[0]) in known:
        holder[known.index(str(item[0]))][1] = item[1]
    else:
        holder.insert(dice.randint(0, len(holder)), item)
    return f"{'.'.join(slot.keys)}: taken from another document"


def _shuffled(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice)
    if slot is not None:
        dice.shuffle(slot.holder)
    return "order changed"


def _repeated(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice, lambda slot: not isinstance(slot.holder, Pairs))
    if slot is None:
        return "no list"
    slot.holder.insert(slot.index, copy.deepcopy(slot.value))
    return f"{'.'.join(slot.keys)}: item repeated"


def _hostile(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice)
    if slot is None:
        return "empty"
    slot.value = copy.deepcopy(dice.choice(HOSTILE))
    return f"{'.'.join(slot.keys)}: {_short(slot.value)}"


def _hostile_leaf(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice, lambda slot: not isinstance(slot.value, list))
    if slot is None:
        return "no leaf"
    slot.value = copy.deepcopy(dice.choice(HOSTILE))
    return f"{'.'.join(slot.keys)}: {_short(slot.value)}"


def _file(tree: Any, others: Donors, dice: random.Random) -> str:
    """Another file where a file may be named."""
    slot = _pick(tree, dice, lambda slot: slot.key.rpartition(".")[2].strip("=-") in NAMES_FILES and not isinstance(slot.value, list))
    if slot is None:
        return "no name"
    slot.value = dice.choice((f"{CODE_FILE}:Planted", f"{CODE_FILE}:planted", SECRET_FILE, f"./{SECRET_FILE}", CODE_FILE, "/etc/hostname"))
    return f"{'.'.join(slot.keys)}: {slot.value}"


def _swapped(tree: Any, others: Donors, dice: random.Random) -> str:
    one, other = _pick(tree, dice), _pick(tree, dice)
    if one is None or other is None:
        return "nothing to swap"
    first, second = copy.deepcopy(one.value), copy.deepcopy(other.value)
    one.value = second
    if other.index < len(other.holder):
        other.value = first
    return f"{'.'.join(one.keys)} and {'.'.join(other.keys)} swapped"


def _key(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice, lambda slot: isinstance(slot.holder, Pairs))
    if slot is None:
        return "no key"
    before = slot.holder[slot.index][0]
    known = [key for place in others.values if (key := place.rpartition(".")[2]) not in ("", "*")]
    after = dice.choice(KEYS) if dice.random() < 0.7 or not known else dice.choice(known)
    slot.holder[slot.index] = [after, slot.holder[slot.index][1]]
    return f"key {before!r} became {_short(after)}"


def _duplicated(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice)
    if slot is None:
        return "nothing to duplicate"
    slot.holder.insert(dice.randint(0, len(slot.holder)), copy.deepcopy(slot.holder[slot.index]))
    return f"{'.'.join(slot.keys)}: duplicated"


def _wrapped(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice)
    if slot is None:
        return "nothing to wrap"
    inner = slot.value
    choice = dice.randrange(3)
    if choice == 0:
        slot.value = [inner]
    elif choice == 1:
        slot.value = Pairs([[dice.choice(KEYS), inner]])
    else:
        slot.value = inner[0] if isinstance(inner, list) and inner else "x"
    return f"{'.'.join(slot.keys)}: wrapped or unwrapped"


def _deep(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice)
    if slot is None:
        return "nothing to nest"
    depth = dice.choice((50, 99, 300, 5000))
    begin, end = dice.choice((("[", "]"), ('{"a": ', "}")))
    slot.value = Raw(begin * depth + "1" + end * depth)
    return f"{'.'.join(slot.keys)}: nested {depth} levels"


def _circle(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice)
    if slot is None:
        return "nothing to bend"
    bomb = "[&a [x, x, x, x, x, x, x, x, x, x], " + ", ".join(f"&{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in pairwise("abcdefgh")) + "]"
    slot.value = Raw(dice.choice(("&a [*a]", "&a {x: *a}", "*nobody", "!!python/object:os.system x", "&a {<<: *a}", bomb)))
    return f"{'.'.join(slot.keys)}: {slot.value[:40]}"


def _crowd(tree: Any, others: Donors, dice: random.Random) -> str:
    slot = _pick(tree, dice)
    if slot is None:
        return "nobody"
    if isinstance(slot.holder, Pairs):
        slot.holder += [[f"unknown_{number}", number] for number in range(2000)]
    else:
        slot.holder += [copy.deepcopy(slot.value) for _ in range(500)]
    return f"{'.'.join(slot.keys)}: a crowd beside it"


GENTLE = (_scale, _scale, _scale, _unit, _word, _word, _word, _donated, _donated, _inserted, _inserted, _shuffled, _repeated, _remove)
ROUGH = (
    _hostile,
    _hostile,
    _file,
    _hostile_leaf,
    _hostile_leaf,
    _hostile_leaf,
    _swapped,
    _key,
    _duplicated,
    _wrapped,
    _deep,
    _circle,
    _crowd,
)


def split_backwards(tree: Any, dice: random.Random) -> str:
    """Some backwards of a table become I and W: a rank does the same in the same order, and nobody waits longer for its I than for B."""
    pattern = re.compile(r"(B)(\d+\.\d+)|(\d+)B(\d+)")
    share = dice.choice((0.2, 0.5, 0.8))
    count = 0
    for line in tree:
        for place in reversed(range(len(line))):
            if pattern.fullmatch(line[place]) and dice.random() < share:
                line[place : place + 1] = [line[place].replace("B", "I"), ",", line[place].replace("B", "W")]
                count += 1
    return f"{count} backwards split"


def _unsold(tree: Any, dice: random.Random) -> str:
    """A box that nobody sells, in place of a cluster; an empty text where there is none."""
    slot = _pick(tree, dice, lambda slot: slot.key in BOXES and isinstance(slot.value, str))
    if slot is None:
        return ""
    slot.value = dice.choice(_UNSOLD)
    return f"{'.'.join(slot.keys)}: impossible, {slot.value!r}"


def _impossible(tree: Any, dice: random.Random) -> str:
    """Plant a value that must be refused; an empty text where nothing fits."""

    def physical(slot: Slot) -> bool:
        if any(key in REMARKS for key in slot.keys) or not _is_number(slot.value):
            return False
        match = _NUMBER.fullmatch(str(slot.value).strip())
        return match is None or re.search(r"\d", match[2] or "") is None  # 1f1b is a name

    slot = _pick(tree, dice, physical)
    if slot is None:
        return ""
    value = slot.value
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = (match[2] or "").strip() if match else ""
    base = next((base for base in ("B/s", "FLOP/s", "B", "s") if unit.endswith(base)), "")
    choices: list[Any] = [str(value).translate(_FOREIGN), str(value).translate(_WIDE), float("nan"), 10**400, "9" * 400]
    choices += _IMPOSSIBLE.get(base, ()) * 2
    choices += _AT_KEY.get(slot.key, ())
    slot.value = dice.choice([choice for choice in choices if choice != value])
    return f"{'.'.join(slot.keys)}: impossible, {_short(slot.value)}"


def _bytes(text: str, form: Form, dice: random.Random) -> Mutant:
    """Changes of the text or its bytes, without looking at what it says."""
    lines = text.splitlines(keepends=True) or [""]
    place = dice.randrange(len(lines))
    raw: bytes | None = None
    step = dice.randrange(9)
    if step == 0:
        lines.insert(place, dice.choice(lines))
    elif step == 1:
        del lines[place]
    elif step == 2:
        other = dice.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    elif step == 3:
        lines[place] = lines[place][: dice.randint(0, len(lines[place]))]
    elif step == 4:
        lines[place] = lines[place].replace(dice.choice(":=,[{} 0"), dice.choice(("", ":", "\t", "[", "}", '"', "：", "\x1b[2J")), 1)
    changed = "".join(lines)
    if step >= 5:
        data = bytearray(form.bytes(text))
        at = dice.randrange(len(data) + 1)
        if step == 5:
            data[at:at] = dice.choice((b"\x00", b"\xff\xfe", b"\x1b[31m", b"\xef\xbb\xbf", b"\r", b"\xf0\x9f", b"'", b"\x80" * 20))
        elif step == 6:
            del data[at:]
        elif step == 7 and data:
            data[at % len(data)] ^= 1 << dice.randrange(8)
        else:
            data = data.replace(b"\n", b"\r\n")
        raw = bytes(data)
    return Mutant(changed, raw, (f"text changed ({step}) at line {place + 1}",), refuse=False)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
