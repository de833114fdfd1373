"""Verifiers: typed options, a typed reference, and whom to blame when either cannot be read."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from rewardkit.engine import score_text
from rewardkit.errors import ContractError, OptionError
from rewardkit.leaf import attempt, attempt_prepare
from rewardkit.reward import as_reward
from rewardkit.targets import load_target
from rewardkit.types import Completion, Sample, Score, Verdict
from rewardkit.verifier import Number, Reference, Verifier


class Day(Reference):
    day: date


class IsoDay(Verifier[Day]):
    within_days: int = 0

    def verify(self, completion: Completion, reference: Day, sample: Sample) -> Verdict:
        found = date.fromisoformat(completion.text)
        return Verdict.accept() if abs((found - reference.day).days) <= self.within_days else Verdict.reject(str(found))


class Amount(Reference):
    amount: Number
    unit: str
    places: int = 0


class HasUnit(Verifier[Amount]):
    name: ClassVar[str | None] = "money/has_unit"

    def verify(self, completion: Completion, reference: Amount, sample: Sample) -> Verdict:
        return Verdict.partial(float(completion.text == f"{reference.amount} {reference.unit}"))


class Nothing(Reference):
    hint: str | None = None


class Anything(Verifier[Nothing]):
    tolerance: Number = Fraction(0)
    share: float = 0.5
    mode: Literal["auto", "whole"] = "auto"
    tags: tuple[str, ...] = ()
    since: date | None = None
    table: dict[str, int] = {}  # noqa: RUF012 - a field

    def verify(self, completion: Completion, reference: Nothing, sample: Sample) -> Verdict:
        return Verdict.accept(repr(reference.hint))


class Code(Verifier[Nothing]):
    timeout: float = 3.0
    memory: int = 1000

    def verify(self, completion: Completion, reference: Nothing, sample: Sample) -> Verdict:
        return Verdict.accept()


def prepared(verifier: Verifier[Any], reference: Any = None, **columns: Any) -> Any:
    return attempt_prepare(verifier, Sample(0, "", reference, columns))


def one_field(kind: Any) -> Verifier[Any]:
    """Return a verifier whose reference is one field `x` of this type."""
    reference = pydantic.create_model("One", __base__=Reference, x=(kind, ...))

    class Made(Verifier[reference]):  # type: ignore[valid-type]
        def verify(self, completion: Completion, reference: Any, sample: Sample) -> Verdict:
            return Verdict.accept()

    return Made()


# -- the reference


@pytest.mark.parametrize(
    ("reference", "columns", "expected"),
    [
        ({"amount": 3, "unit": "kg", "places": 2}, {}, (3, "kg", 2)),
        ({"amount": 3, "unit": "kg"}, {}, (3, "kg", 0)),
        (3, {"unit": "kg"}, (3, "kg", 0)),  # a scalar is the first field, the rest are columns
        ("3", {"unit": "kg", "places": 1}, (3, "kg", 1)),
        (None, {"amount": "3", "unit": "kg"}, (3, "kg", 0)),
        ({"unit": "kg"}, {"amount": 3}, (3, "kg", 0)),  # a mapping without the first field
        ({"amount": 3, "unit": None, "places": None}, {"unit": "kg"}, (3, "kg", 0)),  # tables fill up with nulls
        ({"amount": 3, "unit": "kg"}, {"unit": "g", "amount": 4}, (3, "kg", 0)),  # the reference comes first
        (3, {"unit": "kg", "places": None}, (3, "kg", 0)),
    ],
)
def test_a_mapping_fills_by_name_anything_else_the_first_field_and_columns_the_rest(
    reference: Any, columns: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    assert tuple(prepared(HasUnit(), reference, **columns).model_dump().values()) == expected


@pytest.mark.parametrize(
    ("reference", "columns", "detail"),
    [
        (None, {}, "the row has no reference"),
        ({}, {}, "the row has no reference"),
        ({"amount": None}, {}, "the row has no reference"),
        (3, {}, "unit: nothing given"),
        (None, {"unit": "kg"}, "amount: nothing given"),
        ({"amount": 3, "unit": None}, {"unit": None}, "unit: nothing given"),
    ],
)
def test_nothing_given_is_missing(reference: Any, columns: dict[str, Any], detail: str) -> None:
    answer = prepared(HasUnit(), reference, **columns)
    assert (answer.state, answer.reason, answer.detail, answer.name) == ("abstained", "missing", detail, "has_unit")


@pytest.mark.parametrize(
    ("kind", "reference", "detail"),
    [
        (int, "5", "x: input should be a valid integer, got '5'"),
        (int, 5.0, "x: input should be a valid integer, got '5.0'"),
        (int, True, "x: input should be a valid integer, got 'True'"),
        (float, True, "x: input should be a valid number, got 'True'"),
        (float, "0.5", "x: input should be a valid number, got '0.5'"),
        (float, float("nan"), "x: input should be a finite number, got 'nan'"),
        (float | None, float("nan"), "x: input should be a finite number, got 'nan'"),  # and not null
        (float, float("inf"), "x: input should be a finite number, got 'inf'"),
        (bool, 1, "x: input should be a valid boolean, got '1'"),
        (bool, "true", "x: input should be a valid boolean, got 'true'"),
        (str, 18, "x: input should be a valid string, got '18'"),
        (list[int], ["1"], "x.0: input should be a valid integer, got '1'"),
        (date, "1 May", "x: input should be a valid date in the format YYYY-MM-DD, input is too short, got '1 May'"),
        (date, 0, "x: input should be a valid date, got '0'"),
        (Literal["A", "B"], "C", "x: input should be 'A' or 'B', got 'C'"),
        (Number, True, "x: a number is wanted, got a boolean"),
        (Number, "about 3", "x: a number is wanted, got 'about 3'"),
        (Number, "3 kg", "x: a number is wanted, got '3 kg'"),
        (Number, float("nan"), "x: a number is wanted, got 'nan'"),
        (Number, [3], "x: a number is wanted, got '[3]'"),
        (Number, "1e999999999", "x: a number is wanted, got '1e999999999'"),
        (str, b"x", "the reference cannot be read: a value of type bytes cannot be written as JSON"),
        (Any, {3}.__iter__(), "the reference cannot be read: a value of type set_iterator cannot be written as JSON"),
        (Number, {"x": 3, "y": 4}, "y: extra inputs are not permitted, got '4'"),
    ],
)
def test_a_reference_is_read_strictly_and_the_reference_is_blamed_in_plain_words(
    kind: Any, reference: Any, detail: str
) -> None:
    answer = prepared(one_field(kind), reference)
    assert (answer.state, answer.reason, answer.detail) == ("abstained", "bad_reference", detail)


def endless() -> list[Any]:
    nested: list[Any] = []
    nested.append(nested)
    return nested


@pytest.mark.parametrize(
    "reference", ["\ud800", 10**5000, endless(), {"x": {(1, 2): 3}}], ids=["half", "big", "endless", "key"]
)
def test_a_reference_that_cannot_even_be_written_down_is_not_the_verifier_s_fault(reference: Any) -> None:
    answer = prepared(one_field(Any), reference)
    assert (answer.reason, answer.detail[:29]) == ("bad_reference", "the reference cannot be read:")


@pytest.mark.parametrize(
    ("kind", "reference", "value"),
    [
        (Number, 0.1, Fraction(1, 10)),
        (Number, 1e22, Fraction(10**22)),
        (Number, 5e-324, Fraction("5e-324")),
        (Number, "1/3", Fraction(1, 3)),
        (Number, "-1/3", Fraction(-1, 3)),
        (Number, "1,234.5", Fraction(2469, 2)),
        (Number, "5%", Fraction(1, 20)),
        (Number, Fraction(1, 3), Fraction(1, 3)),
        (Number, Decimal("0.10"), Fraction(1, 10)),
        (Number, 2**70, Fraction(2**70)),  # more than 64 bits
        (int, -(2**70), -(2**70)),
        (float, 1, 1.0),
        (date, "2024-02-29", date(2024, 2, 29)),
        (date, date(2024, 2, 29), date(2024, 2, 29)),
        (tuple[int, ...], [1, 2], (1, 2)),
        (set[int], {1, 2}, {1, 2}),
        (str, "null", "null"),
        (str, '\u2028\0"\\', '\u2028\0"\\'),
        (dict[str, Any], {"x": {"a": None}}, {"a": None}),
    ],
)
def test_references_that_can_be_read(kind: Any, reference: Any, value: Any) -> None:
    read = prepared(one_field(kind), reference)
    assert not isinstance(read, Score), read.why
    assert read.x == value and type(read.x) is type(value)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_reaches_a_text_field_unchanged(text: str) -> None:
    assert prepared(TEXT, text).x == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_means_its_decimal_text(value: float) -> None:
    assert prepared(NUMBER, value).x == Fraction(repr(value))


@given(st.integers(-(10**40), 10**40), st.integers(1, 10**40))
def test_a_number_option_survives_its_own_plain_data(top: int, bottom: int) -> None:
    made = Anything(tolerance=Fraction(top, bottom))
    assert Anything.from_options(made.options) == made


TEXT, NUMBER = one_field(str), one_field(Number)


def test_optional_references_need_nothing() -> None:
    assert Anything().needs == () and IsoDay().needs == ("reference",)
    assert prepared(Anything()).hint is None
    assert prepared(Anything(), "x").hint == "x"
    assert prepared(Anything(), None, hint="y").hint == "y"
    assert score_text(Anything(), "whatever").value == 1.0


def test_a_field_inside_a_field_that_is_absent_is_a_bad_reference_and_not_a_missing_one() -> None:
    class Inner(pydantic.BaseModel):
        low: int

    assert prepared(one_field(Inner), {"x": {}}).reason == "bad_reference"


def test_a_validator_s_own_words_are_what_is_shown() -> None:
    def read(value: Any) -> Any:
        raise ValueError("SQL is wanted")

    answer = prepared(one_field(Annotated[str, pydantic.BeforeValidator(read)]), "x")
    assert answer.detail == "x: SQL is wanted"  # and not "sQL"


def test_a_validator_that_breaks_is_the_verifier_s_fault() -> None:
    def read(value: Any) -> Any:
        return value.no_such_attribute

    answer = prepared(one_field(Annotated[str, pydantic.BeforeValidator(read)]), "x")
    assert (answer.state, answer.reason) == ("error", "raised") and "test_verifier.py:" in answer.detail


S = TypeVar("S", bound=Reference)


class Middle(Verifier[S], Generic[S]):
    def verify(self, completion: Completion, reference: S, sample: Sample) -> Verdict:
        return Verdict.accept()


class Leafmost(Middle[Day]):
    pass


class More(IsoDay):
    extra: bool = False


class Bare(Verifier):  # type: ignore[type-arg]
    def verify(self, completion: Completion, reference: Any, sample: Sample) -> Verdict:
        return Verdict.accept()


def test_the_reference_type_is_found_through_inheritance() -> None:
    assert Leafmost.reference_type() is More.reference_type() is IsoDay.reference_type() is Day
    with pytest.raises(ContractError, match=r"write class Bare\(Verifier\[MyReference\]\)"):
        Bare.reference_type()


# -- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share": "0.5"}, "share: input should be a valid number, got '0.5'"),
        ({"share": True}, "share: input should be a valid number"),
        ({"share": float("nan")}, "share: input should be a finite number"),
        ({"tolerance": True}, "tolerance: a number is wanted, got a boolean"),
        ({"tolerance": "1 cm"}, "tolerance: a number is wanted, got '1 cm'"),
        ({"mode": "all"}, "mode: input should be 'auto' or 'whole', got 'all'"),
        ({"tags": [1]}, "tags.0: input should be a valid string"),
        ({"tags": "ab"}, "tags: input should be a valid array"),
        ({"table": {"a": True}}, "table.a: input should be a valid integer"),
        ({"since": "soon"}, "since: input should be a valid date"),
        ({"since": object()}, "options cannot be written as JSON"),
        ({"mod": "auto"}, "Anything has no option 'mod'; its options are tolerance, share, mode, tags, since, table; "
         "did you mean mode?"),
    ],
)  # fmt: skip
def test_options_from_plain_data_are_strict_and_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as refused:
        Anything.from_options(options)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"share": "0.5"},
        {"share": True},
        {"share": float("inf")},
        {"tolerance": True},
        {"mode": "all"},
        {"mod": "auto"},
        {"tags": (1,)},
    ],
)
def test_options_in_code_are_strict_too(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Anything(**options)


def test_no_options_says_so() -> None:
    with pytest.raises(OptionError, match=r"has_unit has no option 'x'; it has no options"):
        HasUnit.from_options({"x": 1})


def test_options_from_data_and_from_code_are_the_same_verifier() -> None:
    data = {"tolerance": 0.1, "share": 1, "mode": "whole", "tags": ["a"], "since": "2024-01-01", "table": {"k": 2}}
    code = Anything(
        tolerance=Fraction(1, 10), share=1.0, mode="whole", tags=("a",), since=date(2024, 1, 1), table={"k": 2}
    )
    made = Anything.from_options(data)
    assert made == code and hash(made) == hash(code) and made.options == data
    assert Anything.from_options(code.options) == code
    assert Anything.from_options({"since": date(2024, 1, 1)}).since == date(2024, 1, 1)


def test_options_show_only_what_differs_from_the_defaults() -> None:
    assert Anything().options == {} and Anything(share=0.5).options == {}
    assert Anything(share=0.25, tolerance=Fraction(1, 3)).options == {"tolerance": "1/3", "share": 0.25}
    assert Anything(tolerance=Fraction(10**400, 3)).options["tolerance"].endswith("/3")  # no float is that large


def test_equal_options_hash_alike_whatever_they_hold() -> None:
    one = Anything(share=0.0, table={"a": 1, "b": 2})
    two = Anything(share=-0.0, table={"b": 2, "a": 1})
    assert one == two and hash(one) == hash(two)
    assert Anything(share=0.25) != Anything() and More() != IsoDay()


def test_a_verifier_never_changes() -> None:
    with pytest.raises(pydantic.ValidationError):
        IsoDay().within_days = 3
    with pytest.raises(pydantic.ValidationError):
        prepared(IsoDay(), "2024-01-01").day = date(2024, 1, 2)


# -- identity


def test_formula_repr_and_label() -> None:
    assert repr(HasUnit()) == str(HasUnit()) == HasUnit().formula == "'money/has_unit'"
    assert (HasUnit().label, HasUnit().registered) == ("has_unit", "money/has_unit")
    made = IsoDay(within_days=2)
    assert made.formula == f"'{made.target}'(within_days=2)" and made.target.endswith(":IsoDay")
    assert (made.label, made.registered) == ("IsoDay", None)
    assert (0.5 * HasUnit() + 1).formula == "0.5*'money/has_unit' + 1"


def test_a_subclass_has_its_own_name_or_its_parent_s() -> None:
    class Named(HasUnit):
        name = "money/other"

    class Unnamed(HasUnit):
        pass

    assert (Named().label, Named().formula, HasUnit().label) == ("other", "'money/other'", "has_unit")
    assert Unnamed().label == "has_unit"


def test_a_class_stands_for_its_verifier_with_defaults() -> None:
    assert as_reward(IsoDay) == IsoDay()


@pytest.mark.parametrize("made", [IsoDay(within_days=3), HasUnit(), Anything(tags=("a",)), Code(timeout=1.0)], ids=repr)
def test_pickle_and_copy(made: Verifier[Any]) -> None:
    again = pickle.loads(pickle.dumps(made))
    assert again == made and again.formula == made.formula and type(again) is type(made)
    assert copy.copy(made) == copy.deepcopy(made) == made


def test_a_local_verifier_says_why_it_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="cannot be pickled; move its class to the top of a file"):
        pickle.dumps(one_field(str))


FILE = """
from rewardkit import Reference, Verdict, Verifier
class Text(Reference):
    text: str
