"""Which folders an interpreter needs to import the standard library: to be shown read-only, and nothing else."""

from __future__ import annotations

import os
import sys
import sysconfig

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LIBRARIES = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64")
_DATA = ("/usr/share/zoneinfo",)
_PACKAGES = ("site-packages", "dist-packages")


def shown() -> list[str]:
    """Return the folders to show: the standard library, shared libraries, time zones. Both names of a linked folder."""
    folders = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *_loaded_from(), *_LIBRARIES, *_DATA]
    named = [name for folder in folders if folder for name in (os.path.normpath(folder), os.path.realpath(folder))]
    unique = sorted(
        {name for name in named if os.path.isdir(name) and name not in ("/", "/usr", "/lib", "/usr/lib", "/etc")}
    )
    kept: list[str] = []
    for name in unique:  # sorted, so a folder comes before what lies in it
        if not any(name.startswith(above + "/") for above in kept):
            kept.append(name)
    return kept


def masked() -> list[str]:
    """Return folders of installed packages inside those, which are to look empty."""
    inside = [os.path.join(folder, *middle, name) for folder in shown() for middle in _middles() for name in _PACKAGES]
    return sorted({path for path in inside if os.path.isdir(path) and not os.path.islink(path)})


def _middles() -> list[tuple[str, ...]]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [(), (version,), ("python3",), ("lib", version)]


def _loaded_from() -> list[str]:
    """Return the folders of shared libraries that the interpreter and its standard library have loaded."""
    folders = set()
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, slash, path = line.partition("/")
            path = slash + path.rstrip("\n")
            if ".so" in os.path.basename(path):
                folders.add(os.path.dirname(path))
    return sorted(folders)
