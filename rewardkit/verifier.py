"""`Verifier`: decides correctness, with typed options and a typed reference.

    class Day(Reference):
        day: date

    class IsoDay(Verifier[Day]):
        "Accept when the last ISO date in the text is the reference day."
        within_days: int = 0

        def verify(self, completion: Completion, reference: Day, sample: Sample) -> Verdict: ...

Options are the fields of a frozen pydantic model, so a verifier pickles, compares and prints by value. A verifier
is a reward whose score is its verdict's value.
"""

from __future__ import annotations

import functools
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Set
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pydantic_core
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from rewardkit import targets
from rewardkit.compose import Reward
from rewardkit.errors import ContractError, OptionError, nearest
from rewardkit.leaf import Leaf, Placement
from rewardkit.number import read_number
from rewardkit.types import BlameReference, Completion, Sample, Score, Verdict


def _exact(value: object) -> Fraction:
    """Read a number exactly: a float through its shortest decimal text, so that 0.1 is 1/10."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted, got a boolean")
    if isinstance(value, (int, Fraction)):
        return Fraction(value)
    if isinstance(value, (float, Decimal)):
        value = str(value)
    if isinstance(value, str):
        quantity = read_number(value)
        if quantity is not None and not quantity.unit:
            return quantity.value / 100 if quantity.percent else quantity.value
    raise ValueError(f"a number is wanted, got {str(value)[:60]!r}")


def _number_text(value: Fraction) -> int | float | str:
    """Write a number so that reading it gives the same one."""
    if value.denominator == 1:
        return int(value)
    try:
        near = float(value)
    except OverflowError:
        return str(value)
    return near if Fraction(repr(near)) == value else str(value)


Number = Annotated[Fraction, BeforeValidator(_exact), PlainSerializer(_number_text)]
"""An exact number as option or reference: int, Fraction, Decimal, text, or a float through its decimal text.

Text may be "1/3", "1,234" or "5%" (1/20), but has no unit.
"""


class Reference(BaseModel):
    """Base of typed references. Validation is strict; unknown fields, nan and inf are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


R = TypeVar("R", bound=Reference)


class _NoLimit:
    """None on every verifier, but absent from the class, so that a subclass may make an option of that name."""

    def __get__(self, verifier: object, kind: type) -> None:
        if verifier is None:
            raise AttributeError("a limit belongs to an instance: it may be an option")


_NO_LIMIT: Any = _NoLimit()


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as _ModelMetaclass
else:
    _ModelMetaclass = type(BaseModel)  # has no public name


class _Made(_ModelMetaclass):
    """The type of verifiers: a wrong option is our error, not a validation report of pydantic's."""

    _label: str
    _refuse_unknown: Callable[[Mapping[str, Any]], None]

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if arguments:
            raise OptionError(f"{cls._label}: options are given by name, got {arguments[0]!r}")
        cls._refuse_unknown(options)
        try:
            return super().__call__(*arguments, **options)
        except pydantic.ValidationError as problem:
            raise OptionError(f"{cls._label}: option {_first_problem(problem)}") from None


