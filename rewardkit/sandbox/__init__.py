"""Run programs that nobody trusts, and talk to them in plain data. Knows nothing of rewards.

    with Sandbox() as sandbox:                       # level "strict", or SandboxUnavailable; never less in silence
        sandbox.run("print(input())", stdin=b"hi\\n").stdout           # a program with standard input and output
        with sandbox.session("def f(x): return x + 1") as session:    # a program that answers calls
            session.loaded                           # Reply to executing the source itself: value, or exception
            session.call("f", [1]).value             # 2, as a wire tree (see wire.py)

The verdict is reached on this side: the program is given arguments and never an expected value, and what it answers is
data of known types. A value in a Reply is a *wire tree*: None, bool, int, float, str stand for themselves, everything
else is a list whose first item is a tag: `["l", …]` list, `["t", …]` tuple, `["s", …]` set, `["z", …]` frozenset,
`["d", k, v, …]` dict, `["b", latin-1 text]` bytes, `["h", id, type name]` opaque handle, … (all are in wire.py). Trees
are checked when they come in: known tags, right shapes, at most 200 deep. `to_tree(x)` makes the tree of a trusted
value; compare trees, walking the trusted one, and never build sets or dicts of what a program sent (60,000 numbers of
one hash stall it); `to_value(tree)` is for showing values and for trusted trees.

    Sandbox(level="strict", preload=PRELOAD)
        .run(source, *, stdin=b"", limits=Limits()) -> Finished
        .session(source, *, limits=Limits()) -> Session
        .judge(source, *, remote: Session, names: Sequence[str] = (), writeback=False, limits=Limits()) -> Judge
        .level, .close()
    Session.call(name, args=(), kwargs={}, *, handle=None, writeback=False, awaited=False) -> Reply
        name: a dotted global name ("Solution.method" too). With handle: the name of the object's method, or "" to call
        the object itself. Arguments are plain values; Handle, Callback(f) and Remote(name) may stand in them.
        awaited: a coroutine that the call returns is run to its end.
    Session.get(name, *, handle=None) -> Reply          the value of a global name, or of a handle's attribute
    Session.feed(text) -> Reply                         what input() reads from now on
    Session.loaded -> Reply;  .finish() -> Finished (kills what still runs);  .close()
    Judge is a Session in which the `names` are those of the program `remote`, by message: call, attribute, item, len,
        iteration, str, await and the truth of plain objects work; ==, ordering, arithmetic and other truth raise. What
        the test hands over is lent in its public fields, where its class is the test's own. Test code lives there:
        judge.call("check", [Remote("candidate")]).
    Reply: .ok; .value (a wire tree), or .exception (the nearest builtin exception's name) with .text (its message) and
        .original (its own class's name), or .missing (no such global), or .refused (why the value cannot cross);
        .arguments (trees of the arguments after the call, with writeback=True).
    SandboxDied(finished, who): the program ended, or ran over a limit. who is the Session; for a Judge also its remote.
"""

from __future__ import annotations

from rewardkit.sandbox.host import Sandbox, available, self_test
from rewardkit.sandbox.limits import LEVELS, Finished, Level, Limits, Status
from rewardkit.sandbox.sessions import Callback, Handle, Judge, Remote, Reply, SandboxDied, Session
from rewardkit.sandbox.wire import to_tree, to_value

__all__ = [
    "LEVELS",
    "Callback",
    "Finished",
    "Handle",
    "Judge",
    "Level",
    "Limits",
    "Remote",
    "Reply",
    "Sandbox",
    "SandboxDied",
    "Session",
    "Status",
    "available",
    "self_test",
    "to_tree",
    "to_value",
]
