"""Trusted values against trees: Python's equality for plain data, and nothing hostile is ever equal."""

from __future__ import annotations

import time
from collections import deque
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.sandbox import to_tree
from rewardkit.verifiers.code.comparison import Tolerance, equals, is_same, is_true, show, show_tree

HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=4)
    | st.fractions()
    | st.complex_numbers(allow_nan=False)
    | st.decimals(allow_nan=False),
    lambda inner: st.tuples(inner) | st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(HASHABLE, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.builds(deque, st.lists(inner, max_size=2))
    ),
    max_leaves=10,
)


@given(VALUES)
def test_a_value_equals_its_own_tree(value):
    assert equals(value, to_tree(value))


@given(VALUES, VALUES)
def test_equality_is_pythons(one, other):
    assert equals(one, to_tree(other)) == (one == other)


@pytest.mark.parametrize(
    "one, other",
    [
        (1, True),
        (1, 1.0),
        (0.5, Fraction(1, 2)),
        (Decimal("2.50"), 2.5),
        ({1, 2}, frozenset({2, 1})),
        (b"a", bytearray(b"a")),
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}),
        (range(0), range(2, 1)),
        ({(1, 2): {3}}, {(1, 2): {3}}),
        (float("inf"), float("inf")),
        (float("nan"), float("nan")),
        (10**4000, 10**4000),
        (0.0, -0.0),
        (..., ...),
        (int, int),
    ],
)
def test_equal(one, other):
    assert equals(one, to_tree(other)) and equals(other, to_tree(one))


@pytest.mark.parametrize(
    "one, other",
    [
        ([1], (1,)), ("1", 1), (b"a", "a"), (None, 0), (None, False), ("", None), ([1, 2], [1]), ([1], [1, 2]),
        ({1}, [1]),
        ({"a": 1}, {"a": 1, "b": 2}), ({"a": 1}, {"b": 1}), ({1, 2}, {1, 3}), (range(3), [0, 1, 2]), ([], ()),
        ([], None),
        (1, 1 + 1e-9), (2**53, 2.0**53 + 2), ({}, set()), (int, float), ([[1]], [1]), ("a", "a "), (deque([1]), [1]),
    ],
)  # fmt: skip
def test_not_equal(one, other):
    assert not equals(one, to_tree(other)) and not equals(other, to_tree(one))


@pytest.mark.parametrize(
    "tree",
    [
        ["h", 1, "int"], ["o", 1], ["k", 1, "f"], ["n", "x"], ["i", "end", 1, 2], ["s", 1, 1], ["s", 1, 1, 2],
        ["d", 1, 2, 1, 2],
        ["l", ["h", 1, "int"]], ["D", "sNaN"], ["s", ["D", "sNaN"]], ["d", ["D", "sNaN"], 1], ["D", "1E+999999999"],
        ["l"], ["t"],
        ["s", ["l", 1]], ["Q", 1, 10**400], "", True, ["x"], [], ["l", []],
    ],
)  # fmt: skip
@pytest.mark.parametrize("expected", [3, "no", [1, 2], {1, 2}, {1: 2, 3: 4}, (1, 2), 2.5, None, {"a"}, b"x"], ids=repr)
def test_nothing_odd_equals_anything_or_raises(tree, expected):
    assert not equals(expected, tree)
    assert not equals(expected, tree, Tolerance(0.1, 0.1, loose=True))
    show_tree(tree)


def test_a_tolerance_holds_for_numbers_wherever_they_stand():
    near = Tolerance(1e-3)
    assert equals([1.0, {"a": (2.0, "x")}], to_tree([1.0005, {"a": (2.0005, "x")}]), near)
    assert not equals([1.0], to_tree([1.002]), near)
    assert equals({1.0, 2.0}, to_tree({1.0005, 1.9995}), near)
    assert equals(1e9, to_tree(1e9 + 1), Tolerance(0.0, 1e-6))
    for hostile in (float("nan"), float("inf"), True, "1.0", 10**400):
        assert not equals(1.0 if hostile is not True else 1.0005, to_tree(hostile), near)


def test_json_values():
    loose = Tolerance(loose=True)
    assert equals([1, [2, 3]], to_tree((1, (2, 3))), loose)
    assert equals({"1": "a", "2": "b"}, to_tree({1: "a", 2: "b"}), loose)
    assert not equals({"1": "a"}, to_tree({2: "a"}), loose)
    assert not equals([1], to_tree({1}), loose)


def test_numbers_of_one_hash_take_no_time():
    prime = (1 << 61) - 1
    tree = ["s", *(i * prime for i in range(1, 60_000))]
    started = time.process_time()
    assert not equals(set(range(59_999)), tree)
    assert not equals({1, 2, 3}, tree)
    assert not equals(dict.fromkeys(range(59_999), 1), ["d", *(part for i in range(59_999) for part in (i * prime, 1))])
    assert time.process_time() - started < 5.0  # building a set of them takes minutes


def test_large_sets_of_tuples():
    value = {(i, str(i)) for i in range(20_000)}
    started = time.process_time()
    assert equals(value, to_tree(value))
    assert not equals(value, ["s", *(["t", i, str(i)] for i in range(19_999)), ["t", -1, "x"]])
    assert not equals({(i, i) for i in range(5000)}, ["s", *(["t", i, i, 1] for i in range(5000))])
    assert time.process_time() - started < 20.0


def test_truth():
    for value in (1, "a", [0], (0,), {0}, {1: 0}, 0.5, b"a", Decimal(1), range(2)):
        assert is_true(to_tree(value)) is True
    for value in (0, "", [], (), set(), {}, 0.0, b"", None, False, Decimal(0), range(0)):
        assert is_true(to_tree(value)) is False
    assert is_true(["h", 1, "B"]) is None
    assert is_same(True, True) and not is_same(True, 1) and not is_same(None, ["h", 1, "NoneType"])


@given(VALUES)
def test_values_are_shown_in_little_room(value):
    assert len(show(value)) <= 200


def test_shown_as_python_writes_them():
    for value in ([1, "a"], (1,), {"a": [None, True]}, 2.5, "x", {1}, set(), (), b"ab", range(3), 1 + 2j):
        assert show(value) == repr(value)
    assert show(10**6000).endswith("…") and show("x" * 10**6).endswith("…") and show(list(range(10**5))).endswith("…")
