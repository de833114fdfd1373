"""Attention of some queries to some keys at a time, exactly: blocks, put together by their log-sum-exp.

A softmax over keys can be taken in parts. Part i gives o_i and lse_i (the log of its sum of exponentials); then

    lse = log sum_i exp(lse_i),    o = sum_i exp(lse_i - lse) o_i

and, given the whole row's o and lse, the gradient of each part is that of a softmax whose probabilities are
exp(scores - lse): it needs nothing of the other parts. So queries that see all of what came before and themselves
causally take one full block and one causal square, which every kernel knows; causal rectangles, which kernels disagree
about, do not occur. Keys may also lie apart, as those of a prompt that completions share.

Dao and others, 2022 (arXiv 2205.14135) for the kernels; Milakov and Gimelshein, 2018 (arXiv 1805.02867) for the sums.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias

import torch

Kernel: TypeAlias = Literal["cpu", "flash", "cudnn"]

_NO_DROPOUT = 0.0
_WORTH_A_PLAN = 512  # queries; a model is tried with a few (`model.streamed`), which should not hang on cuDNN's plans


def kernel_for(q: torch.Tensor, *, recurs: bool = False) -> Kernel:
    """Return the kernel for a block of these queries, [queries, heads, width].

    Args:
        q: The queries.
        recurs: Whether blocks of just this number of queries and keys come again and again. cuDNN makes a plan for each
            pair, which takes it a tenth of a second; then it takes 7.1 ms for what takes flash attention 12.1 (forward;
            backward 19.0 and 32.4; 20,480 tokens in chunks of 2,048, 32 heads of 128 on an H200). Only there it was
            measured, so only there it is taken.
    """
    if q.device.type != "cuda":
        return "cpu"
    if recurs and q.shape[0] >= _WORTH_A_PLAN and q.shape[2] <= 128 and _hopper(q.device):
        return "cudnn"
    return "flash"


@functools.lru_cache
def _hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float, kernel: Kernel
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what queries take from keys, [queries, heads, width], and the log-sum-exp of their scores.

    Args:
        q: [queries, heads, width].
        k, v: [keys, key heads, width]; key heads divide heads.
        causal: Whether query i sees keys 0 to i only; there are as many of both then.
        scale: Of the scores.
        kernel: Which to use.

    Returns:
        The second is float32 (float64 for such) [heads, queries].
    """
    args = (_batch(q), _batch(k), _batch(v))
    aten: Any = torch.ops.aten
    if kernel == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(*args, _NO_DROPOUT, causal, scale=scale)
    elif kernel == "flash":
        out, lse = aten._scaled_dot_product_flash_attention(*args, _NO_DROPOUT, causal, scale=scale)[:2]
    else:
        out, lse = aten._scaled_dot_product_cudnn_attention(*args, None, True, _NO_DROPOUT, causal, scale=scale)[:2]
    return out[0].transpose(0, 1), lse.view(q.shape[1], -1)[:, : q.shape[0]]


def attend_backward(
    slope: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    causal: bool,
    scale: float,
    kernel: Kernel,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients for q, k and v of one block, given those of the whole rows' outcome.

    Args:
        slope: [queries, heads, width].
        q, k, v, causal, scale, kernel: As for `attend`.
        out, lse: Of the whole rows: with all blocks.
    """
    args = (_batch(slope), _batch(q), _batch(k), _batch(v), _batch(out))
    sums = lse.unsqueeze(0).contiguous()
    aten: Any = torch.ops.aten
    if kernel == "cpu":
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(*args, sums, _NO_DROPOUT, causal, scale=scale)
    else:
        none = None  # of a bias and of packed sequences; an empty tensor would be taken for one
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        sizes = (q.shape[0], k.shape[0], _NO_DROPOUT, causal)
        if kernel == "flash":
            found = aten._scaled_dot_product_flash_attention_backward(
                *args, sums, none, none, *sizes, seed, seed, scale=scale
            )
        else:
            found = aten._scaled_dot_product_cudnn_attention_backward(
                *args, sums.unsqueeze(-1), seed, seed, none, none, none, *sizes, scale=scale
            )
    dq, dk, dv = (one[0].transpose(0, 1) for one in found)
    return dq, dk, dv


def _batch(x: torch.Tensor) -> torch.Tensor:
    """Return [tokens, heads, width] as [1, heads, tokens, width], without a copy."""
    return x.transpose(0, 1).unsqueeze(0)


def put_together(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `attend` would have given on all keys at once, from what it gave on parts of them."""
    if len(parts) == 1:
        return parts[0]
    whole = torch.stack([lse for _, lse in parts]).logsumexp(0)
    total = None
    for out, lse in parts:
        share = torch.exp(lse - whole).T.unsqueeze(-1)
        term = out.to(share.dtype) * share
        total = term if total is None else total.add_(term)
    assert total is not None
    return total.to(parts[0][0].dtype), whole
