"""The run folder: what is in it, what it is called, and that an interrupted run goes on as if nothing had happened."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import ROWS, Here, cli, environment, small, strict_json

from rewardkit import parse
from rewardkit.records import FieldMap
from rewardkit.run import Observer, Plan, evaluate

__all__ = ["cli", "small"]  # fixtures

SLOW = """
import os, time
from rewardkit import reward

def seen(completion):
    with open("seen.txt", "a") as file:
        file.write(completion + "\\\\n")

@reward
def slow(completion):
    "Slow only where a test says so, which is not part of what it is."
    seen(completion)
    if os.environ.get("SLOW"):
        time.sleep(0.02)
    return float(completion) % 7

@reward
def tens(completion, group):
    if os.path.exists("broken.txt") and int(completion) in map(int, open("broken.txt").read().split()):
        raise OSError("the service is down")
    return float(completion) // 10
""".replace("\\\\n", "\\n")


def numbered(count: int, **columns: Any) -> list[dict[str, Any]]:
    rows = ({"id": i // 3, "group": i // 3, "prompt": f"p{i // 3}", "completion": str(i)} for i in range(count))
    return [row | columns for row in rows]


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "scores.jsonl").read_text(encoding="utf-8")
    return [strict_json(line) | {"seconds": None} for line in text.splitlines()]


def figures(folder: Path) -> Any:
    """The summary without what a clock decides."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: timeless(item) for name, item in value.items() if name != "seconds"}
        return value

    return timeless(strict_json((folder / "summary.json").read_text(encoding="utf-8")))


# ---------------------------------------------------------------------------------------------- what is in it


