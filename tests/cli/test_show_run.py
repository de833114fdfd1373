"""`rewardkit show RUN`: which completions are chosen, against a choice by hand, and that nothing of theirs acts."""

from __future__ import annotations

import json
import os
import random
import shutil
from typing import Any

import pytest
from command_line import ROOT, Here, strict_json

MARKS = """
from rewardkit import reward

@reward
def x(x):
    return x

@reward
def y(y):
    return y

@reward
def picky(completion):
    if "raise" in completion:
        raise ValueError("not this one")
    return 0.5

whole = 0.75 * x + 0.25 * y
"""

Row = dict[str, Any]


def row(id: Any, x: Any = 1, **fields: Any) -> Row:
    return {"id": id, "prompt": f"about {id}", "answer": "gold", "completion": f"so it is {x}", "x": x, **fields}


def evaluate(cli: Here, rows: list[Row], *arguments: str, rewards: tuple[str, ...] = ("x",)) -> list[Row]:
    """Write rows, score them, and return them."""
    (cli.folder / "marks.py").write_text(MARKS, encoding="utf-8")
    cli.write("a.jsonl", rows)
    wanted = [part for reward in rewards for part in ("-r", reward if "=" in reward else f"marks.py:{reward}")]
    done = cli("eval", "a.jsonl", *wanted, "-o", "run", "-q", "--max-error-rate", "1", *arguments)
    assert done.code == 0, done.err
    return rows


def shown(cli: Here, *arguments: str) -> list[dict[str, Any]]:
    """What is chosen, as JSON."""
    done = cli("show", *arguments, "--json")
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = strict_json(done.out)["shown"]
    return found


def places(cli: Here, *arguments: str) -> list[list[tuple[Any, int]]]:
    """Id and index of what is chosen."""
    return [[(one["id"], one["index"]) for one in part["completions"]] for part in shown(cli, *arguments)]


# ------------------------------------------------------------------------------------------------------------- summary


def test_without_an_option_the_summary_is_as_eval_printed_it(cli: Here) -> None:
    path = ROOT / "examples" / "gsm8k" / "solutions.jsonl"
    printed = cli(
        "eval", path, "-r", "gsm8k", "-r", "label", "--map", "label=175b_verification.is_correct", "-o", "run"
    )
    again = cli("show", "run")
    assert (again.code, again.err) == (0, "")
    assert again.out.partition("\n")[2] == printed.out.partition("\n")[2]
    assert again.out.splitlines()[0] == printed.out.splitlines()[0].partition("   (")[0].rstrip()
    assert strict_json(cli("show", "run", "--json").out) == json.loads((cli.folder / "run/summary.json").read_text())
    assert cli("show", "run/summary.json").out == again.out


def test_an_unfinished_run_shows_what_there_is_and_says_so(cli: Here) -> None:
    evaluate(cli, [row(at, at % 2) for at in range(20)])
    (cli.folder / "run/summary.json").unlink()
    data = (cli.folder / "run/scores.jsonl").read_bytes()
    (cli.folder / "run/scores.jsonl").write_bytes(data[: data.index(b"\n", 1000) + 20])
    count = data[: data.index(b"\n", 1000) + 1].count(b"\n")
    done = cli("show", "run")
    assert done.code == 0
    assert "run is an unfinished run" in done.err
    assert done.out.split()[:2] == [str(count), "completions"]
    assert strict_json(cli("show", "run", "--json").out)["rewards"][0]["scored"] == count
    assert [len(part) for part in places(cli, "run", "--best", "100")] == [count]
    (cli.folder / "run/scores.jsonl").unlink()
    assert cli("show", "run").out == "0 completions\n"
    assert cli("show", "run", "--worst", "1").code == 0


# ------------------------------------------------------------------------------------------------------ worst and best


