"""Worker processes that stay and can be killed: where rewards run that may hang or blow up.

    with WorkerPool([leaf]) as pool:
        scores = pool.submit(0, generation).result()

Each worker is a plain `python -m rewardkit.workers` that speaks length-prefixed msgpack over its own pipes. A reward
travels by its import string and options, a sample as data: nothing is pickled, nothing is forked, the caller's
`__main__` is never imported again and no signal handler is needed here, so a pool works the same in a script,
a thread, a running event loop and a notebook. Results are `concurrent.futures.Future`s.

`wire.py` is what travels, `pool.py`, `worker.py` and `process.py` are the caller's side, `child.py` is the worker's.
`chunk_pool.py` and `chunk_scorer.py` are the two sides for large files of which each worker scores whole pieces.

Who is to blame when a reward does not come back: judging over the deadline or the memory cap is the completion's
fault (scored 0); reading the reference over the deadline is an error, over the memory cap an abstention. A group
reward has one deadline for its whole group, and over it, or over the memory cap, the whole group is an error,
since no single completion is to blame. A worker that dies on its own gets one second try with the same
item, so that a kill from outside does not change results; then the item is an error.
"""

from rewardkit.workers.pool import DEFAULT_MEMORY, Stats, WorkerPool
from rewardkit.workers.wire import leaf_from_data, leaf_to_data

__all__ = ["DEFAULT_MEMORY", "Stats", "WorkerPool", "leaf_from_data", "leaf_to_data"]
