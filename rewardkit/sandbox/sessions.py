"""Conversations with programs: calls go out, replies come back. Everything that a program sends is checked first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rewardkit.sandbox import wire
from rewardkit.sandbox.limits import Finished, Limits
from rewardkit.sandbox.programs import Child
from rewardkit.sandbox.wire import HEADER, Tree, WireError

if TYPE_CHECKING:
    from rewardkit.sandbox.host import Sandbox

_MOST_TEXT = 4000  # characters of an exception's text that are kept
_MOST_NESTED = 50  # calls that call back


class Handle(msgspec.Struct, frozen=True):
    """An object inside a session, by its number: made from a wire tree `["h", id, type name]`."""

    id: int
    type_name: str = "object"


class Remote(msgspec.Struct, frozen=True):
    """As an argument: a global name of the program that is called."""

    name: str


class Callback(msgspec.Struct, frozen=True, eq=False):
    """As an argument: a trusted function that the program may call. It gets values made of what the program sent."""

    function: Callable[..., Any]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What came back from a call: a value (a checked wire tree), an exception, or neither as it cannot cross."""

    value: Tree = None
    exception: str = ""
    """The name of the nearest builtin exception class that may cross; "" when none was raised."""
    text: str = ""
    original: str = ""
    """The name of the exception's own class, as the program says."""
    arguments: list[Tree] | None = None
    """With writeback: the positional arguments after the call."""
    missing: str = ""
    """The global name that the program has not."""
    refused: str = ""
    """Why the value cannot cross: too deep, too large, broken."""

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return not (self.exception or self.missing or self.refused)


class SandboxDied(Exception):
    """A program ended, or was ended by a limit, before it answered."""

    def __init__(self, finished: Finished, who: Session) -> None:
        super().__init__(f"{finished.status} {finished.detail}".strip())
        self.finished, self.who = finished, who


class Session:
    """A program that answers calls. One thread at a time."""

    _refused: ClassVar[frozenset[str]] = wire.TRUSTED

    def __init__(self, sandbox: Sandbox, mode: str, source: str, options: Sequence[Any], limits: Limits) -> None:
        self._callbacks: list[Callable[..., Any]] = []
        self._loaded: Reply | None = None
        self._over: tuple[Finished, Session] | None = None  # it waits for an answer that will never come
        self._depth = 0
        self._child = Child(sandbox, mode, source, options, limits)

    @property
    def loaded(self) -> Reply:
        """The reply to executing the source. Raises SandboxDied."""
        if self._loaded is None:
            self._loaded = self._wait_for_reply()
        return self._loaded

    @property
    def finished(self) -> Finished | None:
        """How the program ended; None while it runs."""
        return self._child.finished

    def call(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        handle: Handle | None = None,
        writeback: bool = False,
        awaited: bool = False,
    ) -> Reply:
        """Call a global by its dotted name, or with a handle that object ("") or its method. Raises SandboxDied.

        Arguments are plain values (else WireError, a ValueError); Handle, Callback and Remote may stand in them. With
        awaited, a coroutine that comes of it is run to its end there, and its result is the value.
        """
        if handle is not None and name:
            inner = [name, list(args), dict(kwargs or {})]
            reply = self._ask(["o", handle.id], "run_method" if awaited else "method", inner, {}, writeback)
            if reply.arguments is not None and len(reply.arguments) == len(inner):
                theirs = reply.arguments[1]
                reply = msgspec.structs.replace(reply, arguments=_arguments([theirs]))
            return reply
        target = ["n", name] if handle is None else ["o", handle.id]
        return self._ask(target, "run" if awaited else "call", list(args), dict(kwargs or {}), writeback)

    def feed(self, text: str) -> Reply:
        """Give the program a standard input that holds a text. Raises SandboxDied."""
        return self._ask(["n", ""], "feed", [text], {}, False)

    def get(self, name: str, *, handle: Handle | None = None) -> Reply:
        """Return the value of a global, or of a handle's attribute. Raises SandboxDied."""
        if handle is None:
            return self._ask(["n", name], "value", [], {}, False)
        return self._ask(["o", handle.id], "get", [name], {}, False)

    def finish(self) -> Finished:
        """End the program when it still runs; return how it ended, and what it printed."""
        return self._child.finish("killed", "no longer needed")

    def close(self) -> None:
        """End the program without waiting."""
        self._child.end("closed")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self, target: list[Any], operation: str, arguments: list[Any], keywords: dict[str, Any], writeback: bool
    ) -> Reply:
        encoder = wire.Encoder(self._special, wire=True)
        frame = wire.pack(["call", target, operation, encoder.tree(arguments), encoder.tree(keywords), writeback])
        if self._over is not None:
            raise SandboxDied(*self._over)
        if self._child.finished is not None:
            raise SandboxDied(self._child.finished, self)
        self._child.queue("job", frame)
        _ = self.loaded
        return self._wait_for_reply()

    def _special(self, value: Any) -> Tree:
        if isinstance(value, Handle):
            return ["o", value.id]
        if isinstance(value, Remote):
            return ["n", value.name]
        if isinstance(value, Callback):
            self._callbacks.append(value.function)
            return ["k", len(self._callbacks) - 1, "callback"]
        raise WireError(f"a {type(value).__name__} cannot cross")

    def _wait_for_reply(self) -> Reply:
        return _reply(self._answer(self._call_back)[1])

    def _answer(self, called: Callable[[bytes, list[Any]], bytes]) -> tuple[bytes, list[Any]]:
        """Return the next answer, as it came and checked; calls before it are handed on. Raises SandboxDied."""
        child = self._child
        while True:
            try:
                while (body := child.message()) is None:
                    if child.finished is not None:
                        raise SandboxDied(child.finished, self)
                    child.step()
                message = _checked(body, self._refused)
            except WireError as problem:
                raise SandboxDied(child.finish("killed", f"broke the protocol: {problem}"), self) from None
            if message[0] == "answer":
                return body, message
            if message[0] == "memory":
                child.ran_out = True
                continue
            child.queue("job", self._nested(called, body, message))

    def _nested(self, called: Callable[[bytes, list[Any]], bytes], body: bytes, message: list[Any]) -> bytes:
        if self._depth >= _MOST_NESTED:
            raise SandboxDied(self._child.finish("killed", f"calls nested more than {_MOST_NESTED} deep"), self)
        self._depth += 1
        try:
            return called(body, message)
        finally:
            self._depth -= 1

    def _call_back(self, body: bytes, message: list[Any]) -> bytes:
        """Answer a call of one of our own functions."""
        _, target, operation, arguments, keywords, _ = message
        encoder = wire.Encoder(self._special, wire=True)
        try:
            if operation != "call" or target[0] != "o":
                raise WireError("nothing but functions can be asked")
            function = self._callbacks[target[1]]
            named = wire.to_value(keywords, _handle)
            value = function(*wire.to_value(arguments, _handle), **named)
            return wire.pack(["answer", "v", encoder.tree(value)])
        except Exception as problem:
            name = wire.nearest_builtin(type(problem))
            return wire.pack(["answer", "x", name, wire.text_of(problem), type(problem).__name__])


