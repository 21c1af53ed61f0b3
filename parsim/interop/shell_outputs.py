"""What some commands print, told without running them: echo, printf, seq, expr, bc and a few filters of text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from parsim.interop.shell_arithmetic import UnknownValueError, calculated
from parsim.interop.shell_values import unknown_names

LONGEST = 200_000
"""letters of an output"""
_MOST = 10_000
"""numbers that seq counts"""
_DIRECTIVE = re.compile(r"%(?:%|[-0]*([0-9]{0,3})(?:\.([0-9]{1,3}))?([sdiub]))")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}
_SUBSTITUTION = re.compile(r"s([/|#,@])((?:(?!\1).)*)\1((?:(?!\1).)*)\1(g?)", re.DOTALL)


def printed(words: Sequence[str]) -> str | None:
    """The output of one command; None where it cannot be told."""
    name, arguments = (words[0], list(words[1:])) if words else ("", [])
    if name not in _COMMANDS or any(unknown_names(word) for word in words):
        return None
    try:
        text = _COMMANDS[name](arguments)
    except (ValueError, UnknownValueError):
        return None
    return text if text is None or len(text) <= LONGEST else None


def filtered(text: str, words: Sequence[str]) -> str | None:
    """`text` behind one filter of a pipe; None where it cannot be told."""
    if not words or any(unknown_names(word) for word in words):
        return None
    name, arguments = words[0], list(words[1:])
    if name == "bc" and not arguments and "scale" not in text:
        return _number(text.strip().rpartition(";")[2])
    if name == "sed":
        return substituted(text, arguments)
    if name == "tr" and len(arguments) == 2 and arguments[0] == "-d":
        return text.translate(dict.fromkeys(map(ord, _escaped(arguments[1]))))
    if name == "tr" and len(arguments) == 2 and len(_escaped(arguments[0])) == len(_escaped(arguments[1])) == 1:
        return text.replace(_escaped(arguments[0]), _escaped(arguments[1]))
    if words == ["wc", "-w"]:
        return f"{len(text.split())}\n"
    if words == ["wc", "-l"]:
        return f"{text.count(chr(10))}\n"
    return text if name in ("cat", "tee") and not arguments else None


def substituted(text: str, arguments: Sequence[str]) -> str | None:
    """`text` behind ``sed``; None where its expressions are more than replacements of letters."""
    for word in (word for word in arguments if word != "-e"):
        for part in word.split(";") if ";s" in word else [word]:
            match = _SUBSTITUTION.fullmatch(part.strip())
            if match is None or re.search(r"[][*.^$\\&]", match[2]) or re.search(r"[\\&]", match[3]) or not match[2]:
                return None
            if len(match[3]) * text.count(match[2]) > LONGEST:
                return None
            rows = text.split("\n")
            text = "\n".join(row.replace(match[2], match[3], -1 if match[4] else 1) for row in rows)
    return text


def _echo(words: list[str]) -> str:
    options = 0
    while options < len(words) and re.fullmatch(r"-[neE]+", words[options]):
        options += 1
    text = " ".join(words[options:])
    text = _escaped(text) if any("e" in word for word in words[:options]) else text
    return text if any("n" in word for word in words[:options]) else f"{text}\n"


def _printf(words: list[str]) -> str:
    """The format is used again until all arguments are printed."""
    form, values = _escaped(words[0]), words[1:]
    wanted = sum(match[3] is not None for match in _DIRECTIVE.finditer(form))
    rest = iter(values)

    def one(match: re.Match[str]) -> str:
        if match[3] is None:
            return "%"
        value = next(rest, "0" if match[3] in "diu" else "")
        if match[3] in "diu":
            value = str(int(value))
        cut = value if match[2] is None or match[3] in "diu" else value[: int(match[2])]
        fill = "0" if match[0][1] == "0" else " "
        return cut.ljust(int(match[1] or 0)) if match[0][1] == "-" else cut.rjust(int(match[1] or 0), fill)

    if "%" in _DIRECTIVE.sub("", form):
        raise ValueError("a directive that is not read")
    widths = [int(match[1] or 0) for match in _DIRECTIVE.finditer(form)]
    if max(widths, default=0) * max(len(values), 1) > LONGEST:
        raise ValueError("too long")
    times = max(1, -(-len(values) // wanted) if wanted else 1)
    return "".join(_DIRECTIVE.sub(one, form) for _ in range(times))


def _seq(words: list[str]) -> str:
    separator = "\n"
    if words[:1] == ["-s"]:
        separator, words = words[1][:100], words[2:]
    elif words[0].startswith("-s"):
        separator, words = words[0][2:102], words[1:]
    numbers = [int(word) for word in words]
    first, last = (1 if len(numbers) == 1 else numbers[0]), numbers[-1]
    step = numbers[1] if len(numbers) == 3 else 1
    counted = range(first, last + (1 if step > 0 else -1), step)
    if len(counted) > _MOST:
        raise ValueError("too many numbers")
    return separator.join(map(str, counted)) + "\n" if counted else ""


def _expr(words: list[str]) -> str | None:
    return _number(" ".join(words))


def _number(text: str) -> str | None:
    if re.search(r"[A-Za-z_=]", text):
        return None
    value = calculated(text, lambda _: "", lambda *_: None)
    return None if value is None else f"{value}\n"


def _escaped(text: str) -> str:
    return re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match[0]], text)


def _basename(words: list[str]) -> str:
    name = words[0].rstrip("/").rpartition("/")[2]
    return (name.removesuffix(words[1]) if len(words) > 1 else name) + "\n"


_COMMANDS: Mapping[str, Callable[[list[str]], str | None]] = {
    "echo": _echo,
    "printf": lambda words: _printf(words) if words else None,
    "seq": lambda words: _seq(words) if 1 <= len(words) <= 5 else None,
    "expr": _expr,
    "basename": lambda words: _basename(words) if words else None,
    "which": lambda words: f"{words[0]}\n" if len(words) == 1 else None,
    "true": lambda _: "",
    ":": lambda _: "",
}
