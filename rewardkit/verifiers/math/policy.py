"""What counts as equal: the options that comparison depends on."""

from __future__ import annotations

import msgspec


class Policy(msgspec.Struct, frozen=True):
    """How two answers are compared.

    Attributes:
        rounding: A decimal gold of three or more significant digits accepts what rounds to it, and an exact gold a
            decimal with six correct digits. Off: exact values only.
        units: "agree": where both sides have a unit they must agree; "required": the prediction must have the
            gold's; "ignore": units never matter.
        percent: 45% equals 45 where only one side has the sign.
        directional: The gold's form matters: an unsolved equation is no answer to a solved one. Off for `equal`.
    """

    rounding: bool = True
    units: str = "agree"
    percent: bool = True
    directional: bool = True


DEFAULT = Policy()
EXACT = Policy(rounding=False, directional=False)
