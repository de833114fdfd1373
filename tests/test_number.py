"""Numbers are read exactly, whatever their notation, and refused where they are none."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import numbers as oracle

from rewardkit.number import MAX_DIGITS, MAX_TEXT, find_numbers, read_number, read_unit, same_number, stated_number

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "cases" / "numbers.jsonl").read_text("utf-8").splitlines()
]
PAIRS = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases" / "number_pairs.jsonl").read_text("utf-8").splitlines()
]
STATED = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases" / "stated_numbers.jsonl").read_text("utf-8").splitlines()
]
PROSE = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases" / "numbers_in_prose.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['text'][:30]!r}: {case['why']}")
def test_a_text_is_read(case):
    quantity = read_number(case["text"])
    if case["value"] is None:
        assert quantity is None
        return
    assert quantity is not None
    assert quantity.value == Fraction(case["value"])
    assert quantity.percent == case.get("percent", False)
    assert quantity.unit == case.get("unit", "")
    assert quantity.digits == case.get("digits", quantity.digits)
    assert quantity.text == case["text"]


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: f"{case['answer']} ~ {case['reference']}: {case['why']}")
def test_two_numbers_are_compared(case):
    answer, reference = read_number(case["answer"]), read_number(case["reference"])
    assert answer is not None and reference is not None
    assert (
        same_number(answer, reference, Fraction(case.get("tolerance", 0)), Fraction(case.get("relative", 0)))
        is case["same"]
    )


@pytest.mark.parametrize("case", STATED, ids=lambda case: f"{case['text'][:40]!r}: {case['why']}")
def test_a_short_answer_states_one_number(case):
    quantity = stated_number(case["text"])
    assert (None if quantity is None else quantity.value) == (
        None if case["value"] is None else Fraction(case["value"])
    )


@pytest.mark.parametrize("case", PROSE, ids=lambda case: f"{case['text'][:40]!r}: {case['why']}")
def test_numbers_are_found_in_prose(case):
    spans = [case["text"][start:end] for start, end in find_numbers(case["text"])]
    assert spans == case["spans"]
    values = [None if (quantity := read_number(span)) is None else str(quantity.value) for span in spans]
    assert values == case["values"]


# ------------------------------------------------------------------------------------------- properties

integers = st.integers(0, 10**12)
fractions = st.builds(Fraction, st.integers(0, 10**6), st.integers(1, 10**4))
decimals = st.builds(lambda top, places: Fraction(top, 10**places), st.integers(0, 10**9), st.integers(0, 8))
wrappers = st.sampled_from(oracle.WRAPPERS)
minuses = st.sampled_from(["", *oracle.MINUSES, "- "])


def check_all(texts, value, minus, wrap):
    for text in texts:
        if minus:
            text = minus + text.lstrip("+")
        quantity = read_number(wrap(text))
        assert quantity is not None, wrap(text)
        assert quantity.value == (-value if minus else value), wrap(text)
        assert not quantity.percent and not quantity.unit, wrap(text)


@given(integers, minuses, wrappers)
def test_an_integer_reads_back_from_any_notation(number, minus, wrap):
    check_all(oracle.integer_notations(number), Fraction(number), minus, wrap)


@given(fractions, minuses, wrappers)
def test_a_fraction_reads_back_from_any_notation(value, minus, wrap):
    check_all(oracle.fraction_notations(value), value, minus, wrap)


@given(decimals, minuses, wrappers)
def test_a_decimal_reads_back_from_any_notation(value, minus, wrap):
    check_all(oracle.decimal_notations(value), value, minus, wrap)


@given(decimals, st.integers(-20, 20), minuses, wrappers)
def test_a_power_of_ten_reads_back_from_any_notation(value, exponent, minus, wrap):
    check_all(oracle.scientific_notations(value, exponent), value, minus, wrap)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 4))
def test_a_repeating_decimal_is_its_fraction(cycle, width, places):
    cycle %= 10**width
    value = Fraction(7) + Fraction(cycle, 10**width - 1) / 10**places
    text = f"7.{'0' * places}\\overline{{{cycle:0{width}d}}}"
    quantity = read_number(text)
    assert quantity is not None and quantity.value == value


@given(decimals.filter(bool), st.sampled_from(["", "%", " cm", " dollars"]))
def test_a_planted_sign_difference_is_unequal(value, unit):
    text = oracle.decimal_text(value) + unit
    assert same_number(read_number(text), read_number(text))
    assert not same_number(read_number("-" + text), read_number(text))


@given(
    decimals.filter(bool),
    st.sampled_from([Fraction(1, 100), Fraction(1, 10), Fraction(10), Fraction(100), Fraction(1000)]),
)
def test_a_planted_power_of_ten_is_unequal(value, factor):
    assert not same_number(read_number(oracle.decimal_text(value * factor)), read_number(oracle.decimal_text(value)))


@given(decimals.filter(bool))
def test_percent_equals_its_share_and_its_bare_number_but_not_ten_times(value):
    percent = read_number(oracle.decimal_text(value) + "%")
    share, tenth = oracle.decimal_text(value / 100), oracle.decimal_text(value / 10)
    assert same_number(percent, read_number(share)) and same_number(read_number(share), percent)
    assert same_number(percent, read_number(oracle.decimal_text(value)))
    assert not same_number(percent, read_number(tenth)) and not same_number(read_number(tenth), percent)


@given(
    decimals.filter(bool),
    st.sampled_from(
        [("cm", "m"), ("km", "miles"), ("minutes", "hours"), ("dollars", "euros"), ("cm", "cm^2"), ("kg", "km")]
    ),
)
def test_a_planted_unit_difference_is_unequal(value, units):
    text = oracle.decimal_text(value)
    assert not same_number(read_number(f"{text} {units[0]}"), read_number(f"{text} {units[1]}"))


@given(
    decimals,
    st.sampled_from(
        [
            ("m", "km", 1000),
            ("cm", "m", 100),
            ("cents", "dollars", 100),
            ("min", "h", 60),
            ("inches", "feet", 12),
            ("g", "kg", 1000),
        ]
    ),
)
def test_units_convert_both_ways(value, units):
    small, large, factor = units
    one, other = (
        read_number(f"{oracle.decimal_text(value * factor)} {small}"),
        read_number(f"{oracle.decimal_text(value)} {large}"),
    )
    assert same_number(one, other) and same_number(other, one)


@given(decimals, decimals, decimals)
def test_tolerance_is_a_closed_interval(value, other, tolerance):
    left, right = read_number(oracle.decimal_text(value)), read_number(oracle.decimal_text(other))
    assert same_number(left, right, tolerance) == (abs(value - other) <= tolerance)


alphabet = st.sampled_from(
    [*list("0123456789.,'_ -+−$€%/\\{}()^eExX*×½²٣３٫kmh\n:!="), "\\frac", "\\text{", "cm", "10^", "US$", " per "]
)
garbage = st.lists(alphabet, max_size=60).map("".join) | st.text(max_size=80)


@settings(max_examples=300)
@given(garbage)
def test_no_text_raises_and_spans_lie_in_order(text):
    for reader in (read_number, stated_number):
        quantity = reader(text)
        assert quantity is None or isinstance(quantity.value, Fraction)
    last = 0
    for start, end in find_numbers(text):
        assert last <= start < end <= len(text)
        last = end


# ------------------------------------------------------------------------------------------------ bounds


def test_sizes_are_checked_before_arithmetic():
    """Each of these would take minutes, or raise on Python's own limit, if it were computed."""
    for text in (
        "1e400000000",
        "1e-400000000",
        "10^{999999999}",
        "1" * 5000,
        "1." + "3" * 5000,
        "1/" + "7" * 4400,
        "9e" + "9" * 900,
    ):
        assert read_number(text) is None
    assert read_number("9" * (MAX_DIGITS + 1)) is None
    assert read_number("9" * MAX_DIGITS).value == 10**MAX_DIGITS - 1
    assert read_number("1e1000").value == 10**1000 and read_number("1e1001") is None
    assert read_number(" " * MAX_TEXT + "1") is None