def test_a_folder_holds_what_was_run_the_scores_the_figures_and_what_happened(cli: Here, small: Path) -> None:
    import tomllib

    assert cli("eval", small, "-r", "gsm8k", "-r", "my_rewards.py:brief(max_words=2)").code == 0
    folder = cli.run_folder()
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.toml",
        "log.jsonl",
        "scores.jsonl",
        "summary.json",
    ]
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    assert config["input"]["path"] == str(small)
    assert config["input"]["bytes"] == small.stat().st_size
    assert config["map"]["reference"] == "answer"
    assert list(config["reward"]) == ["gsm8k", "brief"] and "max_words=2" in config["reward"]["brief"]
    assert config["identity"].startswith(folder.name.rpartition("-")[2])
    summary = strict_json((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["schema"] == "rewardkit.summary/1"
    assert (summary["input"]["rows"], summary["stopped"]) == (3, None)
    assert {line["schema"] for line in cli.scores()} == {"rewardkit.score/1"}
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["event"] for event in events] == ["start", "done"]
    assert all("time" in event for event in events)


def test_the_config_runs_the_same_rewards_again(cli: Here, small: Path) -> None:
    first = cli("eval", small, "-r", "gsm8k", "-r", "x=2*'my_rewards.py:brief'(max_words=2)", "-o", "first", "-q")
    again = cli("eval", small, "-r", "first/config.toml", "-o", "again", "-q")
    assert (first.code, again.code) == (0, 0), again.err
    assert lines(cli.folder / "first") == lines(cli.folder / "again")


# --------------------------------------------------------------------------------------------- what it is called


def name_of(cli: Here, *arguments: str | Path) -> str:
    """The default folder's name; the folder itself is removed again."""
    result = cli("eval", *arguments, "-q")
    assert result.code == 0, result.err
    folder = cli.run_folder()
    name = folder.name
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return name


def test_the_name_is_of_content_and_not_of_place_or_time(cli: Here, small: Path) -> None:
    elsewhere = cli.folder / "else where"
    elsewhere.mkdir()
    (elsewhere / "small.jsonl").write_bytes(small.read_bytes())
    (elsewhere / "mine.py").write_bytes((cli.folder / "my_rewards.py").read_bytes())
    name = name_of(cli, small, "-r", "my_rewards.py:brief")
    stem, _, digits = name.rpartition("-")
    assert (stem, len(digits)) == ("small", 8) and set(digits) <= set("0123456789abcdef")
    time.sleep(1.1)  # a clock in it would show
    assert name_of(cli, small, "-r", "my_rewards.py:brief") == name
    assert name_of(cli, elsewhere / "small.jsonl", "-r", f"{elsewhere}/mine.py:brief") == name
    assert name_of(cli, small, "-r", "my_rewards.py:brief", "--workers", "2", "--strict") == name
    others = [
        name_of(cli, small, "-r", "my_rewards.py:brief(max_words=2)"),
        name_of(cli, small, "-r", "my_rewards.py:one"),
        name_of(cli, small, "-r", "other=my_rewards.py:brief"),
        name_of(cli, small, "-r", "my_rewards.py:brief", "--limit", "2"),
        name_of(cli, small, "-r", "my_rewards.py:brief", "--step", "2"),
        name_of(cli, small, "-r", "my_rewards.py:brief", "--map", "prompt="),
        name_of(cli, cli.write("small.jsonl", ROWS[:2]), "-r", "my_rewards.py:brief"),
    ]
    assert len({name, *others}) == 8


# ------------------------------------------------------------------------------------- a folder that is there


def test_results_are_never_overwritten_unasked(cli: Here, small: Path) -> None:
    assert cli("eval", small, "-r", "gsm8k", "-o", "out", "-q").code == 0
    before = (cli.folder / "out" / "scores.jsonl").read_bytes()
    refused = cli("eval", small, "-r", "gsm8k", "-o", "out")
    assert refused.code == 2
    assert "out has results already" in refused.err and "--resume" in refused.err and "--overwrite" in refused.err
    assert (cli.folder / "out" / "scores.jsonl").read_bytes() == before
    assert cli("eval", small, "-r", "my_rewards.py:one", "-o", "out", "-q", "--overwrite").code == 0
    assert {line["reward"] for line in lines(cli.folder / "out")} == {"one"}


def test_overwrite_that_fails_before_its_first_score_destroys_nothing(cli: Here, small: Path) -> None:
    assert cli("eval", small, "-r", "gsm8k", "-o", "out", "-q").code == 0
    before = {path.name: path.read_bytes() for path in (cli.folder / "out").iterdir()}
    assert cli("eval", small, "-r", "my_rewards.py:wants", "-o", "out", "--overwrite").code == 2
    assert {path.name: path.read_bytes() for path in (cli.folder / "out").iterdir()} == before


def test_a_run_that_could_not_begin_leaves_no_folder_in_the_way(cli: Here, small: Path) -> None:
    assert cli("eval", small, "-r", "my_rewards.py:wants", "-o", "out/of/here").code == 2
    assert not (cli.folder / "out").exists()
    (cli.folder / "empty").mkdir()
    assert cli("eval", small, "-r", "my_rewards.py:wants", "-o", "empty").code == 2
    assert (cli.folder / "empty").exists(), "not ours to remove"
    assert cli("eval", small, "-r", "gsm8k", "-o", "out/of/here").code == 0


@pytest.mark.parametrize("name", ["notes.txt", "config.toml", "scores.jsonl"])
@pytest.mark.parametrize("option", [[], ["--overwrite"], ["--resume"]])
def test_a_folder_of_something_else_is_left_alone(cli: Here, small: Path, name: str, option: list[str]) -> None:
    """Also when it has a config.toml, as a project of another tool has."""
    other = cli.folder / "project" / name
    other.parent.mkdir()
    other.write_text("[tool]\nmine = true\n")
    result = cli("eval", small, "-r", "gsm8k", "-o", "project", *option)
    assert (result.code, "project is not empty and no run folder" in result.err) == (2, True)
    assert [path.name for path in other.parent.iterdir()] == [name]
    assert other.read_text() == "[tool]\nmine = true\n"


def test_the_input_is_not_deleted_with_the_folder_it_lies_in(cli: Here, small: Path) -> None:
    assert cli.process("eval", "-", "-r", "gsm8k", "-o", "out", "-q", stdin=small.read_bytes()).code == 0
    result = cli("eval", "out/input", "-r", "gsm8k", "-o", "out", "--overwrite")
    assert (result.code, "the input" in result.err) == (2, True)
    assert (cli.folder / "out" / "input").read_bytes() == small.read_bytes()


@pytest.mark.parametrize("place", ["small.jsonl", "small.jsonl/below", "/proc/rewardkit-test"])
def test_a_folder_that_cannot_be_made_is_one_line(cli: Here, small: Path, place: str) -> None:
    result = cli("eval", small, "-r", "gsm8k", "-o", place)
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert line.startswith("rewardkit: ") and place in line and "-o" in line


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_one_line(cli: Here, small: Path) -> None:
    (cli.folder / "locked").mkdir(mode=0o500)
    result = cli("eval", small, "-r", "gsm8k", "-o", "locked")
    assert (result.code, "locked is not writable" in result.err) == (2, True)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("needs the right to mount a tiny disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_full_disk_is_one_line_and_what_was_written_can_be_resumed(cli: Here, tiny_disk: Path) -> None:
    path = cli.write("rows.jsonl", numbered(600))
    result = cli("eval", path, "-r", "my_rewards.py:one", "-o", tiny_disk / "out", "-q")
    assert result.code == 2
    assert result.err.startswith("rewardkit: ") and "No space left on device" in result.err
    assert "scores.jsonl" in result.err and len(result.err.splitlines()) == 1
    kept = (tiny_disk / "out" / "scores.jsonl").read_bytes()
    (cli.folder / "moved").mkdir()
    for name in ("config.toml", "scores.jsonl"):
        (cli.folder / "moved" / name).write_bytes((tiny_disk / "out" / name).read_bytes())
    assert cli("eval", path, "-r", "my_rewards.py:one", "-o", "moved", "--resume", "-q").code == 0
    assert len(lines(cli.folder / "moved")) == 600 > kept.count(b"\n") > 0


@pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX")
def test_two_runs_do_not_write_one_folder_at_once(cli: Here, small: Path) -> None:
    class Second(Observer):
        code: int

        def opened(self, records: Any, folder: Path) -> None:
            self.result = cli("eval", small, "-r", "gsm8k", "-o", "out", "--overwrite")

    second = Second()
    outcome = evaluate(Plan(str(small), {"gsm8k": parse("gsm8k")}, output=Path("out")), second)
    assert (second.result.code, "another run is writing to out" in second.result.err) == (2, True)
    assert outcome.summary["models"]["default"]["rewards"]["gsm8k"]["right"] == 2
    assert cli("eval", small, "-r", "gsm8k", "-o", "out", "--overwrite").code == 0


# -------------------------------------------------------------------------------------------------- going on


REWARDS = ("-r", "slow.py:slow", "-r", "t=2*'slow.py:tens' + 'slow.py:slow'")


@pytest.fixture
def unbroken(cli: Here) -> Path:
    """A run of 300 rows, in groups of three over rows, that nobody disturbed."""
    (cli.folder / "slow.py").write_text(SLOW, encoding="utf-8")
    cli.write("rows.jsonl", numbered(300))
    result = cli("eval", "rows.jsonl", *REWARDS, "-o", "unbroken", "-q")
    assert result.code == 0, result.err
    (cli.folder / "seen.txt").unlink()
    return cli.folder / "unbroken"


def same_as(unbroken: Path, folder: Path) -> None:
    assert lines(folder) == lines(unbroken)
    places = [(line["id"], line["index"], line["reward"]) for line in lines(folder)]
    assert len(set(places)) == len(places) == 600, "no row twice"
    assert figures(folder) == figures(unbroken)


def seen(cli: Here) -> list[str]:
    path = cli.folder / "seen.txt"
    return path.read_text().split() if path.exists() else []


def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail(f"waited 30 s for {what}")


def started(cli: Here) -> subprocess.Popen[bytes]:
    """A slow run as a process of a group of its own, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "rewardkit", "eval", "rows.jsonl", *REWARDS, "-o", "out"],
        cwd=cli.folder,
        env=environment(SLOW="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )


def hear_interrupts() -> None:
    """A shell's background jobs, and so their children, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_keeps_every_score_and_the_run_goes_on(cli: Here, unbroken: Path) -> None:
    process = started(cli)
    until(lambda: len(seen(cli)) >= 30, "thirty rows")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert b"--resume" in err and b"Traceback" not in err
    text = (cli.folder / "out" / "scores.jsonl").read_bytes()
    kept = text.count(b"\n") // 2
    assert text.endswith(b"\n") and 0 <= len(seen(cli)) - kept <= 1, "nothing that was scored is lost"
    before = len(seen(cli))
    result = cli("eval", "rows.jsonl", *REWARDS, "-o", "out", "--resume")
    assert result.code == 0, result.err
    assert f"resumed: {kept} completions were taken over" in result.out
    assert len(seen(cli)) - before == 300 - kept, "nothing is scored twice"
    same_as(unbroken, cli.folder / "out")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_killed_run_with_a_cut_last_line_goes_on(cli: Here, unbroken: Path) -> None:
    process = started(cli)
    scores = cli.folder / "out" / "scores.jsonl"
    until(lambda: len(seen(cli)) >= 70, "seventy rows, which take more than a second")
    process.kill()
    process.communicate(timeout=30)
    text = scores.read_bytes()
    assert 0 < text.count(b"\n") < 600, "a kill loses a second's work, not a buffer's"
    scores.write_bytes(text[:-25])
    kept = (text[:-25].count(b"\n")) // 2
    before = len(seen(cli))
    result = cli("eval", "rows.jsonl", *REWARDS, "-o", "out", "--resume")
    assert result.code == 0, result.err
    assert len(seen(cli)) - before == 300 - kept
    same_as(unbroken, cli.folder / "out")


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 255, 256, 257, 511, 512, 513, 598, 599, 600])
def test_wherever_it_stopped_it_goes_on_to_the_same_result(cli: Here, unbroken: Path, keep: int) -> None:
    """Cut after so many lines, and in the middle of the next."""
    folder = cli.folder / "out"
    folder.mkdir()
    (folder / "config.toml").write_bytes((unbroken / "config.toml").read_bytes())
    whole = (unbroken / "scores.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "scores.jsonl").write_bytes(b"".join(whole[:keep]) + b"".join(whole[keep : keep + 1])[:40])
    assert cli("eval", "rows.jsonl", *REWARDS, "-o", "out", "--resume", "-q").code == 0
    assert len(seen(cli)) == 300 - keep // 2
    same_as(unbroken, folder)


def test_a_resumed_run_that_is_stopped_again_keeps_what_it_added(cli: Here, unbroken: Path) -> None:
    folder = cli.folder / "out"
    folder.mkdir()
    (folder / "config.toml").write_bytes((unbroken / "config.toml").read_bytes())
    whole = (unbroken / "scores.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "scores.jsonl").write_bytes(b"".join(whole[:20]))

    class Stop(Observer):
        done = 0

        def scored(self, completions: int, failed: int) -> None:
            self.done += completions
            if self.done == 60:
                raise KeyboardInterrupt

    rewards = {"slow": parse("'slow.py:slow'"), "t": parse("2*'slow.py:tens' + 'slow.py:slow'")}
    with pytest.raises(KeyboardInterrupt) as caught:
        evaluate(Plan("rows.jsonl", rewards, output=folder, resume=True), Stop())
    assert len(lines(folder)) == 120, "on disk although the traceback still holds every frame"
    del caught
    outcome = evaluate(Plan("rows.jsonl", rewards, output=folder, resume=True))
    assert outcome.reused == 60
    same_as(unbroken, folder)


def test_errors_are_done_again_and_nothing_else(cli: Here, unbroken: Path) -> None:
    (cli.folder / "broken.txt").write_text("5 17 290")
    assert cli("eval", "rows.jsonl", *REWARDS, "-o", "out", "-q").code == 0  # 1 % is below the bar
    assert [line["value"] for line in lines(cli.folder / "out")].count(None) == 3
    (cli.folder / "broken.txt").unlink()
    before = len(seen(cli))
    assert cli("eval", "rows.jsonl", *REWARDS, "-o", "out", "--resume", "-q").code == 0
    assert len(seen(cli)) - before == 3
    same_as(unbroken, cli.folder / "out")


def test_resume_of_a_finished_run_scores_nothing_and_changes_nothing(cli: Here, unbroken: Path) -> None:
    before = (unbroken / "scores.jsonl").read_bytes()
    result = cli("eval", "rows.jsonl", *REWARDS, "-o", "unbroken", "--resume")
    assert result.code == 0 and "resumed: 300 completions" in result.out
    assert (unbroken / "scores.jsonl").read_bytes() == before, "times too"
    assert seen(cli) == []


def test_resume_where_nothing_is_says_so_and_runs(cli: Here, small: Path) -> None:
    result = cli("eval", small, "-r", "gsm8k", "--resume", "-o", "out")
    assert (result.code, "nothing to resume in out" in result.err) == (0, True)
    cli.write("empty.jsonl", [])
    for option in ([], ["--resume"], ["--overwrite"]):
        assert cli("eval", "empty.jsonl", "-r", "gsm8k", "--allow-empty", "-o", "none", *option).code == 0


def test_rows_left_without_gold_do_not_stop_a_resumed_run(cli: Here) -> None:
    """The look for missing columns is for the first rows of a file, not for whatever rows are left."""
    rows = numbered(60, answer="1")
    for row in rows[40:]:
        del row["answer"]
    path = cli.write("rows.jsonl", rows)
    assert cli("eval", path, "-r", "gsm8k", "-o", "whole", "-q").code == 0
    (cli.folder / "out").mkdir()
    (cli.folder / "out" / "config.toml").write_bytes((cli.folder / "whole" / "config.toml").read_bytes())
    whole = (cli.folder / "whole" / "scores.jsonl").read_bytes().splitlines(keepends=True)
    (cli.folder / "out" / "scores.jsonl").write_bytes(b"".join(whole[:45]))
    result = cli("eval", path, "-r", "gsm8k", "-o", "out", "--resume", "-q")
    assert result.code == 0, result.err
    assert lines(cli.folder / "out") == lines(cli.folder / "whole")


def test_group_rewards_and_several_models_resume_too(cli: Here) -> None:
    (cli.folder / "ranks.py").write_text(
        "from rewardkit import group_reward\n\n@group_reward\ndef rank(completions):\n"
        "    return [float(sorted(completions).index(one)) for one in completions]\n"
    )
    rows = [
        {"q": f"q{i // 4}", "a": {"solution": f"#### {i}"}, "b": {"solution": f"#### {9 - i}"}, "answer": "3"}
        for i in range(16)
    ]
    path = cli.write("rows.jsonl", rows)
    arguments = ["eval", path, "-r", "ranks.py:rank", "-r", "gsm8k", "--map", "prompt=q", "-q"]
    assert cli(*arguments, "-o", "whole").code == 0
    whole = (cli.folder / "whole" / "scores.jsonl").read_bytes().splitlines(keepends=True)
    assert len(whole) == 64
    for keep in (1, 8, 9, 40, 63):
        folder = cli.folder / f"out{keep}"
        folder.mkdir()
        (folder / "config.toml").write_bytes((cli.folder / "whole" / "config.toml").read_bytes())
        (folder / "scores.jsonl").write_bytes(b"".join(whole[:keep]))
        assert cli(*arguments, "-o", folder, "--resume").code == 0
        assert lines(folder) == lines(cli.folder / "whole")
        assert figures(folder) == figures(cli.folder / "whole")


def test_scores_that_are_not_of_this_input_are_refused(cli: Here, unbroken: Path) -> None:
    whole = (unbroken / "scores.jsonl").read_bytes().splitlines(keepends=True)
    for damaged, text in (
        ([*whole[:10], b"not a line\n", *whole[10:]], "damaged"),
        (whole[:10] + whole[12:], "does not follow the input"),
    ):
        (unbroken / "scores.jsonl").write_bytes(b"".join(damaged))
        result = cli("eval", "rows.jsonl", *REWARDS, "-o", "unbroken", "--resume")
        assert (result.code, text in result.err, "--overwrite" in result.err) == (2, True, True)


# -------------------------------------------------------------------------------- not the same run any more


CHANGES: list[tuple[str, list[str], str]] = [
    ("limit", ["-r", "my_rewards.py:brief", "--limit", "2"], "an option 'limit'"),
    ("step", ["-r", "my_rewards.py:brief", "--step", "3"], "an option 'step'"),
    ("map", ["-r", "my_rewards.py:brief", "--map", "prompt="], "the map 'prompt'"),
    ("option of the reward", ["-r", "my_rewards.py:brief(max_words=9)"], "reward 'brief' has changed"),
    ("another reward", ["-r", "my_rewards.py:one"], "reward 'brief' is gone"),
    ("one more", ["-r", "my_rewards.py:brief", "-r", "gsm8k"], "reward 'gsm8k' is new"),
]


@pytest.mark.parametrize(("arguments", "named"), [change[1:] for change in CHANGES], ids=[c[0] for c in CHANGES])
def test_resume_is_refused_and_names_what_changed(cli: Here, small: Path, arguments: list[str], named: str) -> None:
    assert cli("eval", small, "-r", "my_rewards.py:brief", "-o", "out", "-q").code == 0
    before = (cli.folder / "out" / "scores.jsonl").read_bytes()
    result = cli("eval", small, *arguments, "-o", "out", "--resume")
    assert (result.code, named in result.err, "--overwrite" in result.err) == (2, True, True), result.err
    assert (cli.folder / "out" / "scores.jsonl").read_bytes() == before


def test_resume_is_refused_when_the_order_of_rewards_the_input_or_a_file_of_rewards_changed(
    cli: Here, small: Path
) -> None:
    rewards = ["-r", "my_rewards.py:brief", "-r", "gsm8k"]
    assert cli("eval", small, *rewards, "-o", "out", "-q").code == 0
    swapped = cli("eval", small, *rewards[2:], *rewards[:2], "-o", "out", "--resume")
    assert (swapped.code, "brief, gsm8k in this order" in swapped.err) == (2, True)
    other = cli("eval", cli.write("other.jsonl", ROWS[:2]), *rewards, "-o", "out", "--resume")
    assert (other.code, "the input file has changed" in other.err) == (2, True)
    with (cli.folder / "my_rewards.py").open("a", encoding="utf-8") as file:
        file.write("\n# mended\n")
    # In a process: a file that is loaded once stays as it was.
    changed = cli.process("eval", small, *rewards, "-o", "out", "--resume")
    assert (changed.code, "reward 'brief' has changed (its code" in changed.err) == (2, True)
    assert cli.process("eval", small, *rewards, "-o", "out", "--overwrite").code == 0


# ------------------------------------------------------------------------------------------------ from Python


def test_evaluate_tells_its_observer_and_returns_the_summary(cli: Here, small: Path) -> None:
    told: list[Any] = []

    class Told(Observer):
        def opened(self, records: Any, folder: Path) -> None:
            told.append((records.format, folder.name))

        def scored(self, completions: int, failed: int) -> None:
            told.append((completions, failed))

    plan = Plan(str(small), {"gsm8k": parse("gsm8k")}, map=FieldMap.parse(["reference=answer"]), output=Path("out"))
    outcome = evaluate(plan, Told())
    assert told == [("jsonl", "out"), (1, 0), (1, 0), (1, 0)]
    assert outcome.folder == Path("out") and outcome.stopped == ""
    assert outcome.summary == strict_json(Path("out/summary.json").read_text(encoding="utf-8"))


def test_a_plan_names_every_option_of_the_command_that_reaches_a_run() -> None:
    """An option that the command has and the plan lacks would be silently ignored."""
    from rewardkit.cli.eval import command

    of_command = {parameter.name for parameter in command.params}
    of_plan = set(Plan.__dataclass_fields__)
    renamed = {"files": "input", "maps": "map", "joins": "join"}
    shown_only = {"dry_run", "as_json", "quiet", "bars"}
    assert {renamed.get(name or "", name) for name in of_command - shown_only} == of_plan


def test_no_two_places_of_a_run_are_written_in_another_order(cli: Here) -> None:
    """One line a completion and reward: rows in the file's order, completions within, rewards within these."""
    rows = [{"id": i, "prompt": f"p{i}", "completions": ["#### 1", "#### 2"], "answer": "1"} for i in (5, 3, 4)]
    cli("eval", cli.write("rows.jsonl", rows), "-r", "gsm8k", "-r", "my_rewards.py:one", "-o", "out")
    expected = list(itertools.product((5, 3, 4), (0, 1), ("gsm8k", "one")))
    assert [(line["id"], line["index"], line["reward"]) for line in lines(cli.folder / "out")] == expected


GROUPED = """
from rewardkit import group_reward, reward

@group_reward
def ranks(completions):
    with open("seen.txt", "a") as file:
        file.write(" ".join(completions) + "\\n")
    return [float(sorted(completions).index(text)) for text in completions]

@reward
def own(completion, mark):
    return float(mark)
"""


def test_resuming_asks_a_group_reward_about_whole_groups_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of three groups lie mixed; the earlier run ended in the middle of all of them."""
    monkeypatch.chdir(tmp_path)
    Path("grouped.py").write_text(GROUPED, encoding="utf-8")
    rows = [{"id": i % 3, "prompt": f"p{i % 3}", "completion": str(i), "mark": i} for i in range(12)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rewards = {"ranks": parse("'grouped.py:ranks'"), "own": parse("'grouped.py:own'")}
    evaluate(Plan("rows.jsonl", rewards, output=Path("whole")))
    assert [line["value"] for line in lines(Path("whole")) if line["reward"] == "own"] == [float(i) for i in range(12)]
    evaluate(Plan("rows.jsonl", rewards, output=Path("part")))
    kept = Path("part/scores.jsonl").read_bytes().splitlines(keepends=True)[:13]
    Path("part/scores.jsonl").write_bytes(b"".join(kept)[:-9])
    Path("seen.txt").unlink()
    evaluate(Plan("rows.jsonl", rewards, output=Path("part"), resume=True))
    assert lines(Path("part")) == lines(Path("whole")) and figures(Path("part")) == figures(Path("whole"))
    assert sorted(len(line.split()) for line in Path("seen.txt").read_text().splitlines()) == [4, 4, 4]


def test_what_a_resumed_run_redid_before_it_was_killed_is_not_redone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run that redoes errors writes beside the old file; killed twice, it must still get on."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(SLOW, encoding="utf-8")
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in numbered(12)), encoding="utf-8")
    rewards = {"tens": parse("'own.py:tens'")}
    Path("broken.txt").write_text("0 1 2 3 4 5 6 7 8 9 10 11", encoding="utf-8")
    evaluate(Plan("rows.jsonl", rewards, output=Path("run")))
    Path("broken.txt").unlink()
    evaluate(Plan("rows.jsonl", rewards, output=Path("good")))
    done = Path("good/scores.jsonl").read_bytes().splitlines(keepends=True)
    for redone in (5, 3, 8):  # the second try got less far than the first
        Path("run/scores.jsonl.part").write_bytes(b"".join(done[:redone]) + done[redone][:7])
        with contextlib.suppress(KeyboardInterrupt):
            evaluate(Plan("rows.jsonl", rewards, output=Path("run"), resume=True), Interrupting())
    outcome = evaluate(Plan("rows.jsonl", rewards, output=Path("run"), resume=True))
    assert outcome.reused == 8
    assert lines(Path("run")) == lines(Path("good"))
    assert sorted(path.name for path in Path("run").iterdir()) == [
        "config.toml", "log.jsonl", "scores.jsonl", "summary.json"
    ]  # fmt: skip


class Interrupting(Observer):
    """Ctrl-C before the first score."""

    def scored(self, completions: int, failed: int) -> None:
        raise KeyboardInterrupt
