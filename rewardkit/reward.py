"""`@reward` and `@group_reward`: plain functions become named, picklable, composable rewards.

    @reward
    def brief(completion, *, max_words: int = 120) -> float:
        "1 up to `max_words` words, else 0."
        return float(len(completion.split()) <= max_words)

A function says what it needs by its parameter names: `completion` (text), `messages`, `sample`, `prompt`,
`reference`, or any column of the data. A parameter without a default is required; a keyword-only one with a
default is an option. It returns a number, a bool, a `Score`, or None (abstain).

`Leaf` is what functions and verifiers have in common, and what the engine and the workers call.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import math
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import Any, ClassVar, TypeVar, overload

import msgspec

from rewardkit import targets
from rewardkit.compose import Reward
from rewardkit.errors import ContractError, OptionError, UsageError, nearest
from rewardkit.leaf import Leaf, Placement, failure, literal
from rewardkit.types import Completion, Generation, Sample, Score, Verdict, finite

_F = TypeVar("_F", bound=Callable[..., Any])


class _Missing:
    """Stands for a column that a row does not have."""


MISSING = _Missing()


# ---------------------------------------------------------------------------------------- columns by name


def column(name: str, sample: Sample, completion: Completion | None) -> Any:
    """Return a column: the completion's own, else the sample's, else what the types themselves know."""
    if completion is not None and name in completion.metadata:
        return completion.metadata[name]
    if name in sample.metadata:
        return sample.metadata[name]
    known: Any = None
    if name == "id":
        known = sample.id
    elif name == "step":
        known = sample.step
    elif completion is not None and name in ("tokens", "finish_reason"):
        known = getattr(completion, name)
    return MISSING if known is None else known


_UNCHANGEABLE = (str, int, float, bool, type(None), bytes, _Missing)


def _own(value: Any) -> Any:
    """Return a value that the function may change without anybody else noticing."""
    return value if isinstance(value, _UNCHANGEABLE) else copy.deepcopy(value)


def _messages(sample: Sample, completion: Completion) -> list[Any]:
    if completion.messages is not None:
        return [_own(message) for message in completion.messages]
    return [{"role": "assistant", "content": completion.text}]


_GIVEN: dict[str, Callable[[Sample, Completion], Any]] = {
    "completion": lambda sample, completion: completion.text,
    "messages": _messages,
    "sample": lambda sample, completion: _own(sample),
    "prompt": lambda sample, completion: _own(sample.prompt),
    "reference": lambda sample, completion: _own(sample.reference),
}


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        name = _function_name(function)
        raise UsageError(f"{name} does not say its parameters; wrap it in a function of yours") from None


class _Signature:
    """What a function asks for: arguments by name, options, and whether it wants all the rest."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.arguments: list[str] = []
        self.defaults: dict[str, Any] = {}
        self.options: dict[str, inspect.Parameter] = {}
        self.rest = False
        for parameter in _parameters(function).values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise UsageError(f"reward {name!r} has *{parameter.name}: name the columns that it needs")
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise UsageError(f"reward {name!r}: {parameter.name!r} is positional-only; arguments are given by name")
            if parameter.kind is parameter.VAR_KEYWORD:
                self.rest = True
            elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty:
                self.options[parameter.name] = parameter
            else:
                self.arguments.append(parameter.name)
                if parameter.default is not parameter.empty:
                    self.defaults[parameter.name] = parameter.default

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(name for name in self.arguments if name not in self.defaults)


