"""verifiers up to 0.3: results.jsonl of two versions, with the metadata beside them."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_samples import SAMPLES, read_rows, sample_rows

from rewardkit.records import read_generations

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@pytest.mark.parametrize("version", ["v0.1.9", "v0.3.1"])
def test_the_samples(version):
    done = list(read_generations(SAMPLES / f"verifiers/{version}/results.jsonl"))
    assert [(g.sample.id, g.start, g.sample.reference) for g in done] == [(0, at, "7") for at in range(3)]
    assert len({g.key for g in done}) == 1
    assert [m["role"] for m in done[0].sample.prompt] == ["system", "user"]
    first, second, failed = (g.completions[0] for g in done)
    assert (first.text, first.metadata["label"], second.metadata["label"]) == ("3 + 4 = 7\n#### 7", 1.0, 0.0)
    assert (first.metadata["correct"], first.metadata["short"]) == (1.0, 0.5)
    assert failed.error.endswith("Error('the endpoint closed the connection')")  # and not a 0
    assert "label" not in failed.metadata and failed.metadata["reward"] == 0.0
    assert (done[0].sample.metadata["env_id"], done[0].sample.metadata["model"]) == ("sums", "written")


@pytest.mark.parametrize("data", [None, b"", b"{", b"[]", b'{"env_id": 7}', b"\xff\xfe{\x00"])
def test_the_metadata_is_never_required(data, tmp_path):
    shutil.copy(SAMPLES / "verifiers/v0.3.1/results.jsonl", tmp_path)
    if data is not None:
        (tmp_path / "metadata.json").write_bytes(data)
    done = list(read_generations(tmp_path / "results.jsonl"))
    assert len(done) == 3 and "env_id" not in done[0].sample.metadata
    assert done[0].key == next(iter(read_generations(SAMPLES / "verifiers/v0.3.1/results.jsonl"))).key


def test_texts_info_and_truncation(tmp_path):
    """Completions of text environments; info as JSON text; gold in info; an error that is no error."""
    old = sample_rows("verifiers/v0.1.9/results.jsonl")[0]
    del old["answer"]
    row = {
        **old,
        "prompt": "2 + 2 =",
        "completion": " 4",
        "info": '{"answer": "4"}',
        "is_truncated": True,
        "error": "None",
    }
    (done,) = read_rows(tmp_path / "results.jsonl", [row])
    (said,) = done.completions
    assert (said.text, said.messages, said.error, said.finish_reason) == (" 4", None, None, "length")
    assert (done.sample.prompt, done.sample.reference, done.sample.metadata["info"]) == (
        "2 + 2 =",
        "4",
        {"answer": "4"},
    )


def test_tools_between_are_kept(tmp_path):
    turns = [{"role": "assistant", "content": "I add."}, {"role": "tool", "content": "7"},
             {"role": "assistant", "content": "#### 7"}]  # fmt: skip
    (done,) = read_rows(
        tmp_path / "a.jsonl", [{**sample_rows("verifiers/v0.3.1/results.jsonl")[0], "completion": turns}]
    )
    assert (done.completions[0].text, list(done.completions[0].messages)) == ("#### 7", turns)


@given(
    st.lists(st.tuples(st.integers(-2, 2), text, text, st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=6),
    st.sampled_from(["v0.1.9", "v0.3.1"]),
)
def test_what_is_written_is_read_back(tmp_path_factory, rows, version):
    base = sample_rows(f"verifiers/{version}/results.jsonl")[0]
    written = [
        {**base, "example_id": id, "prompt": f"q{id}", "answer": f"#{id}", "reward": reward,
         "completion": [{"role": "assistant", "content": said}], "note": note}
        for id, said, note, reward in rows
    ]  # fmt: skip
    done = read_rows(tmp_path_factory.mktemp("vf") / "results.jsonl", written)
    found = [(g.sample.id, c.text, c.metadata["note"], c.metadata["label"]) for g in done for c in g.completions]
    assert found == rows
    assert len({g.key for g in done}) == len({id for id, *_ in rows})
