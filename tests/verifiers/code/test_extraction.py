"""What of a completion is the program, and which rule says so."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit.verifiers.code.extraction import (
    MAX_SOURCE,
    USUAL_STOPS,
    NoProgram,
    Program,
    check_program,
    extract_prediction,
    extract_program,
    is_code_prompt,
)

DEF = "def f(x):\n    return x\n"
OTHER = "print(f(3))\n"
PROMPT = 'from typing import List\n\ndef helper(x):\n    return x\n\n\ndef f(x: int) -> List[int]:\n    """Do it."""\n'
HEAD = "from typing import List\n\ndef helper(x):\n    return x\n"
BODY = "    return [x]\n"


def fence(code: str, tag: str = "python") -> str:
    return f"```{tag}\n{code}```"


CASES = [
    (fence(DEF), {}, DEF, "fenced block", "one block"),
    (f"Sure:\n{fence(DEF)}\nDone.", {}, DEF, "fenced block", "prose around"),
    (fence(DEF, ""), {}, DEF, "fenced block", "no language tag"),
    (fence(DEF, "Python3"), {}, DEF, "fenced block", "another tag of Python"),
    (fence(DEF, "python title=x"), {}, DEF, "fenced block", "an info string"),
    (f"{fence(DEF)}\n{fence(OTHER)}", {}, OTHER, "last of 2 fenced blocks", "without names the last one"),
    (f"{fence(DEF)}\n{fence(OTHER)}", {"names": ["f"]}, DEF, "first of 2 fenced blocks", "the one that defines f"),
    (
        f"{fence(DEF)}\n{fence('def f(x): pass' + chr(10))}",
        {"names": ["f"]},
        "def f(x): pass\n",
        "last of 2 fenced blocks",
        "of two that define f the last",
    ),
    (f"{fence(DEF)}\n{fence(OTHER)}", {"where": "first"}, DEF, "first of 2 fenced blocks", "first"),
    (f"{fence(DEF)}\n{fence(OTHER)}", {"where": "last", "names": ["f"]}, OTHER, "last of 2 fenced blocks", "last"),
    (f"{fence(DEF)}\n{fence(OTHER)}", {"where": "all"}, DEF + "\n\n" + OTHER, "all 2 fenced blocks joined", "all"),
    (
        f"{fence(DEF)}\n{fence('3' + chr(10), '')}",
        {},
        DEF,
        "fenced block",
        "an untagged block of output beside a tagged one",
    ),
    (
        f"{fence('pip install x' + chr(10), 'bash')}\n{fence(DEF)}",
        {"where": "first"},
        DEF,
        "fenced block",
        "shell is skipped",
    ),
    (
        "```python\ndef f(x):\n    return x",
        {},
        "def f(x):\n    return x",
        "unclosed fence",
        "cut off, or a stop string ate the fence",
    ),
    ("~~~py\n" + DEF + "~~~", {}, DEF, "fenced block", "tildes"),
    ("1. Do:\n   ```python\n   def f(x):\n       return x\n   ```\n", {}, DEF, "fenced block", "inside a list item"),
    (
        '```python\ndef f(x):\n    """\n    ```\n    f(1)\n    ```\n    """\n    return x\n```',
        {},
        'def f(x):\n    """\n    ```\n    f(1)\n    ```\n    """\n    return x\n',
        "fenced block",
        "fences in a docstring",
    ),
    (DEF, {}, DEF, "no fence, whole text", "no fence"),
    (
        "Here is the code:\n\n" + DEF,
        {},
        DEF,
        "no fence, from the first line of code",
        "prose, then code without a fence",
    ),
    ("# Here is it\n" + DEF, {}, "# Here is it\n" + DEF, "no fence, whole text", "a comment is no prose"),
    ("x = 3\n" + DEF, {}, "x = 3\n" + DEF, "no fence, whole text", "code before the first def"),
    (" def f(x):\n    return x\n", {}, DEF, "no fence, whole text", "a tokenizer's space in front"),
    (f"<think>{fence(OTHER)}</think>\n{fence(DEF)}", {}, DEF, "fenced block", "thinking is dropped"),
    (
        f"{fence(OTHER)}\n<answer>\n{fence(DEF)}\n</answer>",
        {"where": "first"},
        DEF,
        "fenced block in <answer>",
        "answer tags",
    ),
    ("[PYTHON]\n" + DEF + "[/PYTHON]\n[TESTS]x", {}, "\n" + DEF, "text in [PYTHON]", "marks of Code Llama"),
    ("[BEGIN]\n" + DEF + "[DONE]", {}, "\n" + DEF, "text in [BEGIN]", "marks of MBPP prompts"),
    (BODY, {"prompt": PROMPT, "names": ["f"]}, PROMPT + BODY, "prompt continued", "a base model goes on"),
    ("\n" + BODY, {"prompt": PROMPT, "names": ["f"]}, PROMPT + "\n" + BODY, "prompt continued", "after an empty line"),
    (
        "b):\n    return 1\n",
        {"prompt": "def f(a, ", "names": ["f"]},
        "def f(a, b):\n    return 1\n",
        "prompt continued",
        "in the middle of a line",
    ),
    (
        DEF,
        {"prompt": PROMPT, "names": ["f"]},
        HEAD.rstrip() + "\n" + DEF,
        "no fence, whole text",
        "the whole function again: imports and helpers stay",
    ),
    (
        fence(DEF),
        {"prompt": PROMPT, "names": ["f"]},
        HEAD.rstrip() + "\n" + DEF,
        "fenced block",
        "a chat answer: imports and helpers stay",
    ),
    (
        fence(BODY),
        {"prompt": PROMPT, "names": ["f"]},
        PROMPT + BODY,
        "fenced block, continuing the prompt",
        "a chat answer that is only the body",
    ),
    (
        fence("from __future__ import annotations\n" + DEF),
        {"prompt": PROMPT, "names": ["f"]},
        "from __future__ import annotations\n" + DEF,
        "fenced block",
        "__future__ comes first",
    ),
    (
        BODY + "\ndef g(): pass\n",
        {"prompt": PROMPT, "names": ["f"], "stop": USUAL_STOPS},
        PROMPT + BODY,
        "prompt continued, cut at a stop word",
        "stop words",
    ),
    (
        BODY + "\ndef g(): pass\n",
        {"prompt": PROMPT, "names": ["f"]},
        PROMPT + BODY + "\ndef g(): pass\n",
        "prompt continued",
        "no stop words unless asked",
    ),
    (fence(DEF), {"where": "whole"}, fence(DEF), "whole text", "whole"),
    (
        " import re\n return x\n",
        {"prompt": 'def f(x):\n """\n Do it.\n """\n', "names": ["f"]},
        'def f(x):\n """\n Do it.\n """\n import re\n return x\n',
        "prompt continued",
        "a prompt that indents by one space",
    ),
    (
        " def f(x):\n    return x\n",
        {"prompt": PROMPT, "names": ["f"]},
        HEAD.rstrip() + "\n" + DEF,
        "no fence, whole text",
        "a tokenizer's space, and the whole function again",
    ),
    (
        "    return FIX\n",
        {"prompt": 'FIX = """\nAdd\n"""\n\ndef f(x):\n    """Do."""\n', "names": ["f"]},
        'FIX = """\nAdd\n"""\n\ndef f(x):\n    """Do."""\n    return FIX\n',
        "prompt continued",
        "a prompt that begins with an assignment",
    ),
    (DEF, {"where": "continue", "prompt": PROMPT}, PROMPT + DEF, "prompt continued", "continue"),
    (
        "import math\r\ndef f(x):\r\n    return x\r\n",
        {"names": ["f"]},
        "import math\ndef f(x):\n    return x\n",
        "no fence, whole text",
        "Windows line ends: an import is no prose",
    ),
    ("Sure:\r\n```python\r\nx = 1\r\n```\r\n", {}, "x = 1\n", "fenced block", "Windows line ends around a fence"),
]


@pytest.mark.parametrize("text, options, source, rule, why", CASES, ids=[case[-1] for case in CASES])
def test_the_program_is_found(text, options, source, rule, why):
    assert extract_program(text, **options) == Program(source, rule)


@pytest.mark.parametrize(
    "prompt, is_code",
    [
        (PROMPT, True),
        ('FIX = """\nAdd\n"""\n\ndef f(x):\n', True),
        ('"""A module."""\ndef f(x):\n', True),
        ("# a comment\nimport re\n", True),
        ("Write a function f.\n\ndef f(x):\n", False),
        ("from the list, take the first\n", False),
        ("import duties are 5 % of x. What is x?", False),
        ("class of 30 pupils", False),
        ("x = 3. What is 2x?", False),
        ("", False),
    ],
)
def test_a_prompt_is_code_or_words(prompt, is_code):
    assert is_code_prompt(prompt) is is_code


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "no_answer"),
        (" \n\t", "no_answer"),
        ("<think>so", "no_answer"),
        ("<think>x</think>", "no_answer"),
        ("```python\n```", "no_answer"),
        ("```cpp\nint main() {}\n```", "no_answer"),
        ("def f():\n    return '\0'", "unreadable"),
        ("def f():\n    return '\ud800'", "unreadable"),
        ("x = 1\n" * (MAX_SOURCE // 6 + 1), "too_large"),
        ("x" * (10 << 20), "too_large"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_no_program(text, reason):
    found = extract_program(text)
    assert isinstance(found, NoProgram) and found.reason == reason and found.detail


def test_bytes_that_are_no_utf8():
    found = check_program(b"x = '\xff'")
    assert isinstance(found, NoProgram) and found.reason == "unreadable" and "byte 5" in found.detail


@pytest.mark.parametrize(
    "text",
    [
        "```\n" * 100_000,
        "```python\n" + "a " * 300_000,
        "a b " * 200_000,
        "def " * 200_000,
        "(" * 500_000,
        "~" * 500_000,
        "\n ```" * 100_000,
        "a, " * 200_000 + "=",
        "[PYTHON]" * 60_000,
        "<answer>" * 60_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_texts_take_linear_time(text):
    started = time.process_time()
    extract_program(text, names=["f"], prompt=PROMPT)
    assert time.process_time() - started < 5.0  # quadratic would take minutes


@given(st.text("ab`~\n pythodef(x):<>/[]", max_size=80))
def test_any_text_gives_a_program_or_a_reason(text):
    found = extract_program(text, names=["f"], prompt=PROMPT)
    assert (isinstance(found, Program) and found.source.strip()) or (isinstance(found, NoProgram) and found.detail)


@pytest.mark.parametrize(
    "text, value",
    [
        ("[1, 2]", "[1, 2]"),
        ("so\n[ANSWER]\n'a'\n[/ANSWER] more", "'a'"),
        ("<answer>3</answer>", "3"),
        ("It is\n```python\n{'a': 1}\n```", "{'a': 1}"),
        ("assert f(1) == 5", "5"),
        ("assert f('==') == '=='", "'=='"),
        ("<think>4</think>5", "5"),
    ],
)
def test_a_prediction_is_found(text, value):
    given_source = "'=='" if "'=='" in text else "1"
    found = extract_prediction(text, given_source)
    assert isinstance(found, Program) and found.source == value


def test_no_prediction():
    assert isinstance(extract_prediction("", "1"), NoProgram)
    assert isinstance(extract_prediction("<think>4", "1"), NoProgram)
