"""Worker processes that stay and can be killed: where rewards run that may hang or blow up.

    with WorkerPool([leaf]) as pool:
        scores = pool.submit(0, generation).result()

Each worker is a plain `python -m rewardkit.workers` that speaks length-prefixed msgpack over its own pipes. A reward
travels by its import string and options, a sample as data: nothing is pickled, nothing is forked, the caller's
`__main__` is never imported again and no signal handler is needed here, so a pool works the same in a script,
a thread, a running event loop and a notebook. Results are `concurrent.futures.Future`s.

The file's three parts: what travels (both sides), the pool (the caller's side), the child (the worker's side).

Who is to blame when a reward does not come back: judging over the deadline or the memory cap is the completion's
fault (scored 0); reading the reference over the deadline is an error, over the memory cap an abstention. A group
reward has one deadline for its whole group, and over it, or over the memory cap, the whole group is an error,
since no single completion is to blame. A worker that dies on its own gets one second try with the same
item, so that a kill from outside does not change results; then the item is an error.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from rewardkit import errors
from rewardkit.errors import ContractError, RewardkitError, UsageError, WorkerError
from rewardkit.types import BlameMachine, Completion, Generation, Sample, Score

if TYPE_CHECKING:
    import io
    import queue
    import subprocess
    import weakref
    from concurrent.futures import Future

    from rewardkit.reward import Leaf

DEFAULT_MEMORY = 2 << 30
"""What a reward may allocate in a worker when it does not say, in bytes."""

_TICK = 0.5  # seconds between two looks at things that no pipe tells: a cancelled future, a death without end of file
_SPARE = 1.0  # CPU seconds beyond its deadline that an orphan may spin, where the kernel cannot tie it to its parent
_LAST_WORDS = 8 << 10  # bytes of standard error kept to explain a death
_LARGEST_FRAME = 1 << 31
_GATHER = 0.005  # seconds that a finished score may wait for the next one of its group
_HEADER = struct.Struct(">Q")
_STEP_BITS = 24


# ------------------------------------------------------------------------------------------- what travels
#
# msgpack itself would turn tuples into lists and dates into text, and refuses large integers and lone surrogates.
# A reward must see in a worker what it sees inline, so those travel as extensions that name their type.

_EXTENSION = 1
_AS_IS = frozenset({str, int, float, bool, type(None), bytes, msgspec.msgpack.Ext})


class _Stuck(Exception):
    """A value has no form that can be sent. Its text is the name of the type."""


def _plain(value: Any) -> Any:
    """Return `value` made of what msgpack can hold; `_revive` undoes it.

    Subclasses of str, int, float, list and mappings arrive as the plain type, arrays as lists.

    Raises:
        _Stuck: It holds an object of a type that cannot be sent.
    """
    kind = type(value)
    if kind in _AS_IS:
        return value
    if kind is list:
        return [_plain(item) for item in value]
    if kind is tuple:
        return _tagged("tuple", [_plain(item) for item in value])
    if kind is dict:
        if all(type(key) is str for key in value):
            return {key: item if type(item) in _AS_IS else _plain(item) for key, item in value.items()}
        return _tagged("dict", [[_plain(key), _plain(item)] for key, item in value.items()])
    return _odd(value)


def _odd(value: Any) -> Any:
    """Return the plain form of a value that is seldom met in data."""
    from datetime import date, datetime, time, timedelta
    from decimal import Decimal
    from fractions import Fraction
    from uuid import UUID

    if isinstance(value, str):
        return str.__str__(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    match value:
        case int():
            return int(value)
        case float():
            return float(value)
        case bytes():
            return bytes(value)
        case Mapping():
            return _plain(dict(value))
        case tuple():
            return _plain(tuple(value))
        case list():
            return _plain(list(value))
        case bytearray():
            return _tagged("bytearray", bytes(value))
        case set() | frozenset():
            return _tagged("set" if isinstance(value, set) else "frozenset", [_plain(item) for item in value])
        case complex():
            return _tagged("complex", [value.real, value.imag])
        case Decimal():
            return _tagged("Decimal", str(value))
        case Fraction():
            return _tagged("Fraction", [value.numerator, value.denominator])
        case UUID():
            return _tagged("UUID", value.bytes)
        case timedelta():
            return _tagged("timedelta", [value.days, value.seconds, value.microseconds])
        case datetime():
            day = [value.year, value.month, value.day]
            return _tagged("datetime", [day, *_clock(value, value)])
        case date():
            return _tagged("date", [value.year, value.month, value.day])
        case time():
            return _tagged("time", list(_clock(value, None)))
    raise _Stuck(kind.__qualname__ if (kind := type(value)) else "")


def _clock(value: Any, moment: Any) -> tuple[list[Any], int, Any]:
    """Return the time of day, its fold and its zone: None, a zone's name, or an offset in seconds."""
    clock = [value.hour, value.minute, value.second, value.microsecond]
    if not all(type(part) is int for part in clock):
        raise _Stuck(type(value).__qualname__)
    zone = value.tzinfo
    if zone is not None:
        name = getattr(zone, "key", None)
        offset = zone.utcoffset(moment)
        if name is None and offset is None:
            raise _Stuck(type(zone).__qualname__)
        zone = name if name is not None else offset.total_seconds()
    return clock, value.fold, zone


def _tagged(tag: str, body: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_EXTENSION, _encoded([tag, body]))


def _encoded(plain: Any) -> bytes:
    try:
        return _encoder.encode(plain)
    except (UnicodeEncodeError, OverflowError):  # rare, so texts and integers are looked at only then
        return _encoder.encode(_rare(plain))


