"""`@reward`, `@group_reward`, `from_trl`: what functions are given, what they may return, and how they travel."""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
import pytest

from rewardkit.engine import score
from rewardkit.errors import ContractError, OptionError, SandboxUnavailable, ServiceError, UsageError
from rewardkit.leaf import Leaf, attempt, attempt_group, attempt_prepare, failure
from rewardkit.reward import (
    FunctionReward,
    GroupReward,
    TrlReward,
    as_reward,
    from_trl,
    group_reward,
    memory_bytes,
    reward,
)
from rewardkit.targets import load_target
from rewardkit.types import Completion, Generation, Sample, Score

if TYPE_CHECKING:
    from a_package_that_is_not_installed import Unknown

Mode = Literal["soft", "hard"]


class Array:
    """What NumPy arrays and torch tensors have in common."""

    def __init__(self, *values: Any) -> None:
        self.values = values
        self.ndim, self.shape = 1, (len(values),)

    def __iter__(self) -> Any:
        return iter(self.values)

    def __float__(self) -> float:
        return float(self.values[0])


class ZeroDimensional:
    ndim, shape = 0, ()

    def __iter__(self) -> Any:
        raise TypeError("iteration over a 0-d array")

    def __float__(self) -> float:
        return 1.0


def judge(function: Any, completion: Completion | str = "x", sample: Sample | None = None) -> Score:
    leaf = function if isinstance(function, Leaf) else reward(function)
    sample = sample or Sample(0, "question", "18", {"topic": "sums"})
    made = Completion(completion) if isinstance(completion, str) else completion
    prepared = attempt_prepare(leaf, sample)
    return prepared if isinstance(prepared, Score) else attempt(leaf, prepared, sample, made)


def judge_group(function: Any, texts: Any = ("x", "yy"), sample: Sample | None = None) -> list[Score]:
    leaf = function if isinstance(function, Leaf) else group_reward(function)
    sample = sample or Sample(0, "question", "18", {"topic": "sums"})
    made = tuple(Completion(text) if isinstance(text, str) else text for text in texts)
    return attempt_group(leaf, attempt_prepare(leaf, sample), Generation(sample, made))


# -- parameters by name


def test_a_function_is_given_what_its_parameters_name() -> None:
    seen: dict[str, Any] = {}

    @reward
    def f(messages, reference, topic, completion, sample, prompt):  # type: ignore[no-untyped-def]
        seen.update(locals())
        return 1

    sample = Sample("q1", "question", "18", {"topic": "sums"})
    assert judge(f, "text", sample).value == 1.0
    del seen["seen"]
    assert seen == {
        "messages": [{"role": "assistant", "content": "text"}],
        "reference": "18",
        "topic": "sums",
        "completion": "text",
        "sample": sample,
        "prompt": "question",
    }


def test_messages_are_the_turns_that_the_source_has() -> None:
    turns = [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}]
    seen = []
    judge(lambda messages: seen.append(messages) or 1.0, Completion.from_messages(turns))
    assert seen == [turns] and isinstance(seen[0], list)


def test_a_column_of_the_completion_comes_before_the_sample_s() -> None:
    sample = Sample(0, metadata={"label": 1, "id": "column"})
    assert judge(lambda label: label, Completion("x", metadata={"label": 0.5}), sample).value == 0.5
    assert judge(lambda label: label, "x", sample).value == 1.0
    assert (
        judge(lambda id: float(id == "column"), "x", sample).value == 1.0
    )  # a real column comes before what types know


def test_what_the_types_know_is_a_column_too() -> None:
    made = Completion("x", tokens=7, finish_reason="length")
    sample = Sample("q1", step=40)
    got = judge(lambda id, step, tokens, finish_reason: Score(1, f"{id} {step} {tokens} {finish_reason}"), made, sample)
    assert got.detail == "q1 40 7 length"
    assert judge(lambda tokens: 1.0).reason == "missing"


@pytest.mark.parametrize("metadata", [{}, {"topic": None}])
def test_a_required_column_that_is_absent_or_null_abstains_and_names_the_column(metadata: dict[str, Any]) -> None:
    def positional(topic: str) -> float:
        raise AssertionError("asked without its column")

    def keyword(*, topic: str) -> float:
        raise AssertionError("asked without its column")

    for function in (positional, keyword):
        assert reward(function).needs == ("topic",)
        answer = judge(function, sample=Sample(0, metadata=metadata))
        assert (answer.value, answer.reason) == (None, "missing") and "'topic'" in answer.detail


