"""What crosses between a program, its judge and the host: plain data unchanged, all else as something that raises."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from behind_walls import WIDE
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardkit.sandbox import (
    Callback,
    Handle,
    Remote,
    Sandbox,
    SandboxDied,
    Session,
    to_tree,
    to_value,
    wire,
)

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 20_000), 1 << 20_000),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(), max_size=20),  # lone surrogates too
    st.binary(max_size=20),
    st.binary(max_size=20).map(bytearray),
    st.decimals(),
    st.fractions(),
    st.just(...),
    st.builds(range, st.integers(-99, 99), st.integers(-99, 99), st.integers(1, 9)),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.sampled_from([int, str, list, ValueError]),
)
HASHABLE = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=9), st.tuples(st.integers(), st.text()))
DATA = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.sets(HASHABLE, max_size=5),
        st.frozensets(HASHABLE, max_size=5),
        st.dictionaries(HASHABLE, inner, max_size=5),
        st.lists(inner, max_size=4).map(collections.deque),
        st.lists(inner, max_size=4).map(lambda items: collections.deque(items, 9)),
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Whether two values are the same in type and content, NaN and signs of zero included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, decimal.Decimal):
        return str(left) == str(right)
    if isinstance(left, (list, tuple, collections.deque)):
        ends = getattr(left, "maxlen", None) == getattr(right, "maxlen", None)
        return ends and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left.items(), right.items(), strict=True))
    if isinstance(left, (set, frozenset)):
        return sorted(map(repr, left)) == sorted(map(repr, right))
    return bool(left == right)


@pytest.fixture(scope="module")
def echo(strict: Sandbox) -> Iterator[Session]:
    with strict.session("def echo(*values, **named): return (values, named)", limits=WIDE) as session:
        yield session


@settings(max_examples=300)
@given(DATA)
def test_plain_data_crosses_unchanged(echo: Session, value: Any) -> None:
    """There and back again, through both processes."""
    reply = echo.call("echo", [value], {"named": value})
    assert reply.ok, reply
    assert same(to_value(reply.value), ((value,), {"named": value}))


@given(DATA)
def test_a_tree_on_the_wire_is_the_tree(value: Any) -> None:
    message = wire.unpack(wire.pack(["x", wire.Encoder(wire=True).tree(value)])[4:])
    assert same(to_value(wire.check(message[1])), to_value(to_tree(value)))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.builds(
        lambda tag, parts: [tag, *parts],
        st.one_of(st.sampled_from([*wire._CHECKS, "I", "F", "?", ""]), inner),
        st.lists(inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=500)
@given(JSON)
def test_whatever_comes_is_a_tree_or_refused(sent: Any) -> None:
    """A checked tree never fails to become a value in any other way than WireError."""
    body = json.dumps(["x", sent]).encode()
    try:
        tree = wire.check(wire.unpack(body)[1])
        to_value(tree, special=lambda tree: tuple(tree))
    except wire.WireError:
        return
    assert not isinstance(tree, list) or tree[0] in wire._CHECKS


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.unpack(b"\x00" + body)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1_000_000,
        b'["x",' + b"1," * 4_100_000 + b"1]",
        b'["x",' + b"9" * 4000 + b"]",
        b'["x",{"a":1}]',
        b'["x",NaN]',
        b'["x",Infinity]',
        b'{"x":1}',
        b"[]",
        b"[1]",
        b'"x"',
        b"",
        b'["x"',
    ],
)
def test_hostile_messages_are_refused(body: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.unpack(body)


def test_a_deep_tree_is_refused_without_using_the_stack() -> None:
    tree: list[Any] = ["l"]
    for _ in range(100_000):
        tree = ["l", tree]
    with pytest.raises(wire.WireError, match="deep"):
        wire.check(tree)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("__import__('collections').namedtuple('P', 'x y')(1, 2)", (1, 2)),
        ("__import__('collections').Counter('aab')", {"a": 2, "b": 1}),
        ("__import__('collections').defaultdict(list, a=[1])", {"a": [1]}),
        ("type('S', (str,), {'__eq__': lambda *a: True, '__hash__': str.__hash__})('x')", "x"),
        ("type('I', (int,), {'__eq__': lambda *a: True})(7)", 7),
        ("type('F', (float,), {'__eq__': lambda *a: True})(-0.0)", -0.0),
        ("type('L', (list,), {'__iter__': lambda s: iter([9])})([1])", [1]),
        ("type('D', (dict,), {'items': lambda s: [(9, 9)]})(a=1)", {"a": 1}),
        ("{1: 2}.keys()", {1}),
        ("True", True),
        ("1", 1),
    ],
)
def test_subclasses_are_cut_down_to_their_base(strict: Sandbox, expression: str, value: Any) -> None:
    with strict.session(f"def f(): return {expression}") as session:
        reply = session.call("f")
        assert reply.ok, reply
        assert same(to_value(reply.value), value)


@pytest.mark.parametrize(
    ("expression", "items"),
    [("(n for n in range(3))", [0, 1, 2]), ("map(str, [1])", ["1"]), ("zip('ab', 'cd')", [("a", "c"), ("b", "d")])],
)
def test_iterators_are_drained(strict: Sandbox, expression: str, items: list[Any]) -> None:
    with strict.session(f"def f(): return {expression}") as session:
        reply = session.call("f")
        assert reply.value[:2] == ["i", "end"]
        assert list(to_value(reply.value)) == items


def test_endless_iterators_are_cut_off_and_broken_ones_say_so(strict: Sandbox) -> None:
    source = "import itertools\ndef f(): return itertools.count()\ndef g():\n    yield 1\n    raise KeyError('k')"
    with strict.session(source) as session:
        endless = session.call("f").value
        assert (endless[1], len(endless)) == ("more", 2 + wire.DRAIN)
        with pytest.raises(RuntimeError, match="cut off"):
            list(to_value(endless))
        assert session.call("g").value == ["i", ["x", "KeyError", "'k'"], 1]


HOSTILE = """
class Liar:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 1
    def __bool__(self): return True
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
    def __add__(self, other): return self
    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __abs__ = __add__
    def __len__(self): return 3
    def __iter__(self): return iter([1, 2, 3])
    def __call__(self, *a): return Liar()
    def __getitem__(self, key): return key
    def __contains__(self, item): return True
    def __str__(self): return "1"
    def __instancecheck__(self, other): return True
    __class__ = int
