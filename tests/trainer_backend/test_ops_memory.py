"""What the fused head allocates: never rows x vocabulary, and no second [rows, hidden]."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the fused head needs torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from trainer_backend.ops import Head, dense_logps, linear_logps, logprob, tiles  # noqa: E402

WIDTH, TOKENS, TILE, CHUNK = 128, 2000, 256, 150_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(logprob, "TILE", TILE)
    monkeypatch.setattr(tiles, "_STEP", 64)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Bytes(TorchDispatchMode):
    """Sees every new tensor: the largest, and the most bytes that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.alive = self.peak = 0
        self._tensors: dict[int, int] = {}  # of a storage: how many of its tensors live

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._tensors:
                if key in known:
                    continue  # an input's
                self._tensors[key] = 0
                self.largest = max(self.largest, size)
                self.alive += size
                self.peak = max(self.peak, self.alive)
            self._tensors[key] += 1
            weakref.finalize(tensor, self._gone, key, size)
        return result

    def _gone(self, key: int, size: int) -> None:
        self._tensors[key] -= 1
        if not self._tensors[key]:
            del self._tensors[key]
            self.alive -= size


def inputs(rows: int, dtype: Any) -> tuple[Any, Any, Any]:
    dice = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, WIDTH, generator=dice).to(dtype)
    weight = (torch.randn(TOKENS, WIDTH, generator=dice) * 0.1).to(dtype)
    return hidden, weight, torch.randint(0, TOKENS, (rows,), generator=dice)


def measured(
    rows: int, *, dtype: Any = torch.float32, graph: bool = True, softcap: float | None = None, **options: Any
) -> Bytes:
    hidden, weight, targets = inputs(rows, dtype)
    hidden.requires_grad_(graph)
    head = Head(weight, softcap=softcap)
    given = hidden.view_as(hidden) if options.get("inplace") else hidden
    with Bytes() as seen:
        found = linear_logps(given, head, targets, chunk_bytes=CHUNK, **options)
        loss = found.logps.sum()
        if options.get("entropy") == "gradient":
            loss = loss + found.entropies.sum()
        if graph:
            loss.backward()
    return seen


def test_the_measure_sees_dense_logits() -> None:
    hidden, weight, targets = inputs(64, torch.float32)
    with Bytes() as seen:
        dense_logps(hidden.requires_grad_(), Head(weight), targets, dtype=torch.float32)[0].sum().backward()
    assert seen.largest >= 64 * TOKENS * 4
    assert seen.peak > 3 * 64 * TOKENS * 4
    assert seen.alive < 2 * 64 * WIDTH * 4  # the gradient; all else was given back


# How many times `chunk_bytes` each may take for a moment: plain torch holds the targets' vectors, a soft cap's slopes,
# and the tile of a two-byte head in float32, which the kernels on CUDA do not; gathered rows are held twice.
WAYS = [
    (1.4, {}), (1.4, {"graph": False}), (1.4, {"softmax": "online"}), (1.9, {"inplace": True}),
    (1.4, {"entropy": "value"}), (1.4, {"entropy": "gradient"}), (1.9, {"softcap": 5.0}), (2.0, {"active": True}),
    (2.3, {"active": True, "inplace": True}), (3.3, {"dtype": torch.bfloat16}),
    (3.3, {"dtype": torch.bfloat16, "entropy": "gradient", "softmax": "online"}),
]  # fmt: skip


@pytest.mark.parametrize(("most", "way"), WAYS, ids=str)
def test_memory_is_a_chunk_and_one_gradient_whatever_the_rows(most: float, way: dict[str, Any]) -> None:
    extra = []
    for rows in (600, 1800):
        options = dict(way)
        if options.get("active"):
            options["active"] = torch.arange(rows) % 3 > 0
        item = options.get("dtype", torch.float32).itemsize
        seen = measured(rows, **options)
        assert seen.largest <= max(CHUNK, rows * WIDTH * item) < rows * TOKENS * item / 4
        gradient = rows * WIDTH * item
        buffers = (
            2
            if options.get("entropy") == "gradient"
            else 0
            if options.get("inplace") or not way.get("graph", True)
            else 1
        )
        scalars = rows * 20  # of a row: log-prob, entropy, scale ...
        extra.append(seen.peak - buffers * gradient - scalars)
    assert max(extra) <= CHUNK * most, extra
    assert extra[1] <= extra[0] * 1.06
