"""Workers: right results whatever a reward does to its process, from wherever they are asked.

Every test starts real processes. The rewards are in `workers/odd_rewards.py`; a completion's text says what it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
import zoneinfo
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rewardkit import workers as workers_module
from rewardkit.errors import ContractError, UsageError, WorkerError
from rewardkit.leaf import Leaf
from rewardkit.reward import FunctionReward, TrlReward, reward
from rewardkit.targets import load_file
from rewardkit.types import Completion, Generation, Sample, Score
from rewardkit.workers import WorkerPool

FOLDER = Path(__file__).parent / "workers"
odd: Any = load_file(FOLDER / "odd_rewards.py")
Careful: Any = load_file(FOLDER / "odd_verifier.py").Careful
LEAVES: tuple[Leaf, ...] = (odd.quick, odd.patient, odd.who, odd.later, odd.seen)
QUICK, PATIENT, WHO, LATER, SEEN = range(5)
LINUX = sys.platform == "linux"


def group(*texts: str, reference: Any = "7", **columns: Any) -> Generation:
    return Generation(Sample("s1", "Count.", reference, columns), tuple(Completion(text) for text in texts))


def whys(future: Future[list[Score]]) -> list[object]:
    """The value of a scored completion, else its reason."""
    scores = future.result(timeout=60)
    return [score.value if score.value is not None and not score.reason else score.reason for score in scores]


def until(check: Callable[[], object], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.02)
    return bool(check())


def runs(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:  # it went this moment, or there is no /proc
        return not Path("/proc/self").exists()
    return state != "Z"


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[WorkerPool]:
    """One pool for all tests that do not look at its processes; surviving them all is a test too."""
    with WorkerPool(LEAVES, workers=1) as pool:
        yield pool


@pytest.fixture
def pool(shared_pool: WorkerPool) -> WorkerPool:
    return shared_pool


# ------------------------------------------------------------------------------------------ right results


@pytest.mark.parametrize("count", [1, 2, 4])
def test_results_are_those_of_inline_judging_in_order_with_any_number_of_workers(count: int) -> None:
    texts = [["x" * (i % 7 + j) for j in range(i % 5 + 1)] for i in range(60)]
    with WorkerPool(LEAVES, workers=count) as pool:
        futures = [pool.submit(PATIENT, group(*row)) for row in texts]
        assert [whys(future) for future in futures] == [[float(len(text)) for text in row] for row in texts]
        assert len(pool.worker_pids) <= count
        assert pool.stats == workers_module.Stats()


def test_a_score_has_its_name_and_a_measured_time(pool: WorkerPool) -> None:
    (score,) = pool.submit(PATIENT, group("abc")).result()
    assert (score.value, score.name) == (3.0, "patient")
    assert score.seconds is not None and score.seconds > 0


def test_places_are_answered_in_the_order_asked_also_twice(pool: WorkerPool) -> None:
    assert whys(pool.submit(PATIENT, group("a", "bb", "ccc"), at=[2, 0, 2])) == [3.0, 1.0, 3.0]
    assert pool.submit(PATIENT, group("a"), at=[]).result() == []
    with pytest.raises(IndexError):
        pool.submit(PATIENT, group("a"), at=[1])
    with pytest.raises(IndexError):
        pool.submit(99, group("a"))


def test_one_job_starts_one_process_and_more_only_up_to_the_limit() -> None:
    with WorkerPool([odd.who], workers=3) as pool:
        assert pool.worker_pids == []
        pool.submit(0, group("a")).result()
        pool.submit(0, group("a")).result()
        assert len(pool.worker_pids) == 1


def test_async_rewards_are_awaited(pool: WorkerPool) -> None:
    assert whys(pool.submit(LATER, group("a", "bb"))) == [1.0, 2.0]


def test_options_and_verifiers_travel() -> None:
    with WorkerPool([Careful(least=5)], workers=1) as pool:
        assert whys(pool.submit(0, group("4", "5", "no number"))) == ["wrong", 1.0, "raised"]
        assert whys(pool.submit(0, group("4", reference=None))) == ["missing"]
        assert whys(pool.submit(0, group("4", reference=["a list"]))) == ["bad_reference"]


def test_the_kind_of_a_function_reward_travels() -> None:
    """TRL's contract, a name and a deadline given outside the file are not in the file."""
    plain = FunctionReward(odd.who.function, name="x/who_else", timeout=3, memory="1GB", target=odd.who.target)
    trl = TrlReward(odd.ranks.function, name="ranked", timeout=3, target=odd.ranks.target)
    for leaf in (plain, trl, odd.ranks, odd.patient, odd.later):
        again = workers_module.leaf_from_data(workers_module.leaf_to_data(leaf))
        assert type(again) is type(leaf) and again == leaf and again.label == leaf.label


