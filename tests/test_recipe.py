"""Recipes: formulas and data, there and back, and whatever else may stand behind `-r`."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import tomli_w
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rewardkit import recipe
from rewardkit.compose import Reward, WeightedSum, clip, constant, first_of, gate, maximum, minimum, schedule
from rewardkit.errors import FormulaError, OptionError, PluginError, RewardkitError, UnknownName, UsageError
from rewardkit.plugins import load
from rewardkit.recipe import content_hash, from_data, parse, parse_columns, to_data
from rewardkit.registry import Entry, Owner, Registry
from rewardkit.reward import reward
from rewardkit.types import Completion, Sample, Verdict
from rewardkit.verifier import Reference, Verifier


@reward(name="opt")
def opt(
    completion: str,
    *,
    count: int = 1,
    ratio: float = 0.5,
    word: str = "",
    flag: bool = False,
    words: list[str] = [],  # noqa: B006
    table: dict[str, int] = {},  # noqa: B006
    maybe: int | None = 3,
    unit: Literal["words", "characters"] = "words",
) -> float:
    return 0.0


@reward(name="a")
def a(completion: str) -> float:
    return 1.0


@reward(name="b")
def b(completion: str) -> float:
    return 0.5


class Text(Reference):
    text: str


class Check(Verifier[Text]):
    name: ClassVar[str | None] = "check"

    level: int = 0
    share: float = 0.0
    marks: tuple[str, ...] = ()

    def verify(self, completion: Completion, reference: Text, sample: Sample) -> Verdict:
        return Verdict.accept()


total = 0.5 * a + b
not_a_reward = 5
OURS = Owner("", "test", "1")


@pytest.fixture(scope="module")
def registry() -> Registry:
    return known()


def known() -> Registry:
    registry = load([]).registry
    for name in ("opt", "a", "b", "check", "total"):
        target = f"{__name__}:{'Check' if name == 'check' else name}"
        registry.add(Entry("verifier" if name == "check" else "reward", name, target, "for tests", OURS))
    return registry


REGISTRY = known()


def read(text: str, **given: Any) -> Reward:
    return parse(text, REGISTRY, **given)


def problem(text: str, kind: type[RewardkitError] = FormulaError) -> str:
    with pytest.raises(kind) as caught:
        read(text)
    return str(caught.value)


# ------------------------------------------------------------------------------------------ there and back

NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 0.1, 1e-5, 1e15, 1e16, 1e22, 5e-324, 1e300, -3.5, 1 / 3]),
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6),
)
TEXTS = st.one_of(
    st.sampled_from(["it's", 'say "so"', "\\", "\\n", "\n", "\\'", "", "x, y=1)", "é\u202e\0", "#"]), st.text()
)
OPTIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "count": st.one_of(st.integers(-9, 9), st.integers(-(10**30), 10**30)),
        "ratio": NUMBERS,
        "word": TEXTS,
        "flag": st.booleans(),
        "words": st.lists(TEXTS, max_size=3),
        "table": st.dictionaries(TEXTS, st.integers(-5, 5), max_size=3),
        "unit": st.sampled_from(["words", "characters"]),
    },
)
ORDER = ("count", "ratio", "word", "flag", "words", "unit", "table")
CHECKS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {}, optional={"level": st.integers(-5, 5), "share": NUMBERS, "marks": st.lists(TEXTS, max_size=3)}
)
LEAVES: st.SearchStrategy[Reward] = st.one_of(
    st.sampled_from([a, b]),
    # In the order of the signature, with the table last, as TOML has it.
    OPTIONS.map(lambda options: opt.with_options(**{name: options[name] for name in ORDER if name in options})),
    CHECKS.map(Check.from_options),
)


def grown(inner: st.SearchStrategy[Reward]) -> st.SearchStrategy[Reward]:
    """Every way to build a reward from smaller ones, with the operators that users have."""
    some = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds(lambda weight, part: weight * part, NUMBERS, inner),
        st.builds(lambda x, y: x + y, inner, inner),
        st.builds(lambda x, y: x - y, inner, inner),
        st.builds(lambda x, y: x * y, inner, inner),
        st.builds(lambda part, number: part + number, inner, NUMBERS),
        st.builds(lambda part, number: number - part, inner, NUMBERS),
        some.map(lambda parts: minimum(*parts)),
        some.map(lambda parts: maximum(*parts)),
        some.map(lambda parts: first_of(*parts)),
        st.builds(lambda part, x, y: clip(part, low=min(x, y), high=max(x, y)), inner, NUMBERS, NUMBERS),
        st.builds(lambda c, then, at, other: gate(c, then, at=at, otherwise=other), inner, inner, NUMBERS, NUMBERS),
        st.builds(lambda c, number: gate(c, constant(number)), inner, NUMBERS),
        st.dictionaries(st.integers(1, 10**6), inner, max_size=2).flatmap(
            lambda later: inner.map(lambda first: schedule({0: first, **later}))
        ),
    )


REWARDS = st.recursive(LEAVES, grown, max_leaves=8)
MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(REWARDS)
@example(a - (b - opt))
@example(2 * (3 * (a + b)))
@example(-(a + b))
@example(a - -1 * (a + b))
@example(constant(2) * a)
@example(constant(0) * a)
@example((a + b) * (2 * a))
@example(constant(-0.5))
def test_a_formula_is_read_back_as_the_same_reward(one: Reward) -> None:
    assert read(one.formula) == one


@MANY
@given(REWARDS)
def test_data_is_read_back_as_the_same_reward_also_through_json_and_toml(one: Reward) -> None:
    data = to_data(one)
    assert from_data(data, REGISTRY) == one
    assert from_data(json.loads(json.dumps(data, allow_nan=False)), REGISTRY) == one
    assert from_data(tomllib.loads(tomli_w.dumps(data)), REGISTRY) == one


@MANY
@given(REWARDS)
@example(clip(a, low=-0.0, high=-0.0))
@example(gate(a, b, at=-0.0, otherwise=-0.0))
def test_content_hash_is_the_same_for_equal_rewards(one: Reward) -> None:
    digest = content_hash(read(one.formula), REGISTRY)
    assert len(digest) == 64 and digest == content_hash(from_data(to_data(one), REGISTRY), REGISTRY)


# ------------------------------------------------------------------------------------------------ arithmetic


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a", a),
        ("  a\n\t+ b ", a + b),
        ("2*a + b", (2 * a) + b),
        ("a + 2*b", a + (2 * b)),
        ("2*a*b", 2 * (a * b)),
        ("a*2*b*3", 6 * (a * b)),
        ("2*(a + b)", 2 * (a + b)),
        ("(a + b)*2", 2 * (a + b)),
        ("(a + b)*(a + b)", (a + b) * (a + b)),
        ("a - (b - a)", a - (b - a)),
        ("a - b - a", (a - b) - a),
        ("-a", -1 * a),
        ("--a", a),
        ("+-+a", -1 * a),
        ("-2*a", -2 * a),
        ("2*-a", None),
        ("-a*b", -1 * (a * b)),
        ("1 - a", 1 - a),
        ("0*a + b", WeightedSum(((0.0, a), (1.0, b)))),
        ("a + 1", WeightedSum(((1.0, a),), 1.0)),
        ("a + 1 - 3", WeightedSum(((1.0, a),), -2.0)),
        ("3", constant(3)),
        ("-(2 - 5)", constant(3)),
        ("(1 - 0.25)*a", 0.75 * a),
        ("1e5*a", 100000 * a),
        ("1E-2*a", 0.01 * a),
        (".5*a", 0.5 * a),
        ("5.*a", 5 * a),
        ("opt(count=-3, ratio=1e5, words=['x', \"y\",], table={'k': 1},)",
         opt.with_options(count=-3, ratio=1e5, words=["x", "y"], table={"k": 1})),
        ("opt(flag=True)", opt.with_options(flag=True)),
        ("opt(flag=true, maybe=null)", opt.with_options(flag=True, maybe=None)),
        ("opt(maybe=None)", opt.with_options(maybe=None)),
        ("opt()", opt),
        ("'opt'(count=2)", opt.with_options(count=2)),
        ("gate(a, b)", gate(a, b)),
        ("gate(a, then=2*b, at=0.5, otherwise=-1)", gate(a, 2 * b, at=0.5, otherwise=-1)),
        ("gate(condition=a, then=b)", gate(a, b)),
        ("clip(part=a + b, low=-1, high=2)", clip(a + b, low=-1, high=2)),
        ("schedule({0: a, 500: b})", schedule({0: a, 500: b})),
        ("minimum(a, 1, )", minimum(a, constant(1))),
        ("total", total),
        ("2*total", 2 * total),
    ],
)  # fmt: skip
def test_precedence_and_forms(text: str, wanted: Reward | None) -> None:
    if wanted is None:  # a sign stands in front of a whole term only
        assert "column 3" in problem(text)
    else:
        assert read(text) == wanted


def test_numbers_are_read_as_python_reads_them() -> None:
    for text in ("0.1", "1e5", "1e-5", "123456789.125", "5e-324", "1.7976931348623157e308"):
        assert read(text) == constant(float(text))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("1e999", "1e999 at column 1 is too large a number"),
        ("a + 1e999", "1e999 at column 5 is too large"),
        ("opt(ratio=1e999)", "1e999 at column 11 is too large"),
        ("1e200*1e200*a", "finite"),
        ("1e200*1e200", "finite"),
        ("a + 1e308 + 1e308", "finite"),
        ("1e308*10*0*a", "finite"),
        ("2*(1e308 + 1e308)", "finite"),
        ("gate(a, then=1e308 + 1e308)", "finite"),
        ("", "the formula is empty"),
        ("   ", "the formula is empty"),
        ("a b", "wanted an operator or the end at column 3, found 'b'"),
        ("a +", "column 4, found the end"),
        ("a + * b", "column 5, found '*'"),
        ("(a", "wanted ')' at column 3, found the end"),
        ("a)", "column 2, found ')'"),
        ("2a", "column 2, found 'a'"),
        ("1.2.3", "column 4, found '.3'"),
        ("٣*a", "column 1, found '٣'"),
        ("a == b", "column 3, found '='"),
        ("a ** 2", "column 4, found '*'"),
        ("a / 2", "there is no division"),
        ("a/.5", "there is no division"),
        ("'a", 'column 1, found "\'"'),
        ("a\0", "column 2, found '\\x00'"),
        ("a \u2212 b", "column 3"),
        ("my.py:brief + a", "column 3, found '.' (near 'my.py:brief + a'); a path or a plugin's name inside a formula"),
        ("a + pkg:attr", "is quoted: 'my_rewards.py:brief'"),
        ("0.5*dates/iso_day", "'dates/iso_day'"),
        ("gate(my.py:brief, a)", "is quoted"),
        ("opt(5)", "wanted an option as name=value at column 5, found '5'"),
        ("opt(count)", "wanted an option as name=value at column 5, found 'count'"),
        ("opt(count=)", "wanted a value"),
        (
            "opt(count=a)",
            "wanted a value: a number, a quoted text, True, False, None, [ ] or { } at column 11, found 'a'",
        ),
        ("opt(count=1 + 1)", "column 13, found '+'"),
        ("opt(word=-'x')", "wanted a number at column 11"),
        ("opt(count=1, count=2)", "option count at column 14 is given twice"),
        ("opt(table={[1]: 2})", "as key"),
        ("gate", "gate at column 1 wants arguments: gate(…)"),
        ("a + gate", "gate at column 5 wants arguments"),
        ("gate(", "column 6, found the end"),
        ("gate(a", "column 7, found the end"),
        ("gate(a,", "column 8, found the end"),
        ("gate(a, then=", "found the end"),
        ("gate(a)", "gate at column 1: gate missing 1 required positional argument: 'then'"),
        ("gate(a, b, els=1)", "'els'"),
        ("gate(a, then=b, then=b)", "is given then twice"),
        ("gate(a, then=b, otherwise=a)", "wanted a value"),
        ("gate(a, b, at='x')", "gate at column 1"),
        ("clip(a, 0, 1)", "clip at column 1"),
        ("schedule(a)", "wanted '{' at column 10"),
        ("schedule({0: a, 0: b})", "gives one step twice"),
        ("schedule({0: a, False: b})", "gives one step twice"),
        ("schedule(", "found the end"),
        ("schedule({", "found the end"),
        ("schedule({0:", "found the end"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, where: str) -> None:
    assert where in problem(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("opt(cuont=1)", "opt has no option 'cuont'; its options are"),
        ("opt(cuont=1)", "did you mean count?"),
        ("a(x=1)", "a has no option 'x'; it has no options"),
        ("check(levle=1)", "did you mean level?"),
        ("opt(count='3')", "opt: option count='3'"),
        ("opt(count=1.5)", "opt: option count=1.5"),
        ("opt(count=True)", "opt: option count=True"),
        ("opt(flag=1)", "opt: option flag=1"),
        ("opt(words='x')", "opt: option words='x'"),
        ("opt(words=[1])", "opt: option words=[1]"),
        ("opt(unit='pages')", "opt: option unit='pages'"),
        ("opt(word=None)", "opt: option word=None"),
        ("check(level=true)", "check: option level"),
        ("check(share='1')", "check: option share"),
        ("total(x=1)", "is a composition and has no options; write its parts instead: 0.5*a + b"),
    ],
)
def test_options_are_checked_strictly(text: str, said: str) -> None:
    assert said in problem(text, OptionError)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("gsmk8", UnknownName, "did you mean gsm8k?"),
        ("__import__('os')", FormulaError, "column 12"),
        ("clip(a, low=2, high=1)", UsageError, "low <= high"),
        ("minimum()", UsageError, "minimum wants at least one reward"),
        ("schedule({1: a})", UsageError, "a first entry at step 0"),
        ("schedule({})", UsageError, "a first entry at step 0"),
        ("schedule({0: a, 1.5: b})", UsageError, "whole steps, got 1.5"),
        ("schedule({0: a, 'x': b})", UsageError, "whole steps, got 'x'"),
        ("'no_such_package_x:y'", UsageError, "there is no module 'no_such_package_x'"),
        ("'no/such.py:x'", UsageError, "no such file"),
        ("'a\0b:c'", UsageError, ""),
        ("'~nobody-of-this-name/x.py:y'", UsageError, ""),
        (f"'{'x' * 5000}.py:y'", UsageError, ""),
        ("'...:x'", UsageError, ""),
        ("' : '", UsageError, ""),
        ("':'", UsageError, ""),
        ("'my_rewards.py'", UsageError, "my_rewards.py is a file; say which reward of it: my_rewards.py:NAME"),
        (f"'{__name__}:not_a_reward'", UsageError, "got int"),
        (f"'{__name__}:totl'", UnknownName, "did you mean total?"),
        ("'builtins:max'", UsageError, "max"),
        ("'builtins:dict'", UsageError, "is a class"),
        ("'rewardkit.compose:Gate'", UsageError, "rewardkit.compose:Gate"),
        ("'rewardkit.verifier:Verifier'", UsageError, ""),
        ("dates", UnknownName, ""),
        ("'dates/iso_day'", UnknownName, ""),
    ],
)  # fmt: skip
def test_names_and_targets_that_do_not_exist(text: str, kind: type[RewardkitError], said: str) -> None:
    assert said in problem(text, kind)


@pytest.mark.parametrize(
    "word", ["it's", 'he said "so"', "back\\slash", "\\", "line\nbreak", "\\n", "", "tab\t", "é🙂", "a, b=1)"]
)
def test_quotes_and_backslashes_in_options_survive(word: str) -> None:
    one = opt.with_options(word=word, words=[word, word])
    assert read(one.formula) == one
    double = json.dumps(word, ensure_ascii=False).replace("\\t", "\t") if '"' not in word else None
    if double is not None:
        assert read(f"opt(word={double})") == opt.with_options(word=word)


@pytest.mark.parametrize("name", ["it's mine", 'the "best"', "with space", "é🙂", "(1) + 2*x", "a=b", "x - y", "100%"])
def test_files_of_any_name_are_read_back_from_their_formula(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "my.py").write_text("def brief(completion, *, max_words: int = 1): return 1.0\n", encoding="utf-8")
    one = read("'" + str(folder / "my.py").replace("\\", "\\\\").replace("'", "\\'") + ":brief'(max_words=5)")
    assert read(one.formula) == one
    assert from_data(to_data(one), REGISTRY) == one


# -------------------------------------------------------------------------------------------------- hostile text

PIECES = [
    *["a", "opt", "gate", "clip", "schedule", "then", "count", "'x'", "0", "1", "1e9", "1e999", ".5"],
    *"(){}[],:=+-*'\"\\ \n\0é\u202e\ud800/.",
]


def only_our_errors(text: str) -> None:
    try:
        read(text)
    except RewardkitError as error:
        assert str(error)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_random_text_raises_nothing_but_our_errors(text: str) -> None:
    only_our_errors(text)


@settings(max_examples=800, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_random_pieces_of_formulas_raise_nothing_but_our_errors(text: str) -> None:
    only_our_errors(text)


@settings(max_examples=150, deadline=None)
@given(REWARDS, st.randoms(use_true_random=False))
def test_damaged_formulas_raise_nothing_but_our_errors(one: Reward, chance: random.Random) -> None:
    text = one.formula
    at = chance.randrange(len(text) + 1)
    only_our_errors(text[:at] + chance.choice(["", *PIECES]) + text[at + chance.randrange(3) :])
    only_our_errors(text[:at])


FIELD_NAMES = st.sampled_from([*recipe._FIELDS, "of", "weight", "then", "step", "options", "low", "at"])
JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["a", "opt"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(FIELD_NAMES, st.text(max_size=3)), inner, max_size=3),
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(JSONS)
def test_random_data_raises_nothing_but_our_errors(data: Any) -> None:
    try:
        from_data(data, REGISTRY)
    except RewardkitError as error:
        assert str(error)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000,
        "(" * 5_000 + "a" + ")" * 5_000,
        "-" * 9_999 + "a",
        "[" * 10_000,
        "opt(words=" + "[" * 5_000,
        "opt(table=" + "{1:" * 3_000,
        "gate(" * 2_000,
        "'" * 10_000,
        "'\\" * 5_000,
        "'" + "\\'" * 4_999,
        "a+" * 999 + "a",
        "a*" * 999 + "a",
        "a" * 10_000,
        "1" * 10_000,
        "1e" + "9" * 9_000,
        ".py:" * 2_500,
        "x.py:y" * 1_600,
        "a.b" * 3_000 + ":c",
        "/" * 10_000,
        "x" * 100_000,
        "(" * 100_000,
        ".py:a " * 20_000,
        "a = " * 30_000,
        "\0" * 100_000,
        "".join(map(chr, range(0x20, 0x3000))),
    ],
    ids=lambda text: f"{text[:8]!r} x {len(text)}",
)
def test_long_and_deep_text_is_answered_soon(text: str) -> None:
    begun = time.process_time()
    only_our_errors(text)
    for argument in (text, f"name={text}"):
        try:
            parse_columns([argument], REGISTRY)
        except RewardkitError as error:
            assert len(str(error)) < 25_000
    # Linear work takes some hundredths of a second; a pattern that goes back and forth would take hours.
    assert time.process_time() - begun < 20


def test_limits_are_said() -> None:
    assert problem("x" * 10_001) == "a formula has at most 10,000 characters, got 10,001"
    assert "nested more than 50 deep at column 51" in problem("(" * 60 + "a" + ")" * 60)
    assert read("(" * 49 + "a" + ")" * 49) == a
    data: Any = {"reward": "a"}
    for _ in range(5_000):
        data = {"product": [data]}
    with pytest.raises(UsageError, match="nested more than 50 deep"):
        from_data(data, REGISTRY)


ATTACKS = [
    "__import__('os').system('touch {}')",
    "exec(\"open('{}', 'w')\")",
    "().__class__.__bases__[0].__subclasses__()",
    "(lambda: open('{}', 'w'))()",
    "[open('{}', 'w') for _ in 'x']",
    "{{0}}.format(open('{}', 'w'))",
    'f\'{{open("{}", "w")}}\'',
    "opt(word=open('{}', 'w'))",
    "a if open('{}', 'w') else b",
    "a; import os; os.mkdir('{}')",
    "opt(word=f'{{1+1}}')",
    "opt(table={{'k': __import__('os').mkdir('{}')}})",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_is_ever_evaluated(attack: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = attack.format(mark)
    with pytest.raises(RewardkitError):
        read(text)
    with pytest.raises(RewardkitError):
        parse_columns([f"x={text}"], REGISTRY)
    assert not mark.exists()


def test_texts_in_options_stay_texts() -> None:
    one = read("opt(word='{0.__class__} %s ${HOME} __import__(\"os\")')")
    assert one == opt.with_options(word='{0.__class__} %s ${HOME} __import__("os")')


# ------------------------------------------------------------------------------------------------------ data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "got NoneType"),
        ([], "got list"),
        (5, "got int"),
        ({}, "has one of reward, sum, product"),
        ({"name": "a"}, "got 'name'"),
        ({"reward": 5}, "has a name and a table of options, got 5"),
        ({"reward": "a", "options": [1]}, "got 'a' and [1]"),
        ({"reward": "a", "option": {}}, "no field 'option' here; did you mean options?"),
        ({"sum": "ab"}, "sum wants a list"),
        ({"sum": {"of": "a"}}, "sum wants a list"),
        ({"sum": [{"weigth": 2, "of": "a"}]}, "no field 'weigth' here; did you mean weight?"),
        ({"sum": [{"weight": 2}]}, "each entry of sum is a table with of and weight"),
        ({"sum": ["a"]}, "each entry of sum is a table"),
        ({"sum": [{"weight": "2", "of": "a"}]}, "weight is a number, got '2'"),
        ({"sum": [{"weight": True, "of": "a"}]}, "weight is a number, got True"),
        ({"sum": [{"weight": float("nan"), "of": "a"}]}, "finite"),
        ({"sum": [], "constant": float("inf")}, "finite"),
        ({"sum": [], "constant": "1"}, "constant is a number"),
        ({"sum": [{"weight": 10**400, "of": "a"}]}, "finite"),
        ({"product": []}, "at least one reward"),
        ({"product": "a"}, "product wants a list"),
        ({"product": ["a"], "weight": 2}, "no field 'weight' here"),
        ({"minimum": ["a"], "at": 2}, "no field 'at' here"),
        ({"minimum": []}, "at least one reward"),
        ({"clip": "a", "low": None}, "low is a number, got None"),
        ({"clip": "a", "hi": 1}, "no field 'hi'"),
        ({"gate": "a"}, "has a field 'then'"),
        ({"gate": "a", "then": "b", "at": "x"}, "at is a number"),
        ({"schedule": {"0": "a"}}, "schedule wants a list"),
        ({"schedule": [{"of": "a"}]}, "has one 'step' of its own"),
        ({"schedule": [{"step": 0, "of": "a"}, {"step": 0, "of": "b"}]}, "has one 'step' of its own"),
        ({"schedule": [{"step": True, "of": "a"}]}, "whole steps, got True"),
        ({"schedule": [{"step": [], "of": "a"}]}, "schedule"),
        ({"reward": "a", "sum": []}, "no field 'sum' here"),
    ],
)
def test_data_that_is_none_is_refused_and_nothing_in_it_is_ignored(data: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_data(data, REGISTRY)
    assert said in str(caught.value)


def test_data_may_hold_formulas_where_it_wants_rewards() -> None:
    data = {
        "gate": "a",
        "then": {"sum": [{"of": "2*b"}, {"weight": -1, "of": {"reward": "opt", "options": {"count": 4}}}]},
    }
    assert from_data(data, REGISTRY) == gate(a, 2 * b - opt.with_options(count=4))


def test_a_reward_inside_a_function_has_no_data_form() -> None:
    @reward
    def local(completion: str) -> float:
        return 1.0

    with pytest.raises(UsageError, match="'local' lives inside a function"):
        to_data(local + a)


# ------------------------------------------------------------------------------------------------ behind `-r`

SOURCE = """
from rewardkit import reward
@reward
def brief(completion, *, max_words: int = 120): return 1.0
def plain(completion, *, size: int = 1): return float(size)
both = 0.5 * brief + brief.with_options(max_words=1)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rewards.py").write_text(SOURCE, encoding="utf-8")
    spaced = tmp_path / "dir with space"
    spaced.mkdir()
    shutil.copy(tmp_path / "my_rewards.py", spaced / "my.py")
    return tmp_path