class Verifier(BaseModel, Leaf, Generic[R], metaclass=_Made):
    """Decides whether a completion is correct with respect to a reference of type `R`.

    Class attributes:
        name: The name it is registered under (`dates/iso_day`); without one, formulas use its import path.
        placement: "inline" (pure and bounded), "thread" (waits for something), "process" (may hang or blow up).
        timeout: Deadline in seconds for one completion; None: none. Declared as a field
            (`timeout: float = 3.0`) it is an option, too.
        memory: Bytes that its worker may use. May be an option, too.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, ignored_types=(property,))

    name: ClassVar[str | None] = None
    # A leaf has these as attributes; in a model that would make them options.
    placement: ClassVar[Placement] = "inline"  # type: ignore[misc]
    timeout: ClassVar[float | None] = _NO_LIMIT  # type: ignore[misc]
    memory: ClassVar[int | None] = _NO_LIMIT  # type: ignore[misc]
    _label: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls._label = (cls.name or cls.__name__).rpartition("/")[2]
        for name in cls.model_fields:
            if name in _TAKEN:
                raise TypeError(
                    f"{cls.__name__}: {name!r} cannot be an option, since every verifier has an attribute of that name;"
                    f" call it otherwise, or write {name}: ClassVar[...]"
                )

    @abstractmethod
    def verify(self, completion: Completion, reference: R, sample: Sample) -> Verdict:
        """Judge one completion. Raise ordinary exceptions when something breaks; they become error scores."""

    # -- identity

    @classmethod
    def reference_type(cls) -> type[Reference]:
        """The model of the reference: what stands in the brackets of `Verifier[...]`."""
        for base in cls.__mro__:
            arguments = getattr(base, "__pydantic_generic_metadata__", {}).get("args") or ()
            for argument in arguments:
                if isinstance(argument, type) and issubclass(argument, Reference):
                    return argument
        name = cls.__name__
        raise ContractError(f"{name} does not say its reference; write class {name}(Verifier[MyReference])")

    @property
    def label(self) -> str:
        return self._label

    @property
    def target(self) -> str | None:
        return targets.target_of(type(self))

    @property
    def registered(self) -> str | None:
        return self.name

    @property
    def options(self) -> dict[str, Any]:
        plain: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        return plain

    @property
    def needs(self) -> tuple[str, ...]:
        fields = type(self).reference_type().model_fields
        return ("reference",) if any(field.is_required() for field in fields.values()) else ()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Verifier[R]:
        """Make one from plain data, strictly.

        Raises:
            OptionError: Names the option, what was wanted and what came.
        """
        cls._refuse_unknown(options)
        try:
            return cls.model_validate_json(_json(options), strict=True)
        except pydantic.ValidationError as problem:
            raise OptionError(f"{cls._label}: option {_first_problem(problem)}") from None
        except _NO_JSON as problem:
            raise OptionError(f"{cls._label}: options cannot be written as JSON: {problem}") from None

    @classmethod
    def _refuse_unknown(cls, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in cls.model_fields:
                known = list(cls.model_fields)
                has = f"its options are {', '.join(known)}" if known else "it has no options"
                raise OptionError(f"{cls._label} has no option {name!r}; {has}{nearest(name, known)}")

    def __repr__(self) -> str:
        return self.formula

    __str__ = __repr__

    def __hash__(self) -> int:
        # Equal verifiers must hash alike whatever their options hold (0.0 and -0.0, dicts in any order).
        return hash(type(self))

    def __reduce__(self) -> tuple[Any, ...]:
        target = self.target
        if target is None:
            raise TypeError(f"verifier {self._label!r} cannot be pickled; move its class to the top of a file")
        return _blank, (target,), self.__getstate__()

    # -- judging

    def prepare(self, sample: Sample) -> object:
        layout = _layout(type(self))
        given = _reference_fields(layout, sample)
        if given is None:
            return Score(None, "the row has no reference", reason="missing", name=self._label)
        try:
            text = _json(given)
        except _NO_JSON as problem:
            return Score(None, f"the reference cannot be read: {problem}", reason="bad_reference", name=self._label)
        try:
            return layout.kind.__pydantic_validator__.validate_json(text, strict=True)
        except pydantic.ValidationError as problem:
            errors = problem.errors(include_url=False)
            absent = all(error["type"] == "missing" and len(error["loc"]) == 1 for error in errors)
            reason: BlameReference = "missing" if absent else "bad_reference"
            return Score(None, _first_problem(problem), reason=reason, name=self._label)

    def judge(self, prepared: object, sample: Sample, completion: Completion) -> Score:
        verdict = self.verify(completion, prepared, sample)  # type: ignore[arg-type]
        if not isinstance(verdict, Verdict):
            raise TypeError(f"{self._label}.verify returned a {type(verdict).__name__}, not a Verdict")
        return Score(verdict.value, verdict.detail, verdict.extracted, verdict.reason, self._label)


_TAKEN = {name for kind in (Reward, Leaf, Verifier) for name in vars(kind)} - {"timeout", "memory"}


def _blank(target: str) -> object:
    """Return a verifier whose options pickle fills in next."""
    kind: Any = targets.load_target(target)
    return kind.__new__(kind)


class _Layout(NamedTuple):
    kind: type[Reference]
    names: tuple[str, ...]
    needs_first: bool


@functools.cache
def _layout(verifier: type[Verifier[Any]]) -> _Layout:
    """Return what a verifier's reference consists of, worked out once a class."""
    kind = verifier.reference_type()
    fields = kind.model_fields
    return _Layout(kind, tuple(fields), bool(fields) and next(iter(fields.values())).is_required())


def _reference_fields(layout: _Layout, sample: Sample) -> dict[str, Any] | None:
    """Return the fields of a reference by name: from a mapping, else the first field; the rest from columns."""
    names, raw = layout.names, sample.reference
    if isinstance(raw, Mapping):
        given = {str(key): value for key, value in raw.items() if value is not None or key not in names}
    elif raw is None or not names:
        given = {}
    else:
        given = {names[0]: raw}
    for name in names:
        if name not in given:
            value = sample.metadata.get(name)
            if value is not None:
                given[name] = value
    return given if given or not layout.needs_first else None


_SIMPLE = frozenset({str, int, bool, float})
_NO_JSON = (TypeError, ValueError, RecursionError)


def _json(values: Mapping[str, Any]) -> bytes:
    """Write values as JSON, from which strict validation also reads dates and tuples."""
    if _SIMPLE.issuperset(map(type, values.values())):
        try:
            text = msgspec.json.encode(values)
        except OverflowError:  # an integer of more than 64 bits
            text = b"null"
        if b"null" not in text:  # which is also what it makes of nan
            return text
    return _ENCODER.encode(values).encode()


def _plain(value: Any) -> Any:
    """Turn what JSON cannot hold into what it can: dates by their ISO text, arrays and sets into lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, (Mapping, Set)):
        return dict(value) if isinstance(value, Mapping) else list(value)
    if isinstance(value, (Fraction, Decimal, PurePath, UUID)):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


_ENCODER = json.JSONEncoder(default=_plain, ensure_ascii=False)


def _first_problem(problem: pydantic.ValidationError) -> str:
    first: pydantic_core.ErrorDetails = problem.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if message[1:2].islower():
        message = message[0].lower() + message[1:]
    if first["type"] == "missing":
        return f"{where}: nothing given" if where else message
    if first["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where}: {message}, got {str(first['input'])[:60]!r}" if where else message


__all__ = ["Number", "Reference", "Verifier"]
