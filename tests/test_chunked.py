"""A file scored in pieces by several processes against the same file scored in order by one: nothing may differ."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rewardkit import chunked, parse, read_generations
from rewardkit.errors import InputError, RunFolderError
from rewardkit.records import FieldMap, chunks, write_generations
from rewardkit.run import Observer, Outcome, Plan, evaluate
from rewardkit.workers import chunk_pool
from rewardkit.workers.chunk_scorer import ScoringPlan

REWARDS = '''
from rewardkit import reward

@reward
def shaky(completion, *, every: int = 17):
    """Raises on some texts, abstains on others."""
    if len(completion) % every == 3:
        raise ValueError(f"cannot judge {completion[:9]!r}")
    return None if len(completion) % every == 5 else len(completion) % 4

@reward
def deadly(completion):
    """Ends its process, unless that is the one that tests run in."""
    import os, sys
    if completion == "die" and "rewardkit.workers" in " ".join(sys.orig_argv):
        os._exit(3)
    return 1.0

@reward
def broken_contract(completion):
    from rewardkit.errors import ContractError
    if "stop here" in completion:
        raise ContractError("a contract is broken")
    return 1.0
'''


class Seen(Observer):
    def __init__(self) -> None:
        self.completions = self.failed = 0
        self.told: list[tuple[str, str, str | None]] = []

    def scored(self, completions: int, failed: int) -> None:
        self.completions += completions
        self.failed += failed

    def raised(self, name: str, score: Any) -> None:
        self.told.append((name, score.why, score.trace))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch):
    """Cut even small files, into small pieces."""

    def size(count: int) -> None:
        monkeypatch.setattr(chunked, "SMALL", 0)
        monkeypatch.setattr(chunks, "CHUNK", count)

    return size


def run(path: Path | str, output: Path, rewards: dict[str, str], **options: Any) -> tuple[Outcome, Seen]:
    seen = Seen()
    named = {name: parse(f"'{formula}'" if formula.startswith("/") else formula) for name, formula in rewards.items()}
    return evaluate(Plan(str(path), named, output=output, **options), seen), seen


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in ("seconds", "time")}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def results(folder: Path) -> dict[str, Any]:
    """Return everything that a run has left, but for times."""
    found: dict[str, Any] = {"scores": re.sub(rb'"seconds":[^,}]*', b"", (folder / "scores.jsonl").read_bytes())}
    if (folder / "summary.json").exists():
        found["summary"] = without_times(json.loads((folder / "summary.json").read_text()))
    found["log"] = [without_times(json.loads(line)) for line in (folder / "log.jsonl").read_text().splitlines()]
    return found


def both(path: Path | str, tmp_path: Path, rewards: dict[str, str], workers: int = 2, **options: Any) -> dict[str, Any]:
    """Run in order and in pieces; check that they are alike, and return what they gave."""
    found = []
    for count in (1, workers):
        folder = tmp_path / f"run{count}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            outcome, seen = run(path, folder, rewards, workers=count, **options)
            told = (outcome.stopped, outcome.notices, outcome.traces, seen.completions, seen.failed, seen.told)
        except (InputError, RunFolderError) as problem:
            told = (type(problem), str(problem))
        found.append((told, results(folder)))
    assert found[0][0] == found[1][0]
    for part in found[0][1]:
        assert found[0][1][part] == found[1][1][part], part
    assert set(found[0][1]) == set(found[1][1])
    return found[0][1] | {"told": found[0][0]}


def pieces_used(path: Path, **options: Any) -> int:
    records = read_generations(path, **options)
    assert chunks.plan_chunks(records) is not None
    return len(list(chunks.cut_files(records)))


# --------------------------------------------------------------------------------------------- any file at all


def any_row(chance: random.Random) -> bytes:
    """Return a line as files have them: mostly a row, of one of some groups; sometimes none."""
    kind = chance.random()
    if kind < 0.03:
        return chance.choice([b"", b"  ", b"\t"])
    if kind < 0.06:
        return chance.choice(
            [b"{", b'{"id": 1', b"[1, 2]", b"null", b'{"id": "\xff"}', b"not json \xe2\x80\xa8", b'"x"']
        )
    number = chance.randrange(12)
    id = chance.choice(
        [number, number, str(number), f"q{number},", 'with ","index":5', -number, 2**70, "\u202e\u2028é"]
    )
    row: dict[str, Any] = {"id": id, "prompt": f"p{number}", "answer": chance.choice(["18", 18, None, "x", "#### 7"])}
    if chance.random() < 0.1:
        row["prompt"] = chance.choice(["another", ["a"], {"role": "user", "content": "c"}])
    if chance.random() < 0.1:
        del row["id"]
    if chance.random() < 0.3:
        row["label"] = chance.choice([True, False, 1, 0.5, "0", None, "odd"])
    if chance.random() < 0.2:
        row["model"] = chance.choice(["m", "other", None])
    if chance.random() < 0.2:
        row["step"] = chance.choice([1, 2, "3", "soon"])
    if chance.random() < 0.05:
        row["error"] = "timed out"
    texts = [
        "A: 18",
        "so\n#### 18<|im_end|>",
        "",
        "The answer is 7.",
        "\u2028x\u200b 18",
        "no",
        "\ud800 18",
        "z" * 300,
        None,
    ]
    row["completion"] = chance.choice(texts) or chance.choice(["", "y" * chance.randrange(60)])
    if chance.random() < 0.02:
        row["completion"] = {"no": "text"}
    return json.dumps(row, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("seed", range(6))
def test_any_file_gives_the_same_in_pieces(tmp_path, tiny, seed):
    chance = random.Random(seed)
    (tmp_path / "mine.py").write_text(REWARDS)
    tiny(chance.choice([1500, 4000, 9000]))  # bytes
    ends = chance.choice([b"\n", b"\n", b"\r\n"])
    data = ends.join(any_row(chance) for _ in range(600)) + chance.choice([b"", ends])
    first = b'{"id": 0, "prompt": "p0", "answer": "18", "completion": "A: 18", "label": true, "model": "m", "step": 1}'
    data = chance.choice([b"", b"\xef\xbb\xbf"]) + first + ends + data
    path = tmp_path / f"any.jsonl{chance.choice(['', '.gz'])}"
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    roles = "id=id,prompt=prompt,reference=answer,completion=completion,label=label,model=model,step=step,error=error"
    rewards = {
        "gsm8k": "gsm8k",
        "mixed": f"0.5*gsm8k + 0.5*first_of(label, '{tmp_path}/mine.py:shaky')",
        "label": "label",
    }
    options: dict[str, Any] = {"map": FieldMap.parse([roles]), "max_error_rate": 1.0}
    if seed % 4 == 3:
        options["limit"] = chance.randrange(50, 500)
    assert pieces_used(path, field_map=options["map"]) > 4
    found = both(path, tmp_path, rewards, workers=4 if seed == 2 else 2, **options)
    assert found["summary"]["input"]["bad_rows"] > 5
    assert found["summary"]["input"]["duplicate_ids"] > 5


@pytest.mark.parametrize("shape", ["lists", "own", "columns"])
def test_groups_in_lists_own_lines_and_models_side_by_side(tmp_path, tiny, shape):
    chance = random.Random(shape)
    tiny(2000)
    path = tmp_path / "groups.jsonl"
    rows, maps = [], []
    for number in range(150):
        texts = [chance.choice(["A: 18", "A: 17", "no", "#### 18 \u202e"]) for _ in range(chance.randrange(1, 9))]
        about = {"id": f"q{number % 70}", "question": f"p{number % 70}", "answer": "18"}
        if shape == "columns":
            rows.append(about | {name: {"solution": chance.choice(texts)} for name in ("small", "large")})
            maps = ["completion=*.solution,reference=answer,id=id,prompt=question"]
        else:
            rows.append(about | {"completions": texts})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if shape == "own":
        write_generations(tmp_path / "own.jsonl", list(read_generations(path)))
        path = tmp_path / "own.jsonl"
    field_map = FieldMap.parse(maps)
    assert pieces_used(path, field_map=field_map) > 4
    both(path, tmp_path, {"gsm8k": "gsm8k"}, map=field_map)


def any_table(chance: random.Random, count: int) -> Any:
    pa = pytest.importorskip("pyarrow")
    texts = ["A: 18", "#### 17<|im_end|>", "no", "", None, "\u2028 The answer is 18.", "A: 18 \\"]
    numbers = [chance.randrange(count // 6) for _ in range(count)]
    return pa.table(
        {
            "id": [chance.choice([number, number, None]) for number in numbers],
            "prompt": pa.array([f"p{number}" for number in numbers]).dictionary_encode(),
            "answer": [chance.choice(["18", "18", None, "x"]) for _ in numbers],
            "completion": [chance.choice(texts) for _ in numbers],
            "more": pa.array([chance.choice([b"\xff", b"fine"]) for _ in numbers]),
            "tags": pa.array([[chance.choice([b"fine"] * 20 + [b"\xff"])] for _ in numbers]),  # torn: a bad row
        }
    )


@pytest.mark.parametrize(("form", "limit"), [("parquet", None), ("parquet", 333), ("parquet", 560), ("arrow", None)])
def test_tables_give_the_same_in_pieces(tmp_path, tiny, form, limit):
    """Trap: a damaged row group in the middle, whose bad row counts in a limit, and numbers of rows behind it."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    chance = random.Random(f"{form}{limit}")
    tiny(chance.choice([600, 5000]))
    table, path = any_table(chance, 800), tmp_path / f"any.{form}"
    if form == "parquet":
        pq.write_table(table, path, row_group_size=150, use_dictionary=False, write_page_checksum=True)
        place = pq.ParquetFile(path).metadata.row_group(2).column(3)
        data = bytearray(path.read_bytes())
        middle = place.data_page_offset + place.total_compressed_size // 2
        data[middle : middle + 8] = b"\0" * 8
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=150)
        data = bytearray(path.read_bytes()[:-9000])
    path.write_bytes(data)
    field_map = FieldMap.parse(["id=id,prompt=prompt,reference=answer,completion=completion"])
    assert pieces_used(path, field_map=field_map) > 4
    found = both(path, tmp_path, {"gsm8k": "gsm8k"}, map=field_map, limit=limit)
    reasons = [bad["why"] for bad in found["summary"]["input"]["bad_lines"]]
    assert any("not UTF-8" in why for why in reasons)
    assert any("damaged" in why for why in reasons) == (limit is None or form == "parquet")


