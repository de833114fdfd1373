"""Where `rewardkit plan` finds a model, and that the table of well-known ones holds no invented shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rewardkit.errors import InputError, UsageError
from trainer_backend.plan import shape_from_json
from trainer_backend.plan.cards import CARDS, card_of
from trainer_backend.plan.models import KNOWN, find_config, hub_cache

PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen3-8b": 8_190_735_360,
    "smollm2-135m": 134_515_008,
}
"""Numbers of parameters as the hub's pages give them, from the weights themselves."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no network."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


def put(cache: Path, name: str, config: object, commit: str = "c0ffee") -> None:
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text(json.dumps(config))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)


def test_the_table_has_the_published_numbers_of_parameters() -> None:
    assert {name: shape_from_json(config).parameters for name, config in KNOWN.items()} == PUBLISHED


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("unsloth/Llama-3.2-1B-Instruct", "llama-3.2-1b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("Qwen/Qwen2.5-1.5B-Instruct", "qwen2.5-1.5b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m"),
        ("smollm2", "smollm2-135m"),
        ("QWEN2.5-14B", "qwen2.5-14b"),
    ],
)
def test_names_of_the_hub_are_those_of_the_table(name: str, known: str) -> None:
    found = find_config(name)
    assert found.config is KNOWN[known] and found.where == f"{known} of the built-in table"


@pytest.mark.parametrize(
    "name", ["mistralai/Mistral-7B-v0.1", "Qwen/Qwen2.5-1.5B-Instruct-AWQ", "meta-llama/Llama-3.1"]
)
def test_a_name_that_is_only_like_one_is_none(name: str) -> None:
    """Mistral 7B v0.1 has 32,000 tokens, v0.3 768 more; quantised weights take other memory."""
    with pytest.raises(InputError):
        find_config(name)


def test_what_was_loaded_before_is_taken_from_the_hubs_cache(cache: Path) -> None:
    mine = {"model_type": "llama", "hidden_size": 7}
    put(cache, "Qwen/Qwen2.5-1.5B-Instruct", mine)
    found = find_config("Qwen/Qwen2.5-1.5B-Instruct")
    assert found.config == mine and "in the hub's cache" in found.where  # also where the table has the name
    put(cache, "someone/else", {"old": 1}, "0001")
    put(cache, "someone/else", {"new": 1}, "0002")
    assert find_config("someone/else").config == {"new": 1}


def test_the_cache_is_where_the_hubs_own_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with what huggingface_hub itself makes of them."""
    import subprocess
    import sys

    for settings in ({"HF_HUB_CACHE": "/a"}, {"HF_HOME": "/b"}, {"XDG_CACHE_HOME": "/c"}, {}):
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        assert str(hub_cache()) == said


def test_a_folder_and_its_file_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert find_config(str(tmp_path)).config == find_config(str(tmp_path / "config.json")).config


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("lama-3.1-8b", "no such folder, no such model in the hub's cache ({hub}), none of the built-in table; did you"
                        " mean llama-3.1-8b?"),
        ("someone/secret", "none of the built-in table, and HF_HUB_OFFLINE is set; the table has llama-3.1-8b, "),
        ("{tmp}/modle", "modle: no such folder or file; did you mean model?"),
        ("./nothing", "./nothing: no such folder or file"),
        ("{tmp}/empty", "empty: the folder has no config.json"),
        ("{tmp}/many", "many: the folder has no config.json; there are models in model"),
        ("{tmp}/text.json", "text.json is not JSON, where the config.json of a model is wanted"),
        ("{tmp}/list.json", "list.json holds a JSON list, where the config.json of a model is an object"),
    ],
)  # fmt: skip
def test_a_model_that_is_nowhere_says_what_was_looked_for(name: str, wanted: str, tmp_path: Path) -> None:
    for folder in ("empty", "model", "many/model"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "many" / "model" / "config.json").write_text("{}")
    (tmp_path / "text.json").write_text("[model]")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(InputError) as caught:
        find_config(name.format(tmp=tmp_path))
    assert wanted.format(hub=tmp_path / "hub") in str(caught.value) and "\n" not in str(caught.value)


def test_cards_are_found_as_people_write_them() -> None:
    for text, name in [("H200", "h200"), ("RTX 4090", "4090"), ("nvidia geforce rtx 5090", "5090"), ("A100", "a100")]:
        assert card_of(text) is CARDS[name]
    with pytest.raises(UsageError, match=r"--gpu h20: no such card; did you mean h200\? The cards are b200, h200"):
        card_of("h20")
