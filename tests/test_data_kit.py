"""The data kit beside a checkout: every figure of its table whose reward exists, from the command line.

Figures are those that the sources publish (the kit's README, "What a correct run prints"). Most inputs need no flag,
none more than a map. More programs are run in verifiers/code/test_published_code_labels.py. Awkward files (`torture/`)
have their tests in records/test_reading.py and cli/test_eval_faults.py; here are those that these leave out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Here, cli  # noqa: F401

Shared = Callable[[str], Path]


def run(cli: Here, path: Path, *arguments: str) -> dict[str, Any]:  # noqa: F811
    result = cli("eval", path, *arguments, "--json")
    assert result.code == 0, result.err
    folder = max((cli.folder / "runs").iterdir(), key=lambda place: place.stat().st_mtime_ns)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["input"]["bad_rows"] == 0
    return summary


def only(summary: dict[str, Any]) -> dict[str, Any]:
    (figures,) = summary["models"].values()
    return figures


@pytest.mark.parametrize("reward", ["gsm8k", "label"])
def test_gsm8k_four_models(cli: Here, shared: Shared, reward: str) -> None:  # noqa: F811
    models = run(cli, shared("data/gsm8k/example_model_solutions.jsonl"), "-r", reward)["models"]
    assert [figures["rewards"][reward]["right"] for figures in models.values()] == [286, 515, 458, 742]
    assert {figures["rewards"][reward]["scored"] for figures in models.values()} == {1319}


def test_gsm8k_tora_by_its_extracted_answer(cli: Here, shared: Shared) -> None:  # noqa: F811
    """11 golds have a comma, so as numbers 11 more are right than as text."""
    path = shared("data/gsm8k_tora/tora-code-34b-v1.0.jsonl")
    figures = only(run(cli, path, "-r", "numeric", "-r", "exact", "--map", "completion=pred[]"))["rewards"]
    assert (figures["numeric"]["right"], figures["exact"]["right"]) == (1062, 1051)


RUNS = {
    "qwen2.5-3b-instruct": {"gsm8k": 1142, "amc23": 17, "gaokao2023en": 209, "aqua": 188},
    "qwen2.5-3b-rlft": {"gsm8k": 1152, "amc23": 15, "gaokao2023en": 210, "aqua": 180},
}


@pytest.mark.parametrize(("model", "task"), [(model, task) for model in RUNS for task in RUNS[model]])
def test_math_runs_have_their_labels(cli: Here, shared: Shared, model: str, task: str) -> None:  # noqa: F811
    figures = only(run(cli, shared(f"data/math_runs/{model}/{task}.jsonl"), "-r", "label"))
    assert figures["rewards"]["label"]["right"] == RUNS[model][task]


def test_math_runs_gsm8k_by_the_extracted_answer_as_a_number(cli: Here, shared: Shared) -> None:  # noqa: F811
    """All labels but one: "6th" for 6, which was read by hand and is right (data/adjudicated)."""
    path = shared("data/math_runs/qwen2.5-3b-instruct/gsm8k.jsonl")
    figures = only(run(cli, path, "-r", "numeric", "-r", "label", "--map", "completion=pred[],label=score[]"))
    assert (figures["label"]["numeric"]["agree"], figures["label"]["numeric"]["n"]) == (1318, 1319)
    values: dict[int, set[float]] = {}
    for score in cli.scores(newest(cli)):
        values.setdefault(score["id"], set()).add(score["value"])
    assert [id for id, found in values.items() if len(found) > 1] == [464]


GROUPS = {
    400: (0.197, {1: 19.70, 4: 42.07, 8: 54.43, 16: 66.39, 32: 77.34, 50: 85.00}, 3, 881),
    800: (0.179, {1: 17.90, 8: 46.76, 50: 70.00}, 6, 985),
}


@pytest.mark.parametrize("step", GROUPS)
def test_grpo_groups(cli: Here, shared: Shared, step: int) -> None:  # noqa: F811
    mean, at_k, zero, strict = GROUPS[step]
    path = shared(f"data/grpo_groups/amc23_step_{step}.json")
    figures = only(run(cli, path, "-r", "label", "-r", "form=think_format(answer=true)"))
    assert round(figures["rewards"]["label"]["mean"], 6) == mean
    assert figures["rewards"]["form"]["right"] == strict
    found = figures["pass_at_k"]["label"]
    assert {k: round(100 * found[str(k)]["value"], 2) for k in at_k if str(k) in found} == {
        k: value for k, value in at_k.items() if str(k) in found
    }
    assert {"1", "8"} <= found.keys()
    signal = figures["groups"]["zero_signal"]["label"]
    assert (signal["n"], signal["all_fail"], signal["of"]) == (zero, zero, 20)


def test_math_groups8(cli: Here, shared: Shared) -> None:  # noqa: F811
    figures = only(run(cli, shared("data/math_groups8/qwen_math_cot_8x.jsonl"), "-r", "label"))
    assert figures["rewards"]["label"]["mean"] == 0.8775
    at_k = {k: round(100 * figures["pass_at_k"]["label"][k]["value"], 2) for k in ("4", "8")}
    assert at_k == {"4": 94.23, "8": 96.00}
    signal = figures["groups"]["zero_signal"]["label"]
    assert (signal["n"], signal["all_pass"], signal["all_fail"], signal["of"]) == (43, 41, 2, 50)


def test_cruxeval_to_the_last_digit(cli: Here, shared: Shared) -> None:  # noqa: F811
    path = shared("data/cruxeval/scored_codellama-7b_output.json")
    published = json.loads(path.read_text(encoding="utf-8"))
    figures = only(run(cli, path, "-r", "label"))
    found = figures["pass_at_k"]["label"]
    assert 100 * found["1"]["value"] == pytest.approx(published["pass_at_1"], abs=1e-9)
    if "5" in found:
        assert 100 * found["5"]["value"] == pytest.approx(published["pass_at_5"], abs=1e-9)
    assert figures["groups"]["zero_signal"]["label"]["n"] == 684
    assert (figures["completions"], round(100 * found["1"]["value"], 4)) == (8000, 34.2125)


@pytest.mark.parametrize("model", ["deepseek-r1", "mistral-small-3.1-24b"])
def test_reasoning_gym_means_are_those_in_the_files(cli: Here, shared: Shared, model: str) -> None:  # noqa: F811
    """All three completions of a question count, not the best one."""
    paths = sorted(shared(f"data/reasoning_gym/{model}").glob("*.json"))
    assert len(paths) == 9
    between = 0
    for path in paths:
        figures = only(run(cli, path, "-r", "label"))["rewards"]["label"]
        published = json.loads(path.read_text(encoding="utf-8"))["average_mean_score"]
        assert (figures["scored"], figures["mean"]) == (150, pytest.approx(published, abs=1e-9)), path.name
        between += sum(0 < score["value"] < 1 for score in cli.scores(newest(cli)))
    assert between == {"deepseek-r1": 62, "mistral-small-3.1-24b": 405}[model]


def newest(cli: Here) -> Path:  # noqa: F811
    return max((cli.folder / "runs").iterdir(), key=lambda place: place.stat().st_mtime_ns)


CODE = {
    "humaneval_codegen16b/samples.jsonl": 8200,
    "humaneval_chat/samples.jsonl": 164,
    "mbpp_samples/samples.jsonl": 487,
    "humaneval/example_samples.jsonl": 6,
}


@pytest.mark.parametrize("name", CODE)
def test_files_of_programs_are_read_without_a_flag(cli: Here, shared: Shared, name: str) -> None:  # noqa: F811
    """What they are worth needs their tests, from a second file; that all are read does not."""
    assert only(run(cli, shared(f"data/{name}"), "-r", "length"))["rewards"]["length"]["scored"] == CODE[name]


def test_human_evals_own_example(cli: Here, shared: Shared) -> None:  # noqa: F811
    """Three of six: one runs another program, one sleeps ten seconds, one waits for input that never comes."""
    tasks = shared("data/humaneval/example_problem.jsonl")
    path = shared("data/humaneval/example_samples.jsonl")
    figures = only(run(cli, path, "-r", "code(timeout=3, memory='512MB')", "--join", str(tasks)))
    assert (figures["rewards"]["code"]["right"], figures["rewards"]["code"]["scored"]) == (3, 6)
    assert figures["pass_at_k"]["code"]["1"]["value"] == 0.5
    values = [score["value"] for score in cli.scores(newest(cli))]
    assert values == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def test_inspect_log(cli: Here, shared: Shared) -> None:  # noqa: F811
    (path,) = shared("data/inspect_eval").glob("*.eval")
    assert only(run(cli, path, "-r", "exact"))["rewards"]["exact"]["scored"] == 10


def test_a_table_of_chats_with_nested_gold(cli: Here, shared: Shared) -> None:  # noqa: F811
    figures = only(run(cli, shared("data/torture/nested_chat.parquet"), "-r", "gsm8k"))
    assert (figures["completions"], figures["groups"]["n"], figures["groups"]["sizes"]) == (80, 40, {"2": 40})
