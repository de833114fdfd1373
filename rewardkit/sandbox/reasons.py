"""Why a level cannot be started here, and what to do about it."""

from __future__ import annotations

import errno
import os
import platform
import sys
from pathlib import Path

from rewardkit.errors import SandboxUnavailable
from rewardkit.sandbox.limits import Level


def require_machine(level: Level) -> None:
    """Raise SandboxUnavailable on anything but x86-64 Linux."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in ("x86_64", "AMD64") or sys.maxsize < 2**32:
        raise unavailable(
            level, "looking at the machine", 0, f"programs run on x86-64 Linux only, this is {system} on {machine}"
        )


def unavailable(level: Level, step: str, number: int, text: str = "") -> SandboxUnavailable:
    """Return the error for a step that failed, with its cause and the ways out."""
    cause = text or (os.strerror(number) if number else "no reason given")
    hint, ways = _explain(level, step, number)
    message = f"the sandbox level {level!r} cannot be started: {step}: {cause}{f' ({hint})' if hint else ''}"
    problem = SandboxUnavailable(message + "".join(f"\n  - {way}" for way in ways))
    problem.step, problem.cause, problem.ways_out = step, cause, ways
    return problem


def _setting(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _in_container() -> bool:
    return (
        os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv") or "KUBERNETES_SERVICE_HOST" in os.environ
    )


def _explain(level: Level, step: str, number: int) -> tuple[str, tuple[str, ...]]:
    """Return what stands in the way and the ways out."""
    if level == "landlock":
        if number == errno.ENOSYS or number == errno.EOPNOTSUPP:
            return "this kernel has no Landlock (Linux 5.13), or it is switched off", (
                "boot with lsm=landlock,…, or use level='strict'",
            )
        return "", ("use level='strict', or run in a virtual machine of its own",)
    if level != "strict" or number not in (
        errno.EPERM,
        errno.EACCES,
        errno.ENOSPC,
        errno.ENOSYS,
        errno.EUSERS,
        errno.EINVAL,
    ):
        return "", ()
    weaker = (
        "ask for the weaker level='landlock' by name: no network, no new processes, nothing writable, but no namespaces"
    )
    container = (
        "in a container: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined (or a profile"
        " that allows unshare, mount, pivot_root, setns); Kubernetes: seccompProfile and appArmorProfile Unconfined"
    )
    if step == "mapping ids" and os.geteuid() == 0:
        hint = "root without the capabilities SETUID, SETGID and SETFCAP cannot leave user 0"
        return hint, ("run as a normal user, or with these three capabilities", container, weaker)
    if _setting("user/max_user_namespaces") == "0":
        return "user namespaces are switched off", (
            "sysctl -w user.max_user_namespaces=10000 (as root)",
            container,
            weaker,
        )
    if _setting("kernel/unprivileged_userns_clone") == "0" and os.geteuid() != 0:
        return "users may not make namespaces", (
            "sysctl -w kernel.unprivileged_userns_clone=1 (as root)",
            container,
            weaker,
        )
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1" and os.geteuid() != 0:
        return "AppArmor keeps users from namespaces (Ubuntu 23.10 and later)", (
            "give the interpreter an AppArmor profile with `userns,`, or as root"
            " sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
            container,
            weaker,
        )
    hint = (
        "a container's seccomp profile refuses it"
        if _in_container()
        else "something outside refuses it, such as a container's profile"
    )
    return hint, (
        container,
        "sysctl user.max_user_namespaces and the AppArmor setting must allow user namespaces",
        weaker,
    )