@pytest.mark.parametrize("metadata", [{}, {"topic": None}])
def test_an_optional_column_falls_back_to_its_default(metadata: dict[str, Any]) -> None:
    @reward
    def f(completion: str, topic: str = "none given") -> Score:
        return Score(1, topic)

    assert f.needs == () and f.options == {}
    assert judge(f, sample=Sample(0, metadata=metadata)).detail == "none given"
    assert judge(f).detail == "sums"
    with pytest.raises(OptionError, match="has no option 'topic'"):  # a column is no option
        f.with_options(topic="x")


def test_a_missing_reference_abstains_unless_it_has_a_default() -> None:
    empty = Sample(0)
    assert judge(lambda reference: 1.0, sample=empty).reason == "missing"
    assert judge(lambda reference="9": float(reference), sample=empty).value == 9.0
    assert judge(lambda completion: 1.0, sample=empty).value == 1.0
    assert reward(lambda completion, reference: 1.0).needs == ("reference",)


def test_a_falsy_column_is_there() -> None:
    def f(reference: int, topic: str, zero: int, no: bool) -> Score:
        return Score(1, f"{reference!r} {topic!r} {zero!r} {no!r}")

    assert judge(f, "", Sample(0, "", 0, {"topic": "", "zero": 0, "no": False})).detail == "0 '' 0 False"


def test_keywords_get_the_remaining_columns_and_neither_options_nor_what_is_named() -> None:
    seen: dict[str, Any] = {}

    @reward
    def f(completion: str, topic: str, *, limit: int = 3, **rest: Any) -> float:
        seen.update(rest, limit=limit)
        return 1.0

    sample = Sample(0, "", None, {"topic": "sums", "limit": 99, "level": 2, "own": "sample's"})
    assert judge(f, Completion("x", metadata={"own": "completion's"}), sample).value == 1.0
    assert seen == {"limit": 3, "level": 2, "own": "completion's"}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda *completions: 1.0, r"has \*completions: name the columns"),
        (lambda completion, /: 1.0, "'completion' is positional-only"),
        (len, "positional-only"),
        (max, "max does not say its parameters"),
        (lambda completions: 1.0, "asks for 'completions', but is given one completion at a time; @group_reward"),
        (Array, "made from a function, got the class Array"),
        (5, "made from a function, got one number"),
        ("brief", "made from a function, got a str"),
    ],
)
def test_functions_that_cannot_be_asked_by_name_are_refused_at_once(function: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        reward(function)


def test_a_group_function_that_asks_for_one_completion_is_refused() -> None:
    with pytest.raises(UsageError, match="asks for 'completion', but is given a whole group"):
        group_reward(lambda completion: [1.0])


# -- options


@reward(name="tests/brief")
def brief(
    completion: str,
    *,
    max_words: int = 120,
    share: float = 0.5,
    mode: Mode = "soft",
    words: list[str] | None = None,
    floor: int | None = None,
    since: date = date(2020, 1, 1),
    strict: bool = False,
    untyped=3,  # type: ignore[no-untyped-def]
    anything: Any = None,
    odd: Unknown = "x",
) -> float:
    """One for few words."""
    return float(len(completion.split()) <= max_words)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_words": True}, "option max_words=True: input should be a valid integer"),
        ({"max_words": "3"}, "option max_words='3': input should be a valid integer"),
        ({"max_words": 3.0}, "input should be a valid integer"),
        ({"max_words": None}, "input should be a valid integer"),
        ({"share": "0.5"}, "input should be a valid number"),
        ({"share": True}, "input should be a valid number"),
        ({"share": float("nan")}, "option share cannot be written as JSON"),
        ({"mode": "loud"}, "input should be 'soft' or 'hard'"),
        ({"words": "ab"}, "input should be a valid array"),
        ({"words": [1]}, "input should be a valid string"),
        ({"floor": "1"}, "input should be a valid integer"),
        ({"since": "soon"}, "input should be a valid date"),
        ({"strict": 1}, "input should be a valid boolean"),
        ({"untyped": "3"}, "input should be a valid integer"),  # by its default
        ({"odd": 3}, "input should be a valid string"),  # an annotation that only a type checker knows
        ({"max_word": 3}, "brief has no option 'max_word'; its options are max_words, share, mode, words, floor, since,"
         " strict, untyped, anything, odd; did you mean max_words?"),
        ({"completion": "x"}, "has no option 'completion'"),
    ],
)  # fmt: skip
def test_options_are_strict_and_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as refused:
        brief.with_options(**options)
    assert said in str(refused.value)


