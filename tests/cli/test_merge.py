"""`rewardkit merge`: shards put together are byte for byte the unsharded run; anything else is a clear error."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from command_line import Here

from rewardkit.saved import in_shard


@pytest.fixture
def shards(cli: Here) -> Callable[[int], list[str]]:
    """A whole run in `whole`, and its shards."""
    dice = random.Random(0)
    rows = [
        {"id": dice.choice([at % 17, f"q\x1b{at % 9}\n"]), "prompt": "p", "answer": "4", "completion": f"#### {at % 6}"}
        for at in range(120)
    ]
    cli.write("a.jsonl", rows)
    (cli.folder / "a.jsonl").open("a").write("not a row\n")
    done = cli("eval", "a.jsonl", "-r", "gsm8k", "-r", "total=gsm8k + 0.5*'my_rewards.py:brief'", "-o", "whole", "-q")
    assert done.code == 0, done.err

    def make(n: int) -> list[str]:
        for i in range(1, n + 1):
            part = cli(
                "eval", "a.jsonl", "-r", "gsm8k", "-r", "total=gsm8k + 0.5*'my_rewards.py:brief'",
                "-o", f"part-{i}", "-q", "--shard", f"{i}/{n}",
            )  # fmt: skip
            assert part.code == 0, part.err
        return [f"part-{i}" for i in range(1, n + 1)]

    return make


def timeless(path: Path) -> Any:
    """What a file of a run says, without the times."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [without_times(json.loads(line)) for line in text.splitlines()]
    return without_times(json.loads(text)) if path.suffix == ".json" else text


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(item) for name, item in value.items() if name not in ("seconds", "warnings")}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def change(folder: Path, base: dict[str, Any] | None = None, **changes: Any) -> None:
    path = folder / "config.toml"
    config = base if base is not None else tomllib.loads(path.read_text(encoding="utf-8"))
    text = "# Written by rewardkit eval; x\n" + tomli_w.dumps({**config, **changes})
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("n", [1, 2, 5, 60])
def test_merged_shards_are_the_whole_run_apart_from_times(
    cli: Here, shards: Callable[[int], list[str]], n: int
) -> None:
    """Groups are spread over rows and of unequal size; some of 60 shards are empty; the order of naming is nothing."""
    done = cli("merge", *reversed(shards(n)), "-o", "merged")
    assert done.code == 0, done.err
    for name in ("scores.jsonl", "summary.json", "config.toml"):
        assert timeless(cli.folder / "merged" / name) == timeless(cli.folder / "whole" / name), name


def test_every_group_is_in_exactly_one_shard() -> None:
    dice = random.Random(0)
    for n in (1, 2, 3, 7, 64):
        for key in (dice.getrandbits(64) for _ in range(200)):
            assert sum(in_shard(key, i, n) for i in range(1, n + 1)) == 1


def test_what_does_not_fit_together_is_refused(cli: Here, shards: Callable[[int], list[str]]) -> None:
    parts = shards(3)

    def refused(*arguments: str, said: str) -> None:
        done = cli("merge", *arguments)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
        assert "Traceback" not in done.err

    refused("part-1", "part-3", "-o", "m", said="shard 2/3 is missing")
    refused("part-1", "-o", "m", said="shards 2/3, 3/3 are missing")
    refused("part-1", "part-1", "part-2", "-o", "m", said="part-1 and part-1 are both shard 1/3")
    refused("whole", "-o", "m", said="whole is no shard")
    refused("nowhere", "-o", "m", said="no run folder nowhere")
    refused(*parts, "-o", "whole", said="whole has results already")
    refused(*parts, "-o", "part-2", "--overwrite", said="part-2 is one of the shards")
    assert not (cli.folder / "m").exists()
    text = (cli.folder / "part-2/summary.json").read_bytes()
    (cli.folder / "part-2/summary.json").unlink()
    refused(*parts, "-o", "m", said="part-2 (shard 2/3) is unfinished")
    (cli.folder / "part-2/summary.json").write_bytes(text)
    config = tomllib.loads((cli.folder / "part-2/config.toml").read_text(encoding="utf-8"))
    change(cli.folder / "part-2", hash={**config["hash"], "gsm8k": "0" * 64})
    refused(*parts, "-o", "m", said="different runs: a reward's code, version or options differ")
    change(cli.folder / "part-2", base=config, options={**config["options"], "shard": "2/4"})
    refused(*parts, "-o", "m", said="part-2 is one of 4 shards")
    change(cli.folder / "part-2", base=config)
    scores = cli.folder / "part-2/scores.jsonl"
    lines = scores.read_bytes().splitlines(keepends=True)
    scores.write_bytes(b"".join(lines[:-2]))
    refused(*parts, "-o", "m", said="its scores do not follow the input")
    scores.write_bytes(b"".join(lines + lines[-2:]))
    refused(*parts, "-o", "m2", said="part-2 has more scores than the input has completions")
    (cli.folder / "a.jsonl").write_text("{}\n", encoding="utf-8")
    refused(*parts, "-o", "m3", said="a.jsonl has changed since the run")
