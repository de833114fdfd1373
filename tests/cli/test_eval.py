"""`rewardkit eval` as its user meets it: what is printed where, what is written, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import REWARDS, ROOT, ROWS, Command, Here, Result, environment, strict_json

MODELS = ["6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"]


def means(result: Result) -> dict[str, float | None]:
    (figures,) = result.summary["models"].values()
    return {name: held["mean"] for name, held in figures["rewards"].items()}


# ------------------------------------------------------------------------------------------- real generations


def check_gsm8k(cli: Command, result: Result, path: Path, right: list[int], rows: int) -> None:
    """The terminal shows the published counts in column order, and each row's score is its published label."""
    assert result.code == 0, result.err
    shown = [line.split() for line in result.out.splitlines() if " of " in line and line.split()[0] in MODELS]
    assert [(line[0], line[6], line[8]) for line in shown] == [
        (model, f"{count:,}", f"{rows:,}") for model, count in zip(MODELS, right, strict=True)
    ]
    published = [
        (model, float(row[model]["is_correct"]))
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        for model in MODELS
    ]
    assert [(score["model"], score["value"]) for score in cli.scores()] == published


def test_the_committed_example_is_graded_as_published_row_by_row(cli: Here) -> None:
    path = ROOT / "examples" / "gsm8k" / "solutions.jsonl"
    check_gsm8k(cli, cli("eval", path, "-r", "gsm8k"), path, [45, 75, 65, 110], 200)


def test_all_of_gsm8k_is_graded_as_published_row_by_row(cli: Here, shared: Callable[[str], Path]) -> None:
    path = shared("data/gsm8k/example_model_solutions.jsonl")
    check_gsm8k(cli, cli.process("eval", path, "-r", "gsm8k"), path, [286, 515, 458, 742], 1319)


# ------------------------------------------------------------------------------------------------ forms of -r


ACCENTED = "mes récompenses/été 1.py"


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("gsm8k", {"gsm8k": 2 / 3}),
        ("mine=gsm8k", {"mine": 2 / 3}),
        ("my_rewards.py:brief", {"brief": 2 / 3}),
        ("./my_rewards.py:brief", {"brief": 2 / 3}),
        ("my_rewards.py:brief(max_words=2)", {"brief": 1 / 3}),
        ("short=my_rewards.py:brief(max_words=2)", {"short": 1 / 3}),
        ("ABSOLUTE:brief", {"brief": 2 / 3}),
        (f"{ACCENTED}:brief", {"brief": 2 / 3}),
        (f"x={ACCENTED}:brief", {"x": 2 / 3}),
        (f"x=2*'{ACCENTED}:brief'", {"x": 4 / 3}),
        ("my_rewards.py:total", {"total": 0.7}),
        ("total=0.7*'my_rewards.py:one' + 0.3*gsm8k", {"total": 0.7 + 0.3 * 2 / 3}),
        ("rewards.toml", {"first": 2 / 3, "second": 1.0}),
        ("mes récompenses/rewards.toml", {"there": 2 / 3}),
    ],
)
def test_every_way_to_write_a_reward(cli: Here, small: Path, argument: str, expected: dict[str, float]) -> None:
    (cli.folder / ACCENTED).parent.mkdir()
    (cli.folder / ACCENTED).write_text(REWARDS, encoding="utf-8")
    (cli.folder / "rewards.toml").write_text('[reward]\nfirst = "gsm8k"\nsecond = "\'my_rewards.py:one\'"\n')
    # A path in a TOML file is relative to that file.
    (cli.folder / "mes récompenses" / "rewards.toml").write_text("[reward]\nthere = \"'été 1.py:brief'\"\n", "utf-8")
    result = cli("eval", small, "--json", "-r", argument.replace("ABSOLUTE", str(cli.folder / "my_rewards.py")))
    assert result.code == 0, result.err
    assert means(result) == pytest.approx(expected)