def test_a_group_is_judged_whole_also_when_some_places_are_asked_for() -> None:
    with WorkerPool([odd.ranks, odd.too_few], workers=1) as pool:
        assert whys(pool.submit(0, group("b", "c", "a"))) == [1.0, 2.0, 0.0]
        assert whys(pool.submit(0, group("b", "c", "a"), at=[2, 1])) == [0.0, 2.0]
        late = pool.submit(0, group("b", "sleep")).result()
        assert [score.reason for score in late] == ["raised", "raised"]
        assert "0.5 s for the whole group of 2" in late[0].detail
        hog = pool.submit(0, group("hog", "b")).result()
        assert [score.reason for score in hog] == ["raised", "raised"] and "64 MiB" in hog[0].detail
        with pytest.raises(ContractError, match="too_few"):
            pool.submit(1, group("a", "b")).result()


# ------------------------------------------------------------------------------------------- what travels

ODD_VALUES = [
    None,
    True,
    0,
    -1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**4000,
    0.1,
    float("nan"),
    float("-inf"),
    "",
    "\u20ac\U0001f600",
    "\ud800 alone",
    b"\0\xff",
    [1, [2, (3, "\udfff", 2**70)]],
    (),
    (1, (2,), [3]),
    {"a": {"b": (1,)}, "\ud800": 1},
    {1: "a", (1, 2): "b", None: "c"},
    {1, 2},
    frozenset({"a"}),
    bytearray(b"x"),
    1 + 2j,
    Decimal("1.10"),
    Decimal("NaN"),
    Fraction(10**30, 7),
    uuid.UUID(int=7),
    dt.date(2024, 2, 29),
    dt.datetime(2024, 10, 27, 2, 30, fold=1),
    dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Paris")),
    dt.time(1, 2, 3, 4),
    dt.timedelta(days=-1, microseconds=5),
]


def test_a_reward_sees_in_a_worker_what_it_sees_inline(pool: WorkerPool) -> None:
    for value in ODD_VALUES:
        generation = group("\ud800 text", value=value)
        inline = odd.seen.judge(None, generation.sample, generation.completions[0])
        (score,) = pool.submit(SEEN, generation).result()
        assert (score.detail, score.extracted) == (inline.detail, inline.extracted), value


def test_every_field_of_sample_and_completion_travels() -> None:
    sample = Sample(2**70, [{"role": "user", "content": "q"}], {"answer": (1, 2)}, {"a": 1}, 7)
    messages = ({"role": "assistant", "content": None, "tool_calls": [{"id": (1,)}]},)
    one = Completion("t", 5, "stop", messages, None, {"label": Decimal("1.0")})
    with WorkerPool([odd.echoed], workers=1) as pool:
        (score,) = pool.submit(0, Generation(sample, (one,))).result()
        assert score.detail == odd.echoed.judge(None, sample, one).detail


def test_every_field_of_a_score_comes_back() -> None:
    with WorkerPool([odd.many_parts, odd.no_data], workers=1) as pool:
        (score,) = pool.submit(0, group("x")).result()
        inline = odd.many_parts.judge(None, Sample(1), Completion("x"))
        assert (score.parts, score.detail, score.trace) == (inline.parts, inline.detail, inline.trace)
        assert all(type(part.parts) is tuple for part in score.parts)
        assert score.seconds != inline.seconds
        (bad,) = pool.submit(1, group("x")).result()
        assert bad.reason == "raised" and "object" in bad.detail


class Foo:
    pass


class Array:
    """Looks like an array of numpy or torch."""

    def tolist(self) -> list[int]:
        return [1, 2]


