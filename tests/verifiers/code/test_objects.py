"""Solutions that are coroutines, that build or get linked objects, or that read input() while they are called."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rewardkit.code import run_tests
from rewardkit.sandbox import Sandbox
from rewardkit.types import Verdict
from rewardkit.verifiers.code.forms import read_tests

NODES = """
class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next

class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right

def list_node(values):
    first = last = ListNode()
    for value in values:
        last.next = ListNode(value)
        last = last.next
    return first.next

def is_same_list(one, other):
    while one and other:
        if one.val != other.val:
            return False
        one, other = one.next, other.next
    return not one and not other
"""
"""What LeetCode-style rows have in the prompt: it stands before the solution and before the tests."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox("strict") as made:
        yield made


def verdict(sandbox: Sandbox, source: str, tests: object, entry: str = "f", prompt: str = "") -> Verdict:
    return run_tests(prompt + source, tests, entry_point=entry, prompt=prompt, within=sandbox)


# --------------------------------------------------------------------------------------------------------- coroutines

ASYNC = "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x * x\n"
NINE = [{"args": "(3,)", "expected": "9"}]


@pytest.mark.parametrize(
    "tests",
    [
        NINE,
        "import asyncio\nassert asyncio.run(f(3)) == 9",
        "import asyncio\nasync def main():\n    assert await asyncio.wait_for(f(2), 5) == 4\n"
        "    assert await asyncio.gather(f(3), f(4)) == [9, 16]\n    task = asyncio.create_task(f(5))\n"
        "    assert await task == 25\nasyncio.run(main())",
        "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n    async def test(self):\n"
        "        self.assertEqual(await f(3), 9)\n",
    ],
    ids=["calls", "asyncio.run", "gather, task", "unittest"],
)
def test_a_coroutine_is_run_where_the_test_awaits_it(sandbox: Sandbox, tests: object) -> None:
    assert verdict(sandbox, ASYNC, tests).value == 1.0
    assert verdict(sandbox, ASYNC.replace("x * x", "x + 1"), tests).value == 0.0


def test_a_coroutine_of_a_method_and_its_exception(sandbox: Sandbox) -> None:
    source = "class Solution:\n    async def f(self, x):\n        return x * x if x > 0 else {}[x]\n"
    assert verdict(sandbox, source, [*NINE, {"args": "(-1,)", "raises": "KeyError"}]).value == 1.0
    caught = "import asyncio\ntry:\n    asyncio.run(f(-1))\nexcept KeyError:\n    pass\nelse:\n    assert False\n"
    assert verdict(sandbox, "async def f(x):\n    raise KeyError(x)\n", caught).value == 1.0


def test_an_assert_that_does_not_await_gets_a_coroutine(sandbox: Sandbox) -> None:
    """As in one process: `f(3) == 9` is false for a coroutine."""
    assert verdict(sandbox, ASYNC, "assert f(3) == 9").value == 0.0


@pytest.mark.parametrize(
    "body",
    ["r = f(3)\nassert r == 9", "async def main():\n    assert await f(3) == 9\nimport asyncio\nasyncio.run(main())"],
)
def test_an_object_that_calls_itself_coroutine_equals_nothing(sandbox: Sandbox, body: str) -> None:
    liar = "class coroutine:\n    def __eq__(self, other): return True\n    def __await__(self): return iter(())\n"
    assert verdict(sandbox, liar + "def f(x): return coroutine()\n", body).value == 0.0


# ------------------------------------------------------------------------------------------------------------ objects

BUILD = "class Solution:\n    def build(self, values): return list_node(values)\n"
MERGE = """
class Solution:
    def merge(self, a, b):
        first = last = ListNode()
        while a and b:
            if a.val <= b.val:
                last.next, a = a, a.next
            else:
                last.next, b = b, b.next
            last = last.next
        last.next = a or b
        return first.next
"""
MERGED = """
def check(candidate):
    assert is_same_list(candidate(a=list_node([1, 3]), b=list_node([2, 4, 5])), list_node([1, 2, 3, 4, 5]))
    assert is_same_list(candidate(list_node([]), list_node([])), list_node([]))
"""


def test_nodes_that_a_solution_builds_are_true(sandbox: Sandbox) -> None:
    tests = "def check(candidate):\n    assert is_same_list(candidate([1, 2]), list_node([1, 2]))\n"
    assert verdict(sandbox, BUILD, tests, "Solution().build", NODES).value == 1.0
    for wrong in ("list_node(values[:-1])", "list_node(values + [3])", "None"):
        source = BUILD.replace("list_node(values)", wrong)
        assert verdict(sandbox, source, tests, "Solution().build", NODES).value == 0.0


def test_nodes_that_a_test_hands_over_can_be_walked_and_linked_anew(sandbox: Sandbox) -> None:
    assert verdict(sandbox, MERGE, MERGED, "Solution().merge", NODES).value == 1.0
    assert verdict(sandbox, MERGE.replace("<=", ">"), MERGED, "Solution().merge", NODES).value == 0.0


@pytest.mark.parametrize(
    "body",
    [
        "slow = fast = head\nwhile fast and fast.next:\n    slow, fast = slow.next, fast.next.next\n"
        "    if slow == fast: return True\nreturn False",
        "seen = set()\nwhile head:\n    if head in seen: return True\n    seen.add(head)\n    head = head.next\n"
        "return False",
    ],
    ids=["two pointers", "set"],
)
def test_nodes_of_a_test_can_be_compared_with_each_other(sandbox: Sandbox, body: str) -> None:
    source = "class Solution:\n    def f(self, head):\n" + "".join(f"        {line}\n" for line in body.splitlines())
    tests = """
def check(candidate):
    ring = list_node([1, 2, 3])
    ring.next.next.next = ring.next
    assert candidate(ring) == True
    assert candidate(list_node([1, 2])) == False
"""
    assert verdict(sandbox, source, tests, "Solution().f", NODES).value == 1.0