def test_several_rewards_are_columns_that_are_not_summed(cli: Here, small: Path) -> None:
    result = cli("eval", small, "--json", "-r", "gsm8k", "-r", "my_rewards.py:zero", "-r", "again=gsm8k")
    assert means(result) == pytest.approx({"gsm8k": 2 / 3, "zero": 0.0, "again": 2 / 3})
    assert [(line["id"], line["reward"], line["value"]) for line in cli.scores()] == [
        (row, name, value)
        for row, right in (("a", 1.0), ("b", 0.0), ("c", 1.0))
        for name, value in (("gsm8k", right), ("zero", 0.0), ("again", right))
    ]


def test_the_file_s_own_label_is_a_reward_and_agreement_with_it_is_shown(cli: Here) -> None:
    path = cli.write("labelled.jsonl", [row | {"label": label} for row, label in zip(ROWS, (1, 1, 0), strict=True)])
    result = cli("eval", path, "-r", "label", "-r", "gsm8k")
    assert result.code == 0
    assert "agrees with the file's label on 1 of 3" in result.out
    assert [line["value"] for line in cli.scores()] == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0]


def test_a_total_keeps_its_weights_in_terminal_json_and_scores(cli: Here, small: Path) -> None:
    """0.7 * 1 + 0.3 * 0 is 0.7 wherever it is shown, and never the 0.5 or 1 of a mean that ignores weights."""
    formula = "total=0.7*'my_rewards.py:one' + 0.3*'my_rewards.py:zero'"
    shown = cli("eval", small, "-r", formula)
    line = next(line for line in shown.out.splitlines() if line.split()[:1] == ["total"])
    assert line.split()[1] == "0.700"
    cells = [line.split()[1:4] for line in shown.out.splitlines() if line.split()[:1] == ["·"]]
    assert cells == [["one", "0.7", "1.00"], ["zero", "0.3", "0"]]
    for score in cli.scores():
        assert score["value"] == 0.7
        assert [(p["name"], p["weight"], p["value"]) for p in score["parts"]] == [("one", 0.7, 1.0), ("zero", 0.3, 0.0)]
    result = cli("eval", small, "-r", formula, "--json", "--overwrite")
    assert means(result) == {"total": 0.7}
    assert {name: part["weight"] for name, part in parts(result, "total").items()} == {"one": 0.7, "zero": 0.3}


def parts(result: Result, name: str) -> dict[str, Any]:
    (figures,) = result.summary["models"].values()
    return dict(figures["rewards"][name]["parts"])


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], ["no reward is given", "-r gsm8k", "think_format", "numeric"]),
        (["-r", "gsm9k"], ["no reward named 'gsm9k'", "did you mean gsm8k?"]),
        (["-r", "gsm8k", "-r", "gsm8k"], ["two rewards are named 'gsm8k'", "-r NAME=FORMULA"]),
        (["-r", "my_rewards.py:breif"], ["my_rewards.py has no 'breif'", "did you mean brief?"]),
        (["-r", "my_reward.py:brief"], ["my_reward.py: no such file"]),
        (["-r", "nosuch.toml"], ["nosuch.toml: no such file"]),
        (["-r", "my_rewards.py:brief(max_word=2)"], ["no option 'max_word'", "did you mean max_words?"]),
        (["-r", "gsm8k +"], ["column 8"]),
        (["-r", ""], ["empty"]),
        (["-r", "gsm8k", "--fail-under", "gsm8k"], ["--fail-under wants NAME=X"]),
        (["-r", "gsm8k", "--fail-under", "gsm8k=high"], ["--fail-under wants a number"]),
        (["-r", "gsm8k", "--fail-under", "gsm8k=nan"], ["--fail-under wants a number"]),
        (["-r", "gsm8k", "--fail-under", "gsm9k=1"], ["did you mean gsm8k?"]),
        (["-r", "gsm8k", "--max-error-rate", "nan"], ["--max-error-rate wants a share"]),
        (["-r", "gsm8k", "--max-error-rate", "2"], ["--max-error-rate"]),
        (["-r", "gsm8k", "--limit", "0"], ["--limit"]),
        (["-r", "gsm8k", "--worker", "2"], ["--worker"]),
        (["-r", "gsm8k", "--resume", "--overwrite"], ["--resume", "--overwrite", "one of them"]),
        (["-r", "gsm8k", "--json", "-q"], ["--json", "--quiet", "one of them"]),
        (["-r", "gsm8k", "--map", "refrence=answer"], ["no role 'refrence'", "did you mean reference?"]),
        (["-r", "gsm8k", "--map", "reference=answr"], ["reference=answr", "did you mean answer?"]),
        (["-r", "gsm8k", "--map", "reference"], ["role=path"]),
        (["-r", "gsm8k", "--group", "idd"], ["group=idd", "did you mean id?"]),
        (["-r", "my_rewards.py:wants"], ["small.jsonl:1: sample 'a': wants needs column 'question'"]),
    ],
)
def test_a_wrong_argument_is_one_message_that_says_what_to_do(
    cli: Here, small: Path, arguments: list[str], wanted: list[str]
) -> None:
    result = cli("eval", small, *arguments)
    assert result.code == 2
    for text in wanted:
        assert text in result.err
    assert "Traceback" not in result.err
    assert result.err.splitlines()[-1].startswith("rewardkit: ")
    assert not (cli.folder / "runs").exists(), "a run that never began leaves nothing behind"