def test_what_cannot_be_sent_is_an_error_that_names_the_column(pool: WorkerPool) -> None:
    (score,) = pool.submit(SEEN, group("x", value=[Foo()])).result()
    assert (score.reason, score.name) == ("raised", "seen")
    assert score.detail == "column 'value' holds a Foo, which cannot be sent to a worker"
    cycle: list[Any] = []
    cycle.append(cycle)
    (score,) = pool.submit(SEEN, group("x", value=cycle)).result()
    assert score.reason == "raised" and "'value'" in score.detail
    mixed = Generation(Sample(1, metadata={"value": 1}), (Completion("a", metadata={"y": Foo()}), Completion("b")))
    assert whys(pool.submit(SEEN, mixed)) == ["raised", 1.0]


def test_arrays_and_subclasses_travel_as_plain_values(pool: WorkerPool) -> None:
    value = [Array(), OrderedDict(a=1), MappingProxyType({"b": 2}), signal.SIGKILL, type("T", (str,), {})("t")]
    (score,) = pool.submit(SEEN, group("x", value=value)).result()
    assert score.detail == "[[1, 2], {'a': 1}, {'b': 2}, 9, 't']"


# --------------------------------------------------------------------------------- what rewards do to workers


@pytest.mark.parametrize("trap", ["sleep", "loop", "regex", "power"])
def test_a_hang_is_scored_zero_and_the_rest_of_the_group_is_judged(pool: WorkerPool, trap: str) -> None:
    """In Python code, in C code that releases the interpreter's lock, and in C code that holds it."""
    scores = pool.submit(QUICK, group("a", trap, "bb", "ccc")).result(timeout=30)
    assert [score.value for score in scores] == [1.0, 0.0, 2.0, 3.0]
    assert (scores[1].reason, scores[1].detail) == ("deadline", "judging took longer than 0.4 s")
    assert [score.reason for score in scores if score is not scores[1]] == [None] * 3


def test_two_hangs_in_one_group_are_two_deadlines(pool: WorkerPool) -> None:
    assert whys(pool.submit(QUICK, group("sleep", "a", "sleep"))) == ["deadline", 1.0, "deadline"]


def test_a_hang_while_the_reference_is_read_is_no_completions_fault() -> None:
    with WorkerPool([Careful()], workers=1) as pool:
        scores = pool.submit(0, group("1", "2", reference="sleep")).result(timeout=30)
        assert [(score.value, score.reason) for score in scores] == [(None, "deadline_reference")] * 2
        assert scores[0].detail == "reading the reference took longer than 0.4 s"
        assert whys(pool.submit(0, group("1", "sleep"))) == [1.0, "deadline"]


@pytest.mark.skipif(not LINUX, reason="only Linux enforces memory limits")
@pytest.mark.parametrize("trap", ["hog", "shift"])
def test_memory_over_the_cap_is_scored_zero(pool: WorkerPool, trap: str) -> None:
    scores = pool.submit(PATIENT, group("a", trap, "bb")).result(timeout=30)
    assert [score.value for score in scores] == [1.0, 0.0, 2.0]
    assert (scores[1].reason, scores[1].detail) == ("memory", "judging needed more than 64 MiB")


@pytest.mark.skipif(not LINUX, reason="only Linux enforces memory limits")
def test_memory_over_the_cap_while_the_reference_is_read_abstains() -> None:
    with WorkerPool([Careful()], workers=1) as pool:
        scores = pool.submit(0, group("1", "2", reference="hog")).result(timeout=30)
        assert [score.why for score in scores] == ["bad_reference: reading the reference needs more than 64 MiB"] * 2
        assert whys(pool.submit(0, group("1"))) == [1.0]


@pytest.mark.parametrize(("trap", "said"), [("exit", "exit code 3"), ("segfault", "SIGSEGV")])
def test_a_worker_that_dies_twice_at_one_item_is_an_error_that_says_how(pool: WorkerPool, trap: str, said: str) -> None:
    scores = pool.submit(PATIENT, group("a", trap, "bb")).result(timeout=30)
    assert [score.reason for score in scores] == [None, "worker_died", None]
    assert said in scores[1].detail and scores[1].value is None


