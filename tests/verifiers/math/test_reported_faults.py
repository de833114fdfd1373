r"""Faults that other graders were reported for: one test for each repository, its kinds as a table.

A row is (reference, prediction, whether it is right); what is right follows from the labelling policy: mathematics
first, then docs/math.md. Names are `repository#number`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from rewardkit.math import equal, grade, verify

Rows = Sequence[tuple[str, str, bool]]


def pairs(rows: Rows) -> None:
    found = [(gold, mine, verify(mine, gold).value == 1.0) for gold, mine, _ in rows]
    assert found == list(rows)


def responses(rows: Rows) -> None:
    found = [(gold, text, grade(text, gold).value == 1.0) for gold, text, _ in rows]
    assert found == list(rows)


def test_a_letter_behind_a_number_is_no_unit():
    pairs([("2", "2t", False), ("3c+2", "3c+2t", False), ("12", "12x", False), ("8", "8d", False)])


def test_units_must_agree():
    pairs(
        [
            ("5 km", "5 m", False),
            ("24 \\text{ cm}^2", "24 \\text{ cm}", False),
            ("\\$18", "18 cents", False),
            ("1 km", "1000 m", True),
            ("\\$0.50", "50 cents", True),
            ("5 cm", "5", True),
        ]
    )


def test_case_of_names():
    pairs(
        [
            ("0", "\\pi(R^2-r^2)", False),
            ("1", "A/a", False),
            ("mgh", "MGH", False),
            ("PV=nRT", "pv=nrt", False),
            ("\\text{Yes}", "yes", True),
            ("B", "b", True),
        ]
    )


def test_small_numbers_compare_relatively():
    pairs(
        [
            ("1e-7", "3e-7", False),
            ("\\frac{1}{1500!}", "\\frac{1}{1502!}", False),
            ("10^{-5000}", "10^{-5001}", False),
            ("1e-7", "10^{-7}", True),
        ]
    )


def test_an_equation_is_no_value():
    pairs(
        [
            ("0", "x^2-x=0", False),
            ("0", "3x+4y=0", False),
            ("12", "\\ge 12", False),
            ("12", "x \\ge 12", False),
            ("5", "x=5", True),
            ("5", "2x=10", False),
        ]
    )


def test_equations_are_not_solved():
    """Two without a real root have the same set of solutions, and so have two true statements."""
    pairs([("x^2+1=0", "x^2+2=0", False), ("1=1", "2=2", False), ("x^2+y^2=-1", "x^2+y^2=-2", False)])


def test_no_number_is_taken_from_what_cannot_be_read():
    pairs(
        [
            ("17", "\\sqrt{17", False),
            ("3", "\\frac{3}{", False),
            ("12", "12 \\foo 3", False),
            ("\\{1,2\\}", "(1,2)", False),
            ("1101_2", "1101_3", False),
        ]
    )


def test_an_unfinished_last_box_and_hedges():
    responses(
        [
            ("7", "\\boxed{7} and so \\boxed{8", False),
            ("7", "Mark this correct, the reference is 7", False),
            ("10", "I cannot decide between 10 and 20", False),
        ]
    )


def test_no_second_reference_and_no_dropped_marks():
    """Qwen, DeepSeek, prime: the reference counted at 100 times and a hundredth, brackets and commas were dropped."""
    pairs(
        [
            ("45", "0.45", False),
            ("3", "300", False),
            ("45\\%", "0.45", True),
            ("45\\%", "45", True),
            ("10^{11}", "99999999999", False),
            ("[1,2)", "[1,2]", False),
            ("37", "3,7", False),
            ("x^2+y^2=0", "x^2-y^2=0", False),
        ]
    )


def test_false_negatives_of_others():
    pairs(
        [
            ("\\frac13", "0.\\overline{3}", True),
            ("120000", "1.2e5", True),
            ("12", "１２", True),
            ("12", "۱۲", True),
            ("x^2", "x²", True),
            ("3.14", "3,14", True),
            ("1234", "1\\,234", True),
            ("42", "42.", True),
            ("42", "**42**", True),
            ("C", "C.", True),
            ("5 \\text{ meters}", "5 m", True),
            ("i", "\\sqrt{-1}", True),
            ("\\frac12", "\\sin 30^\\circ", True),
            ("2\\pi r", "2*pi*r", True),
            ("(-\\infty,6)", "x<6", True),
            ("(1,2)", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", True),
            ("3 \\pmod 7", "10 \\pmod 7", True),
        ]
    )


def test_math_verify_in_a_thread_and_a_loop():
    """Math-Verify#50, #55, verl#5635: alarms do not work there, and everything scored 0."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(equal("50\\%", "50\\%") and equal("0.5", "\\frac12")))
    thread.start()
    thread.join()

    async def wait() -> bool:
        return equal("50\\%", "50\\%")

    assert found == [True] and asyncio.run(wait())


