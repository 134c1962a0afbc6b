"""How a command becomes a component's own process: settings are checked, then it starts again with what it needs.

The libraries of a command line, a settings file and its checks take 20 MiB; what runs for ever does without them.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec


def program(module: str) -> str:
    """The program of the process: ``main`` of ``module``, told its task as JSON.

    structlog imports rich where it is, to draw tracebacks on terminals: that is 3 MiB, and no component's log shows
    them. None is Python's own way to say that a module is not there.
    """
    return f"import sys; sys.modules['rich'] = None; from {module} import main; main(sys.argv[1])"


def become(module: str, task: Mapping[str, Any]) -> NoReturn:
    """Go on as ``module``, without what this process has imported by now. Its id, and who is told signals, stay."""
    # Where a module is run out of a folder, the next one is found there too; where not, the folder is none of ours.
    paths = [] if sys.path[0] == os.getcwd() else ["-P"]  # noqa: PTH109 -- as the interpreter spells it
    # Its threads come and go: memory that each of them gets for itself is memory that no other uses.
    environment = {"MALLOC_ARENA_MAX": "1", **os.environ}
    text = msgspec.json.encode(task).decode()
    os.execve(sys.executable, [sys.executable, *paths, "-c", program(module), text], environment)  # noqa: S606 -- no shell
