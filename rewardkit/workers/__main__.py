"""`python -m rewardkit.workers`: one worker process, started by a `WorkerPool`."""

import sys

from rewardkit.workers.child import main

if __name__ == "__main__":
    sys.exit(main())
