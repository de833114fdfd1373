"""An event loop on a thread of its own: where async rewards and rewards that wait in threads run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rewardkit.errors import ServiceError

_T = TypeVar("_T")


class LoopThread:
    """An event loop of our own on a daemon thread, so that nothing depends on the caller's."""

    def __init__(self, concurrency: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.limit = asyncio.Semaphore(concurrency)
        self.most_threads = 4 * concurrency
        self.threads = 0
        self.thread = threading.Thread(target=self._run, name="rewardkit-loop", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def call_in_thread(self, function: Callable[[], _T]) -> _T:
        """Call a function on a daemon thread: one that never returns cannot hold up the process's end.

        A call over its deadline goes on in its thread; when too many of these pile up, further calls fail at once.
        """
        if self.threads >= self.most_threads:
            raise ServiceError(f"{self.threads} earlier calls have not come back")
        answer: asyncio.Future[_T] = self.loop.create_future()

        def run() -> None:
            try:
                done, result = answer.set_result, function()
            except BaseException as problem:
                self._tell(answer, answer.set_exception, _carried(problem))
            else:
                self._tell(answer, done, result)

        self.threads += 1
        try:
            threading.Thread(target=run, name="rewardkit-reward", daemon=True).start()
        except RuntimeError:  # the system gives no more
            self.threads -= 1
            raise
        return await answer

    def _tell(self, answer: asyncio.Future[Any], how: Callable[[Any], None], what: Any) -> None:
        """Settle a future from a thread, unless nobody waits any more."""

        def settle() -> None:
            self.threads -= 1
            if not answer.done():
                how(what)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(settle)

    def close(self) -> None:
        if not self.thread.is_alive() or self.loop.is_closed() or sys.is_finalizing():
            return
        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self.loop).result(timeout=10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=10)
        if not self.thread.is_alive():
            self.loop.close()

    @staticmethod
    async def _cancel_all() -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _carried(problem: BaseException) -> Exception:
    """Return an exception that a future can carry: it refuses StopIteration, and SystemExit would end the loop."""
    if isinstance(problem, Exception) and not isinstance(problem, StopIteration):
        return problem
    carried = RuntimeError(f"{type(problem).__name__}: {problem}")
    return carried.with_traceback(problem.__traceback__)