def test_a_message_of_a_file_that_is_not_there_names_the_nearest(cli: Here, small: Path) -> None:
    result = cli("eval", "smal.jsonl", "-r", "gsm8k")
    assert (result.code, "did you mean small.jsonl?" in result.err) == (2, True)


# -------------------------------------------------------------------------------------------- what is printed


def test_json_is_strict_and_alone_on_standard_output(cli: Here) -> None:
    """A reward that returns NaN is counted as an error; NaN itself is in no output."""
    rows = [{"id": i, "prompt": f"p{i}", "completion": "nan" if i == 3 else "fine"} for i in range(40)]
    result = cli.process("eval", cli.write("rows.jsonl", rows), "-r", "my_rewards.py:odd", "--json")
    assert result.code == 0, result.err  # 1 of 40 is below the 5 % that stop a run
    held = result.summary["models"]["default"]["rewards"]["odd"]
    assert (held["mean"], held["scored"], held["errors"], held["reasons"]) == (0.5, 39, 1, {"raised": 1})
    written = strict_json((cli.run_folder() / "summary.json").read_text(encoding="utf-8"))
    assert written == result.summary
    assert [line["value"] for line in cli.scores()] == [None if i == 3 else 0.5 for i in range(40)]
    assert "completion = completion" in result.err


@pytest.mark.parametrize("option", ["--json", "-q"])
def test_a_reward_that_prints_does_not_get_into_what_a_script_reads(cli: Here, small: Path, option: str) -> None:
    (cli.folder / "chatty.py").write_text(
        "from rewardkit import reward\n\nprint('LOADED')\n\n"
        "@reward\ndef chatty(completion):\n    print('DEBUG', completion)\n    return 1.0\n\n"
        "@reward(timeout=30)\ndef outside(completion):\n    print('OUTSIDE', completion)\n    return 1.0\n"
    )
    result = cli.process("eval", small, "-r", "chatty.py:chatty", "-r", "chatty.py:outside", option)
    assert result.code == 0, result.err
    if option == "--json":
        assert list(means(result)) == ["chatty", "outside"]
    else:
        assert result.out == "chatty 1 (3 scored, 0 unscored)   outside 1 (3 scored, 0 unscored)\n"
    assert "LOADED" in result.err and result.err.count("DEBUG") == 3


def test_quiet_is_one_line_and_nothing_else(cli: Here, small: Path) -> None:
    result = cli("eval", small, "-r", "gsm8k", "-r", "my_rewards.py:abstains", "-q")
    assert result.out == "gsm8k 0.6667 (3 scored, 0 unscored)   abstains n/a (0 scored, 3 unscored)\n"
    assert result.err == ""


