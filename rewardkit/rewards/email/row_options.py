"""Options that a row may give: a column of the option's name goes before the option itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rewardkit.errors import OptionError
from rewardkit.reward import MISSING, FunctionReward, column, to_score
from rewardkit.types import Completion, Sample, Score


class RowOptionReward(FunctionReward):
    """A reward some of whose options are columns too. Such an option that is None (not given) needs its column.

    So `email_recipient` takes the column `recipient`, and `email_recipient(recipient='Anna')` is for data without
    that column. A column's value is handed over as it is; the function checks it.
    """

    columns: ClassVar[frozenset[str]] = frozenset({"keywords", "recipient", "max_words"})

    @property
    def needs(self) -> tuple[str, ...]:
        return (*super().needs, *(name for name in self._given if self._values[name] is None))

    @property
    def _given(self) -> list[str]:
        """The options that a row may give."""
        return [name for name in self._values if name in self.columns]

    def judge(self, prepared: object, sample: Sample, completion: Completion) -> Score:
        given = {name: column(name, sample, completion) for name in self._given}
        given = {name: value for name, value in given.items() if value is not MISSING and value is not None}
        arguments = {name: get(sample, completion) for name, get in self._getters}
        scored = to_score(self.function(**arguments, **(self._values | given)), self.label)
        if scored.reason == "bad_reference" and not given:
            raise OptionError(f"{self.label}: option {scored.detail}")  # nothing else can be to blame
        return scored


def row_options(*, name: str) -> Callable[[Callable[..., Any]], RowOptionReward]:
    """Make a function into a `RowOptionReward`, as `@reward(name=…)` makes one into a reward."""
    return lambda function: RowOptionReward(function, name=name)
