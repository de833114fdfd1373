"""What can be wrong with a model or an adapter; every message says where, what was wanted, what came, what to do."""

from __future__ import annotations

from rewardkit.errors import UsageError


class ModelError(UsageError):
    """A model, tokenizer or adapter cannot be found, read or trained."""


class MissingExtra(UsageError):
    """A library that only some runs need is not installed; the message has the install line."""