@pytest.mark.parametrize("arguments", [[], ["--json"], ["-q"]])
def test_a_reader_that_goes_away_changes_neither_results_nor_exit_code(
    cli: Here, small: Path, arguments: list[str]
) -> None:
    """`rewardkit eval … | true`: no traceback, the folder is whole, and a missed bar is still exit code 1."""
    command = [sys.executable, "-m", "rewardkit", "eval", str(small), "-r", "gsm8k", *arguments]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*command, "--fail-under", "gsm8k=0.9"],
            cwd=cli.folder,
            env=environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert done.returncode == 1, done.stderr
    assert b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr
    assert (cli.run_folder() / "summary.json").exists()


@pytest.mark.parametrize("force", [{}, {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TERM": "xterm-256color"}])
def test_output_to_a_file_has_no_escape_byte(cli: Here, small: Path, force: dict[str, str]) -> None:
    result = cli.process("eval", small, "-r", "gsm8k", "-r", "my_rewards.py:picky", env=force)
    assert result.code == 0
    assert "\x1b" not in result.out + result.err and "\r" not in result.out + result.err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_a_bar_and_colours_unless_it_says_no(cli: Here, small: Path, no_color: bool) -> None:
    import pty

    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rewardkit", "eval", str(small), "-r", "gsm8k", "--overwrite"],
        cwd=cli.folder,
        env=environment(TERM="xterm-256color", COLUMNS="120", **({"NO_COLOR": "1"} if no_color else {})),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # how Linux says that the other side is closed
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    assert process.wait(timeout=30) == 0
    text = seen.decode("utf-8")
    assert "━" in text and "3/" in text
    assert ("\x1b[1m" in text) is not no_color, "the head of the table is bold"
    assert ("\x1b[3" in text) is not no_color, "the bar has a colour"


# ------------------------------------------------------------------------------------------------- exit codes


def picky_rows(raising: int, of: int) -> list[dict[str, Any]]:
    return [{"id": i, "prompt": f"p{i}", "completion": "raise" if i < raising else "fine"} for i in range(of)]


@pytest.mark.parametrize(
    ("raising", "arguments", "code"),
    [
        (0, [], 0),
        (1, [], 0),  # exactly 5 %
        (2, [], 3),
        (20, [], 3),
        (2, ["--max-error-rate", "0.5"], 0),  # replaces the rule
        (20, ["--max-error-rate", "1"], 0),
        (2, ["--max-error-rate", "0.05"], 1),
        (1, ["--max-error-rate", "0"], 1),
        (0, ["--max-error-rate", "0"], 0),
        (2, ["--fail-under", "picky=2"], 3),  # what stopped the run is worse than a bar
        (1, ["--fail-under", "picky=1"], 0),
        (1, ["--fail-under", "picky=1.01"], 1),
        (20, ["--max-error-rate", "1", "--fail-under", "picky=-5"], 1),  # the mean is n/a
    ],
)
def test_exit_codes_of_a_reward_that_raises_and_of_bars(
    cli: Here, raising: int, arguments: list[str], code: int
) -> None:
    result = cli("eval", cli.write("rows.jsonl", picky_rows(raising, 20)), "-r", "my_rewards.py:picky", *arguments)
    assert result.code == code
    assert result.err.count("Traceback (most recent call last)") == (raising > 0), "the first one, once"
    assert len(cli.scores()) == 20, "results are kept"
    summary = strict_json((cli.run_folder() / "summary.json").read_text(encoding="utf-8"))
    held = summary["models"]["default"]["rewards"]["picky"]
    assert (held["errors"], held["scored"]) == (raising, 20 - raising)
    if raising:
        assert f"{raising} of 20" in result.out
    if code == 3:
        assert f"picky failed on {raising} of 20 rows" in result.err and "--max-error-rate" in result.err


def test_a_hopeless_reward_stops_long_before_the_end(cli: Here) -> None:
    result = cli("eval", cli.write("rows.jsonl", picky_rows(2000, 2000)), "-r", "my_rewards.py:picky")
    assert result.code == 3
    assert 100 <= len(cli.scores()) < 2000


def test_a_low_score_is_no_failure_unless_a_bar_says_so(cli: Here, small: Path) -> None:
    assert cli("eval", small, "-r", "my_rewards.py:zero", "-o", "a").code == 0
    missed = cli("eval", small, "-r", "my_rewards.py:zero", "-o", "b", "--fail-under", "zero=0.1")
    assert (missed.code, "mean of zero is 0, below 0.1" in missed.err) == (1, True)
    assert cli("eval", small, "-r", "my_rewards.py:abstains", "-o", "c", "--fail-under", "abstains=0").code == 1


def test_no_rows(cli: Here) -> None:
    cli.write("empty.jsonl", [])
    refused = cli("eval", "empty.jsonl", "-r", "gsm8k")
    assert (refused.code, "0 rows" in refused.err) == (2, True)
    allowed = cli("eval", "empty.jsonl", "-r", "gsm8k", "--allow-empty", "--json")
    assert allowed.code == 0
    assert allowed.summary["models"] == {} and allowed.summary["input"]["rows"] == 0
    # A bar that was asked for is not passed by grading nothing.
    assert (
        cli("eval", "empty.jsonl", "-r", "gsm8k", "--allow-empty", "--overwrite", "--fail-under", "gsm8k=0").code == 1
    )


# ------------------------------------------------------------------------------------------ options and the map


def test_limit_reads_so_many_rows(cli: Here, small: Path) -> None:
    assert cli("eval", small, "-r", "gsm8k", "--limit", "2", "-q").out.startswith("gsm8k 0.5 (2 scored")


def test_a_schedule_goes_by_the_row_s_step_then_by_the_option_then_by_its_last_entry(cli: Here) -> None:
    rows = [{"id": i, "prompt": f"p{i}", "completion": "x"} for i in range(4)]
    formula = "s=schedule({0: 'my_rewards.py:zero', 500: 'my_rewards.py:one'})"
    for path, arguments, mean in (
        (cli.write("plain.jsonl", rows), [], 1.0),
        (cli.write("plain.jsonl", rows), ["--step", "499"], 0.0),
        (cli.write("plain.jsonl", rows), ["--step", "500"], 1.0),
        (cli.write("stepped.jsonl", [row | {"step": 499 + i} for i, row in enumerate(rows)]), ["--step", "0"], 0.75),
    ):
        result = cli("eval", path, "-r", formula, "--json", "--overwrite", *arguments)
        assert means(result) == {"s": mean}, (path.name, arguments)


def test_group_joins_rows_that_would_be_problems_of_their_own(cli: Here) -> None:
    rows = [{"id": i, "task": i % 2, "prompt": f"p{i}", "completion": "#### 1", "answer": "1"} for i in range(8)]
    path = cli.write("rows.jsonl", rows)
    alone = cli("eval", path, "-r", "gsm8k", "--json", "-o", "alone").summary["models"]["default"]["groups"]
    joined = cli("eval", path, "-r", "gsm8k", "--json", "-o", "joined", "--group", "task").summary["models"]["default"]
    assert (alone["n"], alone["sizes"]) == (8, {"1": 8})
    assert (joined["groups"]["n"], joined["groups"]["sizes"]) == (2, {"4": 2})
    assert [line["index"] for line in cli.scores(cli.folder / "joined")] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_map_says_where_things_are(cli: Here) -> None:
    rows = [{"q": "1+1", "outs": ["#### 2", "#### 3"], "meta": {"gold": 2}}]
    path = cli.write("odd.jsonl", rows)
    result = cli(
        "eval", path, "-r", "gsm8k", "--json", "--map", "completion=outs[],prompt=q", "--map", "gold=meta.gold"
    )
    assert result.code == 0, result.err
    assert means(result) == {"gsm8k": 0.5}
    assert result.summary["input"]["map"] == {"completion": "outs[]", "reference": "meta.gold", "prompt": "q"}


def test_an_unsure_guess_shows_three_rows_and_the_flag_that_settles_it(cli: Here) -> None:
    rows = [{"id": i, "response": f"a {i}", "generation": f"b {i}", "answer": "1"} for i in range(5)]
    result = cli("eval", cli.write("two.jsonl", rows), "-r", "gsm8k")
    assert result.code == 2
    assert "response or generation" in result.err and "--map completion=" in result.err
    assert [line.split()[:2] for line in result.err.splitlines() if line.startswith("  line")] == [
        ["line", "1"],
        ["line", "2"],
        ["line", "3"],
    ]
    settled = cli("eval", "two.jsonl", "-r", "gsm8k", "--map", "completion=generation", "-q")
    assert settled.code == 0


def test_a_dry_run_shows_map_rewards_and_first_rows_and_writes_nothing(cli: Here, small: Path) -> None:
    before = sorted(cli.folder.rglob("*.jsonl"))
    result = cli("eval", small, "-r", "gsm8k", "-r", "my_rewards.py:brief", "--dry-run", "-o", "out")
    assert result.code == 0
    for text in ("completion = completion", "my_rewards.py:brief", "reference", "small.jsonl:1", "2 after ####"):
        assert text in result.out
    assert sorted(cli.folder.rglob("*.jsonl")) == before
    assert not (cli.folder / "out").exists() and not (cli.folder / "runs").exists()
    assert cli("eval", small, "-r", "gsm9k", "--dry-run").code == 2


def test_the_plain_input_and_the_compressed_one_from_standard_input_score_alike(cli: Here, small: Path) -> None:
    import gzip

    plain = cli.process("eval", "-", "-r", "gsm8k", "-o", "plain", "-q", stdin=small.read_bytes())
    packed = gzip.compress(small.read_bytes())
    zipped = cli.process("eval", "-", "-r", "gsm8k", "-o", "zipped", "-q", stdin=packed)
    assert (plain.code, zipped.code) == (0, 0)
    assert plain.out == zipped.out
    # Standard input cannot be read again, so its bytes lie with the results.
    assert (cli.folder / "plain" / "input").read_bytes() == small.read_bytes()
    assert (cli.folder / "zipped" / "input").read_bytes() == packed


# -------------------------------------------------------------------------------------------------- one engine


def test_workers_and_placements_change_no_score(cli: Here) -> None:
    """Process, thread, async and inline rewards, alone and in one sum, with 1, 2 and 4 workers."""
    source = (ROOT / "tests" / "rewards_for_tests.py").read_text(encoding="utf-8")
    (cli.folder / "mixed.py").write_text(source, encoding="utf-8")
    rows = [
        {"id": i // 4, "prompt": f"p{i // 4}", "completion": "x" * (i % 7), "answer": str(i // 4)} for i in range(120)
    ]
    path = cli.write("rows.jsonl", rows)
    names = ("in_process", "in_thread", "later", "inline")
    rewards = [f"mixed.py:{name}" for name in names if name != "in_thread"] + ["in_thread=mixed.py:in_thread"]
    total = " + ".join(f"'mixed.py:{name}'" for name in names)
    arguments = [word for reward in (*rewards, f"total={total}") for word in ("-r", reward)]
    found = []
    for workers in (1, 2, 4):
        result = cli("eval", path, *arguments, "--workers", str(workers), "-o", f"w{workers}", "-q")
        assert result.code == 0, result.err
        found.append([line | {"seconds": None} for line in cli.scores(cli.folder / f"w{workers}")])
    assert found[0] == found[1] == found[2]
    assert [line["value"] for line in found[0] if line["reward"] == "total"] == [4.0 * (i % 7) for i in range(120)]
    assert [line["id"] for line in found[0]][::5] == [row["id"] for row in rows]