def test_options_of_every_kind() -> None:
    made = brief.with_options(
        max_words=3, share=1, mode="hard", words=["a"], floor=2, since="2024-01-01", strict=True, anything={"k": [1]}
    )
    assert made.options == {
        "max_words": 3, "share": 1.0, "mode": "hard", "words": ["a"], "floor": 2, "since": "2024-01-01",
        "strict": True, "anything": {"k": [1]},
    }  # fmt: skip
    assert json.loads(json.dumps(made.options)) == made.options
    assert made == brief.with_options(**made.options)
    assert made.with_options(since=date(2024, 1, 1)) == made
    assert made.with_options(floor=None).options["max_words"] == 3
    seen: list[date] = []
    judge(
        reward(lambda completion, *, since=date(2020, 1, 1): seen.append(since) or 1.0).with_options(since="2024-01-01")
    )
    assert seen == [date(2024, 1, 1)]


def test_an_option_equal_to_its_default_is_not_shown() -> None:
    assert brief.with_options(max_words=120).options == {}
    assert brief.with_options(max_words=120) == brief


def test_a_function_without_options_says_so() -> None:
    with pytest.raises(OptionError, match="plain has no option 'x'; it has no options"):
        plain.with_options(x=1)


def test_options_reach_the_function() -> None:
    assert judge(brief.with_options(max_words=1), "two words").value == 0.0
    assert judge(brief, "two words").value == 1.0


# -- identity


@reward
def plain(completion: str) -> float:
    return 1.0


@reward(timeout=2, memory="1MiB")
def timed(completion: str, *, n: int = 1) -> float:
    return float(n)


@group_reward
def rank(completions: list[str], *, top: float = 1.0) -> list[float]:
    return [top] * len(completions)


def undecorated(completions: list[str], **kwargs: Any) -> list[float]:
    return [1.0] * len(completions)


trl_style = from_trl(undecorated, name="tests/trl_style")


def bare(completion: str) -> float:
    return 1.0


def doubling(function: Callable[..., float]) -> Callable[..., float]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> float:
        return 2 * function(*args, **kwargs)

    return inner


doubled = reward(doubling(bare))
named_again = reward(name="tests/again", timeout=9)(brief.with_options(max_words=3))


@reward
@doubling
def decorated_twice(completion: str) -> float:
    return 1.0


@reward
def replaced(completion: str) -> float:
    return 1.0


original = replaced
replaced = 0.5 * original  # type: ignore[assignment]


def test_it_stays_callable_as_the_plain_function() -> None:
    assert brief("two words", max_words=1) == 0.0 and rank(["a", "b"]) == [1.0, 1.0]
    assert brief.__name__ == "brief" and brief.__doc__ == "One for few words." and brief.__module__ == __name__


def test_it_prints_as_its_name_and_options() -> None:
    assert repr(plain) == "plain" and repr(timed.with_options(n=2)) == "timed(n=2)"
    assert repr(brief.with_options(mode="hard", words=["it's\n"])) == r"tests/brief(mode='hard', words=['it\'s\n'])"
    assert (brief.label, brief.registered, brief.formula) == ("brief", "tests/brief", "'tests/brief'")
    assert plain.formula == f"'{plain.target}'" and plain.target == f"{__name__}:plain"
    assert reward(lambda completion: 1.0).formula == "'<local>:<lambda>'"


@pytest.mark.parametrize(
    "made",
    [
        plain,
        brief.with_options(since="2024-01-01"),
        timed.with_options(n=2),
        rank,
        trl_style,
        decorated_twice,
        named_again,
    ],
    ids=repr,
)
def test_pickle_and_copy(made: FunctionReward) -> None:
    again = pickle.loads(pickle.dumps(made))
    assert again == made and hash(again) == hash(made) and type(again) is type(made) and repr(again) == repr(made)
    assert (again.timeout, again.memory, again.placement, again.registered) == (
        made.timeout, made.memory, made.placement, made.registered,
    )  # fmt: skip
    assert copy.copy(made) == copy.deepcopy(made) == made