def _rare(plain: Any) -> Any:
    """Tag the texts and integers that msgpack refuses: lone surrogates, more than 64 bits."""
    match plain:
        case str() if not plain.isascii():
            raw = plain.encode("utf-8", "surrogatepass")
            return plain if raw.decode("utf-8", "replace") == plain else _tagged("str", raw)
        case int() if not -(1 << 63) <= plain < 1 << 64:
            return _tagged("int", plain.to_bytes(plain.bit_length() // 8 + 1, "big", signed=True))
        case list():
            return [_rare(item) for item in plain]
        case dict():
            if all(_is_text(key) for key in plain):
                return {key: _rare(item) for key, item in plain.items()}
            return _tagged("dict", [[_rare(key), _rare(item)] for key, item in plain.items()])
    return plain


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _revive(code: int, data: memoryview) -> Any:
    tag, body = _decoder.decode(data)
    match tag:
        case "tuple":
            return tuple(body)
        case "dict":
            return dict(body)
        case "str":
            return body.decode("utf-8", "surrogatepass")
        case "int":
            return int.from_bytes(body, "big", signed=True)
        case "set":
            return set(body)
        case "frozenset":
            return frozenset(body)
        case "bytearray":
            return bytearray(body)
        case "complex":
            return complex(*body)
    return _revive_object(tag, body)


def _revive_object(tag: str, body: Any) -> Any:
    import datetime as dt
    from decimal import Decimal
    from fractions import Fraction
    from uuid import UUID

    match tag:
        case "Decimal":
            return Decimal(body)
        case "Fraction":
            return Fraction(*body)
        case "UUID":
            return UUID(bytes=body)
        case "timedelta":
            return dt.timedelta(*body)
        case "date":
            return dt.date(*body)
        case "datetime":
            day, clock, fold, zone = body
            return dt.datetime.combine(dt.date(*day), dt.time(*clock).replace(tzinfo=_zone(zone), fold=fold))
        case "time":
            clock, fold, zone = body
            return dt.time(*clock).replace(tzinfo=_zone(zone), fold=fold)
    raise ValueError(f"unknown type {tag!r}")


def _zone(zone: str | float | None) -> Any:
    from datetime import timedelta, timezone
    from zoneinfo import ZoneInfo

    if zone is None:
        return None
    return ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ext_hook=_revive)


def _frame(plain: Any) -> bytes:
    body = _encoded(plain)
    return _HEADER.pack(len(body)) + body


def _record(record: Sample | Completion) -> list[Any]:
    """Return a sample's or completion's fields in their order. Raises _Stuck with a whole sentence."""
    data = []
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if type(value) in _AS_IS:
            data.append(value)
        elif name == "metadata":
            data.append({column: _field(column, item) for column, item in value.items()} if value else {})
        else:
            data.append(_field(name, value))
    return data


def _field(name: str, value: Any) -> Any:
    try:
        return _plain(value)
    except _Stuck as stuck:
        raise _Stuck(f"column {name!r} holds a {stuck}, which cannot be sent to a worker") from None
    except RecursionError:
        raise _Stuck(f"column {name!r} is nested too deeply to be sent to a worker") from None


def _score_data(score: Score) -> list[Any]:
    data = [value if type(value) in _AS_IS else _plain(value) for value in msgspec.structs.astuple(_bare(score))]
    data[_PARTS] = [_score_data(part) for part in score.parts]
    return data


def _bare(score: Score) -> Score:
    return msgspec.structs.replace(score, parts=()) if score.parts else score


def _score_from(data: list[Any]) -> Score:
    data[_PARTS] = tuple(map(_score_from, data[_PARTS]))
    return Score(*data)


_PARTS = Score.__struct_fields__.index("parts")
_SECONDS = Score.__struct_fields__.index("seconds")


def leaf_to_data(leaf: Leaf) -> dict[str, Any]:
    """Return a reward as data from which a worker makes it again.

    Recipes name registered rewards; here it is always the import string, so that a worker looks up no plugins.

    Raises:
        WorkerError: No other process can load it: it lives in `__main__`, a notebook or inside a function.
    """
    from rewardkit.reward import FunctionReward
    from rewardkit.targets import travels

    target = leaf.target
    if target is None or not travels(target):
        raise WorkerError(
            f"reward {leaf.label!r} lives in a script, a notebook or inside a function, where a worker process cannot"
            " find it; move it to the top of a file of its own"
        )
    data: dict[str, Any] = {"target": target, "options": leaf.options}
    if isinstance(leaf, FunctionReward):
        data |= {"kind": type(leaf).__name__, "name": leaf.registered, "timeout": leaf.timeout, "memory": leaf.memory}
    return data


def leaf_from_data(data: Mapping[str, Any]) -> Leaf:
    """Make the reward of `leaf_to_data` again. May raise whatever importing it raises."""
    from rewardkit.reward import FunctionReward, GroupReward, Leaf, TrlReward, as_reward
    from rewardkit.targets import load_target

    found: Any = load_target(data["target"])
    if "kind" in data:
        kinds = {kind.__name__: kind for kind in (FunctionReward, GroupReward, TrlReward)}
        function = found.function if isinstance(found, FunctionReward) else found
        given = {key: data[key] for key in ("name", "timeout", "memory", "options", "target")}
        return kinds[data["kind"]](function, **given)
    if isinstance(found, type) and hasattr(found, "from_options"):
        found = found.from_options(data["options"])
    made = as_reward(found, data["target"])
    if not isinstance(made, Leaf):
        raise UsageError(f"{data['target']} is a composition, not a single reward")
    return made


# ----------------------------------------------------------------------------------------- the child's end


class _Late(Exception):
    """The deadline passed."""


class _Ended(Exception):
    """The process ended, or speaks something else than the protocol."""


class _Dropped(Exception):
    """Nobody waits for the answer any more."""


@contextlib.contextmanager
def _shared_page() -> Iterator[int]:
    """Give the descriptor of a little shared memory that has no name."""
    if hasattr(os, "memfd_create"):
        page = os.memfd_create("rewardkit")
    else:
        import tempfile

        page, path = tempfile.mkstemp()
        os.unlink(path)
    try:
        os.truncate(page, 8)
        yield page
    finally:
        os.close(page)


class _Page:
    """Eight bytes shared by a parent and its child: the step the child is at, and since when.

    The parent reads them when it has waited long enough, so that the child need not report each step. One
    aligned word is written at once, so a reader never sees half of it. The monotonic clock is the machine's.
    """

    def __init__(self, descriptor: int) -> None:
        import mmap

        self._map = mmap.mmap(descriptor, 8)
        self._words = memoryview(self._map).cast("Q")

    def mark(self, step: int) -> None:
        self._words[0] = int(time.monotonic() * 1000 + 1) << _STEP_BITS | step

    def read(self) -> tuple[int, float]:
        """Return the step and when it began, in seconds, at most 1 ms late."""
        word = self._words[0]
        return word & (1 << _STEP_BITS) - 1, (word >> _STEP_BITS) / 1000

    def close(self) -> None:
        self._words.release()
        self._map.close()


class _Process:
    """One child process: its pipes, its end, its last words on standard error."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: str | None) -> None:
        import subprocess

        pipe = subprocess.PIPE
        with _shared_page() as page:
            self.page = _Page(page)
            self._popen: subprocess.Popen[bytes] = subprocess.Popen(
                [*command, str(page)],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                cwd=folder,
                env=environment,
                pass_fds=(page,),
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self.greeted = False
        self.loaded: set[int] = set()
        self.last_words = b""
        self._files = [file for file in (self._popen.stdin, self._popen.stdout, self._popen.stderr) if file]
        self._in, self._out, self._err = (file.fileno() for file in self._files)
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._poll.register(self._err, select.POLLIN)
        self._received = bytearray()
        # Re-entrant: the garbage collector may close a dropped pool in the middle of this thread's own work.
        self._lock = threading.RLock()

    def send(self, frame: bytes, until: float, abandoned: Callable[[], bool]) -> None:
        """Write a whole frame. Raises _Late, _Ended, _Dropped."""
        left = memoryview(frame)
        while left:
            try:
                left = left[os.write(self._in, left) :]
            except BlockingIOError:
                self._poll.register(self._in, select.POLLOUT)
                try:
                    self._wait(until, abandoned)
                finally:
                    self._poll.unregister(self._in)
            except OSError:
                raise _Ended from None

    def receive(self, until: float, abandoned: Callable[[], bool]) -> list[Any]:
        """Return the next message. Raises _Late, _Ended, _Dropped."""
        while (body := self._next_frame()) is None:
            self._wait(until, abandoned)
        try:
            message = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, TypeError):
            raise _Ended from None
        if not isinstance(message, list) or not message:
            raise _Ended
        return message

    def alive(self) -> bool:
        """Tell whether an idle child still listens; drains what it wrote to standard error meanwhile."""
        for fd, _ in self._poll.poll(0):
            if fd != self._err:
                return False  # nothing was asked, so this is its end
            self._listen_to_last_words()
        return True

    def _next_frame(self) -> bytes | None:
        buffer = self._received
        if len(buffer) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack_from(buffer)
        if size > _LARGEST_FRAME:
            raise _Ended
        end = _HEADER.size + size
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[_HEADER.size : end])
        del buffer[:end]
        return body

    def _wait(self, until: float, abandoned: Callable[[], bool]) -> None:
        """Wait for the child to do something, at most one tick. Raises _Late, _Ended, _Dropped."""
        left = until - time.monotonic()
        events = self._poll.poll(1000 * max(0.0, min(left, _TICK)))
        progress = False
        for fd, _ in events:
            if fd == self._err:
                self._listen_to_last_words()
                continue
            progress = True
            if fd == self._out:
                self._hear()
        if progress:
            return
        if time.monotonic() >= until:
            raise _Late
        if abandoned():
            raise _Dropped
        if not events and self._has_exited():
            raise _Ended

    def _hear(self) -> None:
        try:
            data = os.read(self._out, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise _Ended
        self._received += data

    def _listen_to_last_words(self) -> None:
        try:
            data = os.read(self._err, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._poll.unregister(self._err)
        self.last_words = (self.last_words + data)[-_LAST_WORDS:]

    def _has_exited(self) -> bool:
        """Tell whether the child ended although something it left behind holds its pipes open."""
        if not hasattr(os, "waitid"):
            with self._lock:
                return self._popen.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def kill(self) -> None:
        """Kill the child and everything in its process group. Safe from any thread, and more than once."""
        with self._lock:
            if self._popen.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> int | None:
        """Kill, reap and close; return the exit status, negative for a signal, None when it cannot be reaped."""
        self.kill()
        pause, until = 0.0002, time.monotonic() + 10.0
        while True:
            with self._lock:
                status = self._popen.poll()
            if status is not None or time.monotonic() > until:
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        for _ in range(64):
            before = self.last_words
            with contextlib.suppress(KeyError):  # its end was read before
                self._listen_to_last_words()
            if self.last_words == before:
                break
        self.close_pipes()
        return status

    def close_pipes(self) -> None:
        self.page.close()
        for file in self._files:
            with contextlib.suppress(OSError):
                file.close()

    def disown(self) -> None:
        """Let go of it in a fork of the caller: it belongs to the parent, and is no child of this process."""
        self.close_pipes()
        self._popen.returncode = 0

    def obituary(self, status: int | None) -> str:
        """Say how it ended, with the last line that it wrote."""
        if status is None:
            text = "the worker cannot be reached"
        elif status >= 0:
            text = f"the worker ended with exit code {status}"
        else:
            names = {item.value: item.name for item in signal.Signals}
            text = f"the worker was ended by {names.get(-status, f'signal {-status}')}"
        lines = self.last_words.decode("utf-8", "replace").strip().splitlines()
        if lines:
            shown = "".join(char if char.isprintable() else "?" for char in lines[-1].strip()[:300])
            text += f"; its last line was: {shown}"
        return text


# ---------------------------------------------------------------------------------------------- one worker


class _Job:
    """One group, or some of its completions, for one reward."""

    def __init__(self, pool: WorkerPool, leaf: int, generation: Generation, at: Sequence[int]) -> None:
        from concurrent.futures import Future

        self.pool = pool  # keeps the pool alive until the answer is there
        self.leaf = leaf
        self.generation = generation
        self.at = at
        self.scores: dict[int, Score] = {}
        self.todo: list[int] = []  # places of the group that are still to be judged
        self.sample: list[Any] = []
        self.completions: dict[int, list[Any]] = {}
        self.batch: list[int] = []  # the places that the current process was given
        self.phase = "start"  # then load, work
        self.step = 0  # what was over the deadline: 0 the reference, else the place in the batch from 1
        self.deaths: dict[tuple[str, int], int] = {}
        self.future: Future[list[Score]] = Future()

    def settle(self, result: list[Score] | BaseException) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)

    def cancel(self) -> None:
        """Cancel it and wake whoever waits. Only for the one who took it from the queue."""
        self.future.cancel()
        self.future.set_running_or_notify_cancel()


class _Worker:
    """A thread that has one child process at a time and does jobs with it, one after another."""

    def __init__(self, core: _Core, number: int) -> None:
        self.core = core
        self.process: _Process | None = None
        self.job: _Job | None = None
        self.thread = threading.Thread(target=self._serve, name=f"rewardkit-worker-{number}", daemon=True)

    def interrupt(self) -> None:
        """Cancel the job and kill the process, from another thread."""
        job, process = self.job, self.process
        if job is not None:
            job.future.cancel()
        if process is not None:
            process.kill()

    def _serve(self) -> None:
        core = self.core
        try:
            while not core.closed:
                self.job = core.jobs.get()
                if self.job is None:
                    break
                if self.job.future.cancelled():
                    self.job.settle([])
                else:
                    self._answer(self.job)
                core.finished()
                self.job = None
        finally:
            core.jobs.put(None)  # hands the word to stop on to the next worker
            if self.process is not None:
                self.process.end()
                self.process = None

    def _answer(self, job: _Job) -> None:
        result: list[Score] | BaseException
        try:
            self._pack(job)
            while job.todo:
                self._attempt(job)
            result = [job.scores[place] for place in job.at]
        except RewardkitError as problem:
            result = problem
        except BaseException as problem:  # also _Dropped: the child may be in the middle of anything
            result = problem
            with contextlib.suppress(Exception):
                self._replace("kills")
        if self.core.closed or isinstance(result, _Dropped):
            job.future.cancel()
        job.settle(result)

    def _pack(self, job: _Job) -> None:
        """Make the job's data; what cannot be sent becomes an error score."""
        leaf = self.core.leaves[job.leaf]
        completions = job.generation.completions
        places = range(len(completions)) if leaf.takes_group else sorted(set(job.at))
        try:
            job.sample = _record(job.generation.sample)
        except _Stuck as stuck:
            job.scores = dict.fromkeys(places, Score.error("raised", str(stuck), name=leaf.label))
            return
        for place in places:
            try:
                job.completions[place] = _record(completions[place])
                job.todo.append(place)
            except _Stuck as stuck:
                job.scores[place] = Score.error("raised", str(stuck), name=leaf.label)
        if leaf.takes_group and job.scores:
            job.scores = dict.fromkeys(places, next(iter(job.scores.values())))
            job.todo.clear()

    def _attempt(self, job: _Job) -> None:
        """Go on with a job until it is done or the process is lost."""
        job.phase = "start"
        try:
            self._converse(self._ready(), job)
        except _Late:
            if self.core.closed:
                raise _Dropped from None
            self._late(job)
        except _Ended:
            if self.core.closed:
                raise _Dropped from None
            self._died(job)

    def _ready(self) -> _Process:
        """Return a process that has said hello."""
        process = self.process
        if process is not None and process.greeted and not process.alive():
            self._replace("deaths")
            process = self.process
        if process is None:
            process = self._start()
        if not process.greeted:
            until = time.monotonic() + self.core.start_timeout
            process.send(self.core.greeting, until, self._abandoned)
            if process.receive(until, self._abandoned)[0] != "ready":
                raise _Ended
            process.greeted = True
        return process

    def _start(self) -> _Process:
        try:
            self.process = process = _Process(self.core.command, self.core.environment(), self.core.folder)
        except OSError as problem:
            raise WorkerError(f"a worker process cannot be started: {problem}") from problem
        if self.core.closed:  # closed while it was starting, so nobody else can have killed it
            raise _Dropped
        return process

    def _abandoned(self) -> bool:
        return self.core.closed or (self.job is not None and self.job.future.cancelled())

    def _converse(self, process: _Process, job: _Job) -> None:
        """Send the job, take the answers."""
        core, leaf = self.core, self.core.leaves[job.leaf]
        fresh = job.leaf not in process.loaded
        job.phase, job.batch = "load" if fresh else "work", list(job.todo)
        until = time.monotonic() + core.start_timeout
        process.page.mark(0)
        process.send(self._request(job), until, self._abandoned)
        if not fresh:
            until = 0.0  # the shared page knows better
        while job.todo:
            kind, *rest = self._heard(process, job, until)
            until = 0.0
            match kind, rest:
                case "loaded", []:
                    process.loaded.add(job.leaf)
                    job.phase = "work"
                case "scores", [scores, spent]:
                    for data in scores:
                        job.scores[job.todo.pop(0)] = _score_from(data)
                    if spent:
                        self._replace("restarts")
                        return
                case "all", [data, spent]:
                    self._all(job, _score_from(data))
                    if spent:
                        self._replace("restarts")
                        return
                case "stop", [name, text]:
                    raise _error(name, text)
                case "unloadable", [text]:
                    core.refuse(job.leaf, f"reward {leaf.label!r} cannot be loaded in a worker process: {text}")
                case _:
                    raise _Ended

    def _request(self, job: _Job) -> bytes:
        group, takes_group = job.generation, self.core.leaves[job.leaf].takes_group
        extra = [group.model, group.start, group.where, group.key] if takes_group else None
        return _frame([job.leaf, job.sample, [job.completions[place] for place in job.batch], extra])

    def _heard(self, process: _Process, job: _Job, until: float) -> list[Any]:
        """Return the next answer. Each step that the child marks on the shared page has its own deadline."""
        timeout = self.core.leaves[job.leaf].timeout
        while True:
            mark = process.page.read()
            if job.phase == "work":
                until = math.inf if timeout is None else mark[1] + timeout
            try:
                return process.receive(until, self._abandoned)
            except _Late:
                if process.page.read() == mark:
                    job.step = mark[0]
                    raise

    def _late(self, job: _Job) -> None:
        leaf, process, step = self.core.leaves[job.leaf], self.process, job.step
        self._replace("kills")
        if job.phase != "work":
            what = "a worker process did not start" if job.phase == "start" else f"reward {leaf.label!r} did not load"
            self._refuse(job, f"{what} within {_seconds(self.core.start_timeout)}", process)
        limit = _seconds(leaf.timeout or 0.0)
        if step == 0:
            self._all(job, self._error(job, "deadline_reference", f"reading the reference took longer than {limit}"))
        elif leaf.takes_group:
            detail = f"judging took longer than {limit} for the whole group of {len(job.todo)}"
            self._all(job, self._error(job, "raised", detail))
        else:
            text = f"judging took longer than {limit}"
            self._one(job, step, Score(0.0, text, reason="deadline", name=leaf.label, seconds=leaf.timeout))

    def _died(self, job: _Job) -> None:
        process, leaf = self.process, self.core.leaves[job.leaf]
        step = process.page.read()[0] if process is not None and job.phase == "work" else 0
        status = self._replace("deaths")
        item = (job.phase, job.batch[min(step, len(job.batch)) - 1] if step else -1)
        job.deaths[item] = job.deaths.get(item, 0) + 1
        outside = status == -signal.SIGKILL and job.phase != "work"  # no reward was running yet
        if job.deaths[item] < (5 if outside else 2):
            return
        how = process.obituary(status) if process is not None else "the worker ended"
        if job.phase != "work":
            what = "a worker process" if job.phase == "start" else f"reward {leaf.label!r} in a worker process"
            self._refuse(job, f"{what} cannot be started: {how}", process)
        score = self._error(job, "worker_died", how)
        if step == 0 or leaf.takes_group:
            self._all(job, score)
        else:
            self._one(job, step, score)

    def _refuse(self, job: _Job, text: str, process: _Process | None) -> NoReturn:
        words = process.last_words.decode("utf-8", "replace").strip() if process is not None else ""
        self.core.refuse(None if job.phase == "start" else job.leaf, f"{text}; it wrote:\n{words}" if words else text)

    def _one(self, job: _Job, step: int, score: Score) -> None:
        """Give the completion that the child was at its score; those it had judged but not told are judged again."""
        place = job.batch[min(step, len(job.batch)) - 1]
        place = place if place in job.todo else job.todo[0]
        job.scores[place] = score
        job.todo.remove(place)

    def _error(self, job: _Job, reason: BlameMachine, detail: str) -> Score:
        return Score.error(reason, detail, name=self.core.leaves[job.leaf].label)

    def _all(self, job: _Job, score: Score) -> None:
        job.scores.update(dict.fromkeys(job.todo, score))
        job.todo.clear()

    def _replace(self, why: str) -> int | None:
        """End the process and start the next one at once; return the exit status."""
        process, self.process = self.process, None
        status = process.end() if process is not None else None
        self.core.count(why)
        if not self.core.closed:
            if why != "restarts":
                self.core.count("restarts")
            with contextlib.suppress(WorkerError, _Dropped):  # if it cannot, the next job says so
                self._start()
        return status


def _error(kind: str, text: str) -> RewardkitError:
    """Return the exception that ended a reward in the child: a broken contract or a wrong option."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, RewardkitError):
        return found(text)
    return ContractError(text)


def _seconds(value: float) -> str:
    return f"{value:g} s"


# ---------------------------------------------------------------------------------------------- the pool


class Stats(msgspec.Struct, frozen=True):
    """What happened to a pool's processes so far.

    Attributes:
        kills: Killed over a deadline, or because their job was cancelled.
        deaths: Ended without being asked to.
        restarts: Replaced for whatever reason, also after the memory cap.
    """

    kills: int = 0
    deaths: int = 0
    restarts: int = 0


class _Core:
    """What a pool shares with its threads. It does not hold the pool, so a forgotten pool can be collected."""

    def __init__(self, leaves: Sequence[Leaf], limit: int, start_timeout: float) -> None:
        import queue

        self.leaves = tuple(leaves)
        self.limit = limit
        self.start_timeout = start_timeout
        self.owner = os.getpid()
        self.closed = False
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.workers: list[_Worker] = []
        self.counts = {"kills": 0, "deaths": 0, "restarts": 0}
        self._refused: dict[int | None, str] = {}
        self._unfinished = 0
        self._lock = threading.Lock()
        self.command = _command()
        self.folder = _folder()
        self._root = _root()
        self.greeting = self._greeting()

    def _greeting(self) -> bytes:
        init = {
            "leaves": [leaf_to_data(leaf) for leaf in self.leaves],
            "memory": [leaf.memory or DEFAULT_MEMORY for leaf in self.leaves],
            "timeouts": [leaf.timeout for leaf in self.leaves],
            "path": [place for place in sys.path if isinstance(place, str)],
            "pythonpath": os.environ.get("PYTHONPATH"),
            "digits": sys.get_int_max_str_digits(),
            "depth": sys.getrecursionlimit(),
            "parent": self.owner,
        }
        try:
            return _frame(_plain(init))
        except _Stuck as stuck:
            raise WorkerError(f"an option of a reward holds a {stuck}, which cannot be sent to a worker") from None

    def environment(self) -> dict[str, str]:
        """Return the caller's environment; only a rewardkit that is not installed needs to be pointed out."""
        environment = dict(os.environ)
        if self._root is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (self._root, environment.get("PYTHONPATH"))))
        return environment

    def submit(self, job: _Job) -> Future[list[Score]]:
        problem = self._refused.get(None) or self._refused.get(job.leaf)
        if problem is not None:
            job.settle(WorkerError(problem))
            return job.future
        with self._lock:
            self._unfinished += 1
            if self._unfinished > len(self.workers) < self.limit:
                worker = _Worker(self, len(self.workers) + 1)
                self.workers.append(worker)
                worker.thread.start()
        self.jobs.put(job)
        if self.closed:  # closed meanwhile, maybe after its last look at the queue
            self._drain()
        return job.future

    def finished(self) -> None:
        with self._lock:
            self._unfinished -= 1

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def refuse(self, leaf: int | None, text: str) -> NoReturn:
        """Remember that a reward (None: any process) cannot start, so that the next job fails at once. Raises it."""
        self._refused[leaf] = text
        raise WorkerError(text)

    def close(self) -> None:
        # No lock: the garbage collector may call this at any point of any thread.
        if os.getpid() != self.owner:
            return
        self.closed = True
        self._drain()
        for worker in self.workers:
            worker.interrupt()
        self.jobs.put(None)
        until = time.monotonic() + 5.0
        for worker in self.workers:
            if worker.thread is not threading.current_thread():
                with contextlib.suppress(RuntimeError):  # not started yet
                    worker.thread.join(max(0.0, until - time.monotonic()))

    def _drain(self) -> None:
        import queue

        with contextlib.suppress(queue.Empty):
            while True:
                job = self.jobs.get_nowait()
                if job is not None:
                    job.cancel()
        self.jobs.put(None)

    def disown(self) -> None:
        """In a fork of the owner: touch none of its processes."""
        self.closed = True
        for worker in self.workers:
            if worker.process is not None:
                worker.process.disown()


