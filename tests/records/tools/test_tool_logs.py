"""What holds for every tool's log: who claims it, what faults do to it, and that the command line scores it."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path

import pytest
from command_line import Here, cli  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st
from log_samples import LOGS, OTHERS, SAMPLES, sample_rows, texts, write_rows

from rewardkit import Completion, Generation, Sample
from rewardkit.errors import InputError
from rewardkit.records import read_generations, write_generations
from rewardkit.records.chat import NoText
from rewardkit.records.rows import NotGenerations, built_in_readers
from rewardkit.records.source import HEAD, Source
from rewardkit.records.tools.lines import LineFormat, Unread, first_row

READERS = {name: reader for name, reader in built_in_readers().items() if name in {row[0] for row in LOGS.values()}}
ALL = built_in_readers()


def claims(path: Path) -> dict[str, int]:
    source = Source(path)
    head = source.head()
    found = {name: reader.detect(source.plain_name, head) for name, reader in ALL.items()}
    return {name: sure for name, sure in found.items() if sure >= 95}


def tool_claims(path: Path) -> set[str]:
    return set(claims(path)) & set(READERS)


@pytest.mark.parametrize("name", [*LOGS, *OTHERS])
def test_each_sample_is_claimed_by_its_own_reader_and_no_other(name, tmp_path):
    """Also under another name and compressed, as detection goes by fields."""
    reader = LOGS[name][0] if name in LOGS else OTHERS[name]
    assert set(claims(SAMPLES / name)) == {reader}
    if name == "skyrl/aggregated_results.jsonl":
        return  # only its name tells it from other figures
    (tmp_path / "x.gz").write_bytes(gzip.compress((SAMPLES / name).read_bytes()))
    assert set(claims(tmp_path / "x.gz")) == {reader}


def test_every_reader_of_lines_has_a_sample():
    lines = {name for name, reader in ALL.items() if isinstance(reader, LineFormat) and reader.unit == "line"}
    assert lines == set(READERS)


NEAR = {  # rows that look like a tool's and are not
    "verl without gts": {"input": "a", "output": "b", "score": 1, "step": 2},
    "verl input as chat": {"input": [{"role": "user"}], "output": "b", "gts": "1", "score": 1, "step": 1},
    "verl uid of another kind": {"input": "a", "output": "b", "score": 1, "step": 2, "uid": "abc"},
    "results of somebody": {"example_id": 1, "prompt": "a", "completion": "b", "reward": 1.0},
    "trl-like": {"step": 1, "prompt": "a", "completion": "b", "advantage": 0.5, "reward": 1.0},
    "rollout with a reward": {"response": {"output": [{"type": "message"}]}, "reward": 1.0},
    "task index": {"task_index": 0, "reward": 1.0, "response": {"output_text": "7"}},
    "custom_id alone": {"custom_id": "a", "response": "text"},
    "custom_id and error": {"custom_id": "a", "error": "x", "completion": "y"},
    "custom_id as a number": {"custom_id": 1, "response": {"body": {}}, "error": None},
    "plain chat": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    "chat with gold": {"messages": [{"role": "assistant", "content": "b"}], "ground_truth": 1, "evaluation_result": 1},
    "input_metadata": {"input_metadata": {"row_id": "a"}, "completion": "b"},
    "doc rows": {"doc_id": 1, "doc": {"q": "a"}, "target": "b", "response": "c"},
    "doc rows in part": {"doc_id": 1, "doc": {"q": "a"}, "arguments": [], "resps": [["a"]], "filtered_resps": ["a"]},
    "traces of another kind": {"task": {"data": "x"}, "traces": []},
    "traces with spans": {"task": {"data": {}}, "traces": [{"spans": []}]},
    "skyrl without environment": {"input_prompt": "a", "output_response": "b", "score": 1.0},
    "choices": {"question": "a", "choices": ["b", "c"], "answer": 0},
    "choices of completions": {"prompt": "a", "choices": [{"text": "b"}], "answer": "1"},
    "response text": {"request": "a", "response": "b"},
    "response object": {"request": {"q": "a"}, "response": {"text": "b"}},
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_are_claimed_by_no_tool(name, tmp_path):
    assert tool_claims(write_rows(tmp_path / "rows.jsonl", [NEAR[name]] * 2)) == set()


def test_our_own_records_are_no_tools(tmp_path):
    """Trap: a column of our own records may hold a whole row of a tool, or its names."""
    columns = sample_rows("lm_eval/samples_sums.jsonl")[0] | sample_rows("verl/20.jsonl")[0]
    group = Generation(Sample("a", "p", "1", columns), (Completion("x"),))
    write_generations(tmp_path / "g.jsonl", [group])
    assert claims(tmp_path / "g.jsonl") == {"generations": 100}


def test_shared_files_are_no_tools(shared):
    """Every file of other shapes that lies in the data kit, the awkward ones too."""
    found = {}
    for path in sorted(shared("data").rglob("*")):
        if path.is_file() and path.suffix in (".jsonl", ".json", ".csv", ".gz"):
            try:
                found[path.name] = tool_claims(path)
            except InputError:  # UTF-16
                continue
    assert len(found) > 20
    assert {name: tools for name, tools in found.items() if tools} == {}


@pytest.mark.parametrize("name", LOGS)
def test_documents_with_such_rows_are_not_lines(name, tmp_path):
    """Trap: the last row of a JSON list has no comma, so its line is an object."""
    rows = (sample_rows(name) * 3)[:3]
    lines = ",\n".join(map(json.dumps, rows))
    for text in (f"[\n{lines}\n]\n", f'{{"samples": [\n{lines}\n]}}\n', json.dumps(rows), json.dumps(rows, indent=1)):
        (tmp_path / "a.json").write_text(text)
        assert tool_claims(tmp_path / "a.json") == set()


@pytest.mark.parametrize("name", LOGS)
def test_the_first_line_may_be_broken_or_blank(name, tmp_path):
    data = (SAMPLES / name).read_bytes()
    (tmp_path / "a.jsonl").write_bytes(b"\n" + data.split(b"\n")[0][:40] + b"\r\n" + data)
    assert tool_claims(tmp_path / "a.jsonl") == {LOGS[name][0]}


def long_row(name):
    """A first row longer than what detection sees: the field that comes last of those that a run makes long."""
    row = copy.deepcopy(sample_rows(name)[0])
    place = {
        "lm_eval": ("doc", "answer"), "nemo_gym": ("response", "output", 0, "content", 0, "text"),
        "openai_batch": ("response", "body", "choices"), "openai_chat": ("choices",), "skyrl": ("env_extras", "note"),
        "verifiers_results": ("info",), "verifiers_traces": ("traces", 0, "nodes", 1, "message", "content"),
        "verl": ("pred",), "eval_protocol": ("zzz",),
    }[LOGS[name][0]]  # fmt: skip
    target = row
    for step in place[:-1]:
        target = target[step]
    if place[-1] == "choices":
        target["choices"] = [{"index": 0, "message": {"role": "assistant", "content": "word " * HEAD}}]
    else:
        target[place[-1]] = "word " * HEAD
    return row


LONG = ["lm_eval/samples_sums.jsonl", "nemo_gym/rollouts.jsonl", "openai/answers.jsonl", "skyrl/openai_gsm8k.jsonl",
        "verifiers/traces.jsonl", "verifiers/v0.3.1/results.jsonl", "verl/20.jsonl",
        "eval_protocol/rows.jsonl"]  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_a_first_row_longer_than_the_head_is_known(name, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [long_row(name), *sample_rows(name)])
    assert tool_claims(path) == {LOGS[name][0]}


def test_what_is_whole_of_a_row_that_is_cut_off():
    head = json.dumps({"a": [1, {"b": 'x,]}\\"'}], "c": {"d": 1, "e": "y" * HEAD}}).encode()[:HEAD]
    assert first_row(head) == ({"a": [1, {"b": 'x,]}\\"'}], "c": {"d": 1}}, True)
    for head in (b"", b"\n\n", b'{"a": 1', b"[1]\n", b"}" * HEAD, b'{"a"' * HEAD, b'{"a": ]' + b"," * HEAD):
        assert first_row(head)[0] == {}, head[:20]


@pytest.mark.parametrize("name", LOGS)
def test_faulty_lines_are_counted_and_take_no_neighbour_along(name, tmp_path):
    """Half lines, lists, null, blanks, and a row that lacks what the tool always writes."""
    good = list(read_generations(SAMPLES / name))
    lines = (SAMPLES / name).read_bytes().splitlines(keepends=True)
    bad = [b'{"a": \n', b"[1]\n", b"null\n", b"\xff\n", b"   \n"]
    data = lines[0] + b"".join(bad) + b"".join(lines[1:]) + lines[0][:-20]
    for side in (SAMPLES / name).parent.glob("*_requests.jsonl"):
        (tmp_path / side.name).write_bytes(side.read_bytes())
    (tmp_path / Path(name).name).write_bytes(data)
    records = read_generations(tmp_path / Path(name).name)
    assert texts(list(records)) == texts(good)
    assert [row.line for row in records.bad] == [2, 3, 4, 5, len(lines) + len(bad) + 1]


@pytest.mark.parametrize("name", LOGS)
def test_a_row_without_any_field_is_bad_or_empty_and_never_a_crash(name, tmp_path):
    rows = sample_rows(name)
    records = read_generations(write_rows(tmp_path / "a.jsonl", [*rows, {}, {"unknown": 1}]))
    before = sum(1 for _ in read_generations(write_rows(tmp_path / "b.jsonl", rows)))
    assert sum(1 for _ in records) + records.bad_rows == before + 2


KEYS = st.sampled_from(["text", "role", "content", "message", "id", "type", "index"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=3),
    max_leaves=5,
)  # fmt: skip


def paths_in(value, at=()):
    yield at
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths_in(item, (*at, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from paths_in(item, (*at, place))


def replaced(row, path, value):
    row = copy.deepcopy(row)
    target = row
    for step in path[:-1]:
        target = target[step]
    if path:
        target[path[-1]] = value
    return row


@pytest.mark.parametrize("name", LOGS)
@settings(max_examples=60)
@given(data=st.data())
def test_any_value_anywhere_is_read_or_refused(name, data):
    """Only `Unread` and `NoText` may leave a reader, whatever a row holds at some place."""
    reader = READERS[LOGS[name][0]]
    row = data.draw(st.sampled_from(sample_rows(name)))
    for _ in range(data.draw(st.integers(1, 3))):
        row = replaced(row, data.draw(st.sampled_from(list(paths_in(row)))), data.draw(anything))
    try:
        found = list(reader.read(copy.deepcopy(row)))
    except (Unread, NoText):
        return
    for one in found:
        assert one.completions and all(type(each.text) is str for each in one.completions)
        assert one.id is None or type(one.id) in (int, str)
        assert one.step is None or type(one.step) is int
        json.dumps([one.prompt, one.reference, dict(one.metadata), [each.metadata for each in one.completions]])


@pytest.mark.parametrize("name", LOGS)
def test_separators_in_texts_do_not_end_a_line(name, tmp_path):
    rows = json.loads(json.dumps(sample_rows(name)).replace("####", "\\u2028####\\u2029\\u0085"))
    records = read_generations(write_rows(tmp_path / "a.jsonl", rows))
    assert len(list(records)) and records.bad_rows == 0
    assert any("\u2028####\u2029\x85" in text for text in texts(list(records))) or "####" not in json.dumps(rows)


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_a_tool_without_generations_say_so(name):
    with pytest.raises(NotGenerations, match=r"holds .*(give|lm-eval writes)"):
        read_generations(SAMPLES / name)


@pytest.mark.parametrize("low", [-1.0, 2])
def test_scores_outside_0_to_1_are_no_verdicts_of_any_row(low, tmp_path):
    """Trap: with scores of -1 and 1, the rows of 1 alone would be a label that is always right."""
    rows = [{**sample_rows("skyrl/openai_gsm8k.jsonl")[0], "score": score} for score in (1.0, 0.0, low, 1.0)]
    done = [c for g in read_generations(write_rows(tmp_path / "a.jsonl", rows)) for c in g.completions]
    assert [c.metadata for c in done] == [{"score": score} for score in (1.0, 0.0, low, 1.0)]


def test_a_late_score_outside_0_to_1_is_no_verdict(tmp_path):
    row = sample_rows("skyrl/openai_gsm8k.jsonl")[0]
    rows = [{**row, "score": 1.0}] * 150 + [{**row, "score": 7.5}]
    done = [c.metadata for g in read_generations(write_rows(tmp_path / "a.jsonl", rows)) for c in g.completions]
    assert done == [{"score": 1.0, "label": 1.0}] * 150 + [{"score": 7.5}]


@pytest.mark.parametrize("name", LOGS)
def test_eval_scores_each_sample_without_flags(name, cli: Here):  # noqa: F811
    """The figures follow from the samples' scripts, where right and wrong answers are written down."""
    _, gsm8k, label = LOGS[name]
    rewards = [
        "-r",
        "length",
        *(["-r", "gsm8k"] if gsm8k is not None else []),
        *(["-r", "label"] if label is not None else []),
    ]
    result = cli("eval", SAMPLES / name, *rewards, "--json", "-o", "run", "--max-error-rate", "1")
    assert result.code == 0, result.err
    (figures,) = result.summary["models"].values()
    assert result.summary["input"]["format"] == LOGS[name][0]
    assert result.summary["input"]["bad_rows"] == 0
    failed = sum(c.error is not None for g in read_generations(SAMPLES / name) for c in g.completions)
    for reward, mean in (("gsm8k", gsm8k), ("label", label)):
        if mean is not None:
            assert figures["rewards"][reward]["mean"] == pytest.approx(mean), reward
            assert figures["rewards"][reward]["errors"] == failed


def test_standard_input_is_read_without_its_sidecars(tmp_path, cli: Here):  # noqa: F811
    data = (SAMPLES / "openai/chat_output.jsonl").read_bytes()
    result = cli.process("eval", "-", "-r", "length", "--json", stdin=data)
    assert result.code == 0, result.err
    assert result.summary["input"]["format"] == "openai_batch"