def make_local() -> FunctionReward:
    @reward
    def local(completion: str) -> float:
        return 1.0

    return local


class Judge:
    def __init__(self, worth: float) -> None:
        self.worth = worth
        self.timeout = self.memory = self.options = self.signature = "not ours"

    def method(self, completion: str) -> float:
        return self.worth

    def __call__(self, completion: str, *, scale: float = 1.0) -> float:
        return self.worth * scale


@pytest.mark.parametrize(
    "made",
    [make_local(), reward(lambda completion: 1.0), doubled, original, reward(Judge(1).method), reward(Judge(1)),
     reward(functools.partial(bare))],
    ids=repr,
)  # fmt: skip
def test_what_pickle_would_load_as_something_else_says_why_it_cannot_be_pickled(made: FunctionReward) -> None:
    """A wrapped function goes by the name of what it wraps; a bound method would lose its object."""
    assert made.target is None
    with pytest.raises(TypeError, match=r"cannot be pickled: .*move it to the top of a file"):
        pickle.dumps(made)
    assert copy.deepcopy(made) == made


def test_a_reward_from_a_file_unpickles_in_a_process_that_never_loaded_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from rewardkit import reward\n@reward\ndef f(completion, *, n: int = 1):\n    return float(n)\n")
    made: Any = load_target(f"{path}:f")
    assert pickle.loads(pickle.dumps(made.with_options(n=2))) == made.with_options(n=2)
    (tmp_path / "pickled").write_bytes(pickle.dumps(made.with_options(n=2)))
    code = "import pickle, sys; f = pickle.load(open(sys.argv[1], 'rb')); print(f, f.target)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "pickled")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.stdout.strip() == f"f(n=2) {path}:f", done.stderr


def test_rewards_are_equal_by_function_name_limits_and_options() -> None:
    def other(completion: str) -> float:
        return 0.0

    assert reward(bare) == reward(bare) and hash(reward(bare)) == hash(reward(bare))
    different = [
        reward(bare),
        reward(other),
        reward(name="x")(bare),
        reward(timeout=1)(bare),
        reward(memory=10**6)(bare),
        doubled,  # has the name and module of `bare`
        brief,
        brief.with_options(max_words=1),
        brief.with_options(strict=True),
        reward(Judge(1).method),
        reward(Judge(2).method),  # one target, two objects
        make_local(),
        make_local(),
    ]
    for one, two in itertools.combinations(different, 2):
        assert one != two
    assert reward(bare) != bare and len(set(different)) == len(different)
    judge_1 = Judge(1)
    assert reward(judge_1.method) == reward(judge_1.method)


def test_a_decorated_reward_can_be_decorated_again_with_its_options() -> None:
    assert (named_again.registered, named_again.timeout, named_again.options) == ("tests/again", 9.0, {"max_words": 3})
    assert named_again.function is brief.function


def test_callable_objects_and_partials_are_functions() -> None:
    made = reward(Judge(2.0))
    assert (made.label, made.timeout, made.memory, made.options) == ("Judge", None, None, {})
    assert judge(made.with_options(scale=2.0)).value == 4.0
    with pytest.raises(OptionError):
        made.with_options(scale="2")
    part = reward(functools.partial(brief.function, max_words=1))
    assert part.label == "brief" and judge(part, "two words").value == 0.0
    assert judge(part.with_options(max_words=2), "two words").value == 1.0
    with pytest.raises(OptionError):
        part.with_options(max_words="2")


# -- async


class Later:
    async def __call__(self, completion: str) -> float:
        return 1.0


async def later(completion: str, topic: str = "") -> float:
    await asyncio.sleep(0)
    return 0.5


def test_async_is_seen_through_partials_and_callable_objects() -> None:
    for function in (later, functools.partial(later, topic="x"), Later()):
        made = reward(function)
        assert made.is_async and made.placement == "inline"
        assert asyncio.run(made.judge(None, Sample(0), Completion("x"))).state == "scored"  # type: ignore[arg-type]
    assert not plain.is_async and reward(timeout=1)(later).placement == "inline"


def test_an_async_reward_without_its_column_answers_later_too() -> None:
    async def f(topic: str) -> float:
        return 1.0

    answer: Any = reward(f).judge(None, Sample(0), Completion("x"))
    assert asyncio.run(answer).reason == "missing"