class WorkerPool:
    """Worker processes for a set of rewards. Use it as a context manager, or call `close`.

    Processes start when there is work for them. A pool that is forgotten, or left open when the interpreter exits,
    takes its processes with it; in a fork of this process it refuses to work and leaves them alone.
    """

    def __init__(self, leaves: Sequence[Leaf], *, workers: int | None = None, start_timeout: float = 60.0) -> None:
        """Make a pool; nothing is started yet.

        Args:
            leaves: The rewards; `submit` names one by its place here.
            workers: How many processes at most. Default: one for each CPU this process may use.
            start_timeout: Seconds that a process may take to start, and a reward to be imported in it.

        Raises:
            WorkerError: A reward lives where no other process can load it, or this system has no such processes.
        """
        import weakref

        limit = _cpus() if workers is None else workers
        if limit < 1:
            raise UsageError(f"at least 1 worker is needed, got {limit}")
        self._core = _Core(leaves, limit, start_timeout)
        _remember(self._core)
        self._finalizer: weakref.finalize[Any, WorkerPool] = weakref.finalize(self, self._core.close)

    def submit(self, leaf: int, generation: Generation, at: Sequence[int] | None = None) -> Future[list[Score]]:
        """Score a group's completions, or those at some places of it, with one reward; never blocks.

        The future holds one score for each place, in order. Whatever happens to a row is in its score.

        Args:
            leaf: The place of the reward in the list the pool was made with.
            generation: The group.
            at: Places in `generation.completions`; default all. A group reward judges the whole group all the same.

        Raises:
            WorkerError: The pool is closed, or this process is a fork of the one that made it. In the future: no
                process can be started, or the reward does not load there.
            ContractError, UsageError: In the future: the reward raised one, which stops a run.
        """
        core = self._core
        if os.getpid() != core.owner:
            raise WorkerError("this worker pool belongs to the process that made it; make a new one after a fork")
        if core.closed:
            raise WorkerError("this worker pool is closed")
        count = len(generation.completions)
        places = list(range(count)) if at is None else list(at)
        if not 0 <= leaf < len(core.leaves) or any(not 0 <= place < count for place in places):
            raise IndexError(f"no reward {leaf} or no completion at one of {places}")
        job = _Job(self, leaf, generation, places)
        if not places:
            job.settle([])
            return job.future
        return core.submit(job)

    def close(self) -> None:
        """Kill and reap all processes; cancel what is not answered. May be called more than once."""
        self._core.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def worker_pids(self) -> list[int]:
        """The ids of the processes that run now."""
        return [process.pid for worker in self._core.workers if (process := worker.process) is not None]

    @property
    def stats(self) -> Stats:
        """How many processes were killed, died, and were replaced so far."""
        return Stats(**self._core.counts)


