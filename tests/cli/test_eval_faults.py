"""`rewardkit eval` on awkward input, hostile text, and what other tools were reported to get wrong.

Each test says which trap it is. The torture files are of the shared data; the same traps on small rows run anywhere.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, ROWS, Here, environment, strict_json

from rewardkit import Completion, ContractError, Generation, Sample, UsageError, parse, reward, score

Shared = Callable[[str], Path]


def grade(cli: Here, path: Path | str, *arguments: str) -> dict[str, Any]:
    """Grade with gsm8k in a folder named after the file; return the figures of the reward and of the input."""
    result = cli("eval", path, "-r", "gsm8k", "--json", "-o", f"out-{Path(path).name}", "--overwrite", *arguments)
    assert result.code == 0, result.err
    (figures,) = result.summary["models"].values()
    return figures["rewards"]["gsm8k"] | {"input": result.summary["input"], "figures": figures, "err": result.err}


def graded(cli: Here, path: Path | str) -> list[tuple[Any, ...]]:
    """What each row got, without what may differ between files that say the same."""
    lines = cli.scores(cli.folder / f"out-{Path(path).name}")
    return [(line["id"], line["state"], line["value"], line["reason"], line["extracted"]) for line in lines]


# ---------------------------------------------------------------------------------------------- awkward files


def test_byte_order_mark_line_ends_blank_lines_and_gzip_change_no_score(cli: Here) -> None:
    """A carriage return must not enter a value, and line numbers stay those of the file."""
    plain = cli.write("plain.jsonl", ROWS)
    text = plain.read_bytes()
    forms = {
        "bom.jsonl": b"\xef\xbb\xbf" + text,
        "crlf.jsonl": text.replace(b"\n", b"\r\n"),
        "blank.jsonl": b"\n\n" + text.replace(b"\n", b"\n  \n"),
        "packed.jsonl.gz": gzip.compress(text),
        "no_end.jsonl": text.rstrip(b"\n"),
        "été 1.jsonl": text,
    }
    grade(cli, plain)
    for name, content in forms.items():
        (cli.folder / name).write_bytes(content)
        assert grade(cli, name)["input"]["rows"] == 3, name
        assert graded(cli, name) == graded(cli, plain), name


@pytest.mark.parametrize(
    "name",
    [
        "bom.jsonl",
        "crlf.jsonl",
        "blank_lines.jsonl",
        "nan_values.jsonl",
        "gz.jsonl.gz",
        "rich_markup.jsonl",
        "resultats été 1.jsonl",
        "chat_completion.jsonl",
        "duplicate_ids.jsonl",
    ],
)
def test_forty_rows_in_awkward_files_score_as_the_plain_ones(cli: Here, shared: Shared, name: str) -> None:
    """All these hold the same forty rows; only ids or markup around the answer differ."""
    plain = shared("data/torture/crlf.jsonl").read_bytes().replace(b"\r\n", b"\n")
    (cli.folder / "plain.jsonl").write_bytes(plain)
    expected = [float(json.loads(line)["label"]) for line in plain.splitlines()]
    grade(cli, "plain.jsonl")
    assert [row[2] for row in graded(cli, "plain.jsonl")] == expected
    held = grade(cli, shared(f"data/torture/{name}"))
    assert (held["n"], held["scored"], held["input"]["bad_rows"]) == (40, 40, 0)
    same = slice(1, None) if name == "duplicate_ids.jsonl" else slice(None)
    assert [row[same] for row in graded(cli, name)] == [row[same] for row in graded(cli, "plain.jsonl")]


def test_bad_lines_are_shown_by_number_and_counted_or_refused(cli: Here, shared: Shared) -> None:
    path = shared("data/torture/bad_lines.jsonl")
    shown = cli("eval", path, "-r", "gsm8k")
    assert shown.code == 0
    for line in (8, 21, 34, 39):
        assert f"bad_lines.jsonl:{line}: " in shown.out
    assert "4 rows of the input could not be read" in shown.out
    assert len(cli.scores()) == 36
    strict = cli("eval", path, "-r", "gsm8k", "--strict", "-o", "strict")
    assert (strict.code, "bad_lines.jsonl:8: " in strict.err, "Traceback" in strict.err) == (2, True, False)


def test_bad_rows_are_counted_where_they_come_late_and_many(cli: Here) -> None:
    """Beyond the rows that are looked at first, and more than are kept with their reason."""
    rows = [json.dumps(row | {"id": i}) for i in range(60) for row in ROWS]
    rows[150:150] = ['{"id": 1, "completion": '] * 130
    (cli.folder / "late.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    shown = cli("eval", "late.jsonl", "-r", "gsm8k")
    assert shown.code == 0
    assert "late.jsonl:151: " in shown.out and "late.jsonl: 125 more: 156, 157" in shown.out
    summary = strict_json((cli.run_folder() / "summary.json").read_text(encoding="utf-8"))
    assert (summary["input"]["rows"], summary["input"]["bad_rows"], len(summary["input"]["bad_lines"])) == (
        180,
        130,
        100,
    )
    strict = cli("eval", "late.jsonl", "-r", "gsm8k", "--strict", "--overwrite")
    assert (strict.code, "late.jsonl:151: " in strict.err) == (2, True)


def test_rows_without_gold_are_neither_right_nor_wrong_and_are_counted(cli: Here, shared: Shared) -> None:
    held = grade(cli, shared("data/torture/missing_gold.jsonl"))
    assert (held["scored"], held["abstained"], held["errors"], held["reasons"]["missing"]) == (36, 4, 0, 4)
    states = [row[1] for row in graded(cli, "missing_gold.jsonl")]
    assert [at for at, state in enumerate(states) if state == "abstained"] == [3, 13, 23, 33]
    assert held["mean"] == 30 / 36


def test_gold_that_cannot_be_read_does_not_lift_the_mean(cli: Here) -> None:
    """open-r1#86: unreadable gold gave reward 1."""
    golds = ["2", "see figure", None, "", "4"]
    rows = [
        row | {"id": i, "answer": gold} for i, (row, gold) in enumerate(zip([*ROWS, *ROWS[:2]], golds, strict=True))
    ]
    path = cli.write("gold.jsonl", rows)
    held = grade(cli, path)
    assert [row[1:3] for row in graded(cli, path)] == [
        ("scored", 1.0),
        ("abstained", None),
        ("abstained", None),
        ("abstained", None),
        ("scored", 1.0),
    ]
    assert (held["mean"], held["abstained"]) == (1.0, 3)
    assert sum(held["reasons"].get(reason, 0) for reason in ("missing", "bad_reference")) == 3
    assert "gsm8k could not judge 3 of 5 completions" in cli("eval", path, "-r", "gsm8k").out