class Same(Verifier[Text]):
    strict: bool = True
    def verify(self, completion, reference, sample):
        return Verdict.partial(float(completion.text == reference.text))
"""


def test_a_verifier_from_a_file_unpickles_in_a_process_that_never_loaded_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    kind: Any = load_target(f"{path}:Same")
    (tmp_path / "pickled").write_bytes(pickle.dumps(kind(strict=False) * 0.5))
    code = "import pickle, sys; print(repr(pickle.load(open(sys.argv[1], 'rb'))))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "pickled")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.stdout.strip() == f"0.5*'{path}:Same'(strict=False)", done.stderr


# -- limits


def test_a_limit_that_is_a_field_is_an_option_and_the_deadline_and_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Timed(Verifier[Nothing]):
            timeout: float = 3.0
            memory: int = Field(default=5, gt=0)

            def verify(self, completion: Completion, reference: Nothing, sample: Sample) -> Verdict:
                return Verdict.accept()

        class Slower(Timed):
            timeout: float = 30.0

    assert (Timed().timeout, Timed().memory, Slower().timeout) == (3.0, 5, 30.0)
    assert Timed.from_options({"timeout": 1}).timeout == 1.0 and Timed(timeout=1.0).options == {"timeout": 1.0}
    assert Code(timeout=2.5).formula.endswith("(timeout=2.5)")
    with pytest.raises(OptionError):
        Timed.from_options({"memory": 0})


def test_a_limit_that_is_a_class_attribute_is_no_option() -> None:
    class Fixed(IsoDay):
        placement: ClassVar[Any] = "process"
        timeout: ClassVar[float | None] = 4.0

    assert (Fixed().timeout, Fixed().memory, Fixed().placement) == (4.0, None, "process")
    assert (IsoDay().timeout, IsoDay().memory, IsoDay().placement) == (None, None, "inline")
    with pytest.raises(OptionError):
        Fixed.from_options({"timeout": 1.0})


def test_a_limit_without_a_default_is_required() -> None:
    class Must(Verifier[Nothing]):
        timeout: float

        def verify(self, completion: Completion, reference: Nothing, sample: Sample) -> Verdict:
            return Verdict.accept()

    with pytest.raises(OptionError):
        Must()
    assert Must(timeout=2.0).timeout == 2.0


@pytest.mark.filterwarnings("ignore:Field name:UserWarning")
@pytest.mark.parametrize("name", ["options", "children", "label", "name", "needs", "verify"])
def test_an_option_that_would_be_hidden_by_what_every_verifier_has_is_refused(name: str) -> None:
    """A property wins over a field of its name: `self.options` would silently be something else."""
    with pytest.raises(TypeError, match=f"'{name}' cannot be an option"):
        pydantic.create_model("Hidden", __base__=IsoDay, **{name: (str, "x")})


# -- judging


def test_the_score_is_the_verdict() -> None:
    class Says(Verifier[Nothing]):
        def verify(self, completion: Completion, reference: Nothing, sample: Sample) -> Verdict:
            return Verdict.partial(0.25, "two of eight", extracted="x", reason="output")

    judged = attempt(Says(), Nothing(), Sample(0), Completion("x"))
    assert judged == Score(0.25, "two of eight", "x", "output", "Says")


@pytest.mark.parametrize("returned", [True, 1.0, None, "accept", Score(1.0), (1.0, "x")])
def test_what_is_no_verdict_is_an_error_and_not_a_number(returned: Any) -> None:
    class Wrong(Verifier[Nothing]):
        def verify(self, completion: Completion, reference: Nothing, sample: Sample) -> Verdict:
            return returned  # type: ignore[no-any-return]

    judged = attempt(Wrong(), Nothing(), Sample(0), Completion("x"))
    assert (judged.value, judged.reason) == (None, "raised")
    assert f"Wrong.verify returned a {type(returned).__name__}, not a Verdict" in judged.detail


def test_what_verify_raises_is_an_error_with_its_place() -> None:
    judged = score_text(IsoDay(), "no date", reference="2024-01-01")
    assert (judged.value, judged.reason) == (None, "raised")
    assert "ValueError: Invalid isoformat string: 'no date' (test_verifier.py:" in judged.detail
    assert judged.trace and "Traceback" in judged.trace


def test_a_verifier_without_verify_cannot_be_made() -> None:
    class Unfinished(Verifier[Nothing]):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Unfinished()  # type: ignore[abstract]


def test_from_reference_to_score() -> None:
    assert score_text(IsoDay(within_days=1), "2024-03-01", reference="2024-02-29").value == 1.0
    assert score_text(IsoDay(), "2024-03-01", reference="2024-02-29").why == "wrong: 2024-03-01"
    assert score_text(HasUnit(), "5/2 kg", reference=2.5, unit="kg").value == 1.0
