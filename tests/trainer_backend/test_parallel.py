"""Two real processes give what one gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch")
pytest.importorskip("peft", reason="the adapters of these tests are peft's")

from rewardkit.errors import UsageError  # noqa: E402
from trainer_backend.parallel import World  # noqa: E402

HERE = Path(__file__).parent
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run(output: Path, processes: int) -> list[Any]:
    """Run the script in some processes, by torchrun where there are several, and return what each saw."""
    script = [str(HERE / "two_processes.py"), str(output)]
    start = [] if processes == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    environment |= {"PYTHONPATH": f"{HERE.parents[1]}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *start, *script], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(f"{output}.{rank}", weights_only=True) for rank in range(processes)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("one") / "out", 1)[0]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("two") / "out", 2)


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(found["weights"], expected["weights"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    for one, other in zip(found["seen"], expected["seen"], strict=True):
        assert one["skipped"] == other["skipped"]
        assert one["metrics"].keys() == other["metrics"].keys()
        for name, value in other["metrics"].items():
            if name != "tokens/fed":  # fewer prompts are shared, or more is padded
                assert one["metrics"][name] == pytest.approx(value, rel=1e-9, abs=1e-11), name


@pytest.mark.parametrize("case", ["shared", "one-has-all"])
def test_two_processes_equal_one(alone: Any, two: Any, case: str) -> None:
    for one in two:
        assert_same(one[case], alone["shared"])
    assert [one["gather"] for one in two] == [[0, 1], [0, 1]]
    assert [one["word"] for one in two] == ["from 0", "from 0"]
    assert float(alone["shared"]["seen"][0]["norm"]) > 0


def test_a_nan_in_one_process_skips_the_step_in_all(two: Any) -> None:
    found = [one["one-has-nan"] for one in two]
    for one in found:
        assert [seen["skipped"] for seen in one["seen"]] == [False, True, True, False]
    for one, other in zip(found[0]["weights"], found[1]["weights"], strict=True):
        assert torch.equal(one, other) and bool(torch.isfinite(one).all())


def test_one_process_is_a_world_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    world = World.join("cpu")
    assert world == World() and world.first
    assert world.sums([1.5, 2]) == [1.5, 2.0] and world.highest([3]) == [3.0]
    assert world.gather("a") == ["a"] and world.from_first("b") == "b" and world.share([1, 2]) == [1, 2]
    weight = torch.nn.Parameter(torch.ones(2))
    world.add_gradients([weight])
    assert weight.grad is not None and not weight.grad.any()
    world.wait()
    world.leave()


def test_a_process_waits_longer_for_the_others_than_torch_would(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, **how: asked.update(how))
    World.join("cpu")
    assert asked["timeout"].total_seconds() > 3600


def test_what_was_dealt_out_comes_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for items in (range(8), range(2), range(0)):
        parts = [World(rank, 3).share(items) for rank in range(3)]
        monkeypatch.setattr(World, "gather", lambda world, mine, parts=parts: parts)
        assert World(1, 3).collect(parts[1]) == list(items)


def test_groups_are_dealt_out() -> None:
    assert [World(rank, 3).share(range(8)) for rank in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_an_incomplete_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="RANK, MASTER_ADDR, MASTER_PORT"):
        World.join("cpu")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UsageError, match="WORLD_SIZE"):
        World.join("cpu")
