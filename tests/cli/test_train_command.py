"""`rewardkit train`: which backend gets which file with which options, and what is refused before torch is loaded."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import Here

import trainer_backend.backend
from rewardkit.errors import UsageError
from trainer_backend.config import GRPOConfig

BACKEND = """
import dataclasses, json
from rewardkit.errors import ServiceError
from rewardkit.hookspecs import hookimpl

@hookimpl
def rewardkit_backends(register):
    register("echo", "echo_backend:echo", "Says what it was given")
    register("old", "echo_backend:old", "Takes a path alone")
    register("number", "echo_backend:NUMBER", "Is no backend")
    register("absent", "echo_backend.away:run", "Cannot be imported")

NUMBER = 3

def echo(path, options):
    print(json.dumps({"path": str(path), **dataclasses.asdict(options)}, default=str))
    return 1 if options.require_learning else 0

def old(path):
    return 0
"""

FILE = '[model]\nname = "x/y"\n[data]\ntrain = "a.jsonl"\n[reward]\ntotal = "gsm8k"\n'


@pytest.fixture
def echo(cli: Here) -> Here:
    """A plugin with backends in the folder `site`, and a training file."""
    info = cli.folder / "site" / "rewardkit_echo-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rewardkit-echo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rewardkit]\nmine = echo_backend\n")
    (cli.folder / "site" / "echo_backend.py").write_text(BACKEND)
    (cli.folder / "train.toml").write_text(FILE)
    return cli


def run(cli: Here, *arguments: str, backend: str = "mine/echo") -> Any:
    path = os.pathsep.join(filter(None, [str(cli.folder / "site"), str(Path(__file__).parents[2])]))
    return cli.process("train", *arguments, "--backend", backend, env={"PYTHONPATH": path})


def test_a_backend_gets_the_file_and_what_was_said(echo: Here) -> None:
    done = run(echo, "train.toml")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {
        "path": "train.toml", "check": False, "resume": None, "force": False, "allow_change": False,
        "require_learning": False, "overwrite": False, "output": None, "set": [], "quiet": False,
    }  # fmt: skip
    done = run(
        echo, "train.toml", "--check", "--force", "--overwrite", "-o", "out", "-q", "--set", "a.b=1", "--set", "c.d=x y"
    )
    given = json.loads(done.out)
    assert [name for name, value in given.items() if value is True] == ["check", "force", "overwrite", "quiet"]
    assert (given["output"], given["set"]) == ("out", ["a.b=1", "c.d=x y"])
    assert run(echo, "train.toml", "--require-learning").code == 1  # what it returns is the exit code


def test_a_run_is_resumed_with_its_own_file_unless_one_is_given(echo: Here) -> None:
    folder = echo.folder / "runs" / "a"
    folder.mkdir(parents=True)
    assert "holds no config.toml" in run(echo, "--resume", "runs/a").err
    (folder / "config.toml").write_text(FILE)
    given = json.loads(run(echo, "--resume", "runs/a", "--allow-change").out)
    assert (given["path"], given["resume"], given["allow_change"]) == ("runs/a/config.toml", "runs/a", True)
    assert json.loads(run(echo, "train.toml", "--resume", "runs/a").out)["path"] == "train.toml"


@pytest.mark.parametrize(
    ("backend", "wanted"),
    [
        ("mine/old", "the backend 'mine/old' does not take what backends are called with, (path, options)"),
        ("mine/number", "echo_backend:NUMBER is no backend, but a int"),
        ("mine/absent", "echo_backend.away"),
        ("mine/ecko", "there is no backend named 'mine/ecko'; did you mean mine/echo?"),
    ],
)
def test_what_is_no_backend_is_refused(echo: Here, backend: str, wanted: str) -> None:
    done = run(echo, "train.toml", backend=backend)
    assert done.code == 2 and wanted in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((), "no training file is given; write rewardkit train FILE, or --resume RUN"),
        (("trian.toml",), "trian.toml: no such file; did you mean train.toml?"),
        (("other/x.toml",), "other/x.toml: no such file"),
        ((".",), ". is a folder, where a training file is wanted"),
        (("train.toml", "--resume", "none"), "--resume none: it does not exist"),
        (("train.toml", "--resume", "train.toml"), "--resume train.toml: it is no folder"),
        (("train.toml", "--resume", ".", "--overwrite"), "give one of them"),
        (("train.toml", "--resume", ".", "-o", "x"), "there is no place for -o"),
        (("train.toml", "--resume", ".", "--check"), "--check looks at a run before it starts"),
        (("train.toml", "--allow-change"), "give --resume RUN with it"),
        (("train.toml", "--backend", "gpro"), "did you mean grpo?"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_started_says_what_to_write(cli: Here, arguments: tuple[str, ...], wanted: str) -> None:
    (cli.folder / "train.toml").write_text(FILE)
    done = cli("train", *arguments)
    assert done.code == 2 and wanted in done.err and done.err.count("\n") == 1 and not done.out


@pytest.mark.parametrize(
    ("line", "overrides", "wanted"),
    [
        ("[grpo]\nnum_generations = 1\n", (), "train.toml: grpo.num_generations is 1"),
        ("[grpo]\nlearning_rat = 1.0\n", (), "train.toml: there is no key grpo.learning_rat; did you mean"),
        ("", ("grpo.max_step=1",), "--set grpo.max_step=1: there is no key grpo.max_step; did you mean"),
    ],
)
def test_a_wrong_file_is_refused_before_torch_is_loaded(
    cli: Here, line: str, overrides: tuple[str, ...], wanted: str
) -> None:
    (cli.folder / "train.toml").write_text(FILE + line)
    (cli.folder / "torch.py").write_text("raise SystemError('torch was imported')")  # found before the real one
    done = cli.process("train", "train.toml", *(part for text in overrides for part in ("--set", text)))
    assert done.code == 2 and wanted in done.err and "torch was imported" not in done.err


def test_missing_packages_are_one_sentence_with_the_line_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    absent: set[str] = set()
    monkeypatch.setattr(
        trainer_backend.backend.importlib.util,
        "find_spec",
        lambda name, find=importlib.util.find_spec: None if name in absent else object(),
    )

    def told(**settings: Any) -> str:
        with pytest.raises(UsageError) as caught:
            trainer_backend.backend.check_packages(GRPOConfig(**settings))
        return str(caught.value)

    trainer_backend.backend.check_packages(GRPOConfig(engine="vllm", load_in_4bit=True, report_to="trackio"))
    absent |= {"bitsandbytes", "vllm", "trackio"}
    trainer_backend.backend.check_packages(GRPOConfig())  # what is not used need not be there
    install = 'pip install "rewardkit[train]"'
    assert told(load_in_4bit=True) == f"model.load_in_4bit = true needs bitsandbytes, not installed here; {install}"
    assert told(optim="adamw_8bit").startswith('grpo.optim = "adamw_8bit" needs bitsandbytes')
    assert 'pip install "rewardkit[vllm]"' in told(engine="vllm") and 'engine = "transformers"' in told(engine="vllm")
    assert told(report_to="trackio").endswith("pip install trackio")
    absent |= {"torch", "peft"}
    assert told() == f"training needs torch and peft, not installed here; {install}"
    absent |= {"transformers"}
    assert told() == f"training needs torch, transformers and peft, not installed here; {install}"


def test_help_has_every_option_of_the_backends(cli: Here) -> None:
    from dataclasses import fields

    from rewardkit.training import TrainOptions

    done = cli("train", "--help")
    assert done.code == 0
    for field in fields(TrainOptions):
        assert re.search(rf"--{field.name.replace('_', '-')}\b", done.out), field.name
    page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    for field in fields(TrainOptions):
        assert f"| `{field.name}` |" in page, field.name
