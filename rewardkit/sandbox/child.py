"""What runs inside the walls: executes the program, and answers calls with plain data.

Nothing here is a secret or a verdict. Whatever a program does to this code, it can only change its own answers.
"""

from __future__ import annotations

import atexit
import builtins
import collections.abc
import contextlib
import functools
import io
import linecache
import os
import random
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from . import wire
from .wire import HEADER, LARGEST_MESSAGE, Encoder, WireError, check, pack, to_value, unpack

FILE = "solution.py"
_SHOWN_SOURCE = 1 << 18  # longer sources are not kept for tracebacks
_MOST_OBJECTS = 100_000
_SPENT = pack(["memory"])
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, type)
_streams: list[Any] = []


def make_streams() -> None:
    """Make sys.stdin, stdout and stderr anew, over pipes, so that a child need not; and what `-S` leaves out."""
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    reader, writer = os.pipe()
    saved = [os.dup(fd) for fd in (0, 1, 2)]
    try:
        for place, fd in enumerate((reader, writer, writer)):
            os.dup2(fd, place)
        sys.stdin = sys.__stdin__ = io.TextIOWrapper(  # type: ignore[misc]
            io.BufferedReader(io.FileIO(0, "rb", closefd=False), 1 << 16), "utf-8", "surrogateescape"
        )
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(  # type: ignore[misc]
            io.BufferedWriter(io.FileIO(1, "wb", closefd=False), 1 << 13), "utf-8", "surrogateescape"
        )
        sys.stderr = sys.__stderr__ = io.TextIOWrapper(  # type: ignore[misc]
            io.BufferedWriter(io.FileIO(2, "wb", closefd=False), 1 << 13),
            "utf-8",
            "backslashreplace",
            line_buffering=True,
        )
        _streams[:] = [sys.stdout, sys.stderr]
    finally:
        for place, fd in enumerate(saved):
            os.dup2(fd, place)
            os.close(fd)
        os.close(reader)
        os.close(writer)


def prepare(folder: str) -> None:
    """Make the server's interpreter look as a program's should: its file's name, its folder, none of our modules."""
    ours = __name__.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == ours]:
        del sys.modules[name]
    sys.argv = [FILE]
    if folder:
        sys.path.insert(0, folder)


def warm_up() -> None:
    """Go the way of a job once in the server: what the interpreter learns and allocates there, no child has to."""
    reader, writer = os.pipe()
    back_reader, back_writer = os.pipe()
    pipe = _Pipe(reader, back_writer)
    for _ in range(40):
        peer = _Peer(pipe, "solution")
        os.write(writer, pack(["solution", "def f(*a, **k):\n    return [*a, *k.items()]\n", [], False]))
        os.set_blocking(reader, False)
        with contextlib.suppress(BlockingIOError):
            job = pipe.receive()
            for _ in range(3):
                os.write(
                    writer, pack(["call", ["n", "f"], "call", ["l", 1, "a", ["l", 2.5], ["d", 1, ["t"]]], ["d"], False])
                )
            peer.serve(job or [])
        os.read(back_reader, 1 << 16)
    for fd in (reader, writer, back_reader, back_writer):
        os.close(fd)
    sys.modules.pop("solution", None)
    linecache.cache.clear()


def main(mode: str, read: int, write: int) -> NoReturn:
    """Read the job, do it, and end the process."""
    code = 1
    try:
        pipe = _Pipe(read, write)
        job = pipe.receive()
        if job is None:
            os._exit(0)
        if "random" in job[1]:  # else nobody asks, and it would touch, and so copy, pages for nothing
            random.seed()
        code = _program(pipe, job[1]) if mode == "run" else _Peer(pipe, mode).serve(job)
    except BrokenPipeError:
        pass
    except MemoryError:  # so little is left that not even the answer could be made
        os.write(write, _SPENT)
    finally:
        os._exit(code)