def columns(*arguments: str) -> dict[str, Reward]:
    return parse_columns(arguments, REGISTRY)


def names(*arguments: str) -> list[str]:
    return list(columns(*arguments))


@pytest.mark.parametrize(
    ("argument", "name", "formula"),
    [
        ("gsm8k", "gsm8k", "gsm8k"),
        (" gsm8k ", "gsm8k", "gsm8k"),
        ("opt(count=3)", "opt", "opt(count=3)"),
        ("opt(count = 3)", "opt", "opt(count=3)"),
        ("score=a", "score", "a"),
        ("score = a + b", "score", "a + b"),
        ("my-score.v2=a", "my-score.v2", "a"),
        ("score=opt(count=3)", "score", "opt(count=3)"),
        ("a + b", "total", "a + b"),
        ("total", "total", "0.5*a + b"),
        ("my_rewards.py:brief", "brief", "'{}/my_rewards.py:brief'"),
        ("./my_rewards.py:brief", "brief", "'{}/my_rewards.py:brief'"),
        ("my_rewards.py:plain", "plain", "'{}/my_rewards.py:plain'"),
        ("my_rewards.py:both", "both", None),
        ("my_rewards.py:brief(max_words=3)", "brief", "'{}/my_rewards.py:brief'(max_words=3)"),
        ("total=my_rewards.py:brief", "total", "'{}/my_rewards.py:brief'"),
        ("dir with space/my.py:brief(max_words=3)", "brief", "'{}/dir with space/my.py:brief'(max_words=3)"),
        ("x=dir with space/my.py:brief", "x", "'{}/dir with space/my.py:brief'"),
        ("x = 2*'dir with space/my.py:brief' - a", "x", "2*'{}/dir with space/my.py:brief' - a"),
        ("rewardkit.verifiers.gsm8k:Gsm8k", "gsm8k", "gsm8k"),
        ("mine=rewardkit.rewards.length:length(at_most=5)", "mine", "length(at_most=5)"),
    ],
)
def test_one_argument_is_one_column(argument: str, name: str, formula: str | None, here: Path) -> None:
    found = columns(argument)
    assert list(found) == [name]
    if formula is not None:
        assert found[name].formula == formula.format(here)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("a == b", "column 3, found '='"),
        ("=a", "column 1, found '='"),
        ("x=", "the formula is empty"),
        ("", "the formula is empty"),
        ("my_rewards.py", "my_rewards.py is a file; say which reward of it: my_rewards.py:NAME"),
        ("my_rewards.py:breif", "did you mean brief?"),
        ("a - my_rewards.py:brief", "is quoted: 'my_rewards.py:brief'"),
        ("2*my_rewards.py:brief", "is quoted"),
        ("my_rewards.py:brief - a", "is quoted"),
        ("not_there.py:x", "not_there.py: no such file"),
        ("my_rewards.py:brief(max_word=3)", "did you mean max_words?"),
        ("my_rewards.py:brief(3)", "wanted an option as name=value"),
        ("my_rewards.py:both(x=1)", "is a composition and has no options"),
        ("no_such_package_q.mod:attr", "there is no module"),
        ("nodates/iso_day(within_days=2)", "there is no reward named 'nodates/iso_day'"),
        ("rewards.toml", "rewards.toml: no such file"),
        (".", "column 1"),
    ],
)
def test_wrong_arguments_say_what_to_do(argument: str, said: str, here: Path) -> None:
    with pytest.raises(RewardkitError) as caught:
        columns(argument)
    assert said in str(caught.value)


