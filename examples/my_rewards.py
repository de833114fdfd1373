"""Two rewards of your own, and a composition that uses one of them.

rewardkit eval examples/gsm8k/solutions.jsonl -r examples/my_rewards.py:brief
rewardkit eval examples/gsm8k/solutions.jsonl -r examples/my_rewards.py:total
"""

from rewardkit import group_reward, reward
from rewardkit.verifiers.gsm8k import Gsm8k


@reward
def brief(completion, *, max_words: int = 80) -> float:
    """1 up to `max_words` words, falling to 0 at twice as many.

    Args:
        max_words: Length in words up to which nothing is taken off.
    """
    return min(1.0, max(0.0, 2 - len(completion.split()) / max_words))


@group_reward
def shortest_first(completions) -> list[float]:
    """1 for the shortest completion of a group, 0 for the longest, linear in rank between."""
    order = sorted(range(len(completions)), key=lambda i: len(completions[i]))
    last = max(1, len(order) - 1)
    ranks = {place: 1 - rank / last for rank, place in enumerate(order)}
    return [ranks[i] for i in range(len(completions))]


total = Gsm8k() + 0.1 * brief