class _Pipe:
    """Whole messages, in and out."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write

    def receive(self) -> list[Any] | None:
        head = self._exactly(HEADER.size)
        if head is None:
            return None
        (size,) = HEADER.unpack(head)
        body = self._exactly(size)
        return None if body is None else unpack(body) if size <= LARGEST_MESSAGE else _large(body)

    def _exactly(self, size: int) -> bytes | None:
        data = os.read(self._read, min(size, 1 << 16))
        if len(data) == size:
            return data
        parts, left = [data], size - len(data)
        while left and data:
            data = os.read(self._read, min(left, 1 << 20))
            parts.append(data)
            left -= len(data)
        return None if left else b"".join(parts)

    def send(self, frame: bytes) -> None:
        left = memoryview(frame)
        while left:
            left = left[os.write(self._write, left) :]


def _large(body: bytes) -> list[Any]:
    import json

    job: list[Any] = json.loads(body)
    return job


def _remember(source: str) -> None:
    """Keep the source for tracebacks and for inspect.getsource."""
    if len(source) <= _SHOWN_SOURCE:
        linecache.cache[FILE] = (len(source), None, source.splitlines(True), FILE)


def _flush() -> int:
    code = 0
    for stream in _streams:
        try:
            stream.flush()
        except BaseException:
            code = 120
    return code


def _program(pipe: _Pipe, source: str) -> int:
    """Run the source as a script does; return its exit code."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__dict__.update(__builtins__=builtins, __file__=FILE)
    code = 0
    try:
        _remember(source)
        exec(compile(source, FILE, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as end:
        code = _exit_code(end.code)
    except BaseException as problem:
        code = _died(pipe, problem)
    for last in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        try:
            last()
        except SystemExit as end:
            code = _exit_code(end.code)
        except BaseException:
            code = code or 1
    return _flush() or code


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with contextlib.suppress(BaseException):
        print(code, file=sys.stderr)
    return 1


def _died(pipe: _Pipe, problem: BaseException) -> int:
    if isinstance(problem, MemoryError):
        with contextlib.suppress(OSError):
            pipe.send(pack(["memory"]))
    trace = problem.__traceback__
    problem.__traceback__ = trace.tb_next if trace else None  # without our own frame
    try:
        if sys.excepthook is sys.__excepthook__:  # which does not look for source lines in our cache
            traceback.print_exception(problem)
        else:
            sys.excepthook(type(problem), problem, problem.__traceback__)
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exception(problem, limit=-20)
    return 1


class OpaqueError(RuntimeError):
    """An object of the other side was compared, added, or asked for its truth: only plain data can be judged."""


class Missing(Exception):
    """There is no global of that name."""


class _Peer:
    """One side of a conversation: calls come in, and calls go out while one is being answered."""

    def __init__(self, pipe: _Pipe, mode: str) -> None:
        self._pipe = pipe
        self._judges = mode == "judge"
        self._writeback = False
        self._globals: dict[str, Any] = {}
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._seen: dict[int, Opaque] = {}
        self._given: set[int] = set()  # functions that the other side may call
        self._lent: set[int] = set()  # objects whose fields the other side may look at and set
        self._asking = 0

    def serve(self, job: list[Any]) -> int:
        """Execute the source, then answer calls until nobody calls any more."""
        _, source, names, self._writeback = job
        module = types.ModuleType("judge" if self._judges else "solution")
        sys.modules[module.__name__] = module
        self._globals = module.__dict__
        self._globals.update(__builtins__=builtins, __file__=FILE)
        self._globals.update({name: Opaque(self, ["n", name]) for name in names})
        self._send(self._outcome(self._load, source))
        while (message := self._pipe.receive()) is not None:
            self._send(self._perform(message))
        return 0

    def _load(self, source: str) -> None:
        _remember(source)
        exec(compile(source, FILE, "exec", dont_inherit=True), self._globals)

    def _send(self, outcome: list[Any]) -> None:
        _flush()
        try:
            frame = pack(["answer", *outcome])
        except WireError as problem:
            frame = pack(["answer", "r", str(problem)])
        self._pipe.send(frame)

    # Answering.

    def _perform(self, message: list[Any]) -> list[Any]:
        _, target, operation, arguments, keywords, writeback = message
        refused = self._refused()
        if refused and not self._may_ask(target, operation):
            return ["r", "only functions that were given away can be called, and fields of plain objects looked at"]
        try:
            values = to_value(check(arguments, refused), self._special)
            named = to_value(check(keywords, refused), self._special)
        except Exception as problem:
            return ["r", f"the arguments cannot be made: {problem}"]
        outcome = self._outcome(self._operate, target, operation, values, named)
        if writeback and outcome[0] in "vx":
            try:
                outcome.append(self._encode(values))
            except Exception as problem:
                return ["r", f"the arguments cannot be read back: {problem}"]
        return outcome

    def _outcome(self, work: Callable[..., Any], *inputs: Any) -> list[Any]:
        try:
            value = work(*inputs)
        except Missing as missing:
            return ["a", str(missing)]
        except BaseException as problem:
            return ["x", wire.nearest_builtin(type(problem)), wire.text_of(problem), _name(type(problem))]
        try:
            return ["v", self._encode(value)]
        except BaseException as problem:
            return ["r", wire.text_of(problem) or type(problem).__name__]

    def _operate(self, target: list[Any], operation: str, values: list[Any], named: dict[str, Any]) -> Any:
        if operation == "feed":
            return _feed(*values)
        item = self._global(target[1]) if target[0] == "n" else self._objects[target[1]]
        if operation in ("call", "run"):
            value = item(*values, **named)
            return value if operation == "call" else _awaited(value)
        if self._refused():
            return _ON_LENT[operation](item, *values)
        return _OPERATIONS[operation](item, *values)

    def _global(self, name: str) -> Any:
        first, *rest = name.split(".")
        if first not in self._globals:
            raise Missing(first)
        item = self._globals[first]
        for attribute in rest:
            if not hasattr(item, attribute):
                raise Missing(name)
            item = getattr(item, attribute)
        return item

    def _refused(self) -> frozenset[str]:
        """Return the tags that are not taken now: while a judge asks, it hears the program that it tests."""
        return wire.TRUSTED if self._judges and self._asking else frozenset()

    def _may_ask(self, target: list[Any], operation: str) -> bool:
        """Whether the program that a judge tests may do this to something of the judge's."""
        if target[0] != "o":
            return False
        return operation in _ON_LENT if target[1] in self._lent else operation == "call" and target[1] in self._given

    # Crossing.

    def _encode(self, value: Any) -> Any:
        return Encoder(self._opaque, wire=True).tree(value)

    def _opaque(self, value: Any) -> list[Any]:
        if type(value) in (Opaque, Lent, Pending):
            target: list[Any] = object.__getattribute__(value, "_target")
            return target
        number = self._numbers.get(id(value))
        if number is None:
            number = len(self._objects)
            if number >= _MOST_OBJECTS:
                raise WireError(f"more than {_MOST_OBJECTS} objects")
            self._objects.append(value)
            self._numbers[id(value)] = number
        if self._judges:
            if isinstance(value, _FUNCTIONS):
                self._given.add(number)
                return ["k", number, _name(value)]
            if _is_plain_object(value):
                self._lent.add(number)
        return ["h", number, _name(type(value))]

    def _special(self, tree: list[Any]) -> Any:
        tag, item = tree[0], tree[1]
        if tag == "o":
            return self._objects[item]
        if tag == "n":
            return self._global(item)
        if item not in self._seen:
            kind = Lent if not self._judges else Pending if tag == "h" and tree[2] == "coroutine" else Opaque
            proxy: Any = kind(self, ["o", item])
            self._seen[item] = proxy if tag == "h" else self._function(proxy, tree[2])
        return self._seen[item]

    def _function(self, proxy: Any, name: str) -> Any:
        def function(*values: Any, **named: Any) -> Any:
            return proxy(*values, **named)

        function.__name__ = function.__qualname__ = name
        return function

    # Asking.

    def ask(self, target: list[Any], operation: str, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Have the other side do something; return its value or raise its exception."""
        arguments, keywords = self._encode(list(values)), self._encode(named)
        self._asking += 1
        try:
            self._pipe.send(pack(["call", target, operation, arguments, keywords, self._writeback]))
            while True:
                message = self._pipe.receive()
                if message is None:
                    os._exit(0)
                if message[0] == "answer":
                    return self._unwrap(message, values)
                self._send(self._perform(message))
        finally:
            self._asking -= 1

    def _unwrap(self, message: list[Any], values: tuple[Any, ...]) -> Any:
        kind, *parts = message[1:]
        if kind == "a":
            raise NameError(f"name {parts[0]!r} is not defined")
        if kind == "r":
            raise OpaqueError(f"no plain data: {parts[0]}")
        if kind == "x":
            self._write_back(parts[3:], values)
            name, text = parts[:2]
            if name in _ENDINGS:  # it would end a loop of the test in silence, as if there were nothing left to look at
                raise OpaqueError(f"{name} was raised: {text}")
            raise wire.EXCEPTIONS[name](text)
        self._write_back(parts[1:], values)
        return to_value(check(parts[0], self._refused()), self._special)

    def _write_back(self, arguments: list[Any], values: tuple[Any, ...]) -> None:
        """Make the caller's own lists, dicts and sets what they became on the other side."""
        if not arguments or not any(type(value) in _MUTABLE for value in values):
            return
        for mine, theirs in zip(values, to_value(check(arguments[0], self._refused()), self._special), strict=True):
            if type(mine) is not type(theirs):
                continue
            if isinstance(mine, (list, bytearray)):
                mine[:] = theirs
            elif isinstance(mine, (dict, set)):
                mine.clear()
                mine.update(theirs)


_ENDINGS = ("StopIteration", "StopAsyncIteration")
_MUTABLE = (list, dict, set, bytearray)


def _name(item: Any) -> str:
    try:
        name = item.__name__
    except BaseException:
        name = None
    return str.__getitem__(name, slice(100)) if isinstance(name, str) else "object"


def _awaited(value: Any) -> Any:
    """Return a value; run it first when it is a coroutine."""
    if not isinstance(value, types.CoroutineType):
        return value
    import asyncio  # slow to import, and few need it

    return asyncio.run(value)


def _truth(item: Any) -> bool | None:
    """Return True for a plain object whose class says nothing about truth, which is true in Python; else None."""
    said = any(name in vars(base) for base in type(item).__mro__ for name in ("__bool__", "__len__"))
    return True if _is_plain_object(item) and not said else None


def _feed(text: str) -> None:
    """Give the program a standard input that holds a text."""
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "surrogateescape")), "utf-8", "surrogateescape")


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "get": getattr,
    "set": setattr,
    "item": lambda item, key: item[key],
    "setitem": lambda item, key, value: item.__setitem__(key, value),
    "delitem": lambda item, key: item.__delitem__(key),
    "contains": lambda item, value: value in item,
    "len": len,
    "iter": lambda item: (part for part in item),
    "str": str,
    "repr": repr,
    "method": lambda item, name, values, named: getattr(item, name)(*values, **named),
    "run_method": lambda item, name, values, named: _awaited(getattr(item, name)(*values, **named)),
    "value": lambda item: item,
    "await": _awaited,
    "truth": _truth,
}