_pools: weakref.WeakSet[_Core] | None = None


def _remember(core: _Core) -> None:
    """Have forks of this process let go of the pool."""
    import weakref

    global _pools
    if _pools is None:
        _pools = weakref.WeakSet()
        os.register_at_fork(after_in_child=_disown_all)
    _pools.add(core)


def _disown_all() -> None:
    for core in list(_pools or ()):
        core.disown()


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _command() -> list[str]:
    """Return the command of a worker, with this interpreter's own flags where they change what code does."""
    if not sys.executable or not hasattr(os, "killpg") or not hasattr(select, "poll"):
        raise WorkerError("worker processes need a POSIX system and a Python that can be started (sys.executable)")
    flags = ["-O"] * sys.flags.optimize + ["-B"] * sys.dont_write_bytecode
    flags += [f"-W{option}" for option in sys.warnoptions]
    if sys.flags.utf8_mode:
        flags += ["-X", "utf8"]
    return [sys.executable, *flags, "-P", "-m", "rewardkit.workers"]


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _root() -> str | None:
    """Return the folder that this package was imported from, unless every interpreter finds it by itself."""
    import site
    import sysconfig

    root = str(Path(__file__).resolve().parents[1])
    known = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    return None if root in {str(Path(place).resolve()) for place in known} else root


