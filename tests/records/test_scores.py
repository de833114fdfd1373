"""Score records: the fields of the design, strict JSON, short texts, and a half-written end."""

from __future__ import annotations

import json

import pytest

from rewardkit.errors import InputError
from rewardkit.records import cut_partial_line, read_scores, score_line
from rewardkit.types import Completion, Generation, Sample, Score

GROUP = Generation(Sample("q1"), (Completion("x"), Completion("y")), "m", start=4, key=255)
TREE = Score(
    0.7,
    parts=(
        Score(1.0, name="gsm8k", weight=0.7, extracted="12"),
        Score(
            0.0,
            "no tag",
            reason="no_answer",
            name="inner",
            weight=0.3,
            parts=(Score(None, "gold is text", reason="bad_reference", name="leaf"),),
        ),
    ),
    seconds=0.25,
)


def test_one_line_has_the_fields_of_the_design():
    assert json.loads(score_line(GROUP, 1, TREE, "total")) == {
        "schema": "rewardkit.score/1",
        "id": "q1",
        "index": 5,
        "model": "m",
        "reward": "total",
        "state": "scored",
        "value": 0.7,
        "reason": "",
        "extracted": None,
        "seconds": 0.25,
        "group": "00000000000000ff",
        "parts": [
            {"name": "gsm8k", "weight": 0.7, "state": "scored", "value": 1.0, "reason": ""},
            {
                "name": "inner",
                "weight": 0.3,
                "state": "scored",
                "value": 0.0,
                "reason": "no_answer: no tag",
                "parts": [
                    {
                        "name": "leaf",
                        "weight": None,
                        "state": "abstained",
                        "value": None,
                        "reason": "bad_reference: gold is text",
                    },
                ],
            },
        ],
    }


@pytest.mark.parametrize(
    ("score", "state", "code"),
    [
        (Score(1.0), "scored", None),
        (Score(0.0, "a: b", reason="wrong"), "scored", "wrong"),
        (Score(0.0, reason="timeout"), "scored", "timeout"),
        (Score(0.5, "note: timeout: x"), "scored", None),
        (Score(0.5, "two of four tags"), "scored", None),
        (Score(None, reason="missing"), "abstained", "missing"),
        (Score.error("raised", "KeyError: 'x'"), "error", "raised"),
    ],
)
def test_states_and_reasons_read_back(tmp_path, score, state, code):
    (tmp_path / "s").write_bytes(score_line(GROUP, 0, score, "r"))
    (found,) = read_scores(tmp_path / "s")
    assert (found.state, found.code, found.value, found.reason) == (state, code, score.value, score.why)


def test_a_code_that_its_state_cannot_have_is_free_text(tmp_path):
    data = score_line(GROUP, 0, Score(0.5), "r")
    (tmp_path / "s").write_bytes(data.replace(b'"reason":""', b'"reason":"raised: a hand"'))
    (found,) = read_scores(tmp_path / "s")
    assert (found.reason, found.code) == ("raised: a hand", None)


def test_an_extracted_text_cannot_act_on_a_terminal(tmp_path):
    data = score_line(GROUP, 0, Score(0.0, "\x9b2J", "\u202e12\u2066", "wrong"), "r")
    assert data.isascii()
    (tmp_path / "s").write_bytes(data)
    (found,) = read_scores(tmp_path / "s")
    assert (found.reason, found.extracted) == ("wrong: \x9b2J", "\u202e12\u2066")


def test_long_and_odd_texts_are_cut_and_made_safe(tmp_path):
    """Traps: a completion of 24 MB as its own answer; a lone surrogate, which UTF-8 cannot hold; a line separator."""
    score = Score(0.0, "d" * 10_000, "e\ud800\u2028\n" * 10_000, "wrong")
    data = score_line(GROUP, 0, score, "r")
    assert data.count(b"\n") == 1
    (tmp_path / "s").write_bytes(data)
    (found,) = read_scores(tmp_path / "s")
    assert len(found.reason) == len(found.extracted) == 300
    assert found.reason.endswith("d…")
    assert found.extracted.startswith("e\ufffd\u2028\n")


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_half_written_last_line_is_left_out_and_cut(tmp_path, cut):
    """Trap: when only the line end is missing the record looks whole, and appending would glue two lines together."""
    lines = [score_line(GROUP, n, TREE, "r") for n in (0, 1)]
    path = tmp_path / "s"
    path.write_bytes(b"".join(lines)[:-cut])
    assert [s.index for s in read_scores(path)] == [4]
    assert cut_partial_line(path) == len(lines[1]) - cut
    assert path.read_bytes() == lines[0]
    assert cut_partial_line(path) == 0


def test_a_file_without_a_line_end_is_cut_to_nothing(tmp_path):
    (tmp_path / "s").write_bytes(b"x" * 200_000)
    assert list(read_scores(tmp_path / "s")) == []
    assert cut_partial_line(tmp_path / "s") == 200_000
    assert cut_partial_line(tmp_path / "s") == 0


@pytest.mark.parametrize("bad", [b"{\n", b"[]\n", b'{"schema": "rewardkit.score/1"}\n'])
def test_a_broken_line_in_the_middle_is_an_error(tmp_path, bad):
    good = score_line(GROUP, 0, TREE, "r")
    (tmp_path / "s").write_bytes(good + bad + good)
    with pytest.raises(InputError, match="s:2: not a line of scores"):
        list(read_scores(tmp_path / "s"))


def test_another_version_is_refused(tmp_path):
    (tmp_path / "s").write_bytes(score_line(GROUP, 0, TREE, "r").replace(b"score/1", b"score/9"))
    with pytest.raises(InputError, match=r"rewardkit\.score/9; this version reads rewardkit\.score/1"):
        list(read_scores(tmp_path / "s"))
