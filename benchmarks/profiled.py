"""``python -m benchmarks.profiled FILE -m MODULE ARGUMENT...``: run a module under cProfile, by CPU time of its thread.

Unlike ``python -m cProfile`` it counts CPU and not wall time, much of which is other processes' on a busy machine, and
leaves the start out where ``SIGUSR1`` says when to begin. FILE is written at the end, for ``pstats``.
"""

import atexit
import cProfile
import runpy
import signal
import sys
import time


def main() -> None:
    """Wait for SIGUSR1 to profile, run the module, dump at its end."""
    file, _, module, *arguments = sys.argv[1:]
    profile = cProfile.Profile(timer=time.thread_time)
    signal.signal(signal.SIGUSR1, lambda *_: profile.enable())

    def dump() -> None:
        profile.disable()
        profile.dump_stats(file)

    atexit.register(dump)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
