"""Prompts: which column is one, their order over epochs and a resume, and the token ids that a model gets."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rewardkit.errors import InputError, MapError, UsageError
from rewardkit.types import Sample
from trainer_backend.data import PromptOrder, as_chats, encode, load_samples

USER = [{"role": "user", "content": "2+2?"}]


def lines(folder: Path, rows: list[Any], name: str = "train.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


# ----------------------------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize(
    ("row", "prompt", "reference"),
    [
        ({"prompt": "2+2?", "reference": "4"}, "2+2?", "4"),
        ({"question": "2+2?", "answer": "4"}, "2+2?", "4"),
        ({"problem": "2+2?", "solution": "s", "answer": 4}, "2+2?", 4),
        ({"Question": "2+2?", "Answer": "4"}, "2+2?", "4"),
        ({"prompt": USER, "ground_truth": "4"}, USER, "4"),
        ({"prompt": USER, "reward_model": {"ground_truth": "4", "style": "rule"}}, USER, "4"),  # verl
        ({"messages": [*USER, {"role": "assistant", "content": "4"}]}, USER, None),
        ({"prompt": "2+2?", "other": 1}, "2+2?", None),
        ({"问题": "2+2?", "答案": "4"}, "2+2?", "4"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_prompt_and_reference_are_found_by_their_names(
    tmp_path: Path, row: dict[str, Any], prompt: Any, reference: Any
) -> None:
    for source in (lines(tmp_path, [row, row]), [row, row]):
        samples = load_samples(source)
        assert [(one.prompt, one.reference, one.id) for one in samples] == [(prompt, reference, at) for at in (0, 1)]
        rest = {key: value for key, value in row.items() if key not in ("prompt", "reference")}
        assert samples[0].metadata == rest  # rewards may ask for any column


def test_every_format_gives_the_same_tasks(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"question": "2+2?", "answer": "4", "id": "a"}, {"question": "3+2?", "answer": "5", "id": "b"}]
    data = datasets.Dataset.from_list(rows)
    data.to_parquet(tmp_path / "train.parquet")
    (tmp_path / "train.json").write_text(json.dumps(rows), encoding="utf-8")
    (tmp_path / "train.csv").write_text("question,answer,id\n2+2?,4,a\n3+2?,5,b\n", encoding="utf-8")
    expected = load_samples(rows)
    assert [one.id for one in expected] == ["a", "b"]
    for source in (data, lines(tmp_path, rows), *(tmp_path / f"train.{kind}" for kind in ("parquet", "json", "csv"))):
        assert load_samples(source) == expected, source
    assert load_samples(data, limit=1) == expected[:1] == load_samples(lines(tmp_path, rows), limit=1)
    assert load_samples(expected) == expected


def test_prompts_of_saved_generations_are_taken_once_each(tmp_path: Path) -> None:
    line = {"schema": "rewardkit.generation/1", "id": "a", "prompt": "2+2?", "reference": "4",
            "completions": [{"text": "4"}], "columns": {"level": 1}}  # fmt: skip
    path = lines(tmp_path, [line, {**line, "step": 2}, {**line, "id": "b"}])
    samples = load_samples(path)
    assert [(one.id, one.prompt, one.reference, one.metadata) for one in samples] == [
        ("a", "2+2?", "4", {"level": 1}),
        ("b", "2+2?", "4", {"level": 1}),
    ]


def test_a_data_set_without_a_prompt_column_names_the_columns_found(tmp_path: Path) -> None:
    path = lines(tmp_path, [{"task": "2+2?", "gold": "4", "level": 1}])
    with pytest.raises(MapError) as caught:
        load_samples(path)
    text = str(caught.value)
    assert "train.jsonl" in text and "its columns are task, gold, level" in text and 'prompt = "task"' in text
    with pytest.raises(MapError, match=r"no column 'tsk' \(data.prompt\); did you mean task\? Its columns are task"):
        load_samples(path, prompt="tsk")
    with pytest.raises(MapError, match=r"no column 'answer' \(data.reference\); its columns are task"):
        load_samples(path, prompt="task", reference="answer")
    (only,) = load_samples(path, prompt="task", reference="level")
    assert (only.prompt, only.reference) == ("2+2?", 1)


def test_a_path_into_a_column_is_followed() -> None:
    row = {"extra": {"question": "2+2?"}, "a.b": "4"}
    (only,) = load_samples([row], prompt="extra.question", reference="a.b")
    assert (only.prompt, only.reference) == ("2+2?", "4")


@pytest.mark.parametrize("held", [None, "", "  ", 3, [], [1]], ids=repr)
def test_a_row_without_a_prompt_is_named_by_its_line(tmp_path: Path, held: Any) -> None:
    path = lines(tmp_path, [{"prompt": "a"}, {"prompt": held}])
    with pytest.raises(InputError, match=r"^train.jsonl:2: prompt is .*, where (text or a list of chat|a message has)"):
        load_samples(path)


def test_lines_that_are_none_and_files_that_are_none(tmp_path: Path) -> None:
    path = lines(tmp_path, [{"prompt": "a"}])
    path.write_text(path.read_text() + '{"prompt": ', encoding="utf-8")
    with pytest.raises(InputError, match=r"train.jsonl:2 is no row"):
        load_samples(path)
    with pytest.raises(InputError, match=r"trian.jsonl; did you mean train.jsonl\?"):
        load_samples(tmp_path / "trian.jsonl")
    with pytest.raises(InputError, match="no rows"):
        load_samples([])


def test_sources_of_another_kind_are_told_what_is_wanted() -> None:
    for source, wanted in (
        (3, "a path, a list of dicts or a datasets.Dataset, got a int"),
        (["a"], r'row 0 of the data set is a str, where a dict is wanted; write \{"prompt"'),
        ({"train": [], "test": []}, "a mapping of train, test; give one of them"),
    ):
        with pytest.raises(UsageError, match=wanted):
            load_samples(source)


def test_a_text_becomes_a_chat_with_its_system_message() -> None:
    system = {"role": "system", "content": "Be brief."}
    plain, chat = Sample(1, "2+2?", "4", {"k": 1}, 3), Sample(2, [system, *USER])
    assert [one.prompt for one in as_chats([plain, chat])] == [USER, [system, *USER]]
    first, second = as_chats([plain, chat], "Other.")
    assert first.prompt == [{"role": "system", "content": "Other."}, *USER]
    assert second.prompt == [system, *USER]  # it has one
    assert (first.id, first.reference, first.metadata, first.step) == (1, "4", {"k": 1}, 3)


# ------------------------------------------------------------------------------------------------------------- order


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("count", "step"), [(5, 2), (7, 7), (3, 8), (1, 4)])
def test_no_prompt_is_drawn_twice_in_an_epoch(count: int, step: int, shuffle: bool) -> None:
    order = PromptOrder(count, seed=3, shuffle=shuffle)
    drawn = [at for _ in range(10) for at in order.take(step)]
    assert order.position == 10 * step
    for start in range(0, len(drawn) - count + 1, count):  # epochs follow each other without a gap
        assert sorted(drawn[start : start + count]) == list(range(count))
    if not shuffle:
        assert drawn == [at % count for at in range(10 * step)]


def test_epochs_have_orders_of_their_own_that_a_seed_decides() -> None:
    def epochs(seed: int) -> list[list[int]]:
        order = PromptOrder(20, seed)
        return [order.take(20) for _ in range(3)]

    assert epochs(0) == epochs(0)
    assert len({tuple(epoch) for seed in (0, 1) for epoch in epochs(seed)}) == 6


ORDER = [5, 3, 1, 4, 0, 2]  # of 6 prompts with seed 4


def test_the_order_is_the_same_in_every_version_of_python() -> None:
    """By the documented rule, `random.Random("seed/epoch").shuffle`, and kept: a resume may meet another Python."""
    expected = list(range(6))
    random.Random("4/0").shuffle(expected)
    assert PromptOrder(6, 4).take(6) == expected == ORDER


@pytest.mark.parametrize("position", [0, 1, 4, 5, 6, 13])
def test_a_resumed_order_goes_on_where_it_was(position: int) -> None:
    whole = PromptOrder(5, seed=1)
    every = whole.take(position + 9)
    resumed = PromptOrder(5, seed=1, position=position)
    assert resumed.take(4) + resumed.take(5) == every[position:]
    assert resumed.position == whole.position


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="0 prompts"):
        PromptOrder(0)
    with pytest.raises(UsageError, match="position"):
        PromptOrder(3, position=-1)


def test_orders_are_even_over_seeds() -> None:
    """First places over 600 seeds of 6: each near 100 (4 standard deviations of a binomial are 37)."""
    first = Counter(PromptOrder(6, seed).take(1)[0] for seed in range(600))
    assert all(abs(first[at] - 100) < 37 for at in range(6))


# --------------------------------------------------------------------------------------------------------- token ids

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKS = CHATML.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>\n{% endif")
# As Qwen3's: an empty thought is put into the last reply, none into earlier ones.
EMPTY_THOUGHT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)
# As gpt-oss: the header of the turn goes on after what opens it.
CHANNELS = (
    "{% for m in messages %}<|start|>{{ m['role'] }}{% if m['role'] == 'assistant' %}<|channel|>final{% endif %}"
    "<|message|>{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
STRICT = "{% if messages|length > 1 %}{{ raise_exception('one turn only') }}{% endif %}" + THINKS


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A tokenizer with one token a character."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    letters = sorted({*map(chr, range(32, 127)), "\n", "⁂"})
    special = ["<s>", "</s>", "<unk>"]
    vocabulary = {text: at for at, text in enumerate([*special, *letters])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
    inner.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>", name_or_path="tiny"
    )


def text_of(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return "".join(tokenizer.convert_ids_to_tokens(list(ids)))


@pytest.mark.parametrize(
    ("template", "options", "opener"),
    [
        (CHATML, {}, ""),
        (THINKS, {}, "<think>\n"),
        (EMPTY_THOUGHT, {}, "<think>\n"),
        (EMPTY_THOUGHT, {"enable_thinking": False}, "<think>\n\n</think>\n\n"),
        (CHANNELS, {}, ""),
        (STRICT, {}, ""),  # it refuses a second turn, so nothing is known of its header
    ],
    ids=["chatml", "thinks", "empty-thought", "thinking-off", "channels", "strict"],
)
def test_the_opener_is_what_the_template_writes_of_the_reply(
    tokenizer: Any, template: str, options: dict[str, Any], opener: str
) -> None:
    ((prompt,), refused) = encode([Sample(0, USER)], tokenizer, chat_template=template, chat_template_kwargs=options)
    whole = tokenizer.apply_chat_template(
        USER, tokenize=False, add_generation_prompt=True, chat_template=template, **options
    )
    assert prompt.opener == opener and not refused
    assert text_of(tokenizer, prompt.ids) == whole  # the template's own text, without another <s> in front
    assert whole.endswith(opener)


def test_a_chat_that_ends_with_the_assistant_is_continued(tokenizer: Any) -> None:
    chat = [*USER, {"role": "assistant", "content": "It is <answer>"}]
    ((prompt,), _) = encode([Sample(0, chat)], tokenizer, chat_template=CHATML)
    assert text_of(tokenizer, prompt.ids).endswith("<|im_start|>assistant\nIt is <answer>")
    assert prompt.opener == "It is <answer>"


def test_text_is_tokenised_with_the_tokenizers_own_start_and_never_an_end(tokenizer: Any) -> None:
    ((prompt,), _) = encode([Sample(0, "2+2?")], tokenizer)
    assert text_of(tokenizer, prompt.ids) == "<s>2+2?" and prompt.opener == ""
    import copy

    import tokenizers

    ends = copy.deepcopy(tokenizer)
    ends.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    assert ends("a")["input_ids"][-1] == 1  # it would put one
    ((prompt,), _) = encode([Sample(0, "2+2?")], ends)
    assert text_of(tokenizer, prompt.ids) == "<s>2+2?"


def test_a_prompt_that_is_too_long_is_refused_and_never_cut(tokenizer: Any) -> None:
    samples = [Sample(at, "x" * length) for at, length in enumerate((3, 4, 5, 9))]
    prompts, refused = encode(samples, tokenizer, max_prompt_length=5)  # with <s>
    assert [one.sample.id for one in prompts] == [0, 1]
    assert [(one.sample.id, one.tokens) for one in refused] == [(2, 6), (3, 10)]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("  ", "is an empty text, where text or a list of chat messages is wanted"),
        (5, "is 5, where text or"),
        ([], "is an empty list, where text or"),
        (None, "is missing, where text or"),
        (
            [{"role": "user", "content": "2+2?"}, {"rol": "user", "content": "\x1b[31m"}],
            r"is a list whose item 1 has the keys rol, content \(.*\), where a message has role and content",
        ),
        (["2+2?"], r"is a list whose item 0 is no message \('2\+2\?'\)"),
    ],
)
def test_a_column_called_prompt_that_holds_none_is_told_with_its_row_and_value(value: Any, wanted: str) -> None:
    with pytest.raises(InputError, match=f"^row 0 of the data set: prompt {wanted}") as found:
        load_samples([{"prompt": value, "answer": "4"}] * 3)
    assert "\x1b" not in str(found.value)
    assert load_samples([{"prompt": value, "question": "2+2?"}])[0].prompt == "2+2?"


def test_texts_and_chats_keep_their_order_beyond_one_batch(tokenizer: Any) -> None:
    samples = [Sample(at, f"{at}" if at % 3 else [{"role": "user", "content": f"{at}"}]) for at in range(1500)]
    prompts, _ = encode(samples, tokenizer, chat_template=CHATML)
    assert [one.sample.id for one in prompts] == list(range(1500))
    for at in (1, 3, 1025, 1026, 1499):
        assert f"{at}" in text_of(tokenizer, prompts[at].ids)


def test_chats_without_a_template_say_what_to_do(tokenizer: Any) -> None:
    with pytest.raises(InputError, match=r"the tokenizer of tiny has no chat template.*data\.chat = false"):
        encode([Sample(0, USER)], tokenizer)


def test_a_template_that_refuses_a_chat_is_named_with_the_sample(tokenizer: Any) -> None:
    template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(InputError, match="tiny refuses the prompt of sample 'q7': System role not supported"):
        encode([Sample("q7", USER)], tokenizer, chat_template=template)


def test_messages_written_as_from_and_value_are_understood(tokenizer: Any) -> None:
    chat = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}, {"from": "human", "value": "3+2?"}]
    ((prompt,), _) = encode([Sample(0, chat)], tokenizer, chat_template=CHATML)
    expected = (
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\n3+2?<|im_end|>\n"
    )
    assert text_of(tokenizer, prompt.ids) == expected + "<|im_start|>assistant\n"
