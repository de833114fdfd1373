"""Random values in several notations, equal and unequal by construction; random text makes nothing fail."""

from __future__ import annotations

import time
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from rewardkit.math import equal, grade, verify
from rewardkit.verifiers.math.grammar import parse_tree
from rewardkit.verifiers.math.symbolic import to_sympy

fractions = st.builds(Fraction, st.integers(-999, 999), st.integers(1, 99))


def notations(value: Fraction) -> list[str]:
    top, bottom = value.numerator, value.denominator
    forms = [
        f"{top}/{bottom}",
        f"\\frac{{{top}}}{{{bottom}}}",
        f"\\dfrac{{{3 * top}}}{{{3 * bottom}}}",
        f"${top}/{bottom}$",
    ]
    forms += [f"({top})/({bottom})", f"\\boxed{{\\tfrac{{{top}}}{{{bottom}}}}}", f"{{{top} \\over {bottom}}}"]
    if bottom == 1:
        forms += [str(top), f"{top}.0", f"\\text{{{top}}}"]
    if 100 % bottom == 0:
        forms += [f"{float(value):.2f}", f"{top * 100 // bottom}\\%"]
    return forms


@given(fractions, fractions, st.data())
def test_numbers(value, other, data):
    mine, gold = data.draw(st.sampled_from(notations(value))), data.draw(st.sampled_from(notations(value)))
    assert equal(mine, gold) and verify(mine, gold).value == 1.0
    if other not in (value, value * 100, value / 100):
        wrong = data.draw(st.sampled_from(notations(other)))
        assert not equal(wrong, gold) and verify(wrong, gold).value == 0.0


coefficients = st.lists(st.integers(-9, 9), min_size=2, max_size=5)


def latex(coefficients: list[int]) -> str:
    return " + ".join(f"({c})x^{{{power}}}" if power else f"({c})" for power, c in enumerate(coefficients))


def horner(coefficients: list[int]) -> str:
    text = str(coefficients[-1])
    for value in reversed(coefficients[:-1]):
        text = f"(({text})*x + {value})"
    return text


@given(coefficients, st.integers(0, 4), st.integers(1, 5))
def test_polynomials(values, place, change):
    assert equal(latex(values), horner(values))
    planted = list(values)
    planted[place % len(planted)] += change
    assert not equal(latex(planted), horner(values)) and verify(horner(planted), latex(values)).value == 0.0


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6, unique=True), st.randoms())
def test_sets_and_tuples(values, source):
    shuffled = list(values)
    source.shuffle(shuffled)
    mine, gold = "\\{" + ", ".join(map(str, shuffled)) + "\\}", ", ".join(map(str, values))
    assert verify(mine, gold).value == 1.0
    assert verify(", ".join(map(str, shuffled[:-1])), gold).value == 0.0
    ordered = verify("(" + ",".join(map(str, shuffled)) + ")", "(" + ",".join(map(str, values)) + ")").value
    assert (ordered == 1.0) == (shuffled == values)


@given(st.integers(-20, 20), st.integers(1, 20), st.booleans(), st.booleans())
def test_intervals(low, width, left, right):
    high = low + width
    gold = f"{'[' if left else '('}{low},{high}{']' if right else ')'}"
    signs = [("\\le" if closed else "<") for closed in (left, right)]
    other = "<" if left else "\\le"
    assert verify(f"{low} {signs[0]} x {signs[1]} {high}", gold).value == 1.0
    assert verify(f"{low} {other} x {signs[1]} {high}", gold).value == 0.0
    assert verify(f"{low} {signs[0]} x {signs[1]} {high + 1}", gold).value == 0.0


@given(st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=2, max_size=3), st.integers(1, 5))
def test_matrices(cells, change):
    gold = "\\begin{pmatrix}" + "\\\\".join("&".join(map(str, row)) for row in cells) + "\\end{pmatrix}"
    assert verify(str(cells), gold).value == 1.0
    changed = [list(row) for row in cells]
    changed[0][1] += change
    assert verify(str(changed), gold).value == 0.0


atoms = st.sampled_from(["x", "y", "2", "3", "\\pi", "\\sqrt{2}", "\\frac{1}{3}"])
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("({}+{})".format, inner, inner),
        st.builds("({}-{})".format, inner, inner),
        st.builds("({}\\cdot {})".format, inner, inner),
        st.builds("({})^2".format, inner),
        st.builds("\\sin({})".format, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(expressions, expressions)
def test_against_sympy(left, right):
    """sympy as an oracle: an expanded form is equal, and two random expressions are equal only where it says so."""
    import sympy

    first, second = to_sympy(parse_tree(left)), to_sympy(parse_tree(right))
    assert equal(left, sympy.latex(sympy.expand(first)))
    point = {sympy.Symbol("x"): sympy.Rational(3, 7), sympy.Symbol("y"): sympy.Rational(-5, 3)}
    differ = abs(sympy.N((first - second).subs(point), 30)) > sympy.Float("1e-15")
    if differ:
        assert not equal(left, right)


PIECES = [
    "\\frac",
    "\\sqrt",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "^",
    "_",
    "\\text{",
    "\\pm",
    "|",
    ",",
    " or ",
    "1",
    "2.5",
    "x",
    "\\\\",
    "&",
]
PIECES += [
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "\\sum_{k=1}^{",
    "\\int",
    "%",
    "!",
    "½",
    "五",
    "\\infty",
    "=",
    "<",
    "\\cup",
    "cm",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join), st.text(max_size=60))
def test_nothing_raises(pieces, text):
    for mine in (pieces, text):
        verify(mine, "\\frac{x}{2}")
        grade(mine, "[1,2)")
        verify("3", mine)
        equal(mine, pieces)


def test_time_is_linear_in_the_length_of_the_text():
    def seconds(count: int) -> float:
        started = time.process_time()
        for unit in ("\\boxed{", "answer is ", "<answer>", "####", "$x$ ", "a or ", "\\text{", "{", "1,"):
            grade(unit * count, "5")
        return time.process_time() - started

    seconds(50)
    assert seconds(4000) < 3.0