def test_several_files_share_their_groups(tmp_path, tiny):
    tiny(1000)
    for part in "ab":
        rows = [{"id": i % 20, "prompt": f"p{i % 20}", "answer": "18", "completion": f"A: {i}"} for i in range(60)]
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    records = read_generations([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    in_order = [(g.sample.id, g.start, g.where) for g in records]
    counted = (records.rows, records.bad_rows, list(records.bad), records.duplicate_ids)
    from rewardkit import Engine

    with Engine("gsm8k") as engine:
        pieces = chunked.chunked(engine, records, workers=2, labels=[])
        assert pieces is not None
        with contextlib.closing(pieces):
            again = []
            while (generations := pieces.next_here()) is not None:
                again += [(g.sample.id, g.start, g.where) for g in generations]
            assert again == in_order
            assert (records.rows, records.bad_rows, list(records.bad), records.duplicate_ids) == counted
        pieces = chunked.chunked(engine, records, workers=2, labels=[])
        assert pieces is not None
        with contextlib.closing(pieces):
            lines = b"".join(piece.lines for piece in pieces.stream(lambda piece: False)).splitlines()
    assert [json.loads(line)["index"] for line in lines] == [start for _, start, _ in in_order]
    assert (records.rows, records.bad_rows, list(records.bad), records.duplicate_ids) == counted


# ---------------------------------------------------------------------------------------------- how a run ends


def file_of(tmp_path: Path, texts: list[str], **columns: Any) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = [{"id": i // 4, "prompt": f"p{i // 4}", "answer": "18", "completion": text} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row | columns) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("bad", "count"), [(60, 1500), (400, 1500), (1300, 3000)])
def test_a_failing_reward_stops_at_the_same_row(tmp_path, tiny, bad, count):
    """Trap: a share that is first too high in the middle of a piece."""
    tiny(5000)
    (tmp_path / "mine.py").write_text(REWARDS)
    texts = ["abc" if at % 3 == 0 and at >= bad else "xxxxxx" for at in range(count)]
    found = both(file_of(tmp_path, texts), tmp_path, {"r": f"{tmp_path}/mine.py:shaky"})
    assert found["told"][0].startswith("r failed on")


def test_a_few_failures_stop_nothing_and_are_told_once(tmp_path, tiny):
    tiny(3000)
    (tmp_path / "mine.py").write_text(REWARDS)
    texts = ["abc" if at % 40 == 39 else "xxxxxx" for at in range(1500)]
    found = both(file_of(tmp_path, texts), tmp_path, {"r": f"{tmp_path}/mine.py:shaky", "gsm8k": "gsm8k"})
    stopped, _, traces, completions, failed, told = found["told"]
    assert (stopped, completions, failed, len(told)) == ("", 1500, 37, 1)
    assert 'mine.py", line' in traces["r"] and "rewardkit/" not in traces["r"]


def test_strict_stops_at_the_same_row(tmp_path, tiny):
    tiny(3000)
    path = file_of(tmp_path, ["A: 18"] * 700)
    lines = path.read_text().splitlines()
    lines[450] = "{"
    path.write_text("\n".join(lines))
    found = both(path, tmp_path, {"gsm8k": "gsm8k"}, strict=True)
    assert ":451: " in found["told"][1]


def test_a_broken_contract_stops_at_the_same_row(tmp_path, tiny):
    from rewardkit.errors import ContractError

    tiny(3000)
    (tmp_path / "mine.py").write_text(REWARDS)
    path = file_of(tmp_path, ["fine"] * 500 + ["stop here"] + ["fine"] * 200)
    found = []
    for workers in (1, 2):
        with pytest.raises(ContractError, match="a contract is broken"):
            run(path, tmp_path / f"run{workers}", {"r": f"{tmp_path}/mine.py:broken_contract"}, workers=workers)
        found.append(results(tmp_path / f"run{workers}"))
    assert found[0] == found[1] and found[0]["scores"].count(b"\n") == 500


def test_damaged_compressed_data_is_a_bad_row_at_the_same_place(tmp_path, tiny):
    tiny(10_000)
    chance = random.Random(1)
    data = file_of(tmp_path, [f"A: {chance.random()}" for _ in range(5000)]).read_bytes()
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(data)[:-9000])
    found = both(path, tmp_path, {"gsm8k": "gsm8k"})
    assert found["summary"]["input"]["bad_rows"] == 1


def test_line_numbers_of_bad_rows(tmp_path, tiny):
    tiny(700)
    path = file_of(tmp_path, ["A: 18 \u2028 \x85 \x0c x"] * 300)
    lines = path.read_text().split("\n")
    for at in range(10, 300, 10):
        lines[at] = "[]"
    lines[1:1] = [""] * 3
    path.write_text("\n".join(lines))
    found = both(path, tmp_path, {"gsm8k": "gsm8k"})
    assert [bad["line"] for bad in found["summary"]["input"]["bad_lines"]] == [at + 4 for at in range(10, 300, 10)]


def test_one_huge_line_among_small_ones(tmp_path, tiny):
    tiny(64 * 1024)
    texts = ["A: 18"] * 2000
    texts[900] = "x" * (12 << 20) + "\nA: 18"
    found = both(file_of(tmp_path, texts), tmp_path, {"gsm8k": "gsm8k"})
    assert found["scores"].count(b"\n") == 2000


def test_a_line_longer_than_the_longest_is_a_bad_row(tmp_path, tiny, monkeypatch):
    from rewardkit.records import jsonl, source

    for module in (chunks, jsonl, source):
        monkeypatch.setattr(module, "MAX_LINE", 50_000)
    monkeypatch.setattr(chunked, "_LARGEST", 20_000)  # such a piece is read here, where the limit is the small one
    tiny(4096)
    texts = ["A: 18"] * 300
    texts[100], texts[200], texts[-1] = "x" * 60_000, "x" * 200_000, "x" * 300_000
    found = both(file_of(tmp_path, texts), tmp_path, {"gsm8k": "gsm8k"})
    assert [bad["line"] for bad in found["summary"]["input"]["bad_lines"]] == [101, 201, 300]


# ------------------------------------------------------------------------------------ what is and is not cut up


def test_what_stays_in_one_process(tmp_path):
    from rewardkit import Engine

    path = file_of(tmp_path, ["A: 18"] * 100)
    local = lambda completion: 1.0  # noqa: E731
    for rewards, workers, small in (
        ("gsm8k", 1, 0),  # asked for
        ("gsm8k", 2, None),  # a small file
        (local, 2, 0),  # no other process can load it
        (f"'{Path(__file__).parent}/rewards_for_tests.py:later'", 2, 0),  # waits
        (f"'{Path(__file__).parent}/rewards_for_tests.py:in_process'", 2, 0),  # has a worker of its own
    ):
        with Engine(rewards) as engine:
            assert chunked.chunked(engine, read_generations(path), workers=workers, labels=[], small=small) is None


def test_compositions_travel_node_by_node():
    from rewardkit.workers.chunk_scorer import reward_from_data, reward_to_data

    for formula in (
        "gsm8k",
        "0.5*gsm8k + -0.25*think_format - 1",
        "gate(think_format, then=gsm8k*2, at=0.5, otherwise=-1)",
        "minimum(gsm8k, clip(think_format, low=-1, high=2))*maximum(numeric(tolerance='1/3'), label)",
        "first_of(label, schedule({0: gsm8k, 10: 0.1*numeric + 0.9*gsm8k}))",
    ):
        reward = parse(formula)
        again = reward_from_data(reward_to_data(reward))
        assert (again, again.formula) == (reward, reward.formula)


# -------------------------------------------------------------------------------------------- accidents


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "large.jsonl"
    chance = random.Random(3)
    with path.open("w") as file:
        for at in range(10_000):
            group = at // 8 if at % 5 else at // 800
            text = "x " * chance.randrange(100, 300) + f"\nA: {chance.choice([17, 18])}"
            file.write(json.dumps({"id": group, "prompt": f"p{group}", "answer": "18", "completion": text}) + "\n")
    return path


@pytest.fixture(scope="module")
def unbroken(large, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    run(large, folder, {"gsm8k": "gsm8k"}, workers=1)
    return results(folder)


PIECE = 100_000  # bytes; there are some 40 of them then


def test_workers_that_are_killed_lose_and_double_nothing(large, unbroken, tmp_path, tiny, monkeypatch):
    tiny(PIECE)
    pools: list[chunk_pool.ChunkPool] = []
    original = chunk_pool.ChunkPool.start

    def start(pool: chunk_pool.ChunkPool) -> None:
        pools.append(pool)
        original(pool)

    monkeypatch.setattr(chunk_pool.ChunkPool, "start", start)
    done = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        chance = random.Random(4)
        while len(killed) < 6 and not done.wait(0.2):
            for pool in pools:
                for pid in pool.worker_pids:
                    if chance.random() < 0.5:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                            killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run(large, tmp_path / "run", {"gsm8k": "gsm8k"}, workers=2)
    finally:
        done.set()
        killer.join()
    assert killed
    assert results(tmp_path / "run") == unbroken
    for pool in pools:
        assert not pool.worker_pids


def test_no_thread_takes_the_end_that_is_meant_for_another():
    """Threads that end at different moments: one that is early clears what is left, and must leave the others' ends."""
    for _ in range(5):
        pool = chunk_pool.ChunkPool(ScoringPlan([], [], [], None), 6)
        pool.start()
        pool.close()
        assert not [thread for thread in pool._threads if thread.is_alive()] and not pool.worker_pids


def test_a_piece_that_kills_every_worker_is_scored_here(tmp_path, tiny):
    tiny(2000)
    (tmp_path / "mine.py").write_text(REWARDS)
    texts = ["fine"] * 400
    texts[200] = "die"
    both(file_of(tmp_path, texts), tmp_path, {"r": f"{tmp_path}/mine.py:deadly"})


def test_a_reward_that_no_worker_can_load_is_scored_here(tmp_path, tiny):
    tiny(2000)
    guard = "import sys\nif 'rewardkit.workers' in ' '.join(sys.orig_argv):\n    raise RuntimeError('not here')\n"
    (tmp_path / "mine.py").write_text(guard + REWARDS)
    both(file_of(tmp_path, ["fine"] * 400), tmp_path, {"r": f"{tmp_path}/mine.py:deadly"})


def command(path: Path, folder: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "from rewardkit import chunked; from rewardkit.records import chunks; from rewardkit.cli import main\n"
        f"chunked.SMALL, chunks.CHUNK = 0, {PIECE}\nraise SystemExit(main())",
        "eval",
        str(path),
        "-r",
        "gsm8k",
        "-o",
        str(folder),
        "--workers",
        "2",
        *more,
    ]


@pytest.mark.parametrize("after", [50_000, 900_000])
def test_a_run_that_is_killed_goes_on_as_if_nothing_had_happened(large, unbroken, tmp_path, after):
    """kill -9 at some sizes of the file of scores; a half-written last line is cut off by hand as a kill would."""
    folder = tmp_path / "run"
    scores = folder / "scores.jsonl"
    process = subprocess.Popen(command(large, folder, "-q"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (scores.exists() and scores.stat().st_size > after):
        time.sleep(0.005)
    process.kill()
    process.wait()
    data = scores.read_bytes()
    scores.write_bytes(data[: -random.Random(after).randrange(1, 200)])
    subprocess.run(command(large, folder, "-q", "--resume"), check=True, stdout=subprocess.DEVNULL)
    found = results(folder)
    assert (found["scores"], found["summary"]) == (unbroken["scores"], unbroken["summary"])


def test_no_worker_outlives_a_run_that_is_killed(large, tmp_path):
    process = subprocess.Popen(command(large, tmp_path / "run", "-q"), stdout=subprocess.DEVNULL)
    children: set[int] = set()
    while process.poll() is None and not (tmp_path / "run/scores.jsonl").exists():
        time.sleep(0.005)
    for task in Path(f"/proc/{process.pid}/task").glob("*/children"):
        children |= set(map(int, task.read_text().split()))
    process.kill()
    process.wait()
    until = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < until:
        time.sleep(0.01)
    assert children and not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_an_interrupt_keeps_what_is_scored(large, unbroken, tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen(command(large, folder, "-q"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and not (folder / "scores.jsonl").exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    subprocess.run(command(large, folder, "-q", "--resume"), check=True, stdout=subprocess.DEVNULL)
    assert results(folder)["scores"] == unbroken["scores"]


def test_a_full_disk_is_said_and_nothing_is_lost(large, unbroken, tmp_path):
    folder = tmp_path / "run"

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))

    ended = subprocess.run(command(large, folder, "-q"), preexec_fn=full, capture_output=True, text=True)
    assert ended.returncode == 2 and "cannot be written" in ended.stderr and "Traceback" not in ended.stderr
    subprocess.run(command(large, folder, "-q", "--resume"), check=True, stdout=subprocess.DEVNULL)
    assert results(folder)["scores"] == unbroken["scores"]


def test_a_file_that_is_emptied_meanwhile_ends_early_and_well(large, tmp_path):
    copy = tmp_path / "copy.jsonl"
    shutil.copy(large, copy)
    process = subprocess.Popen(
        command(copy, tmp_path / "run", "-q"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not (tmp_path / "run/scores.jsonl").exists():
        time.sleep(0.005)
    os.truncate(copy, 0)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 2) and "Traceback" not in errors
