"""The engine: order, placements, deadlines and states are the same wherever a reward runs."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardkit import (
    ColumnError,
    Completion,
    ContractError,
    Engine,
    Generation,
    Reward,
    Sample,
    Score,
    ServiceError,
    UsageError,
    Verdict,
    first_of,
    gate,
    group_reward,
    parse,
    reward,
    score,
    score_text,
)
from rewardkit.reward import FunctionReward

HERE = Path(__file__).parent / "rewards_for_tests.py"


def generation(*texts: str, reference: object = "1", id: int = 0, **columns: object) -> Generation:
    return Generation(Sample(id, "question", reference, columns), tuple(Completion(text) for text in texts))


def in_file(name: str) -> Reward:
    return parse(f"'{HERE}:{name}'")


def values(rewards: object, generations: list[Generation], **options: object) -> list[list[float | None]]:
    return [
        [answer.value for answer in next(iter(scored.scores.values()))]
        for scored in score(rewards, generations, **options)  # type: ignore[arg-type]
    ]


@reward
def length_here(completion: str) -> float:
    return float(len(completion))


@reward
async def length_later(completion: str) -> float:
    await asyncio.sleep(0.001 * (7 - len(completion) % 7))
    return float(len(completion))


MANY = [generation(*("x" * ((i * j) % 11) for j in range(1, 4)), id=i) for i in range(300)]
LENGTHS = [[float((i * j) % 11) for j in range(1, 4)] for i in range(300)]


@pytest.mark.parametrize("name", ["in_process", "in_thread", "later", "inline"])
@pytest.mark.parametrize("workers", [1, 3])
def test_every_placement_gives_the_same_scores_in_the_input_s_order(name: str, workers: int) -> None:
    assert values(in_file(name), MANY, workers=workers) == LENGTHS


def test_mixed_placements_in_one_sum_and_a_leaf_shared_by_two_columns_is_judged_once() -> None:
    total = in_file("in_process") + in_file("in_thread") + in_file("later") + in_file("inline")
    results = list(score({"total": total, "alone": in_file("counting")}, MANY[:20], workers=2))
    assert [[s.value for s in r.scores["total"]] for r in results] == [[4 * v for v in row] for row in LENGTHS[:20]]

    calls: list[str] = []

    @reward
    def counted(completion: str) -> float:
        calls.append(completion)
        return 1.0

    list(score({"a": counted, "b": counted + 0.5 * counted}, [generation("x", "y")]))
    assert calls == ["x", "y"]


def test_async_rewards_overlap_up_to_the_limit() -> None:
    running, most = 0, 0

    @reward
    async def slow(completion: str) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return 1.0

    generations = [generation("a", id=i) for i in range(40)]
    assert values(slow, generations, concurrency=8) == [[1.0]] * 40
    assert most == 8


def test_inside_a_running_event_loop_and_inside_a_thread() -> None:
    async def main() -> list[list[float | None]]:
        return values(in_file("in_process") + length_later, MANY[:10])

    expected = [[2 * v for v in row] for row in LENGTHS[:10]]
    assert asyncio.run(main()) == expected
    results: list[list[list[float | None]]] = []
    thread = threading.Thread(target=lambda: results.append(values(in_file("in_process") + length_later, MANY[:10])))
    thread.start()
    thread.join(60)
    assert results == [expected]


def test_a_hang_is_killed_and_the_rest_is_scored() -> None:
    texts = [["fine", "hang", "fine"], ["fine"], ["spin", "fine"]]
    results = list(score(in_file("may_hang"), [generation(*row, id=i) for i, row in enumerate(texts)], workers=2))
    states = [[(s.value, s.reason) for s in r.scores["may_hang"]] for r in results]
    late = (0.0, "deadline")
    assert states == [[(1.0, None), late, (1.0, None)], [(1.0, None)], [late, (1.0, None)]]


def test_an_async_reward_over_its_deadline_is_a_service_error_and_a_thread_too() -> None:
    for name in ("never_answers", "NeverAnswers"):
        (scored,) = score(in_file(name), [generation("a")])
        (answer,) = next(iter(scored.scores.values()))
        assert (answer.state, answer.reason) == ("error", "service")


def test_an_exception_is_a_state_with_place_and_trace_and_never_a_zero() -> None:
    @reward
    def divides(completion: str) -> float:
        return 1 / len(completion)

    (scored,) = score(divides, [generation("ab", "", "a")])
    first, second, third = scored.scores["divides"]
    assert (first.value, third.value) == (0.5, 1.0)
    assert (second.state, second.reason, second.value) == ("error", "raised", None)
    assert "ZeroDivisionError" in second.detail and "test_engine.py:" in second.detail
    assert second.trace is not None and "1 / len(completion)" in second.trace


def test_a_service_that_fails_is_an_error_of_its_own_kind() -> None:
    @reward
    def asks(completion: str) -> float:
        raise ServiceError("503 from the judge")

    assert score_text(asks, "x").why.startswith("service: ServiceError: 503 from the judge (test_engine.py:")


def test_one_number_for_a_group_of_eight_stops_the_run_and_names_the_reward() -> None:
    @group_reward
    def lazy(completions: list[str]) -> list[float]:
        return [1.0]

    with pytest.raises(ContractError, match=r"'lazy' returned 1 value for a group of 8"):
        list(score(lazy, [generation(*"abcdefgh")]))


def test_a_broken_contract_in_a_worker_stops_the_run_too() -> None:
    with pytest.raises(ContractError, match=r"'lazy_process' returned 1 value for a group of 8"):
        list(score(in_file("lazy_process"), [generation(*"abcdefgh")]))


def test_a_row_that_its_source_marks_as_failed_is_an_error_for_every_reward_and_leaves_the_group() -> None:
    seen: list[int] = []

    @group_reward
    def whole(completions: list[str]) -> list[float]:
        seen.append(len(completions))
        return [1.0] * len(completions)

    broken = Generation(Sample(0), (Completion("a"), Completion("", error="HTTP 500"), Completion("b")))
    (scored,) = score({"whole": whole, "length": length_here}, [broken])
    assert seen == [2]
    for name in ("whole", "length"):
        assert [s.value for s in scored.scores[name]] == [1.0, None, 1.0]
        assert scored.scores[name][1].why == "source_failed: HTTP 500"


def test_special_tokens_at_the_end_are_dropped_for_every_reward() -> None:
    assert score_text(length_here, "four<|im_end|>\n<|endoftext|>").value == 4.0
    assert score_text(length_here, "<|im_end|> inside stays").value == float(len("<|im_end|> inside stays"))


def test_missing_columns_are_named_before_anything_is_scored() -> None:
    calls: list[str] = []

    @reward
    def wants(completion: str, keywords: str) -> float:
        calls.append(completion)
        return 1.0

    with pytest.raises(
        ColumnError, match=r"sample 0: wants needs column 'keywords', found columns keyword; did you mean keyword\?"
    ):
        list(score(wants, [generation("a", keyword="x")]))
    assert calls == []
    with pytest.raises(
        ColumnError, match=r"gsm8k needs a reference.*found columns question, answr; did you mean answr\?"
    ):
        list(score(parse("gsm8k"), [generation("a", reference=None, question="q", answr="3")]))


def test_a_column_that_only_some_rows_lack_is_a_state_of_those_rows() -> None:
    @reward
    def wants(completion: str, keywords: str) -> float:
        return 1.0

    first, second = score(wants, [generation("a", keywords="x"), generation("b")])
    assert first.scores["wants"][0].value == 1.0
    assert second.scores["wants"][0].why.startswith("missing: the row has no column 'keywords'")


def test_generations_are_a_stream_and_are_not_read_ahead_without_bound() -> None:
    read = 0

    def endless() -> Iterator[Generation]:
        nonlocal read
        for i in itertools.count():
            read += 1
            yield generation("abc", id=i)

    with Engine(length_here + length_later) as engine:
        stream = engine.score(endless())
        assert [next(stream).generation.sample.id for _ in range(5)] == [0, 1, 2, 3, 4]
        assert read < 500
        stream.close()  # type: ignore[attr-defined]


def test_one_engine_scores_many_times_with_the_same_workers() -> None:
    with Engine(in_file("worker_pid"), workers=1) as engine:
        pids = {next(iter(r.scores.values()))[0].value for _ in range(3) for r in engine.score([generation("a")])}
    assert len(pids) == 1


def test_a_deadline_needs_a_reward_that_can_travel() -> None:
    @reward(timeout=1)
    def local(completion: str) -> float:
        return 1.0

    with pytest.raises(UsageError, match=r"'local' has a deadline.*move it to the top of a file"):
        Engine(local)


def spread(text: str, key: int, start: int, **columns: object) -> Generation:
    return Generation(Sample(key, "q", columns.get("answer"), columns), (Completion(text),), None, start, "", key)


def test_group_rewards_see_a_group_that_the_file_spreads_over_rows_and_the_file_s_order_stays() -> None:
    sizes: list[int] = []

    @group_reward
    def whole(completions: list[str]) -> list[float]:
        sizes.append(len(completions))
        return [float(i) for i in range(len(completions))]

    rows = [spread("a", 1, 0), spread("b", 2, 0), spread("c", 1, 1), spread("d", 2, 1), spread("e", 1, 2)]
    results = list(score(whole, rows))
    assert sizes == [3, 2]
    assert [r.generation for r in results] == rows
    assert [r.scores["whole"][0].value for r in results] == [0.0, 0.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("name", ["inline", "later", "in_process"])
def test_a_group_reward_beside_them_changes_no_other_reward(name: str) -> None:
    """Each row keeps its own reference and columns, also where rows of one group differ in them."""

    @group_reward
    def whole(completions: list[str]) -> list[float]:
        return [1.0 for _ in completions]

    @reward
    def own_column(completion: str, pred: int) -> float:
        return float(pred)

    rows = [spread("x" * i, i // 4 + 1, i % 4, pred=i, answer=i) for i in range(16)]
    alone = list(score({"column": own_column, "other": in_file(name), "gold": parse("exact")}, rows))
    beside = list(score({"g": whole, "column": own_column, "other": in_file(name), "gold": parse("exact")}, rows))
    for a, b in zip(alone, beside, strict=True):
        assert a.generation == b.generation
        for column in a.scores:
            assert [s.value for s in a.scores[column]] == [s.value for s in b.scores[column]]


@pytest.mark.parametrize("limit", [None, 30])
def test_a_timeout_error_of_the_reward_s_own_is_its_error_and_not_our_deadline(limit: float | None) -> None:
    @reward(timeout=limit)
    async def asks(completion: str) -> float:
        raise TimeoutError("the client gave up")

    answer = score_text(asks, "x")
    assert (answer.reason, answer.detail.partition(" (")[0]) == ("raised", "TimeoutError: the client gave up")


@pytest.mark.parametrize(
    "problem", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()], ids=repr
)
@pytest.mark.parametrize("limit", [None, 30])
def test_nothing_that_an_async_reward_raises_ends_the_loop(problem: BaseException, limit: float | None) -> None:
    @reward(timeout=limit)
    async def ends(completion: str) -> float:
        if completion == "bad":
            raise problem
        return 1.0

    (scored,) = score(ends, [generation("good", "bad", "good")])
    assert [s.reason for s in scored.scores["ends"]] == [None, "raised", None]


def test_threads_that_never_come_back_are_bounded_and_the_rest_fails_at_once() -> None:
    before = threading.active_count()
    rows = [generation("a", "b", id=i) for i in range(40)]
    with Engine(in_file("NeverAnswers"), concurrency=4) as engine:
        states = [answer.reason for r in engine.score(rows) for answer in next(iter(r.scores.values()))]
        assert threading.active_count() <= before + 4 * 4 + 2
    assert states == ["service"] * 80


def test_memory_errors_are_the_completion_s_wherever_the_reward_runs() -> None:
    @reward
    def greedy(completion: str) -> float:
        raise MemoryError

    assert (score_text(greedy, "x").value, score_text(greedy, "x").reason) == (0.0, "memory")


def test_an_abandoned_stream_neither_hangs_nor_complains_at_the_end_of_the_process() -> None:
    code = (
        "from rewardkit import parse, score, Generation, Sample, Completion\n"
        f"reward = parse(\"'{HERE}:in_process'\") + parse(\"'{HERE}:later'\")\n"
        "rows = [Generation(Sample(i), (Completion('x'),)) for i in range(500)]\n"
        "stream = score(reward, rows)\n"
        "print(next(stream).scores['total'][0].value)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("2.0\n", "", 0)


def test_a_detail_that_reads_like_a_reason_is_marked_where_it_is_written_as_one_line() -> None:
    @reward
    def says(completion: str) -> Score:
        return Score(0.5, "timeout: took long")

    answer = score_text(says, "x")
    assert (answer.reason, answer.why) == (None, "note: timeout: took long")


def test_formulas_are_taken_as_text_and_what_is_no_stream_of_generations_is_refused() -> None:
    assert score_text("gsm8k", "#### 3", reference=3).value == 1.0
    assert values("length(at_most=5)", [generation("a b")]) == [[1.0]]
    for wrong in ("d.jsonl", generation("a"), [{"completion": "a"}]):
        with pytest.raises(UsageError, match="read_generations"):
            list(score("gsm8k", wrong))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="completions are Completions, got str"):
        Generation(Sample(0), ("a",))  # type: ignore[arg-type]


def test_a_suggested_reference_is_never_the_prompt() -> None:
    with pytest.raises(ColumnError) as wrong:
        list(score("exact", [generation("a", reference=None, question="q", generated_text="a", gt="a")]))
    assert "did you mean gt?" in str(wrong.value)


def test_lazy_parts_are_asked_only_where_they_count_also_outside() -> None:
    results = list(score(gate(in_file("is_long"), then=in_file("in_process")), [generation("xxxxxx", "x")]))
    first, second = results[0].scores["total"]
    assert (first.value, second.value) == (6.0, 0.0)
    assert len(first.parts) == 2 and len(second.parts) == 1
    (scored,) = score(first_of(in_file("abstains"), in_file("later")), [generation("xx")])
    assert scored.scores["total"][0].value == 2.0


def test_closing_in_mid_stream_is_quick_and_leaves_no_thread() -> None:
    before = threading.active_count()
    engine = Engine(in_file("in_process") + length_later)
    stream = engine.score(MANY)
    next(stream)
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 20
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before


def test_functions_can_be_given_as_they_are() -> None:
    def plain(completion: str, reference: str) -> float:
        return float(completion == reference)

    assert values(plain, [generation("1", "2")]) == [[1.0, 0.0]]
    assert isinstance(next(iter(Engine(plain).rewards.values())), FunctionReward)


def test_an_async_group_reward_and_an_async_trl_function_are_awaited() -> None:
    @group_reward
    async def ranks(completions: list[str]) -> list[float]:
        await asyncio.sleep(0.001)
        return [float(i) for i in range(len(completions))]

    async def trl_style(completions: list[str], answer: list[str], **kwargs: object) -> list[float]:
        await asyncio.sleep(0.001)
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    rows = [generation("x", "y", "z", answer="y")]
    assert values(ranks, rows) == [[0.0, 1.0, 2.0]]
    assert values(trl_style, rows) == [[0.0, 1.0, 0.0]]


def test_an_async_group_reward_that_answers_for_too_few_stops_the_run() -> None:
    @group_reward
    async def lazy(completions: list[str]) -> list[float]:
        return [1.0]

    with pytest.raises(ContractError, match="'lazy' returned 1 value for a group of 8"):
        list(score(lazy, [generation(*"abcdefgh")]))


def test_trl_functions_see_the_row_s_step_as_their_trainer_s_state() -> None:
    def by_step(completions: list[str], trainer_state: object) -> list[float]:
        return [float(trainer_state.global_step)] * len(completions)  # type: ignore[attr-defined]

    assert values(by_step, [Generation(Sample(0, step=7), (Completion("a"),))]) == [[7.0]]


def test_the_error_of_an_async_reward_names_the_user_s_line_and_not_the_event_loop_s() -> None:
    @reward
    async def fails(completion: str) -> float:
        await asyncio.wait_for(asyncio.sleep(0), 1)
        raise ValueError("no")

    assert "(test_engine.py:" in score_text(fails, "x").detail


def test_score_text_gives_the_step_to_schedules_and_abstains_without_a_reference() -> None:
    scheduled = parse("schedule({0: length(at_most=1), 10: length(at_most=100)})")
    assert score_text(scheduled, "two words", step=3).value == 0.0
    assert score_text(scheduled, "two words", step=10).value == 1.0
    assert score_text(parse("gsm8k"), "#### 3").reason == "missing"


def test_a_verdict_that_a_function_returns_is_its_score() -> None:
    @reward
    def judged(completion: str) -> Verdict:
        return Verdict.reject("too dull", extracted="dull")

    answer = score_text(judged, "x")
    assert (answer.value, answer.why, answer.extracted) == (0.0, "wrong: too dull", "dull")