@pytest.mark.parametrize("make", [group_reward, from_trl, as_reward])
def test_async_group_rewards_answer_later_and_are_not_silently_unscored(make: Any) -> None:
    async def f(completions: list[str]) -> list[float]:
        return [1.0 for _ in completions]

    made = make(f)
    assert made.is_async and made.takes_group
    answer: Any = made.judge_group(None, Generation(Sample(0), (Completion("x"), Completion("y"))))
    assert [score.value for score in asyncio.run(answer)] == [1.0, 1.0]


# -- what comes back


@pytest.mark.parametrize(
    ("returned", "value"), [(1.0, 1.0), (True, 1.0), (False, 0.0), (-3, -3.0), (ZeroDimensional(), 1.0)]
)
def test_numbers_are_scores(returned: Any, value: float) -> None:
    answer = judge(lambda completion: returned)
    assert answer.value == value and type(answer.value) is float and answer.state == "scored"


def test_none_abstains_and_a_score_keeps_what_it_says_but_is_named_by_its_reward() -> None:
    answer = judge(make_returning(None))
    assert (answer.state, answer.reason, answer.name) == ("abstained", "unsupported", "f")
    said = Score(0.0, "no closing tag", "x", "unreadable", name="another")
    answer = judge(make_returning(said))
    assert (answer.detail, answer.extracted, answer.reason, answer.name) == ("no closing tag", "x", "unreadable", "f")
    assert judge(make_returning(Score(None, "nothing to judge"))).state == "abstained"


def make_returning(value: Any) -> Callable[..., Any]:
    def f(completion: str) -> Any:
        return value

    return f


@pytest.mark.parametrize(
    "returned",
    ["1.0", b"1", [1.0], (1.0,), {"score": 1.0}, Array(1.0), float("nan"), float("inf"), 10**400, 1j, object],
)
def test_what_is_no_finite_number_is_an_error_and_never_a_zero(returned: Any) -> None:
    answer = judge(make_returning(returned))
    assert (answer.value, answer.state, answer.reason, answer.name) == (None, "error", "raised", "f")
    assert "number" in answer.detail and ".py:" not in answer.detail  # no line of ours is to blame


def test_an_exception_is_an_error_with_the_place_in_the_reward_s_own_file_and_a_trace() -> None:
    def f(completion: str) -> float:
        return json.loads(completion)  # type: ignore[no-any-return]

    answer = judge(f, "{")
    line = f.__code__.co_firstlineno + 1
    assert answer.detail.startswith("JSONDecodeError: Expecting property name")
    assert answer.detail.endswith(f"(test_reward.py:{line})")  # and not json/decoder.py
    assert (answer.value, answer.reason, answer.name) == (None, "raised", "f")
    assert answer.trace is not None and "decoder.py" in answer.trace


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("broken __str__")


