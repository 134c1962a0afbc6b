"""``python -m benchmarks.harness.profiled [--now] FILE -m MODULE ARGUMENT...``: a module under cProfile, by CPU time.

Unlike ``python -m cProfile`` it counts its thread's CPU and not wall time, much of which is other processes' on a busy
machine, leaves the start out where ``SIGUSR1`` says when to begin (without ``--now``), and goes on where a command
becomes a component's own process: that one runs in here. FILE is written at the end, for ``pstats``.
"""

import atexit
import cProfile
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn


def from_the_start(file: Path | None) -> dict[str, list[str]] | None:
    """The interpreter's arguments for a controller that is profiled from its start; None without a file."""
    return {"ungater": ["-m", "benchmarks.harness.profiled", "--now", str(file.absolute())]} if file else None


def main() -> None:
    """Profile from now on or from SIGUSR1, run the module, dump at its end."""
    words = sys.argv[1:]
    now = words[:1] == ["--now"]
    file, _, module, *arguments = words[now:]
    profile = cProfile.Profile(timer=time.thread_time)
    signal.signal(signal.SIGUSR1, lambda *_: profile.enable())

    def dump() -> None:
        profile.disable()
        profile.dump_stats(file)

    atexit.register(dump)
    os.execve = _stay
    sys.argv = [module, *arguments]
    if now:
        profile.enable()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _stay(_path: object, words: Sequence[str], _environment: Mapping[str, str]) -> NoReturn:
    """Run the program that this process was to become (`cli.run.commands`), without becoming it."""
    program, *arguments = words[words.index("-c") + 1 :]
    sys.argv = ["-c", *arguments]
    exec(program, {"__name__": "__main__"})  # noqa: S102 -- what would have been executed
    sys.exit(0)


if __name__ == "__main__":
    main()