# --------------------------------------------------------------------------------------------- the child


class _Limits:
    """The child's memory cap, and what ends it when its parent is gone."""

    def __init__(self, parent: int) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._memory: tuple[int, int, int, int] | None = None  # resource, field of statm, soft and hard limit
        self._statm = -1
        with contextlib.suppress(ImportError, OSError, ValueError):
            self._choose_memory()
        self._base = self.used()
        self._tied = _die_with(parent)

    def _choose_memory(self) -> None:
        """Take the first limit that the kernel really enforces."""
        import resource

        self._resource = resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        for limit, field in ((resource.RLIMIT_DATA, 5), (resource.RLIMIT_AS, 0)):
            soft, hard = resource.getrlimit(limit)
            self._memory = (limit, field, soft, hard)
            if self._is_enforced():
                return
        self._memory = None

    def _is_enforced(self) -> bool:
        import mmap

        try:
            self.cap(16 << 20)
            mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        except OSError:
            return True
        finally:
            self.lift()
        return False

    def used(self) -> int:
        """Return the bytes that count towards the cap."""
        if self._memory is None:
            return 0
        return int(os.pread(self._statm, 100, 0).split()[self._memory[1]]) * self._page

    def cap(self, size: int) -> None:
        """Let what comes next allocate at most `size` bytes more than there are now."""
        if self._memory is None:
            return
        limit, _, soft, hard = self._memory
        wanted = self.used() + size
        for other in (soft, hard):
            if other != self._resource.RLIM_INFINITY:
                wanted = min(wanted, other)
        self._resource.setrlimit(limit, (wanted, hard))

    def lift(self) -> None:
        """Take the cap away: for our own work, and for imports."""
        if self._memory is not None:
            limit, _, soft, hard = self._memory
            self._resource.setrlimit(limit, (soft, hard))

    def rebase(self) -> None:
        """Count what is allocated now as the worker's own: the modules of its rewards."""
        self._base = self.used()

    def worn(self, size: int) -> bool:
        """Tell whether what was left behind has outgrown a whole cap, so that a fresh process is better."""
        return self.used() > self._base + size

    def bound_cpu(self, timeout: float | None) -> None:
        """Have the kernel end this process when it spins on as an orphan, where nothing better ties it to its parent.

        The limit counts the CPU time of all threads, so that honest parallel work must never reach it. Processes
        that a reward starts inherit it; that is why this is only the second choice.
        """
        if self._tied:
            return
        with contextlib.suppress(ImportError, OSError, ValueError):
            import resource

            hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
            soft = hard
            if timeout is not None:
                usage = resource.getrusage(resource.RUSAGE_SELF)
                soft = math.ceil(usage.ru_utime + usage.ru_stime + (timeout + _SPARE) * _cpus())
                if hard != resource.RLIM_INFINITY:
                    soft = min(soft, hard)
            resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _die_with(parent: int) -> bool:
    """Have the kernel kill this process when the parent's thread that started it is gone; False where it cannot.

    The watcher thread does the same, but not while judging code holds the interpreter's lock.
    """
    set_death_signal = 1  # PR_SET_PDEATHSIG
    try:
        import ctypes

        if ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0) != 0:
            return False
    except (ImportError, OSError, AttributeError):
        return False
    if os.getppid() != parent:
        _end()
    return True