class FunctionReward(Leaf):
    """A function that `@reward`, `@group_reward` or `from_trl` made into a reward. Calling it calls the function."""

    _foreign: ClassVar[tuple[str, str]] = ("completions", "one completion at a time; @group_reward gets a whole group")

    function: Callable[..., Any]
    _options: dict[str, Any]

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        timeout: float | None = None,
        memory: int | str | None = None,
        options: Mapping[str, Any] | None = None,
        target: str | None = None,
    ) -> None:
        if isinstance(function, FunctionReward):
            made: FunctionReward = function
            function, options = made.function, {**made._options, **(options or {})}
        if isinstance(function, type) or not callable(function):
            raise UsageError(f"a reward is made from a function, got {_shape(function)}")
        self.function = function
        self._name = name
        self._label = name.rpartition("/")[2] if name else _function_name(function)
        self._target = target
        self._async = _is_async(function)
        self.timeout = _seconds(timeout, self._label)
        self.memory = memory_bytes(memory, self._label)
        limited = self.timeout is not None or self.memory is not None
        self.placement: Placement = "process" if limited and not self._async else "inline"
        self.signature = _Signature(function, self._label)
        self._options = self._checked(dict(options or {}))
        self._values = {key: p.default for key, p in self.signature.options.items()} | self._options
        self._getters = [(argument, self._getter(argument)) for argument in self.signature.arguments]
        foreign, instead = self._foreign
        if foreign in self.signature.arguments:
            raise UsageError(f"reward {self._label!r} asks for {foreign!r}, but is given {instead}")
        # Without the function's own attributes, which could hide ours.
        functools.update_wrapper(self, function, updated=())

    # -- identity

    @property
    def label(self) -> str:
        return self._label

    @property
    def target(self) -> str | None:
        # Looked up late: while a decorator runs, the function's name means nothing yet.
        return self._target or targets.target_of(self.function)

    @property
    def registered(self) -> str | None:
        return self._name

    @property
    def options(self) -> dict[str, Any]:
        defaults = self.signature.options
        return {name: _plain(value) for name, value in self._options.items() if value != defaults[name].default}

    @property
    def is_async(self) -> bool:
        return self._async

    @property
    def needs(self) -> tuple[str, ...]:
        free = {"completion", "messages", "sample", "prompt", "completions"}
        return tuple(name for name in self.signature.required if name not in free)

    def with_options(self, **options: Any) -> FunctionReward:
        """Return the same reward with other options; names and types are checked."""
        return self._copy(self._options | options)

    def _copy(self, options: Mapping[str, Any]) -> FunctionReward:
        return type(self)(
            self.function,
            name=self._name,
            timeout=self.timeout,
            memory=self.memory,
            options=options,
            target=self._target,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function, as if it had not been decorated; with nothing but options, set them.

        `brief("some text")` is a number, `brief(max_words=80)` is the reward with that option, as in a formula.
        """
        if kwargs and not args and self.signature.required and kwargs.keys() <= self.signature.options.keys():
            return self.with_options(**kwargs)
        return self.function(*args, **kwargs)

    def _key(self) -> tuple[Any, ...]:
        return (
            type(self),
            self._label,
            self._name,
            self.timeout,
            self.memory,
            literal(dict(sorted(self.options.items()))),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FunctionReward):
            return NotImplemented
        return bool(self.function == other.function) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={literal(value)}" for name, value in self.options.items())
        return f"{self._name or self._label}({options})" if options else self._name or self._label

    def __reduce__(self) -> tuple[Callable[..., FunctionReward], tuple[Any, ...]]:
        target = self.target
        if target is None:
            raise TypeError(
                f"reward {self._label!r} cannot be pickled: it is defined inside a function, or its name means"
                " something else now; move it to the top of a file"
            )
        return _restore, (type(self), target, self._name, self.timeout, self.memory, self._options)

    def __copy__(self) -> FunctionReward:
        return self  # it never changes

    def __deepcopy__(self, memo: object) -> FunctionReward:
        return self

    # -- judging

    def prepare(self, sample: Sample) -> object:
        if sample.reference is None and "reference" in self.needs:
            return Score(None, "the row has no reference", reason="missing", name=self._label)
        return None

    def judge(self, prepared: object, sample: Sample, completion: Completion) -> Score | Awaitable[Score]:
        arguments: dict[str, Any] = {}
        for name, get in self._getters:
            value = get(sample, completion)
            if value is MISSING:
                return self._answered(self._blank(name))
            arguments[name] = value
        if self.signature.rest:
            columns = {**sample.metadata, **completion.metadata}
            arguments = {name: _own(value) for name, value in columns.items() if name not in arguments} | arguments
            for option in self._values:
                arguments.pop(option, None)
        if self._async:
            return self._awaited(arguments)
        return to_score(self.function(**arguments, **self._values), self._label)

    def _blank(self, column: str) -> Score:
        return Score(None, f"the row has no column {column!r}, or it is empty", reason="missing", name=self._label)

    def _answered(self, score: Score) -> Score | Awaitable[Score]:
        async def later() -> Score:
            return score

        return later() if self._async else score

    async def _awaited(self, arguments: dict[str, Any]) -> Score:
        return to_score(await self.function(**arguments, **self._values), self._label)

    def _getter(self, name: str) -> Callable[[Sample, Completion], Any]:
        default = self.signature.defaults.get(name, MISSING)
        given = _GIVEN.get(name)
        if given is not None and default is MISSING:
            return given

        def get(sample: Sample, completion: Completion) -> Any:
            value = given(sample, completion) if given is not None else _own(column(name, sample, completion))
            return default if value is MISSING or value is None else value

        return get

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        known = self.signature.options
        for name in options:
            if name not in known:
                has = f"its options are {', '.join(known)}" if known else "it has no options"
                raise OptionError(f"{self._label} has no option {name!r}; {has}{nearest(name, known)}")
        return {name: _option(self._label, self.function, known[name], value) for name, value in options.items()}


class GroupReward(FunctionReward):
    """A function that scores one group at a time: `completions` in, exactly as many numbers (or None) out."""

    _foreign: ClassVar[tuple[str, str]] = ("completion", "a whole group, as completions")

    @property
    def takes_group(self) -> bool:
        return True

    def judge(self, prepared: object, sample: Sample, completion: Completion) -> Score:
        raise ContractError(f"{self._label} judges whole groups")

    def judge_group(self, prepared: object, generation: Generation) -> list[Score] | Awaitable[list[Score]]:
        arguments: dict[str, Any] = {}
        for name in self.signature.arguments:
            value = self._group_value(name, generation)
            if value is MISSING:
                return self._blanks(name, generation)
            arguments[name] = value
        if self.signature.rest:
            for name in {**generation.sample.metadata, **_all_metadata(generation)}:
                if name not in self._values:
                    arguments.setdefault(name, self._group_value(name, generation))
        return self._answers(arguments | self._values, len(generation.completions))

    def _answers(self, arguments: dict[str, Any], count: int) -> list[Score] | Awaitable[list[Score]]:
        """Call the function, and check that it answers for each completion."""
        if not self._async:
            return to_scores(self.function(**arguments), self._label, count)

        async def later() -> list[Score]:
            return to_scores(await self.function(**arguments), self._label, count)

        return later()

    def _blanks(self, name: str, generation: Generation) -> list[Score] | Awaitable[list[Score]]:
        """Abstain on a whole group that lacks a column."""
        blanks = [self._blank(name) for _ in generation.completions]

        async def later() -> list[Score]:
            return blanks

        return later() if self._async else blanks

    def _group_value(self, name: str, generation: Generation) -> Any:
        sample, completions = generation.sample, generation.completions
        if name == "completions":
            return [completion.text for completion in completions]
        if name == "messages":
            return [_messages(sample, completion) for completion in completions]
        if name == "sample":
            return _own(sample)
        if name in ("prompt", "reference"):
            value = _own(getattr(sample, name))
        elif any(name in completion.metadata for completion in completions) or name in ("tokens", "finish_reason"):
            return _values(name, generation)
        else:
            value = _own(column(name, sample, None))
        return self.signature.defaults.get(name, MISSING) if value is MISSING or value is None else value


class TrlReward(GroupReward):
    """A function with TRL's contract: keywords, lists of one group, one float or None for each completion."""

    @property
    def needs(self) -> tuple[str, ...]:
        given = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
        return tuple(name for name in self.signature.required if name not in given)

    def judge_group(self, prepared: object, generation: Generation) -> list[Score] | Awaitable[list[Score]]:
        given = self._given(generation)
        named = [*self.signature.arguments, *self.signature.options]
        wanted = given if self.signature.rest else {name: given[name] for name in named if name in given}
        wanted = wanted | self._options
        for name in self.signature.required:
            if name not in wanted:
                return self._blanks(name, generation)
        return self._answers(wanted, len(generation.completions))

    def _given(self, generation: Generation) -> dict[str, Any]:
        sample, completions = generation.sample, generation.completions
        chat = isinstance(sample.prompt, Sequence) and not isinstance(sample.prompt, str)
        known = [n for n in self.signature.arguments if any(column(n, sample, c) is not MISSING for c in completions)]
        given: dict[str, Any] = {"reference": [_own(sample.reference) for _ in completions]}
        for name in [*known, *sample.metadata, *_all_metadata(generation)]:
            given[name] = _values(name, generation)
        given["prompts"] = [_own(sample.prompt) for _ in completions]
        given["completions"] = [_messages(sample, c) if chat else c.text for c in completions]
        given["completion_ids"] = [_own(c.metadata.get(COMPLETION_IDS)) for c in completions]
        given["trainer_state"] = _trainer_state(sample.step)
        given["log_extra"] = functools.partial(_log_extra, generation.key)
        given["log_metric"] = _log_metric
        return given

    @property
    def takes_ids(self) -> bool:
        """Whether the function sees `completion_ids`: it names them, or takes whatever there is."""
        named = (*self.signature.arguments, *self.signature.options)
        return self.signature.rest or COMPLETION_IDS in named


COMPLETION_IDS = "completion_ids"
"""The column of a completion that holds its token ids, where they are known."""


class TrlLog:
    """Keeps what functions with TRL's contract give to `log_metric` and `log_extra` while it is open.

    Only functions that run in this process reach it: what one logs in a worker process is dropped. Of several open
    ones the newest is written to.

    Attributes:
        state: What these functions are told of the run as `trainer_state`, besides the step: `max_steps`, `epoch` and
            `num_train_epochs`, by transformers' names.
        metrics: The values given for each name.
        columns: For each group, by its key: the values of each column, one a completion.
    """

    _open: ClassVar[list[TrlLog]] = []

    def __init__(self, state: Mapping[str, float] | None = None) -> None:
        self.state = dict(state or {})
        self.metrics: dict[str, list[float]] = {}
        self.columns: dict[int, dict[str, list[Any]]] = {}

    def __enter__(self) -> TrlLog:
        self._open.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.remove(self)

    @classmethod
    def newest(cls) -> TrlLog | None:
        """Return the one that is written to; None: there is none."""
        return cls._open[-1] if cls._open else None


def _trainer_state(step: int | None) -> types.SimpleNamespace:
    """Return the part of transformers' TrainerState that is known; outside training that is the row's step alone."""
    log = TrlLog.newest()
    known: dict[str, float | None] = {"max_steps": None, "epoch": None, "num_train_epochs": None}
    return types.SimpleNamespace(**known | (log.state if log is not None else {}), global_step=step or 0)


def _log_metric(name: str, value: float) -> None:
    log = TrlLog.newest()
    if log is not None:
        log.metrics.setdefault(name, []).append(float(value))


def _log_extra(key: int, column: str, values: Sequence[Any]) -> None:
    log = TrlLog.newest()
    if log is not None:
        log.columns.setdefault(key, {})[column] = list(values)


def _values(name: str, generation: Generation) -> list[Any]:
    """Return a column's value for each completion, None where there is none."""
    values = [column(name, generation.sample, completion) for completion in generation.completions]
    return [None if value is MISSING else _own(value) for value in values]


def _all_metadata(generation: Generation) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for completion in generation.completions:
        merged.update(completion.metadata)
    return merged


# --------------------------------------------------------------------------------------------- decorators


@overload
def reward(function: _F, /) -> FunctionReward: ...
@overload
def reward(
    *, name: str | None = None, timeout: float | None = None, memory: int | str | None = None
) -> Callable[[_F], FunctionReward]: ...
def reward(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    memory: int | str | None = None,
) -> FunctionReward | Callable[[Any], FunctionReward]:
    """Make a function that judges one completion into a reward. It stays callable as the plain function.

    Args:
        function: Sync or async; parameters are asked for by name (see the module's first lines).
        name: The name it is registered under, where it is (`dates/iso_day`). Default: the function's own.
        timeout: Deadline in seconds for one completion. A sync function then runs in a killable worker;
            an async one is cancelled.
        memory: What it may allocate, in bytes or as "512MB"; a sync function then runs in a killable worker.

    Raises:
        UsageError: The signature cannot be asked for by name (`*args`, positional-only).
    """
    if function is not None:
        return FunctionReward(function)
    return lambda f: FunctionReward(f, name=name, timeout=timeout, memory=memory)


@overload
def group_reward(function: _F, /) -> GroupReward: ...
@overload
def group_reward(
    *, name: str | None = None, timeout: float | None = None, memory: int | str | None = None
) -> Callable[[_F], GroupReward]: ...
def group_reward(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    memory: int | str | None = None,
) -> GroupReward | Callable[[Any], GroupReward]:
    """Make a function that judges one whole group into a reward.

    Sync or async. It gets `completions` (a list of texts) and may ask for `prompt`, `reference`, `sample`,
    `messages` and columns, and returns exactly one number or None for each completion. Arguments as for `reward`;
    a timeout holds for the whole group.
    """
    if function is not None:
        return GroupReward(function)
    return lambda f: GroupReward(f, name=name, timeout=timeout, memory=memory)


def from_trl(function: Callable[..., Any], *, name: str | None = None) -> TrlReward:
    """Use a function with TRL's reward contract: `f(prompts=, completions=, **columns) -> list[float | None]`.

    It is called once a group with keyword lists of equal length; completions are message lists where the prompt
    is one. `completion_ids` are None where they are not known: saved generations seldom have them, training has.
    `trainer_state` has `global_step`, the row's step, and `max_steps`, `epoch` and `num_train_epochs`, which are None
    outside training. What it gives to `log_metric` and `log_extra` is kept in training, where it runs in the trainer's
    process.
    """
    return TrlReward(function, name=name)


def as_reward(thing: object, target: str | None = None) -> Reward:
    """Return `thing` as a reward: a reward itself, a verifier class, or a function by its signature.

    Raises:
        UsageError: It is none of these.
    """
    if isinstance(thing, Reward):
        return thing
    if isinstance(thing, type):
        if issubclass(thing, Reward):
            return thing()
        raise UsageError(f"{thing.__name__} is a class, but no Verifier; derive it from rewardkit.Verifier")
    if not callable(thing):
        raise UsageError(f"a reward is a function, a verifier or a formula, got {type(thing).__name__}")
    if "completions" in _parameters(thing):
        return TrlReward(thing, target=target)
    return FunctionReward(thing, target=target)


def _restore(
    kind: type[FunctionReward],
    target: str,
    name: str | None,
    timeout: float | None,
    memory: int | None,
    options: dict[str, Any],
) -> FunctionReward:
    found: Any = targets.load_target(target)
    function = found.function if isinstance(found, FunctionReward) else found
    return kind(function, name=name, timeout=timeout, memory=memory, options=options, target=target)


# ------------------------------------------------------------------------------------------ return values


def to_score(value: Any, name: str) -> Score:
    """Return what a reward function returned as a score of that name.

    Raises:
        TypeError, ValueError: It is neither a finite number, bool, Score nor None.
    """
    if type(value) is float and math.isfinite(value):
        return Score(value, name=name)
    if value is None:
        return Score(None, "the reward returned None", name=name)
    if isinstance(value, Score):
        return value if value.name == name else msgspec.structs.replace(value, name=name)
    if isinstance(value, Verdict):
        return Score.of(value, name)
    if getattr(value, "ndim", 0):
        raise TypeError(f"{name} returned an array of shape {tuple(value.shape)}; one number is wanted")
    return Score(finite(value, f"what {name} returns"), name=name)


def to_scores(values: Any, name: str, count: int) -> list[Score]:
    """Return what a group reward returned as scores.

    Raises:
        ContractError: It is not exactly one value for each completion.
    """
    unordered = isinstance(values, (str, bytes, Mapping, Set))
    if unordered or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise ContractError(
            f"reward {name!r} returned {_shape(values)} for a group of {count}; a list of {count} numbers is wanted"
        )
    listed = list(values)
    if len(listed) != count:
        raise ContractError(
            f"reward {name!r} returned {len(listed)} value{'s' * (len(listed) != 1)} for a group of {count}"
            f" completions; exactly {count} are wanted (None where one cannot be judged)"
        )
    return [_one_of_group(value, name) for value in listed]


def _one_of_group(value: Any, name: str) -> Score:
    try:
        return to_score(value, name)
    except (TypeError, ValueError) as problem:
        return failure(name, problem)


def _shape(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "one number" if isinstance(value, (int, float)) else f"a {type(value).__name__}"


# ------------------------------------------------------------------------------------------------ options


def memory_bytes(value: int | str | None, name: str) -> int | None:
    """Return a memory size in bytes from a number or a text such as "512MB" (decimal) or "2GiB" (binary)."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    text = str(value).strip().upper()
    for unit, size in units.items():
        number = text.removesuffix(unit).strip()
        if text.endswith(unit) and number.isdecimal() and int(number) > 0:
            return int(number) * size
    raise OptionError(f"{name}: memory is a size such as '512MB' or '2GiB', got {value!r}")


def _seconds(value: float | None, name: str) -> float | None:
    if value is None:
        return None
    try:
        seconds = finite(value, "timeout") if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError) as problem:
        raise OptionError(f"{name}: {problem}") from None
    if seconds <= 0:
        raise OptionError(f"{name}: timeout is a time in seconds above 0, got {value!r}")
    return seconds


def _option(name: str, function: Callable[..., Any], parameter: inspect.Parameter, value: Any) -> Any:
    """Check an option strictly against its annotation, or against the type of its default."""
    import pydantic

    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(_hint(function, parameter))
    except pydantic.errors.PydanticUserError:  # a class of the user's own, which nothing can check
        return value
    try:
        try:
            text = json.dumps(value, allow_nan=False)
        except TypeError:  # no JSON: a value made in code
            return adapter.validate_python(value, strict=True)
        return adapter.validate_json(text, strict=True)
    except pydantic.ValidationError as problem:
        raise OptionError(_option_text(name, parameter.name, value, problem)) from None
    except (ValueError, RecursionError) as problem:  # nan, inf, a list that holds itself
        raise OptionError(f"{name}: option {parameter.name} cannot be written as JSON: {problem}") from None


def _hint(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return an option's type: its annotation, else the type of its default."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        inner: Any = inspect.unwrap(_inner(function))
        scope = getattr(inner, "__globals__", None) or getattr(type(inner).__call__, "__globals__", {})
        holder = types.SimpleNamespace(__annotations__={parameter.name: annotation})
        try:
            return typing.get_type_hints(holder, scope, include_extras=True)[parameter.name]
        except Exception:  # a name that only a type checker can find says nothing at run time
            annotation = parameter.empty
    if annotation is not parameter.empty:
        return annotation
    return type(parameter.default) if parameter.default is not None else Any


def _option_text(name: str, option: str, value: object, problem: Any) -> str:
    first = problem.errors(include_url=False)[0]
    return f"{name}: option {option}={value!r}: {first['msg'].lower()}"


def _plain(value: Any) -> Any:
    """Return an option's value as plain data."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    import pydantic_core

    return pydantic_core.to_jsonable_python(value, fallback=str)


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _function_name(function: Callable[..., Any]) -> str:
    inner = _inner(function)
    return getattr(inner, "__name__", None) or type(inner).__name__


def _is_async(function: Callable[..., Any]) -> bool:
    inner: Any = _inner(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)
