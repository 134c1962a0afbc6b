"""Processes that never outlive us, and what they wrote last.

Invariants: a component is started from one thread that lives until this process ends (the kernel's parent-death signal
is tied to the thread); each has its own session, so that Ctrl-C on a terminal reaches us alone and we stop them in
order.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clock import SYSTEM, Clock
from localcluster import launch
from localcluster.errors import ComponentFailed

LOG_TAIL_LINES = 25
PACKAGES = Path(__file__).parent.parent  # where ours lie: a checkout, or site-packages
_spawners: dict[int, ThreadPoolExecutor] = {}  # by process id: a forked child must not use its parent's thread
_spawners_lock = threading.Lock()


def module_command(module: str, *arguments: str, under: Sequence[str] = ()) -> list[str]:
    """The command that runs a module, of ours or of an installed package; ``under``: options of its interpreter.

    ``-m`` alone looks for all modules in the folder where the command is started first, and people have folders called
    ``web`` and ``cli``: so ``-P`` (Python 3.11).
    """
    return [sys.executable, "-P", *under, "-m", module, *arguments]


def spawn(command: Sequence[str], *, log: Path, env: Mapping[str, str], directory: Path) -> "subprocess.Popen[bytes]":
    """Start ``command`` with its output appended to ``log``; SIGKILL reaches it when this process ends."""
    with _spawners_lock:
        spawner = _spawners.setdefault(os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="localcluster-spawner"))
    return spawner.submit(_popen, list(command), log, dict(env), directory).result()


def _popen(command: list[str], log: Path, env: dict[str, str], directory: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(
            # The parent's id as this process sees it: the child compares it after it asked for the signal.
            [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=directory,
            start_new_session=True,
        )


class ControlPlaneProcess:
    """One process of the control plane: started, stopped, killed and started again with the same arguments."""

    def __init__(
        self, name: str, command: Sequence[str], *, directory: Path, log: Path, env: Mapping[str, str]
    ) -> None:
        """``command`` is the absolute path of the program and its arguments."""
        self.name = name
        self.command = list(command)
        self.log = log
        self._env = dict(env)
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """The exit status (negative: the signal that ended it) once it has ended, else None."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it; nothing happens where it runs already."""
        if self.pid is None:
            self._process = spawn(self.command, log=self.log, env=self._env, directory=self._directory)

    def terminate(self) -> None:
        """Ask it to end and do not wait."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            # So that no zombie stays, and the port and files are free when this returns.
            self._process.wait()

    def stop(self, grace_seconds: float) -> None:
        """Ask it to end, and kill it where it does not within ``grace_seconds``."""
        self.terminate()
        if self._process is None:
            return
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def check(self) -> None:
        """Raise ComponentFailed where it has ended by itself."""
        if self.pid is None:
            raise self.failure(f"ended with status {self.exit_status}")

    def failure(self, what: str) -> ComponentFailed:
        """An error with the last lines of the log."""
        return ComponentFailed(self.name, what, log_tail(self.log))


def log_tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log file, indented; a note where it is empty or missing."""
    try:
        text = log.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        text = []
    return "\n".join(f"  {line}" for line in text) or f"  ({log} is empty)"


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, which tells it from a later one of its id; None where it is gone.

    Read from field 22 of ``/proc/<pid>/stat`` (proc(5)); a zombie counts as gone.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # After the last bracket: a process may have brackets and spaces in its name.
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in {"Z", "X"} else int(fields[18])


def usage(pid: int) -> tuple[int, float]:
    """Resident memory in bytes and CPU seconds used so far by a process; zeros where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0.0
    fields = stat[stat.rindex(")") + 2 :].split()
    ticks = int(fields[11]) + int(fields[12])
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), ticks / os.sysconf("SC_CLK_TCK")


def wait_gone(pid: int, started: int, timeout: float, clock: Clock = SYSTEM) -> bool:
    """Wait until the process ``pid`` that started at ``started`` is gone; False at the deadline."""
    deadline = clock.monotonic() + timeout
    while start_time(pid) == started:
        if clock.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
