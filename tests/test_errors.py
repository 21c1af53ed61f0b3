"""Findings as text."""

from __future__ import annotations

from parsim.errors import Finding


def test_a_long_list_is_cut_between_words() -> None:
    words = [f"word{number}" for number in range(200)]
    text = str(Finding("unknown", suggestion=", ".join(words)))
    begin, _, end = text.removeprefix("unknown; ").partition("... (")
    count, _, rest = end.partition(" characters) ...")
    shown = [word.strip() for word in (*begin.rstrip(", ").split(","), *rest.split(","))]
    assert set(shown) <= set(words)
    assert len(begin) + len(rest) + int(count.replace(",", "")) == len(", ".join(words))


def test_what_is_hardly_too_long_is_shown_whole() -> None:
    assert str(Finding("unknown", suggestion="x" * 730)) == f"unknown; {'x' * 730}"


def test_a_long_word_is_cut_within() -> None:
    assert "... (300 characters) ..." in str(Finding("x" * 1100))
