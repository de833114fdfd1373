"""What a program in the sandbox may use, and how it ended."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

from rewardkit.errors import OptionError

Level: TypeAlias = Literal["strict", "landlock", "unsafe"]
"""How strongly programs are held, strongest first. Only `strict` is used without being asked for by name."""

LEVELS: tuple[Level, ...] = get_args(Level)

Status: TypeAlias = Literal["exited", "signal", "timeout", "memory", "output", "killed"]

_MIB = 1 << 20
_LARGEST_TIME = 100_000.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one program may use.

    cpu_seconds decides about a timeout: the CPU time of all threads, and the time in which every thread sleeps or waits
    for something. Waiting for a core does not count, so a busy machine does not change verdicts; nor does time in which
    nobody waits for the program. wall_seconds is the backstop (None: three times cpu_seconds and one second more), and
    alone holds a judge that sleeps, and any sleep where /proc hides processes. memory is address space in bytes above
    what the interpreter itself takes, output the bytes of standard output and of standard error each, processes the
    threads, files the open descriptors (and, in the work folder, the files), disk the bytes in the work folder.
    """

    cpu_seconds: float = 3.0
    wall_seconds: float | None = None
    memory: int = 512 * _MIB
    output: int = _MIB
    processes: int = 64
    files: int = 256
    disk: int = 16 * _MIB

    def __post_init__(self) -> None:
        for name, value in (("cpu_seconds", self.cpu_seconds), ("wall_seconds", self.wall)):
            if not 0 < value <= _LARGEST_TIME:
                raise OptionError(f"{name} must be more than 0 and at most {_LARGEST_TIME:g} seconds, got {value}")
        for name, least, most in (
            ("memory", 16 * _MIB, 1 << 44),
            ("output", 1, 1 << 30),
            ("processes", 1, 1 << 15),
            ("files", 16, 1 << 16),
            ("disk", 1 << 16, 1 << 36),
        ):
            if not least <= getattr(self, name) <= most:
                raise OptionError(f"{name} must be between {least} and {most}, got {getattr(self, name)}")

    @property
    def wall(self) -> float:
        """The wall-clock limit in seconds that holds."""
        return 3 * self.cpu_seconds + 1 if self.wall_seconds is None else self.wall_seconds


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended.

    status: exited (code is its exit code), signal (code is the signal's number), timeout, memory (its own last error
    was MemoryError), output (wrote more than allowed), killed (by us because it was no longer needed or broke the
    protocol, or by the machine). detail says more: of a timeout "cpu", "sleep" (with the time slept it was too much) or
    "wall". slept_seconds is about how long every thread slept or waited while an answer was waited for; None when that
    could not be seen. stdout and stderr hold at most the bytes allowed.
    """

    status: Status
    code: int
    stdout: bytes
    stderr: bytes
    cpu_seconds: float
    wall_seconds: float
    slept_seconds: float | None = 0.0
    level: Level
    detail: str = ""