@pytest.mark.parametrize("seed", range(3))
def test_worst_and_best_are_those_of_a_sorted_list(cli: Here, seed: int) -> None:
    """Ties go by the file's order, what is not scored is neither; parts of one reward are no reward of their own."""
    dice = random.Random(seed)
    rows = [row(f"q{at}", dice.choice([None, 0, 1, -2.5, 0.25, 1e300])) for at in range(60)]
    evaluate(cli, rows)
    scored = [one for one in rows if one["x"] is not None]
    lowest = [(one["id"], 0) for one in sorted(scored, key=lambda one: one["x"])]
    highest = [(one["id"], 0) for one in sorted(scored, key=lambda one: -one["x"])]
    assert places(cli, "run", "--worst", "7", "--best", "9") == [lowest[:7], highest[:9]]
    assert places(cli, "run", "--worst", "1000") == [lowest]
    first = shown(cli, "run", "--best", "1")[0]
    assert (first["of"], first["what"]) == (len(scored), "best by x")


def test_the_reward_is_chosen_and_shown_with_reasons_parts_and_texts(cli: Here) -> None:
    rows = [row(at, at % 3, y=at % 5, prompt=[{"role": "user", "content": f"chat {at}"}]) for at in range(12)]
    rows[4]["completion"] = "long " * 200 + "the answer is #### 77 " + "tail " * 200
    rows[4]["answer"] = "77"
    evaluate(cli, rows, rewards=("x", "whole", "g=gsm8k"))
    done = cli("show", "run", "--best", "1", "-r", "whole")
    assert done.code == 0
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0] == "best by whole: 12 completions scored, 1 shown"
    assert lines[2:7] == ["id 8 index 0 a.jsonl:9", "x 2", "whole 2.25", "· 0.75 * x 2", "· 0.25 * y 3"]
    assert "prompt chat 8" in lines
    (text,) = [line for line in cli("show", "run", "--sample", "4").out.splitlines() if line.startswith("  text ")]
    assert "the answer is #### 77 tail" in text
    assert text.startswith("  text       long long")
    assert text.endswith("characters")
    assert len(text) < 800


# -------------------------------------------------------------------------------------------------- groups and samples


def test_a_group_is_shown_together_although_rows_of_it_lie_apart(cli: Here) -> None:
    rows = [row(at % 4, at) for at in range(12)]
    evaluate(cli, rows)
    (part,) = shown(cli, "run", "--group", "2")
    assert [(one["index"], one["text"]) for one in part["completions"]] == [
        (0, "so it is 2"), (1, "so it is 6"), (2, "so it is 10"),
    ]  # fmt: skip
    assert places(cli, "run", "--group", part["completions"][0]["group"]) == [[(2, 0), (2, 1), (2, 2)]]
    assert places(cli, "run", "--sample", "2:1") == [[(2, 1)]]
    assert places(cli, "run", "--group", "2", "--limit", "2") == [[(2, 0), (2, 1)]]
    assert (
        "3 completions, the first 2 shown; --limit N shows more"
        in cli("show", "run", "--group", "2", "--limit", "2").out
    )


def test_groups_of_one_id_are_shown_one_after_the_other(cli: Here) -> None:
    rows = [row(1, at, model=("m", "n")[at % 2]) for at in range(6)]
    evaluate(cli, rows)
    (part,) = shown(cli, "run", "--group", "1")
    assert [(one["model"], one["index"]) for one in part["completions"]] == [
        ("m", 0), ("m", 1), ("m", 2), ("n", 0), ("n", 1), ("n", 2),
    ]  # fmt: skip
    assert [one["model"] for one in shown(cli, "run:n", "--group", "1")[0]["completions"]] == ["n"] * 3
    assert "no model 'x'; the run has m, n" in cli("show", "run:x", "--group", "1").err


def test_the_group_of_an_id_that_only_one_completion_has(cli: Here) -> None:
    """Every completion has an id, prompts repeat: the group is the prompt's."""
    evaluate(cli, [row(f"c{at}", at, prompt=f"p{at % 3}") for at in range(9)])
    assert places(cli, "run", "--group", "c4") == [[("c1", 0), ("c4", 1), ("c7", 2)]]
    assert places(cli, "run", "--sample", "c4") == [[("c4", 1)]]