def test_several_arguments_are_several_columns_in_their_order(here: Path) -> None:
    assert names("b", "a", "sum=a + b", "my_rewards.py:brief") == ["b", "a", "sum", "brief"]


@pytest.mark.parametrize(
    "arguments", [("a", "a"), ("a", "a=b"), ("a + b", "a - b"), ("my_rewards.py:brief", "dir with space/my.py:brief")]
)
def test_two_columns_of_one_name_are_refused(arguments: tuple[str, ...], here: Path) -> None:
    with pytest.raises(UsageError, match=r"two rewards are named '.*'; name one of them: -r NAME=FORMULA"):
        columns(*arguments)


def test_no_argument_lists_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no reward is given; add -r NAME.* Known are .*think_format.*check.*gsm8k"):
        columns()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('two\\nlines')", "broken.py does not import: RuntimeError: two lines"),
        ("import sys; sys.exit(3)", "broken.py does not import: SystemExit: 3"),
        ("def x(:", "broken.py does not import: SyntaxError"),
        ("import no_such_package_z", "broken.py does not import: ModuleNotFoundError"),
        ("x = 5", "got int"),
        ("def x(*a): pass", "*a"),
        ("class x: pass", "x is a class, but no Verifier"),
        ("y = 1", "broken.py has no 'x'"),
        ("import math; x = math.nan", "got float"),
    ],
)
def test_files_that_cannot_be_used_say_why(source: str, said: str, here: Path) -> None:
    (here / "broken.py").write_text(source, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        columns("broken.py:x")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------ TOML


def test_toml_holds_formulas_and_tables_with_paths_from_its_own_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "rewards.toml").write_bytes(
        b"\xef\xbb\xbf"  # as some editors write it
        + b"""
[reward]
total = "a + 0.1*'my_rewards.py:brief'(max_words=60)"
whole = "my_rewards.py:brief"
table = {gate = "a", then = {reward = "my_rewards.py:plain", options = {size = 2}}, otherwise = -1}
"my own" = {sum = [{weight = 0.5, of = "a"}, {of = {product = ["a", "b"]}}], constant = 1}
[other]
x = 1
"""
    )
    elsewhere = here / "dir with space"
    monkeypatch.chdir(elsewhere)
    found = columns("../rewards.toml", "b")
    assert {name: one.formula for name, one in found.items()} == {
        "total": f"a + 0.1*'{here}/my_rewards.py:brief'(max_words=60)",
        "whole": f"'{here}/my_rewards.py:brief'",
        "table": f"gate(a, then='{here}/my_rewards.py:plain'(size=2), otherwise=-1)",
        "my own": "0.5*a + a*b + 1",
        "b": "b",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "rewards.toml has no [reward] table; write [reward] and below it"),
        ("reward = 5", "has no [reward] table"),
        ("[reward]", "has no [reward] table"),
        ("[reward\n", "rewards.toml is not TOML: "),
        ("[reward]\nx = 'gsmk8'", "rewards.toml: reward.x: there is no reward named 'gsmk8'; did you mean gsm8k?"),
        ("[reward]\nx = 'a +'", "rewards.toml: reward.x: wanted a number, a reward or '(' at column 4"),
        ("[reward]\nx = 1", "rewards.toml: reward.x: a reward as data is a table"),
        ("[reward]\nx = {sum = [{weight = nan, of = 'a'}]}", "rewards.toml: reward.x: "),
        (
            "[reward]\nx = {sum = [{wait = 1, of = 'a'}]}",
            "rewards.toml: reward.x: a reward as data has no field 'wait'",
        ),
        ("[reward]\nx = 'not_there.py:y'", "rewards.toml: reward.x: not_there.py: no such file"),
    ],
)
def test_errors_in_toml_name_the_file_and_the_key(text: str, said: str, here: Path) -> None:
    (here / "rewards.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        columns("rewards.toml")
    assert said in str(caught.value)


def test_toml_that_cannot_be_read_is_a_usage_error(here: Path) -> None:
    (here / "folder.toml").mkdir()
    with pytest.raises(UsageError, match=r"folder\.toml: "):
        columns("folder.toml")
    (here / "latin.toml").write_bytes(b"[reward]\nx = '\xe9'")
    with pytest.raises(UsageError, match="is not TOML"):
        columns("latin.toml")


def test_a_written_config_runs_the_same_rewards_again(here: Path) -> None:
    wanted = columns("a", "total=a + 0.1*'my_rewards.py:brief'(max_words=3)", "opt(word='it\\'s \\\\ \"so\"')")
    (here / "config.toml").write_text(
        tomli_w.dumps({"reward": {name: one.formula for name, one in wanted.items()}}), encoding="utf-8"
    )
    assert columns("config.toml") == wanted
    (here / "data.toml").write_text(
        tomli_w.dumps({"reward": {name: to_data(one) for name, one in wanted.items()}}), encoding="utf-8"
    )
    assert columns("data.toml") == wanted


# ------------------------------------------------------------------------------------------------------ hash


def hashed(text: str) -> str:
    return content_hash(read(text), REGISTRY)


def test_content_hash_depends_on_options_but_not_on_their_order() -> None:
    assert hashed("opt(count=3, word='x')") == hashed("opt(word='x', count=3)")
    assert hashed("opt(count=3)") != hashed("opt(count=4)") != hashed("opt")
    assert hashed("opt(count=1)") == hashed("opt")  # its default
    assert hashed("a") != hashed("b")  # one file, two names


def test_content_hash_of_a_composition_depends_on_its_form_and_weights() -> None:
    forms = [
        *["a + b", "b + a", "2*a + b", "a + b + 1", "a*b", "minimum(a, b)", "maximum(a, b)", "first_of(a, b)"],
        *["gate(a, b)", "gate(b, a)", "gate(a, b, at=0.5)", "gate(a, b, otherwise=2)", "clip(a)", "clip(a, low=-1)"],
        *["schedule({0: a, 5: b})", "schedule({0: a, 6: b})"],
    ]
    assert len({hashed(form) for form in forms}) == len(forms)
    assert hashed("a  +  b") == hashed("a+b")


def test_content_hash_follows_the_bytes_of_the_file_and_not_its_place(here: Path) -> None:
    def of(argument: str) -> str:
        # In a process of its own: a file is imported once in each.
        code = (
            "import sys; from rewardkit.recipe import content_hash, parse_columns;"
            "print(*map(content_hash, parse_columns(sys.argv[1:]).values()))"
        )
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-c", code, argument], check=True, capture_output=True, text=True, env=env
        )
        return done.stdout.strip()

    before = of("my_rewards.py:brief")
    assert before == of("dir with space/my.py:brief") == of(f"x={here}/my_rewards.py:brief")
    undecorated = of("my_rewards.py:plain")
    assert undecorated == of("dir with space/my.py:plain") != before
    with open(here / "my_rewards.py", "a", encoding="utf-8") as file:
        file.write("# one more byte\n")
    assert of("my_rewards.py:brief") != before
    assert of("my_rewards.py:plain") != undecorated
    assert of("dir with space/my.py:brief") == before