@pytest.mark.parametrize(
    ("problem", "detail"),
    [
        (SystemExit(3), "SystemExit: 3 (test_reward.py:"),
        (Unprintable(), "Unprintable (test_reward.py:"),
        (ValueError("two\nlines  and\tgaps"), "ValueError: two lines and gaps (test_reward.py:"),
        (ValueError(), "ValueError (test_reward.py:"),
        (ExceptionGroup("several", [ValueError("x")]), "ExceptionGroup: several (1 sub-exception) (test_reward.py:"),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
)
def test_whatever_is_raised_is_one_short_line(problem: BaseException, detail: str) -> None:
    def f(completion: str) -> float:
        raise problem

    answer = judge(f)
    assert answer.state == "error" and answer.detail.startswith(detail)


def test_an_exception_that_quotes_a_whole_completion_is_cut() -> None:
    def f(completion: str) -> float:
        raise ValueError(completion)

    assert len(judge(f, "x" * 100_000).detail) < 600


@pytest.mark.parametrize(
    ("problem", "reason"),
    [(ServiceError("x"), "service"), (SandboxUnavailable("x"), "sandbox_unavailable"), (OSError("x"), "raised")],
)
def test_service_and_sandbox_failures_are_reasons_of_their_own(problem: Exception, reason: str) -> None:
    assert failure("f", problem).reason == reason


@pytest.mark.parametrize("problem", [KeyboardInterrupt()], ids=repr)
def test_interrupts_pass(problem: BaseException) -> None:
    def f(**columns: Any) -> float:
        raise problem

    for call in (judge, judge_group):
        with pytest.raises(type(problem)):
            call(f)


# -- groups


def test_a_group_reward_is_given_whole_group_columns_once_and_a_completion_s_own_as_lists() -> None:
    seen: dict[str, Any] = {}

    @group_reward
    def f(completions, messages, topic, label, tokens, prompt, reference, sample, id, level=7, *, top: int = 3, **rest):  # type: ignore[no-untyped-def]
        seen.update(locals())
        return [1.0] * len(completions)

    sample = Sample("q1", "question", "18", {"topic": "sums", "extra": "e", "top": 99})
    group = (Completion("x", 7, metadata={"label": 1, "own": "o"}), Completion("yy", metadata={}))
    assert [answer.value for answer in judge_group(f, group, sample)] == [1.0, 1.0]
    del seen["seen"], seen["sample"]
    assert seen == {
        "completions": ["x", "yy"],
        "messages": [[{"role": "assistant", "content": "x"}], [{"role": "assistant", "content": "yy"}]],
        "topic": "sums",
        "label": [1, None],
        "tokens": [7, None],
        "prompt": "question",
        "reference": "18",
        "id": "q1",
        "level": 7,
        "top": 3,
        "rest": {"extra": "e", "own": ["o", None]},
    }


@pytest.mark.parametrize(
    ("returned", "got"),
    [
        ([1.0], "1 value for a group of 8"),
        ([1.0] * 9, "9 values for a group of 8"),
        ([], "0 values for a group of 8"),
        (1.0, "one number for a group of 8"),
        (None, "a NoneType for a group of 8"),
        (dict.fromkeys(range(8), 1.0), "a dict for a group of 8"),
        ("11111111", "a str for a group of 8"),
        (b"11111111", "a bytes for a group of 8"),
        (set(range(8)), "a set for a group of 8"),
        (Score(1.0), "a Score for a group of 8"),
        (ZeroDimensional(), "a ZeroDimensional for a group of 8"),
    ],
)
def test_anything_but_one_value_each_stops_the_run_and_names_reward_got_and_want(returned: Any, got: str) -> None:
    @group_reward(name="mine/diverse")
    def diverse(completions: list[str]) -> Any:
        return returned

    with pytest.raises(ContractError) as stopped:
        judge_group(diverse, ["x"] * 8)
    assert "reward 'diverse'" in str(stopped.value) and got in str(stopped.value)
    assert "8 are wanted" in str(stopped.value) or "a list of 8 numbers is wanted" in str(stopped.value)


@pytest.mark.parametrize(
    "make", [list, tuple, iter, lambda values: Array(*values)], ids=["list", "tuple", "iter", "array"]
)
def test_lists_tuples_generators_and_arrays_are_fine(make: Any) -> None:
    answers = judge_group(lambda completions: make([1, 0.5]))
    assert [answer.value for answer in answers] == [1.0, 0.5]


def test_one_bad_value_in_a_group_is_that_completion_s_state_alone() -> None:
    returned = [1.0, None, float("nan"), "1", Array(1.0), Score(0.5, "half"), True]
    answers = judge_group(lambda completions: returned, ["x"] * 7)
    assert [answer.state for answer in answers] == [
        "scored", "abstained", "error", "error", "error", "scored", "scored",
    ]  # fmt: skip
    assert [answer.value for answer in answers] == [1.0, None, None, None, None, 0.5, 1.0]


def test_a_group_reward_that_raises_is_an_error_for_each_completion() -> None:
    def f(completions: list[str]) -> list[float]:
        raise RuntimeError("no")

    assert [answer.reason for answer in judge_group(f)] == ["raised", "raised"]


@pytest.mark.parametrize("metadata", [{}, {"level": None}])
def test_a_group_reward_without_its_column_abstains_for_each(metadata: dict[str, Any]) -> None:
    def f(completions: list[str], level: int) -> list[float]:
        raise AssertionError("asked without its column")

    answers = judge_group(f, sample=Sample(0, metadata=metadata))
    assert [(a.state, a.reason) for a in answers] == [("abstained", "missing")] * 2
    assert all("'level'" in answer.detail for answer in answers)


def test_single_and_group_calls_are_never_mixed_up() -> None:
    with pytest.raises(ContractError, match="judges whole groups"):
        rank.judge(None, Sample(0), Completion("x"))
    with pytest.raises(ContractError, match="judges single completions"):
        plain.judge_group(None, Generation(Sample(0), (Completion("x"),)))
    assert rank.takes_group and not plain.takes_group


# -- TRL


def test_trl_is_called_with_keywords_and_lists_of_equal_length_and_kwargs_get_everything() -> None:
    seen: dict[str, Any] = {}

    def f(**kwargs: Any) -> list[float]:
        seen.update(kwargs)
        kwargs["log_extra"]("name", ["x", "y"])
        kwargs["log_metric"](name="name", value=1.0)
        return [1.0, None]  # type: ignore[list-item]

    sample = Sample(0, "question", "18", {"answer": "18"})
    group = (Completion("x", metadata={"own": 1}), Completion("yy"))
    answers = judge_group(from_trl(f), group, sample)
    assert [answer.state for answer in answers] == ["scored", "abstained"]
    assert vars(seen.pop("trainer_state")) == {
        "global_step": 0,
        "max_steps": None,
        "epoch": None,
        "num_train_epochs": None,
    }
    del seen["log_extra"], seen["log_metric"]
    assert seen == {
        "prompts": ["question"] * 2,
        "completions": ["x", "yy"],
        "completion_ids": [None, None],
        "reference": ["18", "18"],
        "answer": ["18", "18"],
        "own": [1, None],
    }


def test_trl_functions_that_name_their_columns_get_no_others() -> None:
    def f(prompts, completions, answer, id, finish_reason, absent="default", scale: float = 2.0):  # type: ignore[no-untyped-def]
        assert (prompts, completions, answer, id) == (["question"] * 2, ["x", "yy"], ["18"] * 2, ["q1"] * 2)
        assert (absent, finish_reason) == ("default", ["stop", None])
        return [scale] * len(completions)

    group = (Completion("x", finish_reason="stop"), Completion("yy"))
    made = from_trl(f)
    assert made.needs == ("answer", "id", "finish_reason")
    answers = judge_group(made, group, Sample("q1", "question", None, {"answer": "18", "other": 1}))
    assert [answer.value for answer in answers] == [2.0, 2.0], answers[0].why


@pytest.mark.parametrize(
    ("prompt", "chat"),
    [([{"role": "user", "content": "q"}], True), ("question", False), (None, False)],
)
def test_trl_completions_are_message_lists_where_the_prompt_is_a_chat(prompt: Any, chat: bool) -> None:
    seen: list[Any] = []

    def f(completions: list[Any]) -> list[float]:
        seen.extend(completions)
        return [1.0]

    judge_group(from_trl(f), [Completion("x")], Sample(0, prompt))
    assert seen == ([[{"role": "assistant", "content": "x"}]] if chat else ["x"])


def test_a_trl_function_without_its_column_abstains_and_names_it() -> None:
    def f(completions: list[str], solution: list[str]) -> list[float]:
        raise AssertionError("asked without its column")

    made = from_trl(f)
    assert made.needs == ("solution",)
    answer = judge_group(made)[0]
    assert (answer.reason, "'solution'" in answer.detail) == ("missing", True)


class TrlObject:
    def __call__(self, completions: list[str], *, scale: float = 1.0, **kwargs: Any) -> list[float]:
        return [scale * len(completion) for completion in completions]


def test_undecorated_functions_go_by_their_completions_parameter() -> None:
    for function in (undecorated, functools.partial(undecorated), TrlObject(), lambda completions: [1.0]):
        assert type(as_reward(function)) is TrlReward
    assert type(as_reward(bare)) is FunctionReward and type(as_reward(functools.partial(bare))) is FunctionReward
    assert as_reward(rank) is rank and type(rank) is GroupReward
    made: Any = as_reward(TrlObject())
    assert [answer.value for answer in judge_group(made.with_options(scale=0.5))] == [0.5, 1.0]
    assert made.label == "TrlObject"


@pytest.mark.parametrize("wrong", [int, "gsm8k", 5, None, max])
def test_what_is_no_reward_says_what_is(wrong: Any) -> None:
    with pytest.raises(UsageError):
        as_reward(wrong)


def test_all_three_kinds_through_the_engine() -> None:
    group = Generation(Sample(0, "question", "18", {"topic": "sums"}), (Completion("x"), Completion("yy")))
    results = next(score({"one": plain, "two": rank, "three": TrlObject()}, [group])).scores  # type: ignore[dict-item]
    values = {name: [answer.value for answer in scores] for name, scores in results.items()}
    assert values == {"one": [1.0, 1.0], "two": [1.0, 1.0], "three": [1.0, 2.0]}


# -- limits


def test_a_deadline_makes_a_sync_function_a_process_reward() -> None:
    assert (timed.placement, timed.timeout, timed.memory) == ("process", 2.0, 2**20)
    assert (plain.placement, plain.timeout, plain.memory) == ("inline", None, None)
    assert group_reward(timeout=1)(rank.function).placement == "process"


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), "3", True, [1]])
def test_a_timeout_is_a_time_above_zero(wrong: Any) -> None:
    with pytest.raises(OptionError, match="timeout"):
        reward(timeout=wrong)(bare)