def _handle(tree: list[Tree]) -> Any:
    if tree[0] == "h":
        return Handle(tree[1], tree[2])
    raise WireError("nothing that a program could send")


class Judge(Session):
    """Trusted test code in a process of its own, whose remote names are handed on to the program that it tests."""

    _refused: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self, sandbox: Sandbox, source: str, remote: Session, names: Sequence[str], writeback: bool, limits: Limits
    ) -> None:
        self._remote = remote
        self.calls = 0
        """How often the test has asked the program for something."""
        super().__init__(sandbox, "judge", source, (list(names), writeback), limits)

    def _call_back(self, body: bytes, message: list[Any]) -> bytes:
        """Hand a call of the test on to the program, and a call of the program back to the test."""
        remote = self._remote
        self.calls += 1
        try:
            if remote.finished is not None:
                raise SandboxDied(remote.finished, remote)
            remote._child.queue("job", _framed(body))
            _ = remote.loaded
            answer, _ = remote._answer(self._call_test)
        except SandboxDied as died:
            self._over = (died.finished, died.who)
            raise
        return _framed(answer)

    def _call_test(self, body: bytes, message: list[Any]) -> bytes:
        """Hand a call of the program back to the test, which answers for the functions that it has given away only."""
        self._child.queue("job", _framed(body))
        answer, _ = self._answer(self._call_back)
        return _framed(answer)


def _framed(body: bytes) -> bytes:
    return HEADER.pack(len(body)) + body


def _checked(body: bytes, refused: frozenset[str]) -> list[Any]:
    """Return a message from a program with everything in it checked. Raises WireError."""
    message = wire.unpack(body)
    kind, *parts = message
    if kind == "memory" and not parts:
        return message
    if kind == "call" and len(parts) == 5:
        target, operation, arguments, keywords, _ = parts
        if not _target(target) or target[0] in refused or type(operation) is not str:
            raise WireError("no call")
        message[3], message[4] = wire.check(arguments, refused), wire.check(keywords, refused)
        if message[3][:1] != ["l"] or message[4][:1] != ["d"]:
            raise WireError("no arguments")
        return message
    if kind == "answer" and parts:
        return [kind, parts[0], *_outcome(parts[0], parts[1:], refused)]
    raise WireError("no message of that kind")


def _target(target: Any) -> bool:
    if type(target) is not list or len(target) != 2:
        return False
    return (target[0] == "o" and type(target[1]) is int) or (target[0] == "n" and type(target[1]) is str)


def _outcome(kind: Any, parts: list[Any], refused: frozenset[str]) -> Iterator[Any]:
    texts = {"v": 0, "x": 3, "a": 1, "r": 1}.get(kind, -1) if type(kind) is str else -1
    trees = len(parts) - texts
    if (
        texts < 0
        or any(type(part) is not str for part in parts[:texts])
        or not (kind == "v") <= trees <= (kind == "v") + (kind in "vx")
    ):
        raise WireError("no answer of that kind")
    if kind == "x" and parts[0] not in wire.EXCEPTIONS:
        raise WireError("no such exception")
    yield from parts[:texts]
    yield from (wire.check(part, refused) for part in parts[texts:])


def _reply(message: list[Any]) -> Reply:
    kind, *parts = message[1:]
    if kind == "v":
        return Reply(value=parts[0], arguments=_arguments(parts[1:]))
    if kind == "x":
        text, original = parts[1][:_MOST_TEXT], parts[2][:_MOST_TEXT]
        return Reply(exception=parts[0], text=text, original=original, arguments=_arguments(parts[3:]))
    text = parts[0][:_MOST_TEXT]
    return Reply(missing=text or "?") if kind == "a" else Reply(refused=text or "broken")


def _arguments(trees: list[Tree]) -> list[Tree] | None:
    if not trees or type(trees[0]) is not list:
        return None
    return trees[0][1:] if trees[0][0] == "l" else None
