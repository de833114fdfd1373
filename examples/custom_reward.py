"""A reward of your own to train with: a reply that is one short sentence.

rewardkit try examples/custom_reward.py:one_sentence 'It is made of water.'
rewardkit train examples/train_custom.toml
"""

from rewardkit import reward


@reward
def one_sentence(completion, *, max_words: int = 12) -> float:
    """1 for one sentence of at most `max_words` words; less for more words, half for more than one sentence."""
    words = completion.split()
    ends = sum(word.endswith((".", "!", "?")) for word in words)
    if not words or not words[-1].endswith((".", "!", "?")):
        return 0.0  # nothing, or cut off in the middle
    return min(1.0, max_words / len(words)) * (1.0 if ends == 1 else 0.5)
