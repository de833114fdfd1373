"""The operations that own memory: each a formula, a torch reference and a kernel, in that order."""

from trainer_backend.ops.head import Head
from trainer_backend.ops.logprob import LinearLogps, linear_logps
from trainer_backend.ops.reference import dense_logps

__all__ = ["Head", "LinearLogps", "dense_logps", "linear_logps"]