def test_an_undecorated_function_keeps_its_file_when_the_folder_changes(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = columns("my_rewards.py:plain")["plain"]
    before = content_hash(one, REGISTRY)
    monkeypatch.chdir("/")
    assert content_hash(one, REGISTRY) == before
    assert read(one.formula) == one


def test_content_hash_follows_version_and_distribution() -> None:
    def of(owner: Owner, target: str = f"{__name__}:opt") -> str:
        registry = Registry()
        registry.add(Entry("reward", "opt" if not owner.namespace else f"{owner.namespace}/opt", target, "", owner))
        return content_hash(opt, registry)

    assert (
        len({of(Owner("", "x", "1")), of(Owner("", "x", "2")), of(Owner("", "y", "1")), of(Owner("n", "x", "1"))}) == 4
    )
    assert of(Owner("", "x", "1")) == of(Owner("", "x", "1"))


def test_a_reward_registered_from_another_module_than_its_own_has_its_owners_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import types

    front = types.ModuleType("front_of_opt")
    front.opt = opt  # type: ignore[attr-defined]
    front.impostor = a  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "front_of_opt", front)
    hashes = set()
    for version in ("1", "2"):
        registry = Registry()
        registry.add(Entry("reward", "opt", "front_of_opt:opt", "", Owner("", "x", version)))
        hashes.add(content_hash(opt, registry))
    assert len(hashes) == 2
    # One that only says the name is not taken for the one that has it.
    registry = Registry()
    registry.add(Entry("reward", "opt", "front_of_opt:impostor", "", Owner("", "x", "1")))
    assert content_hash(opt, registry) == content_hash(opt, Registry())


def test_errors_are_of_the_kinds_that_exit_with_2() -> None:
    for kind in (FormulaError, OptionError, UnknownName, UsageError, PluginError):
        assert kind.exit_code == 2


def test_parse_uses_what_is_installed_when_no_registry_is_given() -> None:
    assert parse("gsm8k").formula == "gsm8k"
    assert from_data({"reward": "gsm8k"}) == parse("gsm8k")
