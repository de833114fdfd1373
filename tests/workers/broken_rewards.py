"""A file that loads in the process that defines REWARDKIT_TEST_LOADS, and in no worker."""

import os

from rewardkit.reward import reward

if os.environ.get("REWARDKIT_TEST_LOADS") != str(os.getpid()):
    raise RuntimeError("not here")


@reward(timeout=5)
def fine(completion: str) -> float:
    return 1.0