def test_dying_while_the_reference_is_read_is_an_error_for_the_group() -> None:
    with WorkerPool([Careful()], workers=1) as pool:
        assert whys(pool.submit(0, group("1", "2", reference="exit"))) == ["worker_died"] * 2


def test_one_death_changes_no_result(tmp_path: Path) -> None:
    with WorkerPool([odd.dies_once], workers=1) as pool:
        assert whys(pool.submit(0, group("a", "die", "bb", marker=str(tmp_path / "m")))) == [1.0, 3.0, 2.0]
        assert pool.stats == workers_module.Stats(deaths=1, restarts=1)


def test_kill_9_from_outside_during_a_job_and_between_jobs_changes_no_result(tmp_path: Path) -> None:
    marker = tmp_path / "m"
    said = tmp_path / "m.pid"
    with WorkerPool([odd.slow], workers=1) as pool:
        future = pool.submit(0, group("a", marker=str(marker)))
        assert until(lambda: said.exists() and said.read_text())
        os.kill(int(said.read_text()), signal.SIGKILL)
        marker.touch()
        assert whys(future) == [7.0]
        (pid,) = pool.worker_pids
        os.kill(pid, signal.SIGKILL)
        assert whys(pool.submit(0, group("a", marker=str(marker)))) == [7.0]
        assert pool.stats.deaths == 2


def test_the_last_line_on_stderr_explains_a_death(tmp_path: Path) -> None:
    file = tmp_path / "talks.py"
    file.write_text(
        "import os, sys\nfrom rewardkit.reward import reward\n"
        "@reward(timeout=9)\ndef talks(completion):\n"
        "    print('x' * 100_000); print('first\\nlibfoo: \\x1b[31mgiving up', flush=True); os._exit(9)\n"
    )
    with WorkerPool([load_file(file).talks], workers=1) as pool:
        (score,) = pool.submit(0, group("a")).result(timeout=30)
        assert score.detail.endswith("exit code 9; its last line was: libfoo: ?[31mgiving up")


def test_megabytes_of_output_and_reading_input_disturb_nothing(pool: WorkerPool) -> None:
    """The noise ends with bytes that would be a message, were standard output the protocol's pipe."""
    assert whys(pool.submit(PATIENT, group("noise", "read", "a"))) == [5.0, 4.0, 1.0]


def test_no_exception_ends_a_worker(pool: WorkerPool) -> None:
    pids = pool.submit(WHO, group("a")).result()[0].detail
    scores = pool.submit(PATIENT, group("quit", "interrupt", "raise", "a")).result()
    assert [score.reason for score in scores] == ["raised", "raised", "raised", None]
    assert scores[0].detail.startswith("SystemExit: enough") and scores[1].detail.startswith("KeyboardInterrupt")
    assert "odd_rewards.py" in scores[2].detail and "no such luck" in (scores[2].trace or "")
    assert pool.submit(WHO, group("a")).result()[0].detail == pids


def test_a_broken_contract_reaches_the_caller_and_the_worker_goes_on(pool: WorkerPool) -> None:
    with pytest.raises(ContractError, match="seven values for eight"):
        pool.submit(PATIENT, group("a", "contract")).result()
    assert whys(pool.submit(PATIENT, group("a"))) == [1.0]


def test_a_reward_that_forks_is_answered_once() -> None:
    with WorkerPool(LEAVES, workers=1) as pool:
        for _ in range(3):
            assert whys(pool.submit(PATIENT, group("fork", "a"))) == [4.0, 1.0]
            time.sleep(0.1)  # a second answer would come now
            assert whys(pool.submit(PATIENT, group("bb"))) == [2.0]
        assert pool.stats == workers_module.Stats()


def test_what_a_reward_started_is_killed_with_it(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    with WorkerPool([odd.starts_a_child], workers=1) as pool:
        assert whys(pool.submit(0, group("a", marker=str(marker)))) == ["deadline"]
        assert until(lambda: not runs(int(marker.read_text())))


def test_hangs_and_deaths_leave_no_zombies_and_no_descriptors() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    before = descriptors()
    with WorkerPool(LEAVES, workers=1) as pool:
        for _ in range(3):
            assert whys(pool.submit(QUICK, group("sleep", "exit"))) == ["deadline", "worker_died"]
        assert pool.stats == workers_module.Stats(kills=3, deaths=6, restarts=9)
        pids = pool.worker_pids
        assert descriptors() <= before + 4  # three pipes and the shared page
    assert descriptors() == before
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert zombies() == []


def zombies() -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) == os.getpid():
                found.append(stat.parent.name)
    return found


