"""CPU time to start, and what the core weighs.

    python benchmarks/startup.py

Prints the least CPU time of nine runs in seconds, the modules that must not be loaded, and the size of the
installed core (the environment that runs this is taken, so run it where only the core is installed).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import sysconfig
from pathlib import Path

RUNS = 9
HEAVY = ("sympy", "torch", "numpy", "pandas", "datasets", "rich", "pydantic")
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import rewardkit": ["-c", "import rewardkit"],
    "rewardkit --help": ["-m", "rewardkit", "--help"],
    "rewardkit list": ["-m", "rewardkit", "list"],
    "rewardkit show gsm8k": ["-m", "rewardkit", "show", "gsm8k"],
    "rewardkit eval --help": ["-m", "rewardkit", "eval", "--help"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """Return user and system time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loaded(arguments: list[str]) -> list[str]:
    """Return which heavy packages a command loads."""
    code = "import sys, runpy; sys.argv = ['rewardkit', *sys.argv[1:]]\n"
    code += "try: runpy.run_module('rewardkit', run_name='__main__')\nexcept SystemExit: pass\n"
    code += f"print('LOADED', *[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *arguments[2:]], capture_output=True, text=True)
    return done.stderr.rpartition("LOADED")[2].split()


def site_megabytes() -> float:
    """Return the size of everything installed in this environment, without pip and setuptools."""
    site = Path(sysconfig.get_paths()["purelib"])
    total = 0
    for folder, _, files in os.walk(site):
        top = (*Path(folder).relative_to(site).parts, "")[0]
        if top.split("-")[0] not in ("pip", "setuptools", "pkg_resources"):
            total += sum((Path(folder) / file).stat().st_size for file in files)
    return total / 1e6


def main() -> None:
    print(f"{'command':24} {'CPU s':>7}   heavy packages loaded")
    for name, arguments in COMMANDS.items():
        best = min(cpu_seconds(arguments) for _ in range(RUNS))
        heavy = " ".join(loaded(arguments)) if arguments[0] == "-m" else ""
        print(f"{name:24} {best:7.3f}   {heavy or '-'}")
    print(f"installed in this environment: {site_megabytes():.0f} MB")


if __name__ == "__main__":
    main()