liar = Liar()
def f(*a): return Liar()
def nested(*a): return [1, (Liar(),), {"a": Liar()}]
def function(*a): return lambda: 1
"""
JUDGED = """
def attempt(source):
    return bool(eval(source))
"""


@pytest.mark.parametrize(
    "test",
    [
        "f() == 1", "1 == f()", "f() != 2", "f() is None or f() == None", "f() < 2", "2 > f()", "f() in [1, 2]",
        "1 in [f()]", "f()", "not f()", "not not f()", "f() + 1 == 2", "1 + f() == 2", "-f() == 1", "abs(f()) == 1",
        "f() % 2 == 0", "int(f()) == 1", "float(f()) == 1", "round(f()) == 1", "hash(f())", "{f(): 1}",
        "f() in {1, 2}", "sorted([f(), f()])", "max(f(), 1)", "f() == f()", "nested() == [1, (1,), {'a': 1}]",
        "nested()[1] == (1,)", "nested()[2]['a'] == 1", "function() == 1", "function()", "'%d' % f() == '1'",
        "f'{f():d}' == '1'", "[1, 2, 3][f()]", "range(f())", "isinstance(f(), int) and f() == 1", "liar == 1",
        "f()() == 1", "bytes(f())", "f() & 1", "divmod(f(), 1)", "1 ** f()",
    ],
)  # fmt: skip
def test_nothing_hostile_passes_a_test(strict: Sandbox, test: str) -> None:
    with (
        strict.session(HOSTILE) as session,
        strict.judge(JUDGED, remote=session, names=["f", "nested", "function", "liar"]) as judge,
    ):
        reply = judge.call("attempt", [test])
        assert reply.exception in ("RuntimeError", "TypeError") or reply.value is False, reply


def test_what_an_object_may_be_asked(strict: Sandbox) -> None:
    """Its answers are data like any other."""
    source = """
class Node:
    def __init__(self, value): self.value, self.next, self.items = value, None, [1, 2]
    def double(self, times=2): return self.value * times
    def __getitem__(self, key): return self.items[key]
    def __setitem__(self, key, value): self.items[key] = value
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __contains__(self, item): return item in self.items
    def __str__(self): return f"<{self.value}>"
    __repr__ = __str__
