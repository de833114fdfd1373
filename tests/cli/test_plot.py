"""`rewardkit plot`: the picture beside the run, the curves on the terminal."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from command_line import Here

ROWS = [{"step": step, "reward": step / 10, "grad_norm": 0.5} for step in range(1, 11)]


def test_the_picture_is_written_and_the_curves_are_shown(cli: Here) -> None:
    (cli.folder / "run").mkdir()
    cli.write("run/metrics.jsonl", ROWS)
    done = cli("plot", "run")
    assert done.code == 0 and not done.err
    assert [line.split()[0] for line in done.out.splitlines()] == ["reward", "gradient", "run/curves.svg"]
    assert "▁▂▃▃▄▅▆▆▇█" in done.out and "\x1b" not in done.out
    picture = ElementTree.parse(cli.folder / "run" / "curves.svg")
    assert "run" in [node.text for node in picture.iter()]


def test_another_place_and_no_words(cli: Here) -> None:
    cli.write("metrics.jsonl", ROWS)
    done = cli("plot", "metrics.jsonl", "-o", "a.svg", "-q")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (cli.folder / "a.svg").exists() and not (cli.folder / "curves.svg").exists()
    done = cli("plot", "metrics.jsonl", "-o", "away/a.svg")
    assert done.code == 2 and "away/a.svg cannot be written" in done.err and "-o" in done.err


def test_what_has_no_curves_is_an_error(cli: Here) -> None:
    cli.write("metrics.jsonl", [{"step": 1, "lr": 0.1}])
    done = cli("plot", ".")
    assert done.code == 2 and "none of its metrics is drawn; it has step, lr" in done.err
    assert cli("plot", "away").code == 2


def test_lines_that_cannot_be_read_are_counted(cli: Here) -> None:
    path = cli.write("metrics.jsonl", ROWS)
    path.write_text(path.read_text() + '{"step": 11, "rew')
    done = cli("plot", ".")
    assert done.code == 0 and "1 line could not be read" in done.err
