"""`rewardkit eval samples -r code --join tasks`: generations in one file, tests in another, as benchmarks publish them.

Small rows have the published files' columns; where the data kit is there, its files are joined as they lie.
"""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Here, cli  # noqa: F401

DOUBLE = "```python\nn = int(input())\nprint(n * 2)\n```"
FOUR = "```python\nprint(4)\n```"
METHOD = "```python\nclass Solution:\n    def twice(self, n):\n        return 2 * n\n```"
WRONG_METHOD = METHOD.replace("2 * n", "n + 2")


def values(cli: Here, samples: str | Path, tasks: str | Path, *more: str) -> list[Any]:  # noqa: F811
    """Evaluate; return the values in the order of the rows. Nothing may be left unscored."""
    result = cli("eval", samples, "-r", "code", "--join", tasks, "--json", "-o", "run", "--overwrite", *more)
    assert result.code == 0, result.err
    assert f"joined {Path(str(tasks)).name} by " in result.err
    lines = cli.scores(cli.folder / "run")
    assert {line["state"] for line in lines} == {"scored"}, lines
    return [line["value"] for line in lines]


HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'from typing import List\n\n\ndef last(items: List[int]) -> int:\n    """Return the last one."""\n',
    "entry_point": "last",
    "canonical_solution": "    return items[-1]\n",
    "test": "\n\ndef check(candidate):\n    assert candidate([1, 2]) == 2\n    assert candidate([5]) == 5\n",
}


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        ("completion", "    return items[-1]\n", "    return items[0]\n"),
        ("completion", "```python\ndef last(items):\n    return items[-1]\n```", "I do not know."),
        ("solution", HUMANEVAL["prompt"] + "    return items[-1]\n", HUMANEVAL["prompt"] + "    pass\n"),
    ],
    ids=["base model", "chat", "evalplus"],
)
def test_humaneval(cli: Here, field: str, right: str, wrong: str) -> None:  # noqa: F811
    cli.write("tasks.jsonl", [HUMANEVAL, {**HUMANEVAL, "task_id": "HumanEval/1"}])
    rows = [{"task_id": f"HumanEval/{at}", field: text} for at, text in ((1, wrong), (0, right), (1, right))]
    cli.write("samples.jsonl", rows)
    assert values(cli, "samples.jsonl", "tasks.jsonl") == [0.0, 1.0, 1.0]


MBPP = {
    "task_id": 11,
    "text": "Write a function to double a number.",
    "code": "def twice(n):\r\n    return 2 * n",
    "test_list": ["assert twice(2) == 4", "assert twice(5) == 10"],
    "test_setup_code": "",
    "challenge_test_list": [],
}


def test_mbpp_with_windows_line_ends(cli: Here) -> None:  # noqa: F811
    """MBPP's own code has them; a line with an import in front is not prose because of that."""
    cli.write("mbpp.jsonl", [MBPP])
    cli.write(
        "samples.jsonl",
        [
            {"task_id": 11, "completion": "import math\r\ndef twice(n):\r\n    return math.floor(2 * n)"},
            {"task_id": 11, "completion": "def twice(n): return n + 2"},
        ],
    )
    assert values(cli, "samples.jsonl", "mbpp.jsonl") == [1.0, 0.0]


def test_apps(cli: Here) -> None:  # noqa: F811
    streams = {"inputs": ["2\n", "5\n"], "outputs": ["4\n", "10\n"]}
    calls = {"fn_name": "twice", "inputs": [[2], [5]], "outputs": [4, 10]}
    common = {"solutions": "[]", "difficulty": "interview", "url": "https://example.org", "starter_code": ""}
    tasks = [
        {"problem_id": at, "question": "Double it.", "input_output": json.dumps(tests), **common}
        for at, tests in enumerate((streams, calls))
    ]
    cli.write("apps.jsonl", tasks)
    texts = [(0, DOUBLE), (0, FOUR), (1, METHOD), (1, WRONG_METHOD)]
    cli.write("samples.jsonl", [{"problem_id": at, "completion": text} for at, text in texts])
    assert values(cli, "samples.jsonl", "apps.jsonl") == [1.0, 0.0, 1.0, 0.0]
    fractions = cli("eval", "samples.jsonl", "-r", "code(credit='fraction')", "--join", "apps.jsonl", "-o", "fraction")
    assert fractions.code == 0
    assert [line["value"] for line in cli.scores(cli.folder / "fraction")] == [1.0, 0.5, 1.0, 0.5]


def livecodebench(name: str, **columns: Any) -> dict[str, Any]:
    return {
        "question_title": name,
        "question_content": "Double it.",
        "platform": "atcoder",
        "question_id": name,
        "contest_date": "2023-08-21T00:00:00",
        "difficulty": "easy",
        "starter_code": "",
        "metadata": "{}",
        **columns,
    }


