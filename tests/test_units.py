"""The unit grammar: every trap that off-the-shelf parsers fall into, and parse(format(x)) = x."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import units
from parsim.units import parse


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GiB", "bytes", 85_899_345_920),
        ("79.25 GiB", "bytes", 85_094_039_552),
        ("80GiB", "bytes", 85_899_345_920),
        ("80 Gb", "bytes", 10_000_000_000),  # gigabits, not gigabytes and not gilberts
        ("1_000 MB", "bytes", 1_000_000_000),
        ("1.9 GB", "bytes", 1_900_000_000),
        ("0.1 kB", "bytes", 100),
        ("8519680 B", "bytes", 8_519_680),
        (0, "bytes", 0),
        ("400 Gb/s", "rate", 50e9),
        ("400 Gbit/s", "rate", 50e9),
        ("400 Gbps", "rate", 50e9),
        ("600 GB/s", "rate", 600e9),
        ("1.5 TB/s", "rate", 1.5e12),
        ("1 GiB/s", "rate", 2.0**30),
        ("312 TFLOP/s", "flops", 312e12),
        ("312 TFLOPS", "flops", 312e12),
        ("1.4 PFLOP", "flop", 1.4e15),
        ("10 us", "time", 1e-5),
        ("10 µs", "time", 1e-5),
        ("10 μs", "time", 1e-5),
        ("1.5 ms", "time", 1.5e-3),
        ("5e-6 s", "time", 5e-6),
        ("2 h", "time", 7200.0),
        ("3 min", "time", 180.0),
        ("1 d", "time", 86400.0),
        ("400 W", "power", 400.0),
        ("1.41 GHz", "frequency", 1.41e9),
        ("1 kWh", "energy", 3.6e6),
        ("2T", "count", 2 * 10**12),
        ("4M", "count", 4_000_000),
        ("4M tokens", "count", 4_000_000),
        ("7B", "count", 7 * 10**9),
        ("1.5", "count", 1.5),
        (1e9, "count", 10**9),
        ("5e8 elements", "elements", 500_000_000),
        (40e6, "elements", 40_000_000),
    ],
)
def test_values(text: object, dimension: str, value: float) -> None:
    result = parse(text, dimension)  # type: ignore[arg-type]
    assert result == value
    assert isinstance(result, int) == isinstance(value, int)


@pytest.mark.parametrize(
    ("text", "dimension", "words"),
    [
        ("400 Gb", "rate", ('"400 Gb" is a size in B', "expected a bandwidth in B/s", '"400 Gb/s"')),
        ("25 GB", "rate", ('"25 GB/s"',)),
        ("600 GB/s", "bytes", ("is a bandwidth in B/s", "expected a size in B", '"600 GB"')),
        ("312 TFLOP", "flops", ("an amount of work", '"312 TFLOP/s"')),
        ("312 TFLOP/s", "flop", ('"312 TFLOP"',)),
        ("8 GT/s", "rate", ("transfers", "payload")),
        ("80 KB", "bytes", ('"80 kB" (1000)', '"80 KiB" (1024)')),
        ("80 gb/s", "rate", ('"80 GB/s" or "80 Gb/s"', "B is bytes, b is bits")),
        ("5 m", "time", ('"5 min" or "5 ms"',)),
        ("4m", "count", ('"4 M"',)),
        ("5 mB", "bytes", ("unknown unit 'mB'",)),
        (80, "bytes", ("no unit", "'80 GiB'")),
        (600e9, "rate", ("no unit",)),
        ("3", "time", ("no unit",)),
        ("0.1 B", "bytes", ("not a whole number of bytes",)),
        ("1 b", "bytes", ("not a whole number of bytes",)),
        ("1.5 elements", "elements", ("whole number of elements",)),
        ("1,000 B", "bytes", ("without commas",)),
        ("-3 s", "time", ("negative",)),
        (-1, "count", ("negative",)),
        ("nan s", "time", ("not a finite number",)),
        (math.nan, "count", ("not a finite number",)),
        (math.inf, "bytes", ("not a finite number",)),
        (".inf", "rate", ("not a finite number",)),
        ("1e999 s", "time", ("beyond anything real",)),
        ("1e40 B", "bytes", ("beyond anything real",)),
        ("", "time", ("not a time in s",)),
        ("GiB", "bytes", ("not a size in B",)),
        (None, "rate", ("not a bandwidth",)),
        (True, "count", ("not a count",)),
        ([1], "count", ("not a count",)),
        ("5 s", "speed", ("unknown dimension",)),
        ("5 parsecs", "time", ("unknown unit 'parsecs'",)),
        ("9" * 5000 + " B", "bytes", ("digits",)),
    ],
)
def test_refusals_say_what_to_write(text: object, dimension: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text, dimension)  # type: ignore[arg-type]
    for word in words:
        assert word in str(caught.value)


def test_bits_and_bytes_differ_by_eight() -> None:
    for prefix in ("k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"):
        assert parse(f"8 {prefix}b/s", "rate") == parse(f"1 {prefix}B/s", "rate")


def test_multiplier() -> None:
    assert units.multiplier("x2") == 2.0
    assert units.multiplier("x 0.5") == 0.5
    assert units.multiplier("×1e-1") == 0.1
    for wrong in ("2", "x0", "x-1", "xnan", "2x", "", None, 2):
        with pytest.raises(ValueError, match="multiplier"):
            units.multiplier(wrong)


def test_counted_keeps_the_noun() -> None:
    assert units.parse_counted("4M tokens") == (4_000_000, "token")
    assert units.parse_counted("1536") == (1536, "")
    assert units.parse_counted("32 sequences") == (32, "sequence")


def test_formats() -> None:
    assert units.format_bytes(85_094_039_552, decimal=True) == "79.25 GiB (85.09 GB)"
    assert units.format_bytes(512) == "512 B"
    assert units.format_bytes(0) == "0 B"
    assert units.format_rate(25e9, bits=True) == "25 GB/s (200 Gb/s)"
    assert units.format_flops(155.3e12) == "155.3 TFLOP/s"
    assert units.format_flop(3.387e18) == "3.387 EFLOP"
    assert units.format_time(1.42) == "1.42 s"
    assert units.format_time(12.3e-6) == "12.3 us"
    assert units.format_time(71.49) == "71.49 s"
    assert units.format_time(7200.0) == "2 h"
    assert units.format_time(0) == "0 s"
    assert units.format_count(174_604_259_328, "parameters") == "174.6B parameters"
    assert units.format_count(1536, "sequences") == "1536 sequences"
    assert units.format_count(0) == "0"


MAGNITUDES = st.floats(min_value=1e-9, max_value=1e17, allow_nan=False)


@given(MAGNITUDES, st.integers(3, 12))
def test_reading_what_is_printed_gives_the_value_to_the_printed_precision(value: float, digits: int) -> None:
    tolerance = 10.0 ** (1 - digits) / 2 * 1.0001
    for printed, dimension, smallest in (
        (units.format_rate(value, digits=digits), "rate", 1e-3),
        (units.format_flops(value, digits=digits), "flops", 1e-3),
        (units.format_time(value, digits=digits), "time", 1e-9),
    ):
        if value >= smallest:
            assert parse(printed, dimension) == pytest.approx(value, rel=tolerance)


@given(st.integers(0, 2**60), st.integers(4, 12))
def test_bytes_round_trip(count: int, digits: int) -> None:
    back = parse(units.format_bytes(count, digits=digits), "bytes")
    assert isinstance(back, int)
    assert back == pytest.approx(count, rel=10.0 ** (1 - digits) / 2 * 1.0001, abs=0.51)


@given(st.integers(0, 10**15))
def test_counts_round_trip(count: int) -> None:
    assert parse(units.format_count(count, "tokens"), "count") == pytest.approx(count, rel=5.001e-4)


@given(st.integers(1, 10**6), st.sampled_from(["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]))
def test_whole_quantities_are_exact(number: int, prefix: str) -> None:
    scale = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}[prefix]
    assert parse(f"{number} {prefix}B", "bytes") == number * scale


@given(st.text(max_size=30), st.sampled_from(units.DIMENSIONS))
def test_any_text_is_read_or_refused_politely(text: str, dimension: str) -> None:
    try:
        value = parse(text, dimension)
    except ValueError:
        return
    assert value >= 0
    assert math.isfinite(value)


@pytest.mark.parametrize("script", ["٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９"])
@pytest.mark.parametrize(("text", "dimension"), [("12 GB/s", "rate"), ("1.5 ms", "time"), ("4M tokens", "count"), ("1e9", "elements")])
def test_digits_of_other_scripts_are_no_numbers(script: str, text: str, dimension: str) -> None:
    foreign = text.translate(str.maketrans("0123456789", script))
    assert float(re.match(r"[\d.]+", foreign)[0]) == float(re.match(r"[\d.]+", text)[0])  # Python reads them
    with pytest.raises(ValueError, match=r"is not a"):
        parse(foreign, dimension)
    with pytest.raises(ValueError, match="digits 0 to 9"):
        units.whole(script[1:4])
    with pytest.raises(ValueError, match="digits 0 to 9"):
        units.real(script[1:4])
    assert not units.is_digits(script)


@pytest.mark.parametrize(
    ("text", "quantity", "words"),
    [
        ("1e-300 B/s", "rate", "a bandwidth is 1 kB/s to 1 EB/s"),
        ("999 B/s", "rate", "a bandwidth"),
        ("1.1 EB/s", "rate", "a bandwidth"),
        ("1 B", "memory", "memory is 1 MiB to 1 PiB"),
        ("2048 PiB", "memory", "memory"),
        ("999 kFLOP/s", "flops", "a peak is 1 MFLOP/s to 1 EFLOP/s"),
        ("11 s", "latency", "a latency is 0 s to 10 s"),
    ],
)
def test_what_no_machine_has_is_refused_with_the_range(text: str, quantity: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        units.physical(text, quantity)
    parse(text, {"memory": "bytes", "latency": "time"}.get(quantity, quantity))  # a number all the same


@pytest.mark.parametrize(
    ("text", "quantity"),
    [("1 kB/s", "rate"), ("1 EB/s", "rate"), ("1 MiB", "memory"), ("1 PiB", "memory"), ("10 s", "latency"), ("0 s", "latency"),
     ("1 MFLOP/s", "flops"), ("1 EFLOP/s", "flops"), ("1 B", "bytes"), ("11 s", "time")],
)  # fmt: skip
def test_ends_of_the_ranges_belong_to_them(text: str, quantity: str) -> None:
    assert units.physical(text, quantity) == parse(text, {"memory": "bytes", "latency": "time"}.get(quantity, quantity))


@pytest.mark.parametrize("number", [10**400, -(10**400), "9" * 400, "1" + "0" * 40])
def test_numbers_of_hundreds_of_digits_are_refused_in_short(number: object) -> None:
    for dimension in units.DIMENSIONS:
        with pytest.raises(ValueError) as caught:
            parse(number, dimension)
        assert len(str(caught.value)) < 200
