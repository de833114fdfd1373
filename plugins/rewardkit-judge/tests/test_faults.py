"""A service that fails is an error, never a 0; what may pass by itself is tried again."""

from __future__ import annotations

import email.utils
import json
import time
from pathlib import Path
from typing import Any

import pytest
from servers import Judge, Step, chat, drips, hangs, raw, reset, says, slow, status, truncated

import rewardkit_judge.client as client
from rewardkit import Completion, Generation, OptionError, Sample, Score, UsageError, parse, score, score_text
from rewardkit_judge.ledger import totals
from rewardkit_judge.rewards import reference

GOOD = {"explanation": "x", "equivalent": True}
ONCE: list[tuple[str, Step]] = [
    ("429", status(429)),
    ("500", status(500)),
    ("503", status(503)),
    ("hangs", hangs),
    ("drips", drips),
    ("no JSON", raw(b"<html>oops")),
    ("half JSON", raw(chat(json.dumps(GOOD))[:40])),
    ("truncated", truncated),
    ("reset", reset),
    ("no choices", raw(b'{"choices": []}')),
    ("a list", raw(b"[1, 2]")),
    ("null content", says(None)),
    ("empty body", raw(b"")),
    ("not utf-8", raw(b"\xff\xfe\x00")),
    ("deep JSON", raw(b"[" * 100_000)),
]


def ask(judge: Judge, text: str = "It is 4.", **options: Any) -> Score:
    given = {"base_url": judge.base_url, "model": "m", "timeout": 1.0, "retries": 1} | options
    return score_text(reference.with_options(**given), text, reference="4", prompt="2 + 2?")


@pytest.mark.parametrize(("name", "step"), ONCE, ids=[name for name, _ in ONCE])
def test_one_fault_is_tried_again(judge: Judge, name: str, step: Step) -> None:
    judge.steps = [step]
    answer = ask(judge)
    assert answer.value == 1, answer.why
    assert len(judge.requests) == 2


@pytest.mark.parametrize(("name", "step"), ONCE, ids=[name for name, _ in ONCE])
def test_a_fault_that_lasts_is_an_error_not_a_zero(judge: Judge, name: str, step: Step) -> None:
    judge.otherwise = step
    answer = ask(judge)
    assert (answer.state, answer.reason, answer.value) == ("error", "service", None)
    assert "2 tries" in answer.detail
    assert len(judge.requests) == 2


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422, 302])
def test_what_will_not_pass_is_not_tried_again(judge: Judge, code: int) -> None:
    judge.otherwise = status(code, b'{"error": "no such model"}', Location="http://127.0.0.1:1/")
    answer = ask(judge, retries=3)
    assert answer.reason == "service"
    assert f"status {code}" in answer.detail
    assert "no such model" in answer.detail
    assert len(judge.requests) == 1


def test_retry_after_is_honoured_in_seconds(judge: Judge) -> None:
    judge.steps = [status(429, Retry_After="0.6")]
    assert ask(judge).value == 1
    assert judge.times[1] - judge.times[0] >= 0.6


def test_retry_after_is_honoured_as_a_date(judge: Judge) -> None:
    judge.steps = [status(503, Retry_After=email.utils.formatdate(time.time() + 2, usegmt=True))]
    assert ask(judge).value == 1
    assert judge.times[1] - judge.times[0] >= 0.9  # the date has whole seconds


@pytest.mark.parametrize("text", ["soon", "", "nan", "-3", "Wed, 99 Foo 2024"])
def test_an_odd_retry_after_does_no_harm(judge: Judge, text: str) -> None:
    judge.steps = [status(429, Retry_After=text)]
    assert ask(judge).value == 1


def test_a_wait_of_an_hour_is_an_error_at_once(judge: Judge) -> None:
    judge.steps = [status(429, Retry_After="3600")]
    answer = ask(judge)
    assert answer.reason == "service"
    assert "3,600 s" in answer.detail