def test_livecodebench_from_its_runner(cli: Here) -> None:  # noqa: F811
    """Private tests are a compressed pickle of JSON; a runner's file has answers, and the code cut out of them."""
    packed = json.dumps([{"input": "7\n", "output": "14\n", "testtype": "stdin"}])
    private = base64.b64encode(zlib.compress(pickle.dumps(packed))).decode()
    cli.write(
        "tasks.jsonl",
        [
            livecodebench(
                "abc_a",
                public_test_cases=json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}]),
                private_test_cases=private,
            ),
            livecodebench(
                "2808",
                public_test_cases=json.dumps([{"input": "2", "output": "4", "testtype": "functional"}]),
                private_test_cases=json.dumps([{"input": "5", "output": "10", "testtype": "functional"}]),
                metadata=json.dumps({"func_name": "twice"}),
            ),
        ],
    )
    rows = [
        {"question_id": "abc_a", "output_list": [DOUBLE, FOUR], "code_list": ["?", "?"]},
        {"question_id": "2808", "output_list": [METHOD, WRONG_METHOD], "code_list": ["?", "?"]},
    ]
    (cli.folder / "answers.json").write_text(json.dumps(rows), encoding="utf-8")
    assert values(cli, "answers.json", "tasks.jsonl") == [1.0, 0.0, 1.0, 0.0]
    codes = [
        {
            "question_id": "abc_a",
            "code_list": ["n = int(input())\nprint(2 * n)", "print(4)"],
            "graded_list": [True, False],
        }
    ]
    (cli.folder / "codes.json").write_text(json.dumps(codes), encoding="utf-8")
    assert values(cli, "codes.json", "tasks.jsonl") == [1.0, 0.0]


CRUX = {"id": "sample_0", "code": "def f(n):\n    return n % 10", "input": "123", "output": "3"}


def test_cruxeval_output_and_input(cli: Here) -> None:  # noqa: F811
    cli.write("cruxeval.jsonl", [CRUX])
    texts = ["[ANSWER]assert f(123) == 3[/ANSWER]", "3", "4"]
    cli.write("samples.jsonl", [{"id": "sample_0", "completions": texts}])
    assert values(cli, "samples.jsonl", "cruxeval.jsonl") == [1.0, 1.0, 0.0]
    cli.write("inputs.jsonl", [{"id": "sample_0", "completions": ["13", "f(903)", "12"], "predict": "input"}])
    assert values(cli, "inputs.jsonl", "cruxeval.jsonl") == [1.0, 1.0, 0.0]


def test_a_row_without_its_task_is_not_the_programs_fault(cli: Here) -> None:  # noqa: F811
    cli.write("tasks.jsonl", [HUMANEVAL])
    rows = [{"task_id": name, "completion": "    return items[-1]\n"} for name in ("HumanEval/0", "HumanEval/7")]
    cli.write("samples.jsonl", rows)
    result = cli("eval", "samples.jsonl", "-r", "code", "--join", "tasks.jsonl", "--json", "-o", "run")
    assert result.code == 0, result.err
    states = [(line["state"], line["value"]) for line in cli.scores(cli.folder / "run")]
    assert states == [("scored", 1.0), ("abstained", None)]


def test_task_files_of_another_naming_are_refused(cli: Here) -> None:  # noqa: F811
    cli.write("mbpp.jsonl", [MBPP])
    cli.write("samples.jsonl", [{"task_id": "Mbpp/11", "completion": "def twice(n): return 2 * n"}])
    result = cli("eval", "samples.jsonl", "-r", "code", "--join", "mbpp.jsonl")
    assert result.code == 2 and "no row finds its partner" in result.err and "'Mbpp/11'" in result.err


# ------------------------------------------------------------------------------------------------ the data kit's files


def labels(path: Path, count: int) -> int:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()][:count]
    return sum(sum(row["passed"]) if isinstance(row["passed"], list) else row["passed"] for row in rows)


@pytest.mark.parametrize(
    ("samples", "tasks", "count"),
    [
        ("humaneval_chat", "humaneval/HumanEval.jsonl.gz", 40),
        ("humaneval_codegen16b", "humaneval/HumanEval.jsonl.gz", 2),
        ("mbpp_samples", "mbpp/mbpp_functions.jsonl", 40),
    ],
)
def test_published_samples_with_their_task_file(
    cli: Here,  # noqa: F811
    shared: Callable[[str], Path],
    samples: str,
    tasks: str,
    count: int,
) -> None:
    """The first rows of each; `benchmarks/code.py` runs all of them."""
    found = values(cli, shared(f"data/{samples}/samples.jsonl"), shared(f"data/{tasks}"), "--limit", str(count))
    assert sum(found) == labels(shared(f"data/{samples}/labels.jsonl"), count)


def test_humanevals_own_solutions_with_their_compressed_task_file(cli: Here, shared: Callable[[str], Path]) -> None:  # noqa: F811
    path = shared("data/humaneval/HumanEval.jsonl.gz")
    tasks = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()][::20]
    cli.write("own.jsonl", [{"task_id": t["task_id"], "completion": t["canonical_solution"]} for t in tasks])
    assert values(cli, "own.jsonl", path) == [1.0] * len(tasks)


def test_cruxevals_scored_generations_with_their_task_file(cli: Here, shared: Callable[[str], Path]) -> None:  # noqa: F811
    scored = json.loads(shared("data/cruxeval/scored_codellama-7b_output.json").read_text("utf-8"))
    names = list(scored["raw_generations"])[:20]
    cli.write("crux.jsonl", [{"id": name, "completions": scored["raw_generations"][name]} for name in names])
    expected = [float(one) for name in names for one in scored["raw_scored_generations"][name]]
    assert values(cli, "crux.jsonl", shared("data/cruxeval/cruxeval.jsonl")) == expected
