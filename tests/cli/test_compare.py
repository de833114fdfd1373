"""`rewardkit compare`: every figure against a second, obvious computation, and what is said of gaps."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Here, strict_json

MARKS = """
from rewardkit import reward

@reward
def x(x):
    return x

@reward
def y(y):
    return y

@reward
def breaks(x):
    if x is None or x > 0:
        raise ValueError("no")
    return 0.0
"""

Row = dict[str, Any]


@pytest.fixture
def run(cli: Here) -> Callable[..., str]:
    """Evaluate rows with the rewards x and y, which return the column of their name; return the folder."""
    (cli.folder / "marks.py").write_text(MARKS, encoding="utf-8")

    def evaluate(name: str, rows: list[Row], *arguments: str, rewards: tuple[str, ...] = ("x",)) -> str:
        cli.write(f"{name}.jsonl", rows)
        wanted = [part for reward in rewards for part in ("-r", f"marks.py:{reward}")]
        done = cli("eval", f"{name}.jsonl", *wanted, "-o", name, "-q", "--max-error-rate", "1", *arguments)
        assert done.code == 0, done.err
        return name

    return evaluate


def row(id: Any, x: Any, **fields: Any) -> Row:
    return {"id": id, "prompt": f"about {id}", "answer": "1", "completion": f"it is {x}", "x": x, **fields}


def compared(cli: Here, *arguments: str) -> dict[str, Any]:
    done = cli("compare", *arguments, "--json")
    assert done.code == 0, done.err
    return strict_json(done.out)


def only(document: dict[str, Any]) -> dict[str, Any]:
    ((found,),) = [model["rewards"] for model in document["models"]]
    return found


# -------------------------------------------------------------------------------------------------------------- oracle


def sign_test(wins: int, losses: int) -> float:
    n = wins + losses
    tail = sum(math.comb(n, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**n)


def by_hand(a: list[Row], b: list[Row], key: str = "id", name_a: str = "x", name_b: str = "x") -> dict[str, Any]:
    """Problem means, differences, their normal interval and the sign test, from dicts of lists."""
    sides = []
    for rows, name in ((a, name_a), (b, name_b)):
        side = defaultdict(list)
        for one in rows:
            side[json.dumps(one[key])].append(one[name])
        sides.append(side)
    shared = [problem for problem in sides[0] if problem in sides[1]]
    pairwise = all(len(sides[0][problem]) == len(sides[1][problem]) for problem in shared)
    before, after, unscored = [], [], [0, 0]
    for problem in shared:
        values_a, values_b = sides[0][problem], sides[1][problem]
        unscored[0] += values_a.count(None)
        unscored[1] += values_b.count(None)
        if pairwise:
            pairs = [(p, q) for p, q in zip(values_a, values_b, strict=True) if p is not None and q is not None]
            values_a, values_b = [p for p, _ in pairs], [q for _, q in pairs]
        values_a, values_b = [v for v in values_a if v is not None], [v for v in values_b if v is not None]
        if values_a and values_b:
            before.append(statistics.fmean(values_a))
            after.append(statistics.fmean(values_b))
    differences = [q - p for p, q in zip(before, after, strict=True)]
    wins, losses = sum(d > 1e-6 for d in differences), sum(d < -1e-6 for d in differences)
    half = 1.959963984540054 * statistics.stdev(differences) / math.sqrt(len(differences))
    return {
        "problems": len(differences),
        "a": statistics.fmean(before),
        "b": statistics.fmean(after),
        "difference": statistics.fmean(differences),
        "ends": (statistics.fmean(differences) - half, statistics.fmean(differences) + half),
        "counts": (wins, losses, len(differences) - wins - losses),
        "p": sign_test(wins, losses),
        "pairwise": pairwise,
        "unscored": tuple(unscored),
    }


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    near = pytest.approx
    assert found["problems"] == expected["problems"]
    assert (found["a"], found["b"]) == (near(expected["a"]), near(expected["b"]))
    assert found["difference"] == near(expected["difference"], abs=1e-12)
    assert (found["interval"]["low"], found["interval"]["high"]) == near(expected["ends"])
    assert (found["wins"], found["losses"], found["ties"]) == expected["counts"]
    assert found["p"] == near(expected["p"])
    assert (found["unscored_a"], found["unscored_b"]) == expected["unscored"]


def random_rows(dice: random.Random, ids: list[Any], sizes: Callable[[], int], values: list[Any]) -> list[Row]:
    rows = [row(id, dice.choice(values), n=n) for id in ids for n in range(sizes())]
    dice.shuffle(rows)
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_random_runs_agree_with_a_computation_by_hand(cli: Here, run: Callable[..., str], seed: int) -> None:
    """Interleaved groups, ids 6 and "6", unscored values, problems of one side; counts equal (even) or ragged (odd)."""
    dice = random.Random(seed)
    values = [0, 1, None] if seed % 3 else [0.25, -1, 3.5, None]
    ids: list[Any] = [*range(30), *map(str, range(20)), "é\n", "\x1b[31mred"]
    sizes = (lambda: 3) if seed % 2 == 0 else (lambda: dice.randint(1, 5))
    a = random_rows(dice, ids[:45], sizes, values)
    b = random_rows(dice, ids[4:], sizes, values)
    document = compared(cli, run("a", a), run("b", b))
    expected = by_hand(a, b)
    (pair,) = document["models"]
    assert pair["joined_by"] == "group"
    assert pair["paired_by"] == ("completion" if expected["pairwise"] else "problem mean")
    assert expected["pairwise"] == (seed % 2 == 0)
    assert pair["only_a"]["problems"] == 4
    assert pair["only_b"]["problems"] == len(ids) - 45
    assert pair["only_a"]["completions"] == sum(one["id"] in range(4) and type(one["id"]) is int for one in a)
    check(only(document), expected)


def test_changed_completions_are_those_that_changed_the_largest_first(cli: Here, run: Callable[..., str]) -> None:
    a = [row(at, 0.0) for at in range(12)]
    b = [row(at, {3: 0.5, 7: 2.0, 9: 1.0, 5: -1.0}.get(at, 0.0)) for at in reversed(range(12))]
    found = only(compared(cli, run("a", a), run("b", b), "--limit", "2"))
    assert found["won"] == [{"id": 7, "a": 0.0, "b": 2.0, "index": 0}, {"id": 9, "a": 0.0, "b": 1.0, "index": 0}]
    assert found["lost"] == [{"id": 5, "a": 0.0, "b": -1.0, "index": 0}]
    assert (found["rose"], found["fell"]) == (3, 1)
    assert only(compared(cli, "a", "b", "--limit", "0"))["won"] == []
    assert only(compared(cli, "a", "b", "--limit", "0"))["rose"] == 3


# ---------------------------------------------------------------------------------------------------------- real runs


def test_the_published_runs_before_and_after_rl(cli: Here, shared: Callable[[str], Path]) -> None:
    """86.6 -> 87.3 is no gain: +0.76 +- 1.61, 64 won, 54 lost, p 0.41."""
    for name, model in (("base", "qwen2.5-3b-instruct"), ("rl", "qwen2.5-3b-rlft")):
        path = shared(f"data/math_runs/{model}/gsm8k.jsonl")
        assert cli("eval", path, "-r", "label", "-o", name, "-q").code == 0
    done = cli("compare", "base", "rl", "-r", "label")
    assert done.code == 0
    (line,) = [line for line in done.out.splitlines() if " p 0.41" in line]
    assert " ".join(line.split()) == "label 86.6 % 87.3 % +0.76 points -0.86 – +2.37 64 54 1,201 p 0.41"
    assert "label: no difference shown: the interval holds 0" in done.out
    assert "1,319 problems in both" in done.out
    found = only(compared(cli, "base", "rl"))
    assert (found["interval"]["high"] - found["interval"]["low"]) / 2 == pytest.approx(0.0161, abs=5e-5)


def test_two_rewards_on_the_published_rows(cli: Here, shared: Callable[[str], Path]) -> None:
    path = shared("data/math_runs/qwen2.5-3b-instruct/gsm8k.jsonl")
    rewards = ("-r", "label", "-r", "brackets=format_strict")
    assert cli("eval", path, *rewards, "-o", "base", "-q").code == 0
    found = only(compared(cli, "base", "--rewards", "label,brackets"))
    assert found["table"] == {"both": 0, "a_only": 1142, "b_only": 0, "neither": 177}
    assert found["kappa"] == 0.0  # a judge that always says 0 agrees no more than chance


# ------------------------------------------------------------------------------------------------------- two rewards


def kappa(pairs: list[tuple[int, int]]) -> float:
    n = len(pairs)
    agree = sum(p == q for p, q in pairs) / n
    one_a, one_b = sum(p for p, _ in pairs) / n, sum(q for _, q in pairs) / n
    chance = one_a * one_b + (1 - one_a) * (1 - one_b)
    return (agree - chance) / (1 - chance)


@pytest.mark.parametrize("how", ["--rewards", "-r"])
def test_two_rewards_of_one_run_have_a_table_kappa_and_the_rows_that_differ(
    cli: Here, run: Callable[..., str], how: str
) -> None:
    dice = random.Random(3)
    rows = [row(f"q{at % 40}", dice.choice([0, 1, 1]), y=dice.choice([0, 0, 1, None])) for at in range(160)]
    run("a", rows, rewards=("x", "y"))
    found = only(compared(cli, "a", how, "x,y", "--limit", "1000"))
    pairs = [(one["x"], one["y"]) for one in rows if one["y"] is not None]
    names = {"both": (1, 1), "a_only": (1, 0), "b_only": (0, 1), "neither": (0, 0)}
    assert found["table"] == {name: pairs.count(pair) for name, pair in names.items()}
    assert found["kappa"] == pytest.approx(kappa(pairs))
    assert found["agree"] == sum(p == q for p, q in pairs)
    assert found["agreement"]["low"] < found["agree"] / len(pairs) < found["agreement"]["high"]
    assert found["agreement"]["problems"] == 40
    assert len(found["won"]) + len(found["lost"]) == sum(p != q for p, q in pairs)
    assert found["unscored_b"] == len(rows) - len(pairs)
    printed = cli("compare", "a", how, "x,y").out
    assert "Cohen's kappa" in printed
    assert f"agree on {found['agree']} of {len(pairs)}" in printed


def test_two_runs_of_one_input_with_other_rewards_are_compared_row_by_row(cli: Here, run: Callable[..., str]) -> None:
    rows = [row(at, at % 2, y=at % 3 == 0) for at in range(30)]
    run("a", rows)
    cli("eval", "a.jsonl", "-r", "marks.py:y", "-o", "b", "-q")
    done = cli("compare", "a", "b")
    assert done.code == 2
    assert "no reward in common: A has x, B has y" in done.err
    found = only(compared(cli, "a", "b", "-r", "x,y"))
    assert found["table"] == {"both": 5, "a_only": 10, "b_only": 5, "neither": 10}


def test_a_reward_that_never_differs_has_no_kappa_and_no_interval(cli: Here, run: Callable[..., str]) -> None:
    run("a", [row(at, 1, y=1) for at in range(30)], rewards=("x", "y"))
    found = only(compared(cli, "a", "--rewards", "x,y"))
    assert (found["kappa"], found["agreement"], found["interval"]) == (None, None, None)
    printed = cli("compare", "a", "--rewards", "x,y").out
    assert "no difference: all 30 problems are tied" in printed
    assert "kappa n/a: both always say the same" in printed


# ----------------------------------------------------------------------------------------------------- what is joined


def test_other_prompts_under_equal_ids_are_said(cli: Here, run: Callable[..., str]) -> None:
    """Ids that count from 0 join any two files; nothing in them says that the problems are the same."""
    run("a", [row(at, 1) for at in range(20)])
    run("b", [row(at, 0) | {"prompt": f"another {at}"} for at in range(20)])
    document = compared(cli, "a", "b")
    assert document["models"][0]["joined_by"] == "id"
    assert document["notes"] == ["joined by id: 20 of 20 problems differ in prompt, reference or step"]
    for name, prompt in (("c", "about"), ("d", "another")):
        run(name, [row(at, 1, model=name) | {"prompt": f"{prompt} {at}"} for at in range(20)])
    assert compared(cli, "a", "c")["notes"] == []
    assert compared(cli, "a", "d")["notes"] == ["joined by id: 20 of the first 20 problems have another prompt"]


def test_runs_whose_ids_differ_are_joined_by_prompt(cli: Here, run: Callable[..., str]) -> None:
    a = [row(at, at % 2) for at in range(20) for _ in range(2)]
    b = [row(at, 1) | {"id": f"other-{at}"} for at in reversed(range(2, 20)) for _ in range(2)]
    run("a", a)
    run("b", b)
    document = compared(cli, "a", "b", "--limit", "1")
    (pair,) = document["models"]
    assert (pair["joined_by"], pair["paired_by"]) == ("prompt", "completion")
    assert pair["only_a"] == {"problems": 2, "completions": 4}
    check(only(document), by_hand(a, b, key="prompt"))
    assert only(document)["won"][0] == {"id": 2, "id_b": "other-2", "a": 0.0, "b": 1.0, "index": 0}


def test_an_id_of_each_completion_leaves_the_problem_as_the_unit(cli: Here, run: Callable[..., str]) -> None:
    """80 completions of 8 problems are 8 problems: too few for an interval, whatever the ids are."""
    dice = random.Random(1)
    a = [row(at, dice.choice([0, 1])) | {"prompt": f"p{at % 8}"} for at in range(80)]
    b = [one | {"x": dice.choice([0, 1])} for one in a]
    run("a", a)
    run("b", b)
    found = only(compared(cli, "a", "b"))
    assert (found["problems"], found["completions"], found["interval"]) == (8, 80, None)
    assert found["verdict"] == "too few problems"
    assert "8 problems are too few for an interval" in cli("compare", "a", "b").out


def test_an_id_with_two_problems_is_left_out_where_only_ids_join(cli: Here, run: Callable[..., str]) -> None:
    a = [row(at, 1, model="small") for at in range(20)] + [row(3, 0, model="small") | {"prompt": "other"}]
    run("a", a)
    run("b", [row(at, 0, model="large") for at in range(20)])
    document = compared(cli, "a", "b")
    assert document["models"][0]["ambiguous_ids"] == 1
    assert only(document)["problems"] == 19
    assert document["notes"] == ["1 ids name more than one problem and are left out"]


def test_nothing_in_common_is_an_error_with_ids_of_both(cli: Here, run: Callable[..., str]) -> None:
    run("a", [row(at, 1) for at in range(20)])
    run("b", [row(f"q\x1b{at}", 1) for at in range(20)])
    done = cli("compare", "a", "b")
    assert (done.code, done.out) == (2, "")
    assert "no problem in common: ids of A are such as 0, 1, 2; of B 'q\\x1b0'" in done.err
    assert "\x1b" not in done.err


def test_no_prompts_to_join_by_is_said(cli: Here, run: Callable[..., str]) -> None:
    run("a", [row(at, 1) for at in range(20)])
    run("b", [row(f"q{at}", 1) for at in range(20)])
    (cli.folder / "b.jsonl").unlink()
    done = cli("compare", "a", "b")
    assert done.code == 2
    assert "prompts cannot be compared: the input b.jsonl is not there any more" in done.err


# -------------------------------------------------------------------------------------------------------------- models


def side_by_side(dice: random.Random) -> list[Row]:
    return [
        {
            "question": f"q{at}",
            "gold": "1",
            **{m: {"text": "a", "x": dice.choice([0, 1])} for m in ("llama", "qwen:8b")},
        }
        for at in range(40)
    ]


def test_models_are_compared_each_with_itself_and_by_name_with_each_other(cli: Here, run: Callable[..., str]) -> None:
    dice = random.Random(0)
    for name in ("a", "b"):
        run(name, side_by_side(dice), "--map", "completion=*.text")
    document = compared(cli, "a", "b")
    assert [(pair["a"], pair["b"]) for pair in document["models"]] == [("llama", "llama"), ("qwen:8b", "qwen:8b")]
    document = compared(cli, "a:llama", "a:qwen:8b")
    rows = [json.loads(line) for line in (cli.folder / "a.jsonl").read_text().splitlines()]
    flat = {m: [{"id": at, "x": one[m]["x"]} for at, one in enumerate(rows)] for m in ("llama", "qwen:8b")}
    check(only(document), by_hand(flat["llama"], flat["qwen:8b"]))
    assert document["models"][0]["joined_by"] == "id"
    done = cli("compare", "a:llama", "b:qwen")
    assert (done.code, done.out) == (2, "")
    assert "B has no model 'qwen'; it has llama, qwen:8b" in done.err or "did you mean qwen:8b?" in done.err
    done = cli("compare", "a:llama", "b")
    assert done.code == 0
    assert "llama: 40 problems in both" in done.out


def test_models_that_do_not_fit_ask_for_a_choice(cli: Here, run: Callable[..., str]) -> None:
    run("a", [row(at, 1, model="m") for at in range(20)])
    run("b", [row(at, 1, model=m) for at in range(20) for m in ("n", "o")])
    done = cli("compare", "a", "b")
    assert done.code == 2
    assert "A has m, B has n, o; write RUN:MODEL" in done.err
    assert cli("compare", "a", "b:o").code == 0


# ---------------------------------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("before", "after", "code", "said"),
    [
        ([1] * 40, [0] * 20 + [1] * 20, 1, "a loss: x: B is lower: the whole interval lies below 0"),
        ([1] * 40, [0] * 40, 1, "B is lower, on every problem by the same"),
        ([1, 0] * 20, [0, 1] * 20, 0, ""),
        ([0] * 40, [0, 1] * 20, 0, ""),
        ([1] * 40, [1] * 39 + [0], 0, ""),
        ([1] * 9, [0] * 9, 0, "9 problems are too few for an interval, so --fail-on-loss cannot tell"),
        ([1] * 40, [None] * 40, 0, "no problem is scored on both sides, so --fail-on-loss cannot tell"),
    ],
)
def test_fail_on_loss(
    cli: Here, run: Callable[..., str], before: list[Any], after: list[Any], code: int, said: str
) -> None:
    run("a", [row(at, value) for at, value in enumerate(before)])
    run("b", [row(at, value) for at, value in enumerate(after)])
    done = cli("compare", "a", "b", "--fail-on-loss")
    assert done.code == code
    assert said in done.err
    assert bool(said) == bool(done.err)
    assert cli("compare", "a", "b").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a"], "one run alone needs two rewards"),
        (["a", "a", "--rewards", "x,y"], "--rewards compares two rewards of one run"),
        (["a", "--rewards", "x"], "'x' compared with itself is always tied"),
        (["a", "a", "-r", "xx"], "no reward 'xx'"),
        (["a", "nowhere"], "no run folder nowhere"),
        (["a", "aa"], "no run folder aa; did you mean a?"),
        (["a", "."], "not a run folder; run folders in it: a"),
        (["a", "a.jsonl"], "a.jsonl is no run folder and no file of scores"),
        (["a:m", "a"], "A has no model 'm'"),
    ],
)
def test_mistakes_say_what_was_wanted(cli: Here, run: Callable[..., str], arguments: list[str], said: str) -> None:
    run("a", [row(at, 1) for at in range(3)])
    done = cli("compare", *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_reward_named_alike_with_other_options_is_said(cli: Here, run: Callable[..., str]) -> None:
    run("a", [row(at, at % 2) for at in range(20)])
    run("b", [row(at, at % 2) for at in range(20)])
    assert compared(cli, "a", "b")["notes"] == []
    (cli.folder / "marks.py").write_text(MARKS + "# changed\n", encoding="utf-8")
    run("c", [row(at, at % 2) for at in range(20)])
    assert compared(cli, "a", "c")["notes"] == [
        "x is not the same reward in A and B: its code, version or options differ"
    ]


def test_errors_are_left_out_and_counted(cli: Here, run: Callable[..., str]) -> None:
    run("a", [row(at, at % 2) for at in range(40)], rewards=("x", "breaks"))
    found = only(compared(cli, "a", "--rewards", "x,breaks"))
    assert (found["problems"], found["unscored_b"], found["unscored_problems"]) == (20, 20, 20)
    assert (
        "not scored and left out: 0 completions of A, 20 of B; 20 whole problems"
        in cli("compare", "a", "--rewards", "x,breaks").out
    )


def test_files_of_a_run_stand_for_it_and_an_unfinished_run_is_said(cli: Here, run: Callable[..., str]) -> None:
    run("a", [row(at, at % 2) for at in range(40)])
    run("b", [row(at, 1) for at in range(40)])
    whole = compared(cli, "a", "b")["models"]
    assert compared(cli, "a/summary.json", "b/scores.jsonl")["models"] == whole
    alone = cli.folder / "alone.jsonl"
    alone.write_bytes((cli.folder / "b/scores.jsonl").read_bytes())
    assert compared(cli, "a", "alone.jsonl")["models"] == whole
    (cli.folder / "b/summary.json").unlink()
    data = (cli.folder / "b/scores.jsonl").read_bytes()
    (cli.folder / "b/scores.jsonl").write_bytes(data[: len(data) // 2])
    document = compared(cli, "a", "b")
    assert document["notes"] == ["b is unfinished: only what it has scored so far is compared"]
    assert only(document)["problems"] < 40


def test_hostile_names_reach_no_terminal(cli: Here, run: Callable[..., str]) -> None:
    """Ids, models and prompts of a stranger hold escapes, line ends and reading-order marks."""
    hostile = "\x1b[2J\x07\u202e\u2028[bold]\n"
    for name, shift in (("a", 0), ("b", 1)):
        run(name, [row(f"{hostile}{at}", (at + shift) % 2, model=f"m{hostile}") for at in range(20)])
    for arguments in (["a", "b"], ["a", "b", "--json"], ["a", "b:nobody"], ["a:x", f"b:m{hostile}"]):
        done = cli("compare", *arguments)
        for text in (done.out, done.err):
            assert not set(text) & set("\x1b\x07\u202e\u2028")
    assert "id '\\x1b[2J\\x07\\u202e\\u2028[bold]\\n" in cli("compare", "a", "b").out