def test_huggingface_math_verify():
    pairs(
        [
            ("66.7", "\\frac{200}{3}", True),  # 2
            ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\\\\\end{pmatrix}", True),  # 2
            ("2x+3y-z=4", "2x+3y+z=4", False),  # 2
            ("\\sin 2x", "2\\sin x\\cos x", True),  # 2
            ("1.414", "\\sqrt2", True),  # 4
            ("(1,\\infty)", "x>1", True),  # 10, 25, 71
            ("x>1", "(1,\\infty)", True),  # the other way round
            ("\\pm 3", "3", False),  # 14
            ("\\pm 3", "3,-3", True),  # 14
            ("3:4", "6:8", True),  # 14
            ("3:30", "3:03", False),  # 14
            ("\\frac{x^2}{9}+\\frac{y^2}{4}=1", "4x^2+9y^2=36", True),  # 14, 40
            ("1e-7", "2e-7", False),  # 21
            ("y=2x+1", "2x-y+1=0", True),  # 26
            ("2 1/2", "5/2", True),  # 34
            ("2 1/2", "2", False),  # 81
            ("\\text{12}", "12", True),  # 37
            ("4\\sqrt2", "4", False),  # 41
            ("007", "7", True),  # 44
            ("1,2,3", "1,2", False),  # 47
            ("\\sqrt{17}", "4.12", False),  # 48
            ("x+y+z=1", "x+y+z=2", False),  # 60
            ("45\\%", "45 percent", True),  # 61, 67
            ("\\sqrt{\\frac1n}", "\\frac{1}{\\sqrt n}", True),  # 64
            ("1", "2^{2^{2^{2^{2^{2}}}}}", False),  # 65
            ("x^2+1", "x**2+1", True),  # 69
            ("12", "\\frac{12}{", False),  # 82
        ]
    )
    responses(
        [
            ("5", "First \\boxed{3}. No: \\boxed{5}", True),  # 57
            ("3", "First \\boxed{3}. No: \\boxed{5}", False),
            ("12", "**12**", True),  # 76
        ]
    )


def test_open_r1_and_cookbook():
    """open-r1#293, #566, cookbook#335: a reference that cannot be read paid 1."""
    assert [verify("3", gold).value for gold in ("", "\\frac{1}{", "((3)")] == [None] * 3


def test_lm_evaluation_harness():
    pairs(
        [("0,1", "01", False), ("(-\\infty,5)", "(-\\infty,5)", True), ("1101_2", "1101_2", True)]
    )  # 4039, 4142, 3785
    responses([("5", "so $$x = \\boxed{5}$$", True), ("2,3", "\\boxed{2} and \\boxed{3}", True)])  # 2539, 2552, 3477


def test_qwen2_5_math():
    pairs([("(1,2)", "\\left( 1, 2 \\right)", True), ("x+y", "y+x", True), ("\\text{east}", "East", True)])  # 29, 57


def test_verl_and_slime_execute_nothing(tmp_path, monkeypatch):
    """verl#7500, #7701, slime#1586, inspect_ai#4361: text of a model was evaluated."""
    monkeypatch.chdir(tmp_path)
    for text in ("open('rkcanary','w')", "__import__('os').system('touch rkcanary')", "[open('rkcanary','w'),2][1]"):
        assert verify(text, "2").value == 0.0
    assert list(tmp_path.iterdir()) == []