def test_a_null_completion_is_no_answer_and_not_a_crash(cli: Here, shared: Shared) -> None:
    path = cli.write("null.jsonl", [ROWS[0], ROWS[1] | {"completion": None}, ROWS[2] | {"completion": ""}])
    held = grade(cli, path)
    assert [row[2] for row in graded(cli, path)] == [1.0, 0.0, 0.0]
    assert held["reasons"] == {"no_answer": 2}
    held = grade(cli, shared("data/torture/null_completion.jsonl"))
    assert (held["scored"], held["errors"], held["right"]) == (40, 0, 31)
    assert held["reasons"]["no_answer"] >= 3


def test_ids_that_repeat_are_said_with_a_way_out_and_no_row_is_dropped(cli: Here, shared: Shared) -> None:
    path = shared("data/torture/duplicate_ids.jsonl")
    shown = cli("eval", path, "-r", "gsm8k", "-o", "out")
    assert shown.code == 0
    assert "--group" in shown.out
    before = (cli.folder / "out" / "scores.jsonl").read_bytes()
    assert len(before.splitlines()) == 40
    assert cli("eval", path, "-r", "gsm8k", "-o", "out", "--resume").code == 0
    assert (cli.folder / "out" / "scores.jsonl").read_bytes() == before


def test_groups_of_many_sizes(cli: Here, shared: Shared) -> None:
    """pass@k only over groups that are large enough, the others counted; a group of one has no spread, not NaN."""
    held = grade(cli, shared("data/torture/ragged_groups.jsonl"))
    groups, at_k = held["figures"]["groups"], held["figures"]["pass_at_k"]["gsm8k"]
    assert groups["sizes"] == {"1": 10, "2": 10, "3": 10, "8": 10}
    assert groups["zero_signal"]["gsm8k"]["of"] == 30
    for k, problems in {1: 40, 2: 30, 3: 20, 8: 10}.items():
        if str(k) in at_k:
            assert (at_k[str(k)]["problems"], at_k[str(k)]["left_out"]) == (problems, 40 - problems)
    assert {"1", "2"} <= at_k.keys()


