"""Attention of single tokens with fewer key heads than query heads, without repeating the keys.

transformers repeats keys and values for every query head when there is a mask. A decoding step has one query a row, so
the query heads that share a key head can stand where several queries of that head would.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "rewardkit_single_query"


def single_query(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return what transformers' own `sdpa` returns, [rows, 1, heads, head_dim].

    Args:
        module: The attention layer.
        query: [rows, heads, 1, head_dim].
        key, value: [rows, key heads, width, head_dim].
        attention_mask: bool [rows, 1, 1, width].
        dropout, scaling, kwargs: As the layer gives them.
    """
    rows, heads, queries, _ = query.shape
    if queries != 1 or kwargs.get("position_bias") is not None:
        out: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1], query.shape[3])
    mixed = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return mixed.reshape(rows, 1, heads, value.shape[3]), None


@contextlib.contextmanager
def single_queries(config: Any) -> Iterator[None]:
    """Let the layers of the model with this configuration use `single_query` in place of `sdpa` inside the block."""
    own = config._attn_implementation
    if own != "sdpa":
        yield
        return
    if NAME not in ALL_ATTENTION_FUNCTIONS:
        ALL_ATTENTION_FUNCTIONS.register(NAME, single_query)
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = own