def _is_plain_object(value: Any) -> bool:
    """Whether an object is of a simple class that this side's source defines, such as a node of a linked list."""
    *kinds, _ = type(value).__mro__
    homes = {kind.__module__ for kind in kinds}
    return type(type(value)) is type and (homes == {"judge"} or homes == {"solution"})


def _field(item: Any, name: str) -> dict[str, Any]:
    """Return an object's fields, after a look whether the program under test may have this one. Raises AttributeError.

    Fields of the object itself only, by public names: no methods, nothing of the class, nothing that leads to the
    test's own variables.
    """
    fields: dict[str, Any] = getattr(item, "__dict__", {})
    if type(name) is not str or name.startswith("_") or name not in fields or isinstance(fields[name], _FUNCTIONS):
        raise AttributeError(f"{_name(type(item))!r} object has no field {name!r} to be lent"[:300])
    return fields


def _set_field(item: Any, name: str, value: Any) -> None:
    _field(item, name)[name] = value


_ON_LENT: dict[str, Callable[..., Any]] = {
    "get": lambda item, name: _field(item, name)[name],
    "set": _set_field,
    "truth": _truth,
}
"""What the program under test may do to a plain object that a test has given it."""


class Opaque:
    """Something on the other side. It can be called, iterated over, asked for attributes, items, length and text.

    It is never false, as a lie about that could end a loop of a test: a plain object of a class that leaves truth to
    Python is true, so that `while node:` works, and anything else is an error.
    """

    __slots__ = ("_peer", "_target")

    def __init__(self, peer: _Peer, target: list[Any]) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_target", target)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return _ask(self, "call", *values, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return _ask(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "set", name, value)

    def __getitem__(self, key: Any) -> Any:
        return _ask(self, "item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        _ask(self, "delitem", key)

    def __contains__(self, value: Any) -> bool:
        return _ask(self, "contains", value) is True

    def __len__(self) -> int:
        return _ask(self, "len")  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        return iter(_ask(self, "iter"))

    def __bool__(self) -> bool:
        if _ask(self, "truth") is True:
            return True
        raise OpaqueError("__bool__: an object that is no plain data cannot be judged")

    def __str__(self) -> str:
        return _ask(self, "str")  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return _ask(self, "repr")  # type: ignore[no-any-return]


def _ask(item: Opaque, operation: str, *values: Any, **named: Any) -> Any:
    peer = object.__getattribute__(item, "_peer")
    return peer.ask(object.__getattribute__(item, "_target"), operation, values, named)


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: Opaque, *_: Any) -> NoReturn:
        raise OpaqueError(f"{name}: an object that is no plain data cannot be judged")

    return refuse


