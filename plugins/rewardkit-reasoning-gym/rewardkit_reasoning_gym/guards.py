"""Guards around the package's scorers: what they must not be shown, and what of their credit does not stand.

Each guard is a trap that the scorer of reasoning-gym 0.1.25 has; the README lists them with an example each.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from rewardkit_reasoning_gym.arithmetic import exact_value, is_expression, is_plain

Entry = dict[str, Any]

# The base scorer, and those written like it, pay len(gold) / len(answer) to whatever contains the gold.
CONTAINS: frozenset[str] = frozenset(
    {
        "acre",
        "aiw",
        "arc_1d",
        "base_conversion",
        "basic_arithmetic",
        "bf",
        "binary_alternation",
        "caesar_cipher",
        "chain_sum",
        "codeio",
        "count_bits",
        "count_primes",
        "course_schedule",
        "gcd",
        "isomorphic_strings",
        "largest_island",
        "lcm",
        "leg_counting",
        "letter_counting",
        "list_functions",
        "mahjong_puzzle",
        "manipulate_matrix",
        "maze",
        "modulo_grid",
        "number_filtering",
        "number_sequence",
        "products",
        "ransom_note",
        "rotate_matrix",
        "rotten_oranges",
        "simple_equations",
        "simple_geometry",
        "string_manipulation",
        "string_splitting",
        "string_synthesis",
        "syllogism",
        "tsumego",
        "word_sequence_reversal",
    }
)
PARSED: frozenset[str] = frozenset(
    {"countdown", "puzzle24", "polynomial_multiplication", "simple_integration", "intermediate_integration"}
)
"""Scorers that hand the answer to sympy's `parse_expr`, which evaluates it as Python."""
EVALUATED: frozenset[str] = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Scorers that hand an answer which is not the gold to `eval`."""

CRASHES: dict[str, tuple[type[Exception], ...]] = {
    "boxnet": (TypeError, AttributeError, KeyError, ValueError, IndexError),
    "coin_flip": (OverflowError,),
    "complex_arithmetic": (OverflowError, IndexError, AttributeError),
    "game_of_life": (KeyError, TypeError),
    "polynomial_equations": (OverflowError,),
    "prime_factorization": (ValueError, TypeError),
    "time_intervals": (AttributeError, TypeError, OverflowError),
}
"""What a scorer is known to raise on an odd answer. Anything else that it raises is an error, not a 0."""


class Refusal(NamedTuple):
    """Why an answer never reaches the scorer."""

    detail: str


def unsafe(task: str, answer: str, entry: Entry) -> Refusal | None:
    """Say why the scorer must not be shown this answer, because it would evaluate it as code. Always holds."""
    if task in PARSED and not is_expression(answer):
        return Refusal("no arithmetic expression")
    if task in EVALUATED and answer != entry["answer"] and not _is_literal(answer):
        return Refusal("neither the gold's format nor a Python literal")
    return None


def refused(task: str, answer: str, entry: Entry) -> Refusal | None:
    """Say why an answer cannot be read as what the task asks for, where the scorer would not notice."""
    check = _REFUSE.get(task)
    return check(answer, entry) if check else None


def withheld(task: str, answer: str, entry: Entry, value: float) -> str:
    """Say why the credit that the scorer gives does not stand; "" when it does."""
    gold = entry["answer"]
    if task in CONTAINS and 0 < value < 1 and str(gold).strip() in answer:
        return f"contains the gold, but is not it (reasoning-gym gives {value:.3g})"
    check = _WITHHOLD.get(task)
    return check(answer, entry, value) if check and value > 0 else ""


# ------------------------------------------------------------------------------------------------- refusals


def _is_literal(text: str) -> bool:
    if re.search(r"[-+~(\[{]{40}", text):  # deep nesting, which costs the parser its stack
        return False
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
    return True


def _not_finite(answer: str, entry: Entry) -> Refusal | None:
    return Refusal("nan and inf are no answers") if re.search(r"nan|inf", answer, re.IGNORECASE) else None


def _not_plain(answer: str, entry: Entry) -> Refusal | None:
    return None if is_plain(answer) else Refusal("only numbers, parentheses and + - * / are allowed")


def _huge_exponent(answer: str, entry: Entry) -> Refusal | None:
    # Fraction("1e999999999") computes all its digits.
    return Refusal("an exponent of more than three digits") if re.search(r"[eE][-+]?\d{4}", answer) else None


def _no_empty(answer: str, entry: Entry) -> Refusal | None:
    # Where no solution exists the scorer takes every text without a number for "none".
    if _floats(entry["answer"]) or _floats(answer) or not answer.strip(" \"'"):
        return None
    return Refusal('no number; an equation without solutions is answered with ""')


def _floats(text: str) -> list[float]:
    found = []
    for part in text.split(","):
        try:
            found.append(float(part))
        except ValueError:
            continue
    return found


_REFUSE: dict[str, Callable[[str, Entry], Refusal | None]] = {
    "coin_flip": _huge_exponent,
    "complex_arithmetic": _not_finite,
    "countdown": _not_plain,
    "number_sorting": _not_finite,
    "polynomial_equations": _no_empty,
    "puzzle24": _not_plain,
}


# ---------------------------------------------------------------------------------------- credit that stands


def _halting(answer: str, entry: Entry, value: float) -> str:
    same = answer.strip().lower() == str(entry["answer"]).strip().lower()
    return "" if same else "not the gold (reasoning-gym takes every text for True)"


def _first_number(answer: str, entry: Entry, value: float) -> str:
    match = re.search(r"([-\u2212]?)\s?\$?(\d{1,3}(?:,\d{3})++(?!\d)|\d++)(\.\d++)?", answer)
    if match is None or value < 1:
        return ""
    sign = "-" if match[1] and (match.start() == 0 or not answer[match.start() - 1].isalnum()) else ""
    number = float(f"{sign}{match[2].replace(',', '')}{match[3] or ''}")
    return "" if number == float(entry["answer"]) else f"its number is {number:g}: sign and thousands count"


def _countdown(answer: str, entry: Entry, value: float) -> str:
    if value < 1:
        return ""
    exact = exact_value(answer)
    return "" if exact == entry["metadata"]["target"] else f"worth {exact}, not exactly the target"


def _puzzle24(answer: str, entry: Entry, value: float) -> str:
    if value < 1:
        return ""
    exact = exact_value(answer)
    if exact != 24:
        return f"worth {exact}, not 24 (reasoning-gym rounds down)"
    used = sorted(int(number) for number in re.findall(r"\d++", answer))
    given = sorted(entry["metadata"]["numbers"])
    return "" if used == given else f"uses {used}, not the given {given}"


def _coin_flip(answer: str, entry: Entry, value: float) -> str:
    from fractions import Fraction

    found, gold = Fraction(answer.replace(",", "")), Fraction(entry["answer"].replace(",", ""))
    off = abs(found - gold)
    if off <= Fraction(1, 10_000) and off * 100 <= abs(gold):
        return ""
    return f"not the probability (reasoning-gym gives {value:.3g} for equal first digits)"


def _number_sorting(answer: str, entry: Entry, value: float) -> str:
    found, gold = (json.loads(text.replace("'", '"')) for text in (answer, entry["answer"]))
    same = [float(number) for number in found] == [float(number) for number in gold]
    return "" if same else "in order, but not the given numbers (reasoning-gym lets each be off by 1)"


def _figlet(answer: str, entry: Entry, value: float) -> str:
    same = answer.replace(" ", "").strip().lower() == entry["answer"].strip().lower()
    return "" if same or value < 1 else "ten equal letters are not the whole word"


_WITHHOLD: dict[str, Callable[[str, Entry, float], str]] = {
    "coin_flip": _coin_flip,
    "countdown": _countdown,
    "figlet_font": _figlet,
    "game_of_life_halting": _halting,
    "gsm_symbolic": _first_number,
    "number_sorting": _number_sorting,
    "puzzle24": _puzzle24,
}