def last(node):
    while node.next is not None: node = node.next
    return node
def make(): return Node(3)
"""
    test = """
node = Node(1)
node.next = Node(2)
assert node.next.value == 2 and node.double() == 2 and node.double(times=5) == 5
assert last(node).value == 2 and last(node) is node.next
assert node[0] == 1 and len(node) == 2 and list(node) == [1, 2] and 2 in node
node[0] = 9
assert node[0] == 9 and str(node) == "<1>" and f"{node.value:03d}" == "001"
assert make().double() == 6
try:
    node[7]
except IndexError: pass
else: raise AssertionError("no IndexError")
try:
    node.missing
except AttributeError: pass
else: raise AssertionError("no AttributeError")
"""
    with strict.session(source) as session, strict.judge(test, remote=session, names=["Node", "last", "make"]) as judge:
        assert judge.loaded.ok, judge.loaded


def test_handles_on_the_host(strict: Sandbox) -> None:
    source = (
        "class Stack:\n    size = 0\n    def push(self, n): self.size += n\n    def __call__(self): return self.size"
    )
    with strict.session(source) as session:
        tag, number, name = session.call("Stack").value
        assert (tag, name) == ("h", "Stack")
        handle = Handle(number)
        assert session.call("push", [3], handle=handle).value is None
        assert session.get("size", handle=handle).value == 3
        assert session.call("", handle=handle).value == 3
        assert session.call("Stack.push", [handle, 4]).ok
        assert session.call("push", [], {"n": 5}, handle=handle).refused or session.get("size", handle=handle).value
        assert session.call("nothing", handle=handle).exception == "AttributeError"
        assert session.get("size", handle=Handle(999)).exception == "IndexError"


def test_names_that_are_not_there(strict: Sandbox) -> None:
    with strict.session("def f(): return undefined\nclass C: pass") as session:
        assert session.call("g").missing == "g"
        assert session.call("C.g").missing == "C.g"
        assert session.call("len").missing == "len", "builtins are not the program's"
        inside = session.call("f")
        assert (inside.exception, inside.missing) == ("NameError", "")


@pytest.mark.parametrize(
    ("statement", "name", "original"),
    [
        ("raise ValueError('text')", "ValueError", "ValueError"),
        ("raise type('Mine', (KeyError,), {})('text')", "KeyError", "Mine"),
        ("raise type('Mine', (Exception,), {})('text')", "Exception", "Mine"),
        ("raise SystemExit('text')", "RuntimeError", "SystemExit"),
        ("raise KeyboardInterrupt('text')", "RuntimeError", "KeyboardInterrupt"),
        ("raise type('Mine', (BaseException,), {})('text')", "RuntimeError", "Mine"),
        ("b'\\xff'.decode()", "UnicodeError", "UnicodeDecodeError"),
        ("raise type('AssertionError', (BaseException,), {})('text')", "RuntimeError", "AssertionError"),
    ],
)
def test_exceptions_become_the_nearest_builtin(strict: Sandbox, statement: str, name: str, original: str) -> None:
    source = f"def f(): {statement}"
    test = f"def check(f):\n    try: f()\n    except {name}: return True\n    except BaseException as e: return repr(e)"
    with strict.session(source) as session, strict.judge(test, remote=session, names=["f"]) as judge:
        reply = session.call("f")
        assert (reply.exception, reply.original, reply.value) == (name, original, None)
        assert judge.call("check", [Remote("f")]).value is True


def test_arguments_are_copies_unless_they_are_to_be_written_back(strict: Sandbox) -> None:
    source = "def empty(items, other): items.clear(); other.update(a=1); return len(items)"
    test = """
def check(empty):
    items, other = [1, 2], {}
    empty(items, other)
    return [items, other]
"""
    with strict.session(source) as session:
        for writeback, after in ((False, [[1, 2], {}]), (True, [[], {"a": 1}])):
            with strict.judge(test, remote=session, names=["empty"], writeback=writeback) as judge:
                assert to_value(judge.call("check", [Remote("empty")]).value) == after
        reply = session.call("empty", [[1], {}], writeback=True)
        assert reply.arguments == [["l"], ["d", "a", 1]]
        assert session.call("empty", [[1], {}]).arguments is None


def test_functions_as_arguments_are_called_back(strict: Sandbox) -> None:
    source = """
