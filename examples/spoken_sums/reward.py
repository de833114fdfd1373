"""The two rewards of the spoken sums. The wanted reply to "What is four plus nine?" is `4 + 9 = <answer>13</answer>`.

rewardkit try examples/spoken_sums/reward.py:right --reference 13 '4 + 9 = <answer>13</answer>'
"""

import re

from rewardkit import reward

ANSWER = re.compile(r"<answer>\s*(-?\d+)\s*</answer>")


@reward
def right(completion, reference) -> float:
    """1 when the first answer is the reference."""
    first = ANSWER.search(completion)
    return float(first is not None and int(first[1]) == int(reference))


@reward
def form(completion, equation) -> float:
    """1 when the whole reply is the question's own equation with an answer behind it, whatever the answer.

    It asks for the whole reply: rewarding any text that ends in an answer pays for answers to other questions.
    """
    first = ANSWER.search(completion)
    return float(first is not None and completion.strip() == f"{equation} = <answer>{first[1]}</answer>")