def test_no_deadline_means_none() -> None:
    with WorkerPool([odd.unbounded], workers=1) as pool:
        assert whys(pool.submit(0, group("a"))) == [1.0]
        future = pool.submit(0, group("sleep"))
        time.sleep(0.7)
        assert not future.done()


# ------------------------------------------------------------------------------------------ starting fails


def test_a_reward_that_no_worker_can_import_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARDKIT_TEST_LOADS", str(os.getpid()))
    broken = load_file(FOLDER / "broken_rewards.py").fine
    with WorkerPool([broken, odd.patient], workers=2) as pool:
        for _ in range(2):
            with pytest.raises(WorkerError, match=r"'fine' cannot be loaded in a worker.*RuntimeError: not here"):
                pool.submit(0, group("a")).result(timeout=30)
        assert whys(pool.submit(1, group("a"))) == [1.0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import time; time.sleep(1e6)", "'f' did not load within 1 s"),
        ("import os; os.write(2, b'no gpu\\n'); os._exit(4)", "exit code 4.*no gpu"),
        ("raise SystemExit(1)", "'f' cannot be loaded"),
    ],
)
def test_an_import_that_hangs_or_ends_the_process_is_an_error_not_a_hang(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / f"imports_{abs(hash(line))}.py"
    file.write_text("from rewardkit.reward import reward\n@reward(timeout=9)\ndef f(completion): return 1.0\n")
    leaf = load_file(file).f
    file.write_text(line)
    with WorkerPool([leaf], workers=1, start_timeout=1.0) as pool, pytest.raises(WorkerError, match=f"(?s){said}"):
        pool.submit(0, group("a")).result(timeout=30)


def test_workers_that_cannot_start_are_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fails = tmp_path / "python"
    log = tmp_path / "log"
    fails.write_text(f"#!/bin/sh\necho started >> '{log}'\necho no such module >&2\nexit 1\n")
    fails.chmod(0o755)
    for executable, said in ((str(fails), "exit code 1.*no such module"), (str(tmp_path / "none"), "none")):
        monkeypatch.setattr(sys, "executable", executable)
        with WorkerPool([odd.patient], workers=1) as pool:
            for _ in range(2):
                with pytest.raises(WorkerError, match=f"(?s){said}"):
                    pool.submit(0, group("a")).result(timeout=30)
    assert len(log.read_text().splitlines()) <= 3, "tried twice, and maybe replaced once more, but not for each job"
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(WorkerError, match=r"sys\.executable"):
        WorkerPool([odd.patient])


def test_a_reward_that_cannot_travel_is_refused_at_once() -> None:
    @reward(timeout=1)
    def local(completion: str) -> float:
        return 1.0

    with pytest.raises(WorkerError, match="'local'"):
        WorkerPool([local])
    with pytest.raises(UsageError, match="at least 1"):
        WorkerPool([odd.quick], workers=0)


# -------------------------------------------------------------------------------------------- life and end


def test_close_cancels_what_is_not_answered_and_is_quick() -> None:
    pool = WorkerPool(LEAVES, workers=2)
    futures = [pool.submit(PATIENT, group("sleep")) for _ in range(5)]
    assert until(lambda: len(pool.worker_pids) == 2)
    pids = pool.worker_pids
    started = time.monotonic()
    pool.close()
    pool.close()
    assert time.monotonic() - started < 5
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(timeout=5)
    assert not any(runs(pid) for pid in pids) and pool.worker_pids == []
    with pytest.raises(WorkerError, match="closed"):
        pool.submit(PATIENT, group("a"))


def test_close_while_a_process_starts_leaves_nothing_behind() -> None:
    for pause in (0.0, 0.01, 0.05):
        pool = WorkerPool(LEAVES, workers=1)
        future = pool.submit(PATIENT, group("a"))
        time.sleep(pause)
        pool.close()
        assert future.cancelled() or future.done()
        assert pool.worker_pids == []


def test_cancelling_frees_the_worker() -> None:
    with WorkerPool([odd.unbounded], workers=1) as pool:
        future = pool.submit(0, group("sleep"))
        waiting = pool.submit(0, group("sleep"))
        assert until(lambda: pool.worker_pids)
        assert waiting.cancel() and future.cancel()
        assert whys(pool.submit(0, group("a"))) == [1.0]


def test_a_forgotten_pool_takes_its_processes_with_it_but_answers_first() -> None:
    future = WorkerPool([odd.who], workers=1).submit(0, group("a"))
    (score,) = future.result(timeout=30)
    del future
    gc.collect()
    assert until(lambda: not runs(int(score.detail)))


def test_from_a_thread(pool: WorkerPool) -> None:
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.extend(whys(pool.submit(QUICK, group("a", "sleep")))))
    thread.start()
    thread.join(30)
    assert got == [1.0, "deadline"]