def test_a_tree_of_the_tests_is_turned_round(sandbox: Sandbox) -> None:
    source = """
class Solution:
    def invert(self, root):
        if not root:
            return None
        root.left, root.right = self.invert(root.right), self.invert(root.left)
        return root
"""
    tests = """
def flat(tree): return None if tree is None else [flat(tree.left), tree.val, flat(tree.right)]
def check(candidate):
    root = TreeNode(1, TreeNode(2), TreeNode(3))
    assert flat(candidate(root)) == [[None, 3, None], 1, [None, 2, None]]
    assert flat(root) == [[None, 3, None], 1, [None, 2, None]]
"""
    assert verdict(sandbox, source, tests, "Solution().invert", NODES).value == 1.0


SECRET = """
def check(candidate):
    class Node(ListNode):
        kept = 42
        def method(self): return 42
    node = Node(1)
    node._hidden, node.function, node.answers = 42, (lambda: 42), candidate
    assert candidate(node) == 42
"""


LOOKS = ("_hidden", "kept", "method", "method()", "function", "function()", "__class__.kept", "__dict__", "__init__")


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_but_public_fields_of_a_tests_object_can_be_seen(sandbox: Sandbox, look: str) -> None:
    source = f"""
def f(head):
    try:
        return head.{look}
    except Exception as problem:
        return str(problem)
"""
    assert verdict(sandbox, source, SECRET, prompt=NODES).value == 0.0
    seen = SECRET.replace("== 42", "== 1")
    assert verdict(sandbox, source.replace(look, "val"), seen, prompt=NODES).value == 1.0


@pytest.mark.parametrize(
    "change",
    ["head.method = lambda: 42", "head.new = 42", "del head.val", "head.__class__ = int"],
)
def test_a_tests_object_keeps_its_methods_and_gets_no_new_fields(sandbox: Sandbox, change: str) -> None:
    source = f"def f(head):\n    {change}\n"
    tests = """
def check(candidate):
    class Node(ListNode):
        def method(self): return 1
    node = Node(1)
    try:
        candidate(node)
    except Exception:
        pass
    assert callable(node.val) or node.method() == 42 or hasattr(node, "new") or not hasattr(node, "val")
"""
    assert verdict(sandbox, source, tests, prompt=NODES).value == 0.0
    holds = tests.replace("node.method() == 42", "node.val == 1")
    assert verdict(sandbox, "def f(head): pass\n", holds, prompt=NODES).value == 1.0


def test_a_test_case_is_no_plain_object(sandbox: Sandbox) -> None:
    source = "def f(case):\n    case.longMessage = case.failureException = None\n"
    tests = "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        f(self)\n"
    assert verdict(sandbox, source, tests).value == 0.0


def test_an_object_is_never_false(sandbox: Sandbox) -> None:
    """A lie about truth could end a loop of a test before anything was looked at."""
    source = "class N:\n    def __bool__(self): return False\ndef f(x): return N()\n"
    tests = "node = f(1)\nwhile node:\n    assert node.val == 1\n    node = node.next\n"
    got = verdict(sandbox, source, tests)
    assert got.value == 0.0 and "__bool__" in got.detail
    for other in ("lambda: 1", "type('N', (), {})", "object()", "[].append"):
        assert verdict(sandbox, f"def f(x): return {other}\n", "for _ in range(2):\n    assert f(1)\n").value == 0.0


# -------------------------------------------------------------------------------------------------------------- input


def test_input_is_read_while_a_function_is_called(sandbox: Sandbox) -> None:
    source = "import sys\ndef f(x):\n    return [int(input()) + x, sys.stdin.read()]\n"
    tests = [
        {"args": "(1,)", "expected": "[4, 'rest']", "stdin": "3\nrest"},
        {"args": "(2,)", "expected": "[7, '']", "stdin": ["5"]},
    ]
    assert verdict(sandbox, source, tests).value == 1.0
    assert verdict(sandbox, source.replace("+ x", ""), tests).value == 0.0
    without = verdict(sandbox, source, [{"args": "(1,)", "expected": "[4, '']"}])
    assert without.value == 0.0 and "EOFError" in without.detail


@pytest.mark.parametrize(
    "line", ["import builtins\nbuiltins.input = lambda *_: '3'\n", "import sys, io\nsys.stdin = io.StringIO('3')\n"]
)
def test_patches_that_do_not_reach_the_solution_are_no_fault_of_its(line: str) -> None:
    with pytest.raises(ValueError, match="not supported"):
        read_tests({"tests": line + "assert f(1) == 3"}, entry_point="f")


def test_a_method_that_works_in_place(sandbox: Sandbox) -> None:
    source = "class Solution:\n    def turn(self, xs): xs.reverse()\n"
    tests = [{"args": "([1, 2],)", "expected": "[2, 1]", "writeback": True}]
    assert verdict(sandbox, source, tests, "turn").value == 1.0
    assert verdict(sandbox, source, tests, "Solution.turn").value == 1.0
    assert verdict(sandbox, source.replace("xs.reverse()", "pass"), tests, "turn").value == 0.0