@pytest.mark.parametrize(
    "piece",
    ["1", "1,", "1 ", "1/", "\\frac{", "\\frac{1}{", "{", "$", "-", "½", "1:", "1.", "12 cm ", "10^", "\\", "1'"],
)
def test_200_kb_of_one_thing_end(piece):
    """A quadratic reader would need hours for these."""
    text = piece * (200_000 // len(piece))
    assert read_number(text) is None
    stated_number(text)
    for start, end in find_numbers(text):
        assert start < end


def test_a_list_of_powers_is_no_number():
    assert read_number("2^100") is None and read_number("9^{9^{9}}") is None and read_number("9**9**9") is None


# ------------------------------------------------------------------------------------------------- units


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", ""),
        ("cm", "cm"),
        ("Centimetres", "cm"),
        ("sq ft", "ft^2"),
        ("cubic meters", "m^3"),
        ("miles per hour", "mi/h"),
        ("mph", "mi/h"),
        ("m/s^2", "m/s^2"),
        ("dollars per day", "dollar/day"),
        ("apples", "apple"),
        ("slices of pizza", "slice of pizza"),
        ("units", ""),
        ("x", None),
        ("or so", None),
        ("mod 7", None),
        ("if x", None),
        ("is the best", None),
        ("cm cm cm cm", None),
        ("a/b/c/d", None),
    ],
)
def test_units_have_a_normal_form(text, unit):
    assert read_unit(text) == unit


# ------------------------------------------------------------------------------------------- shared cases

OURS = [
    "integer",
    "decimal",
    "fraction",
    "thousands",
    "percent",
    "currency",
    "unit",
    "scientific",
    "unicode",
    "bignum",
    "mixed",
    "repeating",
    "wrapper",
]


def test_labelled_pairs_of_numbers(shared):
    """Of the math cases those with numbers on both sides: each verdict is the label (no rounding kinds)."""
    wrong = []
    seen = 0
    for line in shared("cases/math_cases.jsonl").read_text("utf-8").splitlines():
        case = json.loads(line)
        gold, answer = read_number(case["gold"]), read_number(case["prediction"])
        if case["kind"] not in OURS or gold is None or answer is None:
            continue
        seen += 1
        if same_number(answer, gold) != case["expected"]:
            wrong.append(case)
    assert wrong == []
    assert seen >= 110


def test_no_labelled_wrong_answer_is_accepted(shared):
    """Over all kinds of the math cases, hostile ones too."""
    accepted = []
    for line in shared("cases/math_cases.jsonl").read_text("utf-8").splitlines():
        case = json.loads(line)
        gold, answer = read_number(case["gold"]), read_number(case["prediction"])
        if gold is not None and answer is not None and same_number(answer, gold) and not case["expected"]:
            accepted.append(case)
    assert accepted == []
