"""The first file that the server's interpreter reads: `python -s -S -B -P boot.py CONFIGURATION`.

Site-packages are off. It makes its folder a package of another name, so that nothing of rewardkit's own is imported.
"""

import importlib
import json
import os
import sys
import types

_NAME = "rewardkit_sandbox"
_STACK = 256 << 20  # deep recursion is honest; the stack's size holds from the next exec on


def _start() -> None:
    package = types.ModuleType(_NAME)
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules[_NAME] = package
    configuration = json.loads(sys.argv[1])
    if not configuration.pop("again", False):
        importlib.import_module(f"{_NAME}.privileges").raise_stack(_STACK)
        words = [sys.executable, *sys.orig_argv[1:-1], json.dumps({**configuration, "again": True})]
        os.execv(sys.executable, words)
    importlib.import_module(f"{_NAME}.server").main(**configuration)


if __name__ == "__main__":
    _start()