def test_a_line_of_24_megabytes_is_a_row_like_others(cli: Here, shared: Shared) -> None:
    held = grade(cli, shared("data/torture/huge_line.jsonl.gz"))
    assert (held["n"], held["scored"]) == (41, 41)
    assert (cli.folder / "out-huge_line.jsonl.gz" / "scores.jsonl").stat().st_size < 100_000, "texts are not copied"


def test_a_file_of_a_kind_that_is_not_read_is_named(cli: Here) -> None:
    (cli.folder / "a.pkl").write_bytes(b"\x80\x05" + b"x" * 100)
    result = cli("eval", "a.pkl", "-r", "gsm8k")
    assert result.code == 2
    assert "is pickle, which this version does not read" in result.err and "Traceback" not in result.err


@pytest.mark.parametrize(
    "content",
    [
        b"\x00" * 5000,
        b"\xff\xfe{\x00",
        b"[" * 100_000,
        b"\x1f\x8b\x08\x00broken",
        b'{"a": 1',
        b"null\n" * 10,
        b"<html>",
    ],
    ids=["zeros", "utf16", "deep", "broken-gzip", "cut", "nulls", "html"],
)
def test_what_is_no_file_of_rows_is_one_message(cli: Here, content: bytes) -> None:
    (cli.folder / "junk.jsonl").write_bytes(content)
    result = cli("eval", "junk.jsonl", "-r", "gsm8k")
    assert result.code == 2
    assert result.err.startswith("rewardkit: junk.jsonl") and "Traceback" not in result.err
    assert not (cli.folder / "runs").exists()