def apply(function, items): return sorted(map(function, items), key=lambda n: -n)
def guarded(function):
    try: function()
    except ZeroDivisionError as problem: return f"caught {problem}"
def optional(function=None): return (function or str)(1)
"""
    test = """
calls = []
def note(n): calls.append(n); return n * 10
assert apply(note, [1, 2]) == [20, 10] and calls == [1, 2]
assert guarded(lambda: 1 / 0) == "caught division by zero"
assert optional(lambda n: n + 1) == 2 and optional() == "1"
assert apply(lambda n: apply(lambda m: m + n, [1])[0], [5]) == [6]
"""
    names = ["apply", "guarded", "optional"]
    with strict.session(source) as session, strict.judge(test, remote=session, names=names) as judge:
        assert judge.loaded.ok, judge.loaded
    with strict.session(source) as session:
        assert session.call("apply", [Callback(lambda n: n + 1), [1, 2]]).value == ["l", 3, 2]
        assert session.call("guarded", [Callback(lambda: 1 // 0)]).value.startswith("caught")


def test_endless_ping_pong_ends(strict: Sandbox) -> None:
    source, test = "def f(g): return g()", "def g(): return f(g)"
    with strict.session(source, limits=WIDE) as session, strict.judge(test, remote=session, names=["f"]) as judge:
        with pytest.raises(SandboxDied, match="nested") as caught:
            judge.call("g")
        assert caught.value.who in (session, judge)


@pytest.mark.parametrize(
    "expression",
    ["x", "[0] * 2_000_000", "'a' * (9 << 20)", "type('B', (), {'__class__': property(lambda s: 1 / 0)})().missing"],
)
def test_what_cannot_cross_is_refused_and_the_program_lives(strict: Sandbox, expression: str) -> None:
    source = f"x = []\nx.append(x)\ndef f(): return {expression}\ndef g(): return 1"
    with strict.session(source, limits=WIDE) as session:
        reply = session.call("f")
        assert not reply.ok and reply.value is None
        assert session.call("g").value == 1


def framed(body: bytes) -> bytes:
    return wire.HEADER.pack(len(body)) + body


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff\xff\xff\xff",
        framed(b"x"),
        framed(b"[]"),
        framed(b'["nothing"]'),
        framed(b'["answer","v"]'),
        framed(b'["answer","v",["l",[]]]'),
        framed(b'["answer","x","SystemExit","",""]'),
        framed(b'["answer","v",{"a":1}]'),
        framed(b'["call",["x",1],"call",["l"],["d"],false]'),
        framed(b'["call",["o",1],"call",["d"],["l"],false]'),
    ],
)
def test_a_program_that_breaks_the_protocol_is_ended(strict: Sandbox, frame: bytes) -> None:
    source = f"import os, time\ndef f():\n    os.write(4, {frame!r}); time.sleep(30)"
    with strict.session(source, limits=WIDE) as session, pytest.raises(SandboxDied) as caught:
        session.call("f")
    assert (caught.value.finished.status, caught.value.who) == ("killed", session)
    assert "protocol" in caught.value.finished.detail


def test_a_forged_answer_is_only_an_answer(strict: Sandbox) -> None:
    """It stands where the true one would have stood: the host compares it like any other, and it holds no verdict."""
    frame = wire.pack(["answer", "v", 42])
    source = f"import os\ndef f(): os.write(4, {frame!r}); return 1\ndef g(): return 2"
    with strict.session(source) as session:
        assert session.call("f").value == 42
        assert session.call("g").value == 1


def test_the_program_does_not_hold_what_it_is_compared_with(strict: Sandbox) -> None:
    """Every object that the collector knows, and every frame, is searched; what it was given is found."""
    source = """
import gc, sys
def count(text):
    return sum(text in repr(o)[:5000] for o in gc.get_objects() if isinstance(o, (list, tuple, dict)) and len(o) < 50)
def f(given):
    frame, names = sys._getframe(), []
    while frame:
        names += frame.f_locals
        frame = frame.f_back
    return [count("".join(reversed("123456789"))), count("".join(reversed("1234321234"))) > 0, "expected" in names]
