"""A second plugin, in one file: a plain function as reward, and a backend."""

from rewardkit import hookimpl


def loud(completion, *, share: float = 1.0):
    letters = [c for c in completion if c.isalpha()]
    return float(bool(letters) and sum(c.isupper() for c in letters) >= share * len(letters))


def start(path):
    return 0


@hookimpl
def rewardkit_rewards(register):
    register("loud", "rewardkit_shout:loud", "1 when enough letters are capitals")


@hookimpl
def rewardkit_backends(register):
    register("nothing", "rewardkit_shout:start", "Trains nothing")