_NUMERIC = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow")
_BITWISE = ("lshift", "rshift", "and", "xor", "or")
_REFUSED = (
    *(
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "hash",
        "int",
        "float",
        "complex",
        "index",
        "bytes",
        "format",
        "round",
    ),
    *("trunc", "floor", "ceil", "neg", "pos", "abs", "invert", "divmod", "rdivmod"),
    *(prefix + name for name in (*_NUMERIC, *_BITWISE) for prefix in ("", "r", "i")),
)
for _operator in _REFUSED:
    setattr(Opaque, f"__{_operator}__", _refusing(f"__{_operator}__"))


class Lent(Opaque):
    """A test's object in the program under test, where comparing it harms nobody: the same, or not."""

    __slots__ = ()
    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__


class Pending(Opaque):
    """A coroutine on the other side. To await it runs it to its end there, in an event loop of its own."""

    __slots__ = ()
    __hash__ = object.__hash__  # asyncio keeps them in dicts; all other comparisons are still refused

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name)  # asyncio looks for those of a coroutine of this process, to show it

    def __await__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> NoReturn:
        raise StopIteration(_ask(self, "await"))

    def send(self, _: Any) -> NoReturn:
        self.__next__()

    def throw(self, problem: Any, *_: Any) -> NoReturn:
        raise problem

    def close(self) -> None:
        pass


collections.abc.Coroutine.register(Pending)