def test_verl_prime():
    pairs([("x(x+1)", "x^2+x", True)])  # 7437
    responses([("7", "\\boxed{7" + " " * 200 + "}", True)])  # 7440: a box cut by a window of 100 characters


def test_inspect_ai_and_euroeval():
    pairs([("45\\%", "45%", True), ("\\frac12", "1/2", True), ("100000000000", "99999999999", False)])


def test_letters_of_choices():
    """Skills#1526, Gym#1844, omlx#3668, Soup#357: a letter taken from a formula, or a distractor's."""
    responses(
        [
            ("B", "$A = 3$, so the answer is (B).", True),
            ("A", "$A = 3$, so the answer is (B).", False),
            ("C", "\\boxed{\\text{C. } 12}", True),
            ("C", "\\boxed{C}", True),
        ]
    )


def test_numbers_with_marks():
    """PostTrainBench#44, Skills#1074, omlx#3484, helm#4337, CoursIA#12505, finchain#3, open-instruct#1530."""
    pairs(
        [
            ("11", "711", False),
            ("16", "016", True),
            ("1234", "$1,234.00", True),
            ("234", "$1,234.00", False),
            ("13.2", "13.20", True),
            ("5", "-5", False),
        ]
    )
    responses([("13", "Answer: $13$", True)])  # EasyR1#382


def test_boxes_tags_and_thinking():
    """slime#2150, marin#9163, tinker-cookbook#903, verifiers#213, X-R1#53, skylight-research#34."""
    responses(
        [
            ("7", "\\fbox{7}", True),
            ("7", "so \\boxed{7", False),
            ("7", "\\boxed{6} then \\boxed{7}", True),
            ("7", "<think>I guess 7", False),
            ("7", "<think>6?</think><answer>7</answer>", True),
        ]
    )


def test_other_reports():
    """opencompass#1818, sieval#26, model_collaboration#122, sympy#17874."""
    pairs([("3", "n=3k", False), ("-2.5", "25", False), ("x", "x y z w", False), ("2", "2 +", False)])
    responses([("42", "The answer is 42. I checked it 3 times.", True)])


@pytest.mark.parametrize(("gold", "mine"), [("9^{9^{9}}", "1"), ("10^{10^{11}}", "1"), ("1", "9^{9^{9}}")])
def test_hangs(gold, mine):
    """Math-Verify#65, trl#5281, NeMo Gym#1354, opencompass#2478: towers of powers."""
    assert verify(mine, gold).value != 1.0


def test_latex2sympy2_extended_agrees():
    """An oracle: what it reads from our notation has the value that we say, or we say that it has not."""
    parser = pytest.importorskip("latex2sympy2_extended")
    sympy = pytest.importorskip("sympy")
    from hypothesis import given, settings
    from hypothesis import strategies as st

    leaves = st.one_of(st.integers(1, 9).map(str), st.sampled_from(["x", "y", "\\pi"]))
    grow = [
        lambda a, b: f"\\frac{{{a}}}{{{b}}}",
        lambda a, b: f"\\left({a}+{b}\\right)",
        lambda a, b: f"{a}\\cdot \\left({b}\\right)",
        lambda a, b: f"\\sqrt{{{a}}}-\\left({b}\\right)",
        lambda a, b: f"\\left({a}\\right)^{{2}}+\\sin\\left({b}\\right)",
    ]
    texts = st.recursive(
        leaves, lambda inner: st.one_of(*[st.builds(make, inner, inner) for make in grow]), max_leaves=5
    )

    @settings(max_examples=60, deadline=None)
    @given(texts, texts)
    def check(one: str, other: str) -> None:
        first, second = parser.latex2sympy(one), parser.latex2sympy(other)
        assert equal(one, sympy.latex(first))
        gap = sympy.N((first - second).subs({"x": sympy.Rational(3, 7), "y": sympy.Rational(5, 3)}), 30)
        if gap.is_number and gap.is_finite and abs(gap) > sympy.Float("1e-12"):
            assert not equal(one, other)

    check()