@pytest.mark.parametrize(
    "bad",
    [
        "It is the same.",
        '{"equivalent": true}',
        '{"explanation": "x", "equivalent": "yes"}',
        '{"explanation": "x", "equivalent": 1}',
        '{"explanation": "x", "equivalent": true, "score": 1}',
        '{"explanation": "x", "equivalent": false, "equivalent": true}',
        '{"explanation": NaN, "equivalent": true}',
        'Sure! {"explanation": "x", "equivalent": true}',
        '[{"explanation": "x", "equivalent": true}]',
        "",
        "{" * 5_000,
    ],
)
def test_an_answer_that_does_not_fit_is_asked_for_once_more(judge: Judge, bad: str) -> None:
    judge.steps = [says(bad)]
    assert ask(judge).value == 1
    messages = judge.requests[1]["body"]["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    judge.steps = [says(bad), says(bad)]
    answer = ask(judge)
    assert (answer.state, answer.reason) == ("error", "service")
    assert "asked twice" in answer.detail


def test_a_fence_around_the_answer_is_no_fault(judge: Judge) -> None:
    judge.steps = [says(f"```json\n{json.dumps(GOOD)}\n```")]
    assert ask(judge).value == 1
    assert len(judge.requests) == 1


def test_a_response_without_end_is_cut_off(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_BODY", 10_000)
    judge.steps = [raw(b" " * 20_000)]
    assert "more than 10,000 bytes" in ask(judge, timeout=5).detail


def test_nobody_there_is_an_error() -> None:
    given = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "retries": 0}
    assert score_text(reference.with_options(**given), "4", reference="4").reason == "service"


def test_no_more_requests_at_a_time_than_allowed(judge: Judge) -> None:
    judge.otherwise = slow(0.05, says(GOOD))
    reward = reference.with_options(base_url=judge.base_url, model="m", concurrency=3)
    group = Generation(Sample("q", "2 + 2?", "4"), tuple(Completion(f"It is {i}.") for i in range(12)))
    (scored,) = score(reward, [group])
    assert [one.value for one in scored.scores["reference"]] == [1.0] * 12
    assert judge.most == 3


def test_one_failing_row_does_not_touch_the_others(judge: Judge) -> None:
    def picky(handler: Any) -> None:
        broken = "five" in json.dumps(handler.request_body)
        (status(500) if broken else says(GOOD))(handler)

    judge.otherwise = picky
    reward = reference.with_options(base_url=judge.base_url, model="m", retries=0)
    group = Generation(Sample("q", "2 + 2?", "4"), tuple(map(Completion, ("four", "five", "4"))))
    (scored,) = score(reward, [group])
    assert [one.state for one in scored.scores["reference"]] == ["scored", "error", "scored"]


# -- keys and the ledger


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = "key-of-this-test"
    monkeypatch.setenv("MY_KEY", key)
    judge.steps = [status(500, f"bad key {key}".encode())]
    answer = ask(judge, api_key_env="MY_KEY", ledger=str(tmp_path / "l.jsonl"), retries=0)
    assert judge.requests[0]["headers"]["Authorization"] == f"Bearer {key}"
    assert key not in answer.detail + (answer.trace or "") + (tmp_path / "l.jsonl").read_text()
    assert key not in reference.with_options(base_url=judge.base_url, api_key_env="MY_KEY").formula


def test_no_key_no_header(judge: Judge) -> None:
    ask(judge)
    assert "Authorization" not in judge.requests[0]["headers"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": ""}, "needs the option model"),
        ({"base_url": "localhost:8000"}, "base_url"),
        ({"base_url": "http://me:secret@127.0.0.1/v1"}, "no name, password"),
        ({"api_key_env": "sk-123"}, "never write the key"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0.0}, "timeout"),
        ({"concurrency": 0}, "concurrency"),
        ({"input_price": -1.0}, "input_price"),
    ],
)
def test_a_wrong_option_stops_the_run(judge: Judge, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError) as raised:
        ask(judge, **options)
    assert says in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "sk-123" not in str(raised.value)


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(UsageError):
        parse("'judge/reference'(modl='m')")


def test_the_ledger_has_every_request_and_sums_up(judge: Judge, tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "ledger.jsonl"
    judge.steps = [status(429), says(GOOD), says("no"), says(GOOD)]
    for _ in range(2):
        assert ask(judge, ledger=str(file), input_price=2.0, output_price=10.0).value == 1
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["status 429: busy", "ok", "ok", "ok"]
    assert [line["attempt"] for line in lines] == [1, 2, 1, 1]
    (total,) = totals(file)
    # Three answered calls of 100 prompt and 20 answer tokens: 3 * (100 * 2 + 20 * 10) / 1,000,000.
    assert (total.calls, total.failed, total.prompt_tokens, total.completion_tokens) == (4, 1, 300, 60)
    assert total.cost == pytest.approx(0.0012)
    with file.open("a") as end:
        end.write('{"schema": "rewardkit_judge.call/1", "ru')  # cut off by a full disk
    assert totals(file) == [total]


def test_the_command_prints_what_a_run_cost(judge: Judge, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from rewardkit_judge.costs import command

    ask(judge, ledger=str(tmp_path / "l"))
    printed = CliRunner().invoke(command, [str(tmp_path / "l")])
    assert printed.exit_code == 0
    assert "1 calls, 0 failed" in printed.output
    assert "1 calls without a price" in printed.output
    data = json.loads(CliRunner().invoke(command, [str(tmp_path / "l"), "--json"]).output)
    assert data["prompt_tokens"] == 100


def test_a_ledger_that_cannot_be_written_stops_the_run(judge: Judge, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be written"):
        ask(judge, ledger=str(tmp_path))