@pytest.mark.parametrize(
    ("given", "size"),
    [(None, None), (100, 100), ("512MB", 512 * 10**6), ("2GiB", 2 * 2**30), (" 1 kib ", 1024), ("3 gb", 3 * 10**9)],
)
def test_memory_sizes(given: Any, size: int | None) -> None:
    assert memory_bytes(given, "f") == size


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "512", "MB", "-1MB", "1.5GB", "0MB", "1TB", "１e3MB"])
def test_wrong_memory_sizes(wrong: Any) -> None:
    with pytest.raises(OptionError, match="memory is a size such as '512MB' or '2GiB'"):
        memory_bytes(wrong, "f")


def test_bounds_of_an_annotated_option_are_checked_when_it_is_given() -> None:
    def f(completion: str, *, share: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.5) -> float:
        return share

    assert reward(f).with_options(share=1).options == {"share": 1.0}
    with pytest.raises(OptionError, match="less than or equal to 1"):
        reward(f).with_options(share=1.5)


@pytest.mark.parametrize("problem", [GeneratorExit(), asyncio.CancelledError(), SystemExit(3)], ids=repr)
def test_what_only_looks_like_an_interrupt_is_an_error_of_its_row(problem: BaseException) -> None:
    def f(**columns: Any) -> float:
        raise problem

    assert judge(f).reason == "raised"
    assert [answer.reason for answer in judge_group(group_reward(f))] == ["raised"] * 2


