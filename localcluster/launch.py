"""Starts a program that dies with its parent: ``launch.py PARENT_PID PROGRAM ARGUMENT...``.

Run as a file with ``python -I -S``, so that it costs 20 ms and imports nothing of ours. The kernel ties the signal to
the *thread* that started this process: start it from one that lives as long as the parent (``localcluster.process``).
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGKILL at the parent's death, then become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2]
    libc = ctypes.CDLL(None, use_errno=True)
    # The request survives `execv`, except into a program that changes its user.
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before the request was in place
        sys.exit("the parent is gone")
    os.execv(program, sys.argv[2:])  # noqa: S606


if __name__ == "__main__":
    main()