def _watch(inbox: int) -> None:
    """End with the parent: its end of the pipe closes when it is gone, however it went."""
    poll = select.poll()
    poll.register(inbox, 0)  # reports nothing but the closing

    def wait() -> None:
        poll.poll()
        _end()

    threading.Thread(target=wait, name="rewardkit-parent-watch", daemon=True).start()


def _end() -> NoReturn:
    """End this process and what it started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class _OutOfMemory:
    """Stands for the result of a call that ran into the memory cap."""


class _Child:
    """The worker's side: answers jobs until its parent is gone."""

    def __init__(self, requests: io.BufferedReader, answers: int, page: _Page) -> None:
        self._requests = requests
        self._answers = answers
        self._page = page
        self._pid = os.getpid()
        self._loaded: dict[int, Leaf] = {}
        self._runner: Any = None

    def serve(self) -> NoReturn:
        init = self._receive()
        self._data: list[Any] = init["leaves"]
        self._memory: list[int] = init["memory"]
        self._timeouts: list[float | None] = init["timeouts"]
        _adopt(init["path"], init["pythonpath"])
        sys.set_int_max_str_digits(init["digits"])
        sys.setrecursionlimit(init["depth"])
        self._limits = _Limits(init["parent"])
        self._send("ready")
        while True:
            self._work(*self._receive())

    def _receive(self) -> Any:
        header = self._requests.read(_HEADER.size)
        if len(header) < _HEADER.size:
            _end()
        (size,) = _HEADER.unpack(header)
        return _decoder.decode(self._requests.read(size))

    def _send(self, *message: Any) -> None:
        left = memoryview(_frame(list(message)))
        while left:
            left = left[os.write(self._answers, left) :]

    def _work(self, number: int, sample_data: list[Any], completions: list[list[Any]], group: list[Any] | None) -> None:
        leaf = self._leaf(number)
        if leaf is None:
            return
        self._page.mark(0)
        memory = self._memory[number]
        sample = Sample(*sample_data)
        outputs = tuple(Completion(*data) for data in completions)
        try:
            prepared = self._step(0, number, leaf.prepare, sample)
            if prepared is _OutOfMemory:
                detail = f"reading the reference needs more than {_size(memory)}"
                prepared = Score(None, detail, reason="bad_reference", name=leaf.label)
            if isinstance(prepared, Score):
                self._limits.lift()
                self._send("all", self._data_of(leaf, prepared), self._limits.worn(memory))
            elif group is None:
                self._judge_each(leaf, number, prepared, sample, outputs)
            else:
                self._judge_group(leaf, number, prepared, Generation(sample, outputs, *group))
        except RewardkitError as problem:  # `failure` lets through what stops a run
            self._limits.lift()
            self._send("stop", type(problem).__name__, _printable(str(problem)))

    def _leaf(self, number: int) -> Leaf | None:
        leaf = self._loaded.get(number)
        if leaf is None:
            try:
                leaf = leaf_from_data(self._data[number])
            except BaseException as problem:
                text = str(problem) if isinstance(problem, RewardkitError) else f"{type(problem).__name__}: {problem}"
                self._send("unloadable", _printable(text))
                return None
            self._loaded[number] = leaf
            self._limits.rebase()
            self._page.mark(0)
            self._send("loaded")
        return leaf

    def _judge_each(
        self, leaf: Leaf, number: int, prepared: object, sample: Sample, outputs: tuple[Completion, ...]
    ) -> None:
        """Judge one after another. Answers wait a little for each other, since each wakes the parent."""
        memory = self._memory[number]
        ready: list[list[Any]] = []
        sent = time.perf_counter()
        for place, completion in enumerate(outputs, 1):
            started = time.perf_counter()
            if ready and started - sent > _GATHER:
                self._send("scores", ready, False)
                ready, sent = [], started
            score = self._step(place, number, self._judge, leaf, prepared, sample, completion)
            spent = score is _OutOfMemory
            if spent:
                score = Score(0.0, f"judging needed more than {_size(memory)}", reason="memory", name=leaf.label)
            ready.append(self._data_of(leaf, score, time.perf_counter() - started))
            if spent:
                break
        self._limits.lift()
        self._send("scores", ready, spent or self._limits.worn(memory))

    def _judge(self, leaf: Leaf, prepared: object, sample: Sample, completion: Completion) -> Any:
        score = leaf.judge(prepared, sample, completion)
        return score if isinstance(score, Score) else self._awaited(score)

    def _awaited(self, score: Awaitable[Score]) -> Any:
        import asyncio

        async def wait() -> Score:
            return await score

        if self._runner is None:  # one loop for all, since a reward's clients outlive one call
            self._runner = asyncio.Runner()
        return self._runner.run(wait())

    def _judge_group(self, leaf: Leaf, number: int, prepared: object, generation: Generation) -> None:
        started = time.perf_counter()
        memory, count = self._memory[number], len(generation.completions)
        scores = self._step(1, number, leaf.judge_group, prepared, generation)
        seconds = (time.perf_counter() - started) / count
        self._limits.lift()
        spent = scores is _OutOfMemory
        if spent:
            scores = Score.error("raised", f"judging the whole group needed more than {_size(memory)}", name=leaf.label)
        if isinstance(scores, Score):
            scores = [scores] * count
        if len(scores) != count:
            raise ContractError(f"reward {leaf.label!r} returned {len(scores)} scores for a group of {count}")
        data = [self._data_of(leaf, score, seconds) for score in scores]
        self._send("scores", data, spent or self._limits.worn(memory))

    def _step(self, step: int, number: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the reward's code under the cap and mark its end; what it raises becomes an error score."""
        self._limits.bound_cpu(self._timeouts[number])
        try:
            self._limits.cap(self._memory[number])
            return function(*arguments)
        except MemoryError:
            result: Any = _OutOfMemory
        except BaseException as problem:
            result = _failure(self._loaded[number], problem)
        finally:
            if os.getpid() != self._pid:  # the reward forked, and this is the fork: it must not answer
                os._exit(0)
            self._page.mark(step + 1)  # the next step's deadline begins
        self._limits.lift()
        return result

    def _data_of(self, leaf: Leaf, score: Any, seconds: float | None = None) -> list[Any]:
        if not isinstance(score, Score):
            score = _failure(leaf, TypeError(f"{leaf.label} returned a {type(score).__name__}, not a Score"))
        try:
            data = _score_data(score)
        except _Stuck as stuck:
            data = _score_data(_failure(leaf, TypeError(f"a score holds a {stuck}, which is no data")))
        if seconds is not None:
            data[_SECONDS] = seconds
        return data


def _failure(leaf: Leaf, problem: BaseException) -> Score:
    from rewardkit.reward import failure

    return failure(leaf.label, problem)


def _adopt(path: list[str], pythonpath: str | None) -> None:
    """Take over where the caller finds its modules, in its order."""
    sys.path[:] = [*path, *(place for place in sys.path if place not in path)]
    os.environ.pop("PYTHONPATH", None)
    if pythonpath is not None:
        os.environ["PYTHONPATH"] = pythonpath


def _size(count: int) -> str:
    return f"{count / (1 << 30):g} GiB" if count >= 1 << 30 else f"{count / (1 << 20):g} MiB"


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _take_streams() -> tuple[int, int]:
    """Move the protocol away from standard input and output, so that a reward that prints or reads cannot touch it."""
    inbox, outbox = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return inbox, outbox


def main() -> int:
    """Run one worker: `python -m rewardkit.workers`, started by a `WorkerPool` and by nothing else."""
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
        print("rewardkit.workers is started by a WorkerPool, not by hand", file=sys.stderr)
        return 2
    page = int(sys.argv[1])
    shared = _Page(page)
    os.close(page)
    requests, answers = _take_streams()
    _watch(requests)
    with contextlib.suppress(BrokenPipeError), open(requests, "rb") as inbox:  # the parent may go at any time
        _Child(inbox, answers, shared).serve()
    _end()


if __name__ == "__main__":
    sys.exit(main())