def test_inside_a_running_event_loop(pool: WorkerPool) -> None:
    async def main() -> list[list[Score]]:
        futures = [asyncio.wrap_future(pool.submit(QUICK, group(text))) for text in ("a", "sleep", "bb")]
        return await asyncio.gather(*futures)

    assert [scores[0].value for scores in asyncio.run(main())] == [1.0, 0.0, 2.0]


def script(tmp_path: Path, body: str, **environment: str) -> subprocess.Popen[str]:
    """Start a script without a main guard that has `pool`, `group` and `odd`."""
    head = f"""
        import os, sys, time
        from rewardkit.targets import load_file
        from rewardkit.types import Completion, Generation, Sample
        from rewardkit.workers import WorkerPool
        odd = load_file(__import__("pathlib").Path({str(FOLDER / "odd_rewards.py")!r}))
        def group(*texts, **columns):
            return Generation(Sample("s", metadata=columns), tuple(map(Completion, texts)))
        print("once", flush=True)
    """
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(head) + textwrap.dedent(body))
    root = str(Path(workers_module.__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root, **environment},
        cwd=tmp_path,
        preexec_fn=hear_interrupts,
    )


def hear_interrupts() -> None:
    """A shell's background jobs, and so their children, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_script_without_a_main_guard_runs_once_and_leaves_quietly_without_close(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        pool = WorkerPool([odd.who], workers=2)
        print(pool.submit(0, group("a")).result()[0].detail)
        """,
    )
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    once, pid = out.split()
    assert once == "once" and not runs(int(pid))