def test_an_integer_id_and_its_text_are_two(cli: Here) -> None:
    evaluate(cli, [row(6, 1), row("6", 2), row("7", 3), row(8, 4), row("8:0", 5), row('"q"', 6)])
    done = cli("show", "run", "--group", "6")
    assert "there is the id 6 and the id '6'; the first is shown" in done.err
    assert places(cli, "run", "--group", "6") == [[(6, 0)]]
    assert places(cli, "run", "--group", '"6"') == [[("6", 0)]]
    assert places(cli, "run", "--sample", '"6":0') == [[("6", 0)]]
    assert places(cli, "run", "--group", "7") == [[("7", 0)]]
    assert cli("show", "run", "--group", "7").err == ""
    assert places(cli, "run", "--sample", "8:0") == [[("8:0", 0)]]  # an id may look like one with an index
    assert places(cli, "run", "--sample", "8") == [[(8, 0)]]
    assert places(cli, "run", "--group", '"q"') == [[('"q"', 0)]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--group", "31"], "no group '31' in run; the nearest ids are 18, 19, 20"),
        (["--group", "qury"], "no group 'qury' in run; did you mean query?"),
        (["--sample", "4:7"], "sample '4' has no index 7; it has 0 to 1"),
        (["--sample", "zzz"], "no sample 'zzz' in run; ids are such as 0, 1, 2"),
        (["--worst", "3", "-r", "xx"], "no reward 'xx'; did you mean x? the run has x"),
        (["--disagree=x,yy"], "no reward 'yy'"),
        (["--disagree=x,x"], "--disagree wants two rewards"),
        (["--disagree"], "a.jsonl has no label of 0 or 1"),
        (["--worst", "0"], "0 is not in the range x>=1"),
    ],
)
def test_mistakes_say_what_there_is(cli: Here, arguments: list[str], said: str) -> None:
    evaluate(cli, [row(at % 21, at) for at in range(42)] + [row("query")])
    done = cli("show", "run", *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err


# ------------------------------------------------------------------------------------------------- disagree and errors


def test_rows_where_the_reward_and_the_label_in_the_file_differ(cli: Here) -> None:
    dice = random.Random(0)
    rows = [row(at, dice.choice([0, 1, 0.5, None]), is_correct=dice.choice([True, False, None])) for at in range(60)]
    evaluate(cli, rows)
    differ = [
        one for one in rows if one["is_correct"] is not None and one["x"] in (0, 1) and one["x"] != one["is_correct"]
    ]
    (part,) = shown(cli, "run", "--disagree", "--limit", "100")
    assert [one["id"] for one in part["completions"]] == [one["id"] for one in differ]
    assert [one["label"] for one in part["completions"]] == [float(one["is_correct"]) for one in differ]
    lines = cli("show", "run", "--disagree", "--limit", "1").out.splitlines()
    assert lines[0].startswith(f"x and the label in the file differ: {len(differ)} completions")
    assert f"  label      {differ[0]['is_correct']:d}   (in the file)" in lines
    assert len(shown(cli, "run", "--disagree", "--best", "3")[0]["completions"]) == 3


def test_rows_where_two_rewards_differ(cli: Here) -> None:
    rows = [row(at, at % 2, y=at % 3 if at % 5 else None) for at in range(30)]
    evaluate(cli, rows, rewards=("x", "y"))
    expected = [(one["id"], 0) for one in rows if one["y"] is not None and one["x"] != one["y"]]
    assert places(cli, "run", "--disagree=x,y", "--limit", "100") == [expected]
    assert places(cli, "run", "--disagree", "y,x", "--limit", "100") == [expected]


def test_errors_are_the_rows_that_a_reward_could_not_finish(cli: Here) -> None:
    rows = [row(at, None if at == 3 else 1) | ({"completion": "raise"} if at % 4 == 0 else {}) for at in range(12)]
    evaluate(cli, rows, rewards=("x", "picky"))
    assert places(cli, "run", "--errors") == [[(0, 0), (4, 0), (8, 0)]]
    assert "picky      error   raised: ValueError: not this one" in cli("show", "run", "--errors").out
    assert cli("show", "run", "--errors", "-r", "x").out == "errors: none\n"


# ------------------------------------------------------------------------------------------------------ texts and paths


def test_a_changed_input_shows_scores_only_and_says_so(cli: Here) -> None:
    rows = evaluate(cli, [row(at, at % 2, is_correct=True) for at in range(10)])
    cli.write("a.jsonl", [{**one, "completion": one["completion"].replace("so", "SO")} for one in rows])
    done = cli("show", "run", "--sample", "3")
    assert done.code == 0
    assert done.err == "rewardkit: scores only: the input a.jsonl has changed since the run\n"
    assert "text" not in done.out
    assert "  x          1" in done.out.splitlines()
    assert "the labels in the file cannot be read again" in cli("show", "run", "--disagree").err
    (cli.folder / "a.jsonl").unlink()
    assert "the input a.jsonl is not there any more" in cli("show", "run", "--sample", "3").err


def test_the_input_is_found_from_another_folder(cli: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """`runs/STEM-HASH8` names its input as it was named then, from the folder that holds `runs`."""
    (cli.folder / "marks.py").write_text(MARKS, encoding="utf-8")
    cli.write("a.jsonl", [row(1)])
    assert cli("eval", "a.jsonl", "-r", "marks.py:x").code == 0
    folder = cli.run_folder()
    (cli.folder / "elsewhere").mkdir()
    monkeypatch.chdir(cli.folder / "elsewhere")
    assert shown(cli, str(folder), "--sample", "1")[0]["completions"][0]["text"] == "so it is 1"


def test_texts_of_standard_input_come_from_the_copy(cli: Here) -> None:
    rows = "".join(json.dumps(row(at, at)) + "\n" for at in range(3))
    (cli.folder / "marks.py").write_text(MARKS, encoding="utf-8")
    assert cli.process("eval", "-", "-r", "marks.py:x", "-o", "run", stdin=rows.encode()).code == 0
    assert shown(cli, "run", "--sample", "2")[0]["completions"][0]["text"] == "so it is 2"


@pytest.mark.parametrize("arguments", [["--map", "completion=code[]"], ["--map", "label="], ["--group", "about"], []])
def test_a_nested_input_is_read_again_as_it_was_read(cli: Here, arguments: list[str]) -> None:
    rows = [
        {
            "about": at // 2,
            "question": f"q{at}",
            "gold": "1",
            "code": [f"a{at}", f"b{at}"],
            "x": at,
            "is_correct": [1, 0],
        }
        for at in range(6)
    ]
    evaluate(cli, rows, *arguments)
    found = shown(cli, "run", "--best", "2")[0]["completions"]
    assert [one["text"] for one in found] == ["a5", "b5"]


def test_limit_and_compression_hold_for_the_texts_too(cli: Here) -> None:
    import gzip

    evaluate(cli, [row(at, at) for at in range(20)])
    packed = cli.folder / "b.jsonl.gz"
    packed.write_bytes(gzip.compress((cli.folder / "a.jsonl").read_bytes()))
    assert cli("eval", packed, "-r", "marks.py:x", "-o", "packed", "--limit", "7", "-q").code == 0
    assert shown(cli, "packed", "--best", "1")[0]["completions"][0]["text"] == "so it is 6"


def test_what_is_no_run_folder(cli: Here) -> None:
    evaluate(cli, [row(1)])
    (cli.folder / "empty").mkdir()
    for given, said in (
        ("empty", "empty is not a run folder; eval prints the folder that it writes"),
        (".", "not a run folder; run folders in it: run"),
        ("runn", "no run folder runn; did you mean run?"),
        ("a.jsonl", "a.jsonl is no run folder and no file of scores"),
    ):
        done = cli("show", given, "--worst", "3")
        assert (done.code, done.out) == (2, "")
        assert said in done.err
    (cli.folder / "run/config.toml").write_text("identity = [", encoding="utf-8")
    assert "run is not a run folder" in cli("show", "run").err


def test_a_registered_name_is_not_taken_for_a_folder(cli: Here) -> None:
    evaluate(cli, [row(1)])
    shutil.copytree("run", "gsm8k")
    assert "(verifier, " in cli("show", "gsm8k").out
    assert "x" in cli("show", "./gsm8k").out.split()
    assert places(cli, "gsm8k", "--worst", "1") == [[(1, 0)]]


@pytest.mark.parametrize("damage", ["other rewards", "half a record", "a line lost", "no scores"])
def test_damaged_scores_are_an_error_with_their_line(cli: Here, damage: str) -> None:
    evaluate(cli, [row(at, y=1) for at in range(6)], rewards=("x", "y"))
    path = cli.folder / "run/scores.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if damage == "other rewards":
        lines[3] = lines[3].replace('"reward":"y"', '"reward":"z"')
    elif damage == "half a record":
        lines[3] = lines[3][:40] + "\n"
    elif damage == "a line lost":
        del lines[3]
    else:
        lines[2:] = ["[1, 2]\n"]
    path.write_text("".join(lines), encoding="utf-8")
    done = cli("show", "run", "--worst", "3")
    assert (done.code, done.out) == (2, "")
    assert "scores.jsonl:" in done.err
    assert "Traceback" not in done.err


def test_hostile_texts_are_shown_as_escapes(cli: Here) -> None:
    """Texts, ids, prompts, references, reasons and models hold what a terminal acts on, and marks of rich."""
    hostile = "\x1b[2J\x07\x9b31m\u202e\u2066\u200b\u2028[red]\r\n"
    rows = [
        row(f"{hostile}{at}", at, prompt=f"{hostile}{at}", answer=[hostile], model=hostile, is_correct=True)
        | {"completion": "raise" + hostile if at % 2 else hostile * 200}
        for at in range(4)
    ]
    evaluate(cli, rows, rewards=("x", "picky"))
    asked = [["--worst", "4"], ["--errors"], ["--group", f"{hostile}2"], ["--disagree"], ["--sample", f"{hostile}1:0"]]
    for arguments in [*asked, ["--group", hostile], []]:
        for more in ([], ["--json"]):
            done = cli("show", "run", *arguments, *more)
            for text in (done.out, done.err):
                assert not set(text) & set("\x1b\x07\x9b\u202e\u2066\u200b\u2028\r"), arguments
    line = next(
        line for line in cli("show", "run", "--group", f"{hostile}2").out.splitlines() if line.startswith("id ")
    )
    as_shown = line.removeprefix("id ").partition("   index")[0]
    assert places(cli, "run", "--group", as_shown) == [[(f"{hostile}2", 0)]]  # what is shown can be typed
    assert places(cli, "run", "--sample", as_shown + ":0") == [[(f"{hostile}2", 0)]]


def test_utf8_whatever_the_locale_and_no_escapes_in_a_pipe(cli: Here) -> None:
    evaluate(cli, [row("é", 1, prompt="größer als ∞?")])
    done = cli.process("show", "run", "--worst", "1", env={"LC_ALL": "C", "FORCE_COLOR": "1", "PYTHONUTF8": "0"})
    assert done.code == 0
    assert "größer als ∞?" in done.out
    assert "\x1b" not in done.out


def test_only_what_is_shown_is_kept(cli: Here) -> None:
    """The heap is bounded: 8,000 completions take what 1,000 take."""
    import tracemalloc

    peaks = []
    for count in (1_000, 8_000):
        evaluate(cli, [row(at % 100, at % 7, pad="p" * 300) for at in range(count)], "--overwrite")
        cli("show", "run", "--worst", "5")
        tracemalloc.start()
        cli("show", "run", "--worst", "5")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 500_000, peaks


def test_a_reader_that_goes_away_is_no_error(cli: Here) -> None:
    evaluate(cli, [row(at, at) for at in range(3000)])
    read, write = os.pipe()
    os.close(read)
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "rewardkit", "show", "run", "--worst", "3000"],
        cwd=cli.folder, stdout=write, stderr=subprocess.PIPE, check=False, timeout=60,
    )  # fmt: skip
    os.close(write)
    assert b"Traceback" not in done.stderr