def test_nan_in_a_column_that_nobody_uses_reaches_no_output(cli: Here, shared: Shared) -> None:
    lines = [
        json.dumps(row | {"loss": value}) for row, value in zip(ROWS, (float("nan"), float("inf"), 1), strict=True)
    ]
    (cli.folder / "nan.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert "NaN" in lines[0]
    for path in (cli.folder / "nan.jsonl", shared("data/torture/nan_values.jsonl")):
        held = grade(cli, path)  # reads the summary strictly
        assert held["errors"] == 0
        cli.scores(cli.folder / f"out-{path.name}")


# ------------------------------------------------------------------------------------- hostile text and places

LOUD = "\x1b[31mred\x1b[0m\u202e[bold]b[/bold]\x07\x9b2J\u200b"
UNWANTED = "\x1b\x07\u202e\x9b\u200b"


def test_text_of_models_moves_no_cursor(cli: Here) -> None:
    """Escapes, bidirectional marks and markup in ids, model names, columns, labels and exceptions come out spelled."""
    rows = [
        {
            "id": LOUD + str(i),
            LOUD: {"solution": LOUD + " #### 2", "is_correct": True},
            "other" + LOUD: {"solution": "[red]#### 3", "is_correct": False},
            "ground_truth": gold,
            "column" + LOUD: "x",
        }
        for i, gold in enumerate(("2", "2", "[/] " + LOUD))
    ]
    path = cli.write("loud.jsonl", rows)
    for arguments in (
        ["-r", "gsm8k"],
        ["-r", "gsm8k", "-q", "--overwrite"],
        ["-r", "gsm8k", "--dry-run"],
        ["-r", "my_rewards.py:tells", "-o", "tells"],
        ["-r", "my_rewards.py:wants"],
        ["-r", "gsm8k", "--map", f"reference={LOUD}x"],
        ["-r", "gsm8k", "--group", LOUD + "x"],
        ["-r", "gsm8k" + LOUD],
    ):
        result = cli("eval", path, *arguments)
        printed = result.out + result.err
        assert not set(UNWANTED) & set(printed), arguments
        assert "red" in printed or "-q" in arguments
    assert "[bold]b[/bold]" in cli("eval", path, "-r", "gsm8k", "--overwrite").out, "markup is text"


def test_the_message_of_an_exception_is_shown_once_and_harmless(cli: Here) -> None:
    result = cli("eval", cli.write("small.jsonl", ROWS), "-r", "my_rewards.py:tells")
    assert result.code == 3
    assert result.err.count("RuntimeError: ") == 1 and "\nsecond line\n" in result.err
    assert "\\x1b[31mred" in result.err and "\\u202e[bold]loud[/bold]" in result.err
    assert [line["state"] for line in cli.scores()] == ["error"] * 3
    assert all("RuntimeError" in line["reason"] for line in cli.scores())


@pytest.mark.skipif(sys.platform == "win32", reason="locales of POSIX")
def test_utf8_in_and_out_whatever_the_locale_says(cli: Here) -> None:
    """datasets#8648: the locale's encoding broke rows, and a file name that is not ASCII."""
    rows = [{"id": f"é漢😀{i}", "prompt": "😀", "réponse 😀": "#### 2 😀", "answer": "2"} for i in range(3)]
    path = cli.write("résultats été 😀.jsonl", rows)
    folder = cli.folder / "sortie é"
    (cli.folder / "récompenses é.py").write_text(
        (cli.folder / "my_rewards.py").read_text(encoding="utf-8") + "\n# é\n", "utf-8"
    )
    arguments = ["eval", path.name, "--map", "completion=réponse 😀", "-o", folder.name]
    arguments += ["-r", "gsm8k", "-r", "récompenses é.py:brief"]
    result = cli.process(*arguments, env={"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert result.code == 0, result.err
    assert "réponse 😀" in result.out and "sortie é/" in result.out
    assert [line["id"] for line in cli.scores(folder)][::2] == [row["id"] for row in rows]
    config = (folder / "config.toml").read_text(encoding="utf-8")
    assert 'path = "résultats été 😀.jsonl"' in config and "récompenses é.py:brief'" in config
    again = cli.process(*arguments, env={"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert (again.code, "sortie é has results already" in again.err) == (2, True)


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes there")
def test_a_file_name_that_is_no_text(cli: Here, small: Path) -> None:
    name = b"bad\xff.jsonl".decode("utf-8", "surrogateescape")
    (cli.folder / name).write_bytes(small.read_bytes())
    assert cli("eval", name, "-r", "gsm8k").code == 0
    resumed = cli("eval", name, "-r", "gsm8k", "--resume", "--json")
    assert resumed.code == 0
    assert resumed.summary["input"]["path"] == "bad\\xff.jsonl"


def test_closed_and_full_streams_are_no_tracebacks(cli: Here, small: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    command = f"'{sys.executable}' -m rewardkit eval {small.name} -r gsm8k --overwrite "
    for redirection, code in ((">/dev/full", 2), (">&-", 0), ("2>&-", 0)):
        done = subprocess.run(
            ["sh", "-c", command + redirection], cwd=cli.folder, env=environment(), capture_output=True, check=False
        )
        assert done.returncode == code, (redirection, done.stderr)
        assert b"Traceback" not in done.stderr + done.stdout
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m rewardkit eval - -r gsm8k <&-"],
        cwd=cli.folder,
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, b"standard input is closed" in done.stderr) == (2, True)


# ----------------------------------------------------------------------------- faults that were reported elsewhere


def groups_of_eight(path: Callable[[str, list[dict[str, Any]]], Path]) -> Path:
    return path("groups.jsonl", [{"id": i, "prompt": f"p{i}", "completions": ["x"] * 8} for i in range(3)])


def test_one_number_for_a_batch_is_refused_by_name(cli: Here) -> None:
    """trl#6533: one number was spread over all completions, silently."""
    result = cli("eval", groups_of_eight(cli.write), "-r", "my_rewards.py:one_number")
    assert result.code == 3
    for text in ("one_number", "1", "8"):
        assert text in result.err
    assert "Traceback" not in result.err
    assert not (cli.folder / "runs").exists() or cli.scores() == []
    generation = Generation(Sample(0), (Completion("a"), Completion("b")))
    with pytest.raises(ContractError, match=r"one_number.*\b1\b.*\b2\b"):
        list(score(parse(f"'{cli.folder}/my_rewards.py:one_number'"), [generation]))


def test_no_reward_at_all_is_refused(cli: Here, small: Path) -> None:
    """trl#3459: an empty list died on an unset variable."""
    result = cli("eval", small)
    assert (result.code, "Known are" in result.err, "gsm8k" in result.err) == (2, True, True)
    with pytest.raises(UsageError, match="no reward"):
        list(score({}, [Generation(Sample(0), (Completion("x"),))]))
    assert not (cli.folder / "runs").exists()


def test_text_and_chat_get_the_same_scores(cli: Here) -> None:
    """trl#4202: the same reward met strings one week and lists of messages the next."""
    chats = [
        row | {"completion": [{"role": "assistant", "content": row["completion"]}], "prompt": [user(row["prompt"])]}
        for row in ROWS
    ]
    found = {}
    for name, rows in (("text.jsonl", ROWS), ("chat.jsonl", chats)):
        result = cli("eval", cli.write(name, rows), "-r", "gsm8k", "-r", "my_rewards.py:brief", "-o", name + ".out")
        assert result.code == 0, result.err
        lines = cli.scores(cli.folder / f"{name}.out")
        found[name] = [(line["id"], line["reward"], line["value"], line["reason"]) for line in lines]
    assert found["text.jsonl"] == found["chat.jsonl"]
    assert {value for _, _, value, _ in found["text.jsonl"]} == {0.0, 1.0}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def twenty_right() -> list[Generation]:
    return [Generation(Sample(i, "p", str(i)), (Completion(f"so #### {i}"),)) for i in range(20)]


def test_the_same_scores_off_the_main_thread_and_inside_a_running_loop() -> None:
    """verl#5635, Math-Verify#50: an alarm-based timeout failed there, and everything was 0."""
    rewards = {"gsm8k": parse("gsm8k"), "process": parse(f"'{ROOT / 'tests' / 'rewards_for_tests.py'}:in_process'")}

    def values() -> list[tuple[float | None, float | None]]:
        scored = score(rewards, twenty_right(), workers=1)
        return [(one.scores["gsm8k"][0].value, one.scores["process"][0].value) for one in scored]

    expected = [(1.0, float(len(f"so #### {i}"))) for i in range(20)]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(values()))
    thread.start()
    thread.join(timeout=60)
    assert found == expected

    async def inside() -> list[tuple[float | None, float | None]]:
        return values()

    assert asyncio.run(inside()) == expected


WAITING = """
import asyncio
from pathlib import Path
from rewardkit import reward

running = most = 0

@reward
async def waits(completion):
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.2)
    running -= 1
    Path("most.txt").write_text(str(most))
    return float(completion)
"""


def test_waiting_rewards_wait_together_and_keep_their_order(cli: Here) -> None:
    """trl#4130: slow API rewards ran one after another. Overlap is counted, not timed."""
    (cli.folder / "waiting.py").write_text(WAITING, encoding="utf-8")
    path = cli.write("rows.jsonl", [{"id": i, "prompt": f"p{i}", "completion": str(i)} for i in range(50)])
    result = cli("eval", path, "-r", "waiting.py:waits", "-q")
    assert result.code == 0, result.err
    assert [line["value"] for line in cli.scores()] == [float(i) for i in range(50)]
    assert int((cli.folder / "most.txt").read_text()) >= 20


def test_waiting_rewards_wait_together_inside_a_running_loop_too() -> None:
    running = most = 0

    @reward
    async def waits(completion: str) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.2)
        running -= 1
        return float(completion)

    generations = [Generation(Sample(i), (Completion(str(i)),)) for i in range(50)]

    async def inside() -> list[float | None]:
        return [one.scores["waits"][0].value for one in score(waits, generations)]

    assert asyncio.run(inside()) == [float(i) for i in range(50)]
    assert most >= 20


def test_tags_with_line_breaks_pass_the_format_check(cli: Here) -> None:
    """open-r1#237: a format check whose dot stopped at a line break failed every long thought."""
    text = "<think>\nfirst line\n\nsecond line\n</think>\n<answer>\n4\n</answer>"
    path = cli.write("thoughts.jsonl", [{"id": 0, "prompt": "p", "completion": text}, {"id": 1, "completion": "4"}])
    assert cli("eval", path, "-r", "think_format", "-q").code == 0
    assert [line["value"] for line in cli.scores()] == [1.0, 0.0]


def test_the_format_of_a_thousand_real_samples(cli: Here, shared: Shared) -> None:
    """The source counts 881 of 1,000 strictly formed at step 400."""
    (path,) = sorted(shared("data/grpo_groups").glob("*400*"))
    result = cli("eval", path, "-r", "think_format", "--json")
    assert result.code == 0, result.err
    (figures,) = result.summary["models"].values()
    assert figures["rewards"]["think_format"]["right"] == 881


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("It costs $29.00.", "29"),
        ("It is 29.", "29"),
        ("so 2,900", "2900"),
        ("29 dollars", "29"),
        ("#### $29.00.", "29"),
        ("The answer is 29.", "$29.00"),
        ("2900", "2,900"),
    ],
)
def test_money_commas_and_full_stops(cli: Here, text: str, gold: str) -> None:
    """lm-evaluation-harness#3214: "$29.00." was not equal to 29."""
    rows = [
        {"id": 0, "prompt": "p", "completion": text, "answer": gold},
        {"id": 1, "completion": "#### 7", "answer": gold},
    ]
    assert cli("eval", cli.write("money.jsonl", rows), "-r", "gsm8k", "-q").code == 0
    assert [line["value"] for line in cli.scores()] == [1.0, 0.0]


def test_a_whole_worked_solution_is_gold_too(cli: Here) -> None:
    """lm-evaluation-harness#1204: nothing matched when the gold held its working."""
    gold = "Each has 3 * 4 = <<3*4=12>>12 apples.\nTogether 24.\n#### 24"
    rows = [{"id": i, "prompt": "p", "completion": text, "answer": gold} for i, text in enumerate(("#### 24", "12"))]
    assert cli("eval", cli.write("worked.jsonl", rows), "-r", "gsm8k", "-q").code == 0
    assert [line["value"] for line in cli.scores()] == [1.0, 0.0]


def test_nothing_right_at_all_is_suspect(cli: Here) -> None:
    rows = [{"id": i, "prompt": f"p{i}", "completion": "#### 1", "answer": "2"} for i in range(20)]
    result = cli("eval", cli.write("zero.jsonl", rows), "-r", "gsm8k")
    assert "gsm8k is 0 on all 20 completions: suspect the grader or the reference" in result.out


def test_a_gold_field_that_no_row_has_is_refused_before_grading(cli: Here) -> None:
    """verl#758: a KeyError deep in a worker because the file lacked a column."""
    rows = [{"id": i, "prompt": f"p{i}", "completion": "#### 1", "answr": "1"} for i in range(50)]
    path = cli.write("answr.jsonl", rows)
    for arguments in ([], ["--map", "reference=answer"]):
        result = cli("eval", path, "-r", "gsm8k", *arguments)
        assert result.code == 2
        for text in ("answr.jsonl", "prompt", "did you mean answr?"):
            assert text in result.err
        assert "Traceback" not in result.err
        assert not (cli.folder / "runs").exists()


def test_a_reward_whose_process_dies_says_how_and_a_row_that_its_source_marks_as_failed_is_not_its_fault(
    cli: Here,
) -> None:
    (cli.folder / "dies.py").write_text(
        "import os\nfrom rewardkit import reward\n\n@reward(timeout=30)\ndef dies(completion):\n    os._exit(7)\n"
    )
    path = cli.write("rows.jsonl", ROWS)
    died = cli("eval", path, "-r", "dies.py:dies", "-o", "died")
    assert died.code == 3
    assert "dies failed" in died.err and "exit code 7" in died.err and died.err.count("worker_died") == 1
    failed = cli.write("failed.jsonl", [ROWS[0], ROWS[1] | {"completion": None, "error": "502 from the sampler"}])
    result = cli("eval", failed, "-r", "gsm8k", "-o", "failed")
    assert result.code == 0, result.err
    assert [line["state"] for line in cli.scores(cli.folder / "failed")] == ["scored", "error"]
    assert "gsm8k failed" not in result.err and "source_failed 1" in result.out


RUNAWAY = """
import time
from rewardkit import reward

@reward(timeout=1, memory="300MB")
def runaway(completion):
    if completion == "sleep":
        time.sleep(1000)
    while completion == "spin":
        pass
    if completion == "eat":
        kept = [bytearray(10_000_000) for _ in range(10_000)]
    return 1.0
"""


def test_a_row_that_hangs_or_eats_memory_is_marked_and_the_rest_graded(cli: Here) -> None:
    """Math-Verify#63: one answer beat the timeout and ate all memory."""
    (cli.folder / "runaway.py").write_text(RUNAWAY, encoding="utf-8")
    texts = ["a", "sleep", "b", "spin", "c", "eat", "d"]
    path = cli.write("rows.jsonl", [{"id": i, "prompt": f"p{i}", "completion": text} for i, text in enumerate(texts)])
    result = cli("eval", path, "-r", "runaway.py:runaway", "--workers", "2")
    assert result.code == 0, result.err
    lines = cli.scores()
    assert [line["value"] for line in lines] == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    assert [line["reason"].partition(":")[0] for line in lines] == ["", "deadline", "", "deadline", "", "memory", ""]
