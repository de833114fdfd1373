"""`rewardkit plan` from end to end: what it prints, its exit codes, and errors of one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Here

from rewardkit.cli.plan import PLANNER


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache of the hub, and no network."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_a_plan_is_printed_with_terms_path_time_and_longest_context(cli: Here) -> None:
    done = cli("plan", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--context", "20480", "--rank", "32")
    assert done.code == 0 and not done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("model    llama-3.1-8b of the built-in table: 8,030.3M parameters as bfloat16, 83.89M")
    assert lines[2] == "room     133.9 GB: 95 % of the 141 GB of an H200"
    (cache,) = [line for line in lines if "key-value cache" in line]
    assert " ".join(cache.split()[2:]) == "21.475 sampling device 8 x 20,480 x 32 x 2 x 2 x 1,024"
    assert [line.split()[0] for line in lines if line and not line.startswith(" ")] == [
        "model", "step", "room", "memory", "path", "fits", "time", "longest",
    ]  # fmt: skip
    assert "an estimate" in done.out and "sampling comes on top" in done.out


def test_only_a_size_that_was_asked_for_and_missed_is_exit_code_1(cli: Here) -> None:
    plan = ["plan", "--model", "qwen2.5-14b", "--context", "20480"]
    assert cli(*plan, "--fit-in", "100GB").code == 0
    missed = cli(*plan, "--fit-in", "20GB")
    assert missed.code == 1 and "fits     no: " in missed.out and not missed.err
    assert "model.load_in_4bit = true and grpo.max_completion_length" in missed.out
    card = cli(*plan, "--gpu", "4090")
    assert card.code == 0 and "fits     no: " in card.out
    small = cli(*plan, "--fit-in", "1GB")
    assert small.code == 1 and "no settings of this model that fit were found: take a smaller model" in small.out


def test_json_is_strict_and_alone_on_standard_output(cli: Here) -> None:
    done = cli("plan", "--model", "qwen2.5-14b", "--context", "20480", "--fit-in", "20GB", "--json")
    found = done.summary
    assert done.code == 1 and not done.err and found["schema"] == "rewardkit.plan/1"
    assert found["fits"] is False and found["limit_gb"] == 20.0 and found["seconds_update"] is None
    wanted = (
        "total_gb training_gb sampling_gb host_gb fits limit_gb path token_budget seconds_update longest_context terms"
        " advice"
    )
    assert set(wanted.split()) <= set(found)
    assert set(found["terms"][0]) == {"name", "bytes", "formula", "phase", "place"}
    assert found["advice"][0]["settings"]["model.load_in_4bit"] is True


def test_a_folder_is_planned_in_a_process_where_torch_cannot_be_imported(cli: Here) -> None:
    (cli.folder / "torch.py").write_text("raise SystemError('torch was imported')")
    (cli.folder / "transformers.py").write_text("raise SystemError('transformers was imported')")
    (cli.folder / "m").mkdir()
    (cli.folder / "m" / "config.json").write_text(
        json.dumps(
            {
                "model_type": "qwen3", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            }
        )
    )  # fmt: skip
    done = cli.process("plan", "--model", "m", "--context", "300", "--generations", "4", "--load-in-4bit")
    assert done.code == 0 and not done.err, done.err
    assert "m/config.json: 0.2M parameters as NF4" in done.out and "1 prompt x 4 completions" in done.out
    assert "positions" not in done.out  # config.json does not say how many there are


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("--model", "lama-3.1-8b", "--context", "9"), "none of the built-in table; did you mean llama-3.1-8b?"),
        (("--model", "x/y", "--context", "9"), "x/y: no such folder, no such model in the hub's cache ("),
        (("--model", "qwen3-8b", "--context", "100", "--prompt", "100"), "leaves no room for a completion; raise"),
        (("--model", "qwen3-8b", "--context", "100", "--fit-in", "12XB"), "--fit-in 12XB: a size above 0 is wanted"),
        (("--model", "qwen3-8b", "--context", "100", "--fit-in", "0"), "--fit-in 0: a size above 0 is wanted"),
        (("--model", "qwen3-8b", "--context", "100", "--gpu", "h20"), "no such card; did you mean h200?"),
        (("--model", "qwen3-8b", "--context", "100", "--gpu", "h100", "--cpu"), "give one of them"),
        (("--model", "qwen3-8b", "--context", "1"), "Invalid value for '--context'"),
        (("--model", "qwen3-8b", "--context", "9", "--generations", "1"), "Invalid value for '--generations'"),
        (("--context", "100"), "Missing option '--model'"),
        (("--model", "broken.json", "--context", "100"), "config.json has no hidden_size"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_code_2(cli: Here, arguments: tuple[str, ...], wanted: str) -> None:
    (cli.folder / "broken.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    done = cli("plan", *arguments)
    assert done.code == 2 and wanted in done.err and done.err.count("\n") == 1 and not done.out


def test_text_of_a_file_is_made_safe_for_a_terminal(cli: Here) -> None:
    folder = cli.folder / "a\x1b[31m"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,'
        ' "num_attention_heads": 2, "quantization_config": {"quant_method": "\\u001b[2J"}}'
    )
    done = cli("plan", "--model", folder, "--context", "64")
    assert done.code == 0 and "\x1b" not in done.out and "\\x1b[2J" in done.out


def test_the_planner_is_named_by_an_import_string_that_leads_somewhere() -> None:
    from rewardkit.targets import load_target
    from trainer_backend.plan.command import answer

    assert load_target(PLANNER) is answer