def test_options_can_be_set_by_a_call_with_nothing_else_as_in_a_formula() -> None:
    def f(completion: str, *, n: int = 1) -> float:
        return float(n)

    made = reward(f)
    assert made(n=3) == made.with_options(n=3) and made(n=3)("text") == 1.0 and made("text", n=3) == 3.0
    with pytest.raises(OptionError):
        made(n="3")
    with pytest.raises(TypeError):
        made(m=3)


def test_a_reward_that_changes_what_it_is_given_changes_nothing_for_others() -> None:
    def spoil(
        completion: str, prompt: Any, messages: Any, reference: Any, tags: Any, sample: Any, **rest: Any
    ) -> float:
        for value in (prompt, messages, reference, tags, rest["more"], sample.metadata["tags"]):
            value.append("spoiled")
        return 1.0

    def spoil_group(completions: Any, prompt: Any, reference: Any, tags: Any) -> list[float]:
        for value in (prompt, reference, tags):
            value.append("spoiled")
        return [1.0 for _ in completions]

    def spoil_trl(completions: Any, prompts: Any, tags: Any, **rest: Any) -> list[float]:
        for value in (completions[0], prompts[0], tags[0], rest["more"][0]):
            value.append("spoiled")
        completions[0][0]["content"] = "spoiled"
        return [1.0 for _ in completions]

    def fresh() -> Generation:
        completion = Completion.from_messages([{"role": "assistant", "content": "x"}])
        sample = Sample(0, [{"role": "user", "content": "q"}], ["gold"], {"tags": ["a"], "more": ["b"]})
        return Generation(sample, (completion,))

    given = fresh()
    for made in (reward(spoil), group_reward(spoil_group), from_trl(spoil_trl)):
        (scored,) = score(made, [given])
        assert [answer.value for answers in scored.scores.values() for answer in answers] == [1.0]
    assert given == fresh()