"""
    test = "def check(f):\n    expected = 987654321\n    return f([4321234321])"
    with strict.session(source, limits=WIDE) as session, strict.judge(test, remote=session, names=["f"]) as judge:
        assert judge.call("check", [Remote("f")]).value == ["l", 0, True, False]


def test_dates_keep_their_zone(echo: Session) -> None:
    moment = datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    assert to_value(echo.call("echo", [moment]).value)[0][0] == moment


def test_arguments_must_be_plain() -> None:
    with pytest.raises(wire.WireError):
        to_tree(object())
    assert to_tree(fractions.Fraction(1, 3)) == ["Q", 1, 3]


STEAL = """
import os
def f(*values): os.write(4, FRAME)
"""
SECRET = "SECRET = [1, 2, 3]\ndef check(f): return f() == SECRET"


def test_a_program_cannot_name_the_globals_of_its_judge(
    strict: Sandbox, without: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that says "your own SECRET" would be equal to it. Two walls: the host's check, and the judge's own."""
    source = f"FRAME = {wire.pack(['answer', 'v', ['n', 'SECRET']])!r}" + STEAL
    with strict.session(source, limits=WIDE) as session, strict.judge(SECRET, remote=session, names=["f"]) as judge:
        with pytest.raises(SandboxDied, match="protocol") as caught:
            judge.call("check", [Remote("f")])
        assert caught.value.who is session
    blind = without(("wire.py", 'TRUSTED = frozenset({"n", "k"})', "TRUSTED = frozenset()"))
    monkeypatch.setattr(Session, "_refused", frozenset())
    for sandbox, outcome in ((strict, None), (blind, True)):
        with (
            sandbox.session(source, limits=WIDE) as session,
            sandbox.judge(SECRET, remote=session, names=["f"]) as judge,
        ):
            assert judge.call("check", [Remote("f")]).value is outcome


@pytest.mark.parametrize(
    "call",
    [
        ["call", ["n", "SECRET"], "value", ["l"], ["d"], False],
        ["call", ["n", "SECRET"], "setitem", ["l", 0, 9], ["d"], False],
        ["call", ["o", 0], "get", ["l", "__globals__"], ["d"], False],
        ["call", ["o", 0], "set", ["l", "x", 1], ["d"], False],
        ["call", ["o", 1], "setitem", ["l", 0, 9], ["d"], False],
        ["call", ["o", 0], "call", ["l", ["n", "SECRET"]], ["d"], False],
    ],
)
def test_a_program_may_only_call_what_it_was_given(strict: Sandbox, call: list[Any]) -> None:
    """A reverse call of anything but a function that was passed as an argument has no effect on the test."""
    source = f"FRAME = {wire.pack(call)!r}" + STEAL.replace("FRAME)", "FRAME); return repr(os.read(3, 9999))")
    test = """
SECRET = [1, 2, 3]
class Thing(list): pass
thing, seen = object(), []
def note(*values): seen.extend(values)
def check(f):
    said = f(note, thing)
    return [SECRET == [1, 2, 3], seen == [], hasattr(note, "x"), "SECRET" in said or "1, 2, 3" in said]
"""
    with strict.session(source, limits=WIDE) as session, strict.judge(test, remote=session, names=["f"]) as judge:
        try:
            reply = judge.call("check", [Remote("f")])
        except SandboxDied as died:
            assert "protocol" in died.finished.detail and died.who is session
        else:
            assert reply.value == ["l", True, True, False, False]


@pytest.mark.parametrize("name", ["StopIteration", "StopAsyncIteration"])
def test_the_end_of_an_iteration_does_not_cross(strict: Sandbox, name: str) -> None:
    """Raised inside `map` it would end the loop as if every case had been looked at, and `all` would be true."""
    source = f"def f(x): raise {name}"
    test = "def check(f): return all(map(lambda x: f(x) == 1, [1, 2, 3]))"
    with strict.session(source) as session, strict.judge(test, remote=session, names=["f"]) as judge:
        reply = judge.call("check", [Remote("f")])
        assert (reply.exception, reply.value) == ("RuntimeError", None)
        assert session.call("f", [1]).exception == name