def test_exit_with_a_job_under_way_is_quick_and_quiet(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        pool = WorkerPool([odd.patient], workers=1)
        future = pool.submit(0, group("sleep"))
        time.sleep(1)
        print(*pool.worker_pids)
        """,
    )
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert not runs(int(out.split()[1]))


def test_ctrl_c_ends_the_caller_at_once_and_its_workers_with_it(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        with WorkerPool([odd.patient], workers=1) as pool:
            future = pool.submit(0, group("loop"))
            time.sleep(1)
            print(*pool.worker_pids, flush=True)
            future.result()
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "once\n"
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in err and process.returncode != 0
    assert not runs(pid)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("trap", ["regex", "sleep"])
def test_no_worker_outlives_a_killed_caller(tmp_path: Path, trap: str, tied: bool) -> None:
    """Not even one whose judging code holds the interpreter's lock, nor where the kernel knows no parent's death."""
    if not tied and not LINUX:
        pytest.skip("needs CPU affinity")
    process = script(
        tmp_path,
        f"""
        import rewardkit.workers as module
        if not {tied}:  # a worker that cannot ask the kernel, made by a sitecustomize that hides ctypes
            os.environ["PYTHONPATH"] = {str(tmp_path)!r} + os.pathsep + os.environ["PYTHONPATH"]
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # the CPU limit allows for all CPUs
        pool = WorkerPool([odd.quick], workers=1)
        assert pool.submit(0, group("a")).result()[0].value == 1.0
        pool.submit(0, group({trap!r}))
        time.sleep(0.1)
        print(*pool.worker_pids, flush=True)
        os.kill(os.getpid(), 9)
        """,
    )
    if not tied:
        (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['ctypes'] = None\n")
    out, _ = process.communicate(timeout=20)
    pid = int(out.split()[1])
    assert until(lambda: not runs(pid), seconds=12)


def test_a_fork_of_the_caller_neither_uses_nor_kills_the_workers() -> None:
    with WorkerPool([odd.who], workers=1) as pool:
        (before,) = pool.submit(0, group("a")).result()
        with tempfile.TemporaryFile("w+") as said:
            descriptors = len(os.listdir("/dev/fd"))
            if (child := os.fork()) == 0:
                try:
                    pool.submit(0, group("a"))
                except WorkerError as problem:
                    said.write(f"{problem}|{descriptors - len(os.listdir('/dev/fd'))}")
                    said.flush()
                finally:
                    pool.close()
                    del pool
                    gc.collect()
                    os._exit(0)
            os.waitpid(child, 0)
            said.seek(0)
            text, let_go = said.read().split("|")
            assert "after a fork" in text and int(let_go) >= 4  # three pipes and the shared page
        assert pool.submit(0, group("a")).result()[0].detail == before.detail
        assert pool.stats == workers_module.Stats()


def test_the_workers_environment_is_the_callers(tmp_path: Path) -> None:
    """Folder, search path, variables; also when rewardkit is found only through the script's own path."""
    file = tmp_path / "looks.py"
    file.write_text(
        "import os, sys, json\nfrom rewardkit.reward import reward\nfrom rewardkit.types import Score\n"
        "@reward(timeout=9)\ndef looks(completion):\n"
        "    return Score(1.0, str(state()))\n"
        "def state():\n"
        "    limits = sys.get_int_max_str_digits(), sys.getrecursionlimit(), sys.flags.optimize\n"
        "    return json.dumps([os.getcwd(), os.environ.get('PYTHONPATH'), sys.path, limits])\n"
    )
    (tmp_path / "msgspec.py").write_text("raise RuntimeError('a file in the current folder shadows a module')\n")
    root = str(Path(workers_module.__file__).parents[2])
    main = tmp_path / "sub" / "main.py"
    main.parent.mkdir()
    main.write_text(
        f"import sys; sys.path += [{root!r}, {str(tmp_path)!r}]\nfrom looks import looks, state\n"
        "sys.set_int_max_str_digits(0); sys.setrecursionlimit(1234)\n"
        "from rewardkit.types import *\nfrom rewardkit.workers import WorkerPool\n"
        "with WorkerPool([looks], workers=1) as pool:\n"
        "    print(pool.submit(0, Generation(Sample(1), (Completion('a'),))).result()[0].detail)\n"
        "print(state())\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-O", str(main)], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert done.stderr == ""
    worker, caller = done.stdout.splitlines()
    assert worker == caller


def test_started_by_hand_it_says_what_it_is() -> None:
    done = subprocess.run([sys.executable, "-m", "rewardkit.workers"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "not by hand" in done.stderr


def test_in_a_notebook_kernel(tmp_path: Path) -> None:
    """A kernel runs an event loop in its main thread and has streams of its own."""
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    manager_module = pytest.importorskip("jupyter_client.manager", reason="needs jupyter_client")
    code = f"""
from pathlib import Path
from rewardkit.targets import load_file
from rewardkit.types import Completion, Generation, Sample
from rewardkit.workers import WorkerPool
odd = load_file(Path({str(FOLDER / "odd_rewards.py")!r}))
with WorkerPool([odd.quick], workers=1) as pool:
    rows = Generation(Sample(1), (Completion("a"), Completion("sleep"), Completion("bb")))
    values = [score.value for score in pool.submit(0, rows).result()]
    import asyncio
    more = [score.value for score in await asyncio.wrap_future(pool.submit(0, rows))]
print(values, more)
"""
    root = str(Path(workers_module.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "IPYTHONDIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    manager = manager_module.KernelManager(kernel_name="python3")
    manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(env=environment)
    client = manager.client()
    said: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        said.append(content.get("text", "") + "\n".join(content.get("traceback", [])))

    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        client.execute_interactive(code, timeout=60, output_hook=hear)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert "[1.0, 0.0, 2.0] [1.0, 0.0, 2.0]" in "".join(said)
