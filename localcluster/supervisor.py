"""A cluster that outlives the command that started it: one background process owns the components.

Started as ``python -m localcluster.supervisor DIRECTORY OPTIONS``. It holds ``supervisor.lock`` for its whole life, so
there is at most one for each folder; ``supervisor.json`` says who it is and how far. It starts again what died.
Killed, it takes them with it (``localcluster.process``).
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NoReturn

import msgspec

from clock import SYSTEM, Clock
from localcluster import health
from localcluster.api import RequestRefused
from localcluster.cluster import PORTS_FILE, LocalCluster
from localcluster.commands import ClusterLayout
from localcluster.errors import AlreadyUp, LocalClusterError, NotReady
from localcluster.kubelets import service
from localcluster.options import KUBELETS, REAL_KINDS, Options, real_name
from localcluster.pki import write_private
from localcluster.process import PACKAGES, log_tail, module_command, start_time, wait_gone
from localcluster.real import service as real

STATE = "supervisor.json"
LOCK = "supervisor.lock"
LOG = "supervisor.log"
POLL_SECONDS = 0.1
REVIVE_SECONDS = 1.0
STOP_SECONDS = 30.0
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")

Progress = Callable[[str], None]


class SupervisorState(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor tells about itself; ``started`` (clock ticks since boot) tells it from a later process.

    ``root``: the cluster's folder, where it is another one than that which this stands in.
    """

    pid: int
    started: int
    phase: str = "Preparing"  # Preparing (building, for one), Starting, Ready, Failed
    message: str = ""
    pids: dict[str, int] = {}
    root: str = ""


def directory(name: str) -> Path:
    """The folder of the cluster called ``name``. ValueError where that is no good name."""
    if not NAME.fullmatch(name):
        raise ValueError(f"name {name!r}: expected lower-case letters, digits and dashes, at most 42")
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "share"
    return base.absolute() / "topogate" / "local" / name


def running(folder: Path) -> SupervisorState | None:
    """The supervisor that owns the folder, or None where none runs."""
    try:
        state = msgspec.json.decode((folder / STATE).read_bytes(), type=SupervisorState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return state if start_time(state.pid) == state.started else None


def names() -> list[str]:
    """The clusters that run, by name."""
    folder = directory("default").parent
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [name for name in found if NAME.fullmatch(name) and running(folder / name)]


def layout(folder: Path) -> ClusterLayout:
    """Where things are in the folder of a cluster that runs."""
    state = running(folder)
    root = Path(state.root) if state is not None and state.root else folder
    return ClusterLayout(root, {}, json.loads((root / PORTS_FILE).read_text()))


@contextmanager
def announce_cluster(name: str, cluster: LocalCluster) -> Iterator[str]:
    """Let others know of a cluster that this process owns, as if a supervisor did: under this name, or one like it."""
    free = (directory(f"{name}-{number}" if number > 1 else name) for number in count(1))
    # A folder with anything else in it is of a cluster that was stopped, and is not to be removed below.
    folder = next(one for one in free if not running(one) and all(path.name == STATE for path in one.glob("*")))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    pid = os.getpid()
    state = SupervisorState(
        pid=pid, started=start_time(pid) or 0, phase="Ready", pids=cluster.pids, root=str(cluster.directory)
    )
    write_private(folder / STATE, msgspec.json.encode(state))
    try:
        yield folder.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def statuses(folder: Path) -> list[health.ComponentStatus]:
    """The state of every component. NotReady where no supervisor runs."""
    state = running(folder)
    if state is None or not (Path(state.root or folder) / PORTS_FILE).exists():
        raise NotReady(f"no cluster runs in {folder}")
    return health.statuses(layout(folder), state.pids)


# From outside


def start(folder: Path, options: Options, *, progress: Progress, timeout: float, clock: Clock = SYSTEM) -> None:
    """Start a supervisor in the background and wait until its cluster is ready.

    Raises AlreadyUp, LocalClusterError with what the supervisor said, and NotReady at the deadline. The supervisor is
    stopped then, as it is when the wait is interrupted.
    """
    # A quick answer with a clear error. The lock decides (`_lock_folder`).
    if running(folder):
        raise AlreadyUp(f"a cluster runs in {folder} already")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Otherwise the words of the supervisor before would be taken for this one's.
    (folder / STATE).unlink(missing_ok=True)
    process = _detach(folder, options)
    try:
        _follow(folder, process, progress, timeout, clock)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    process.returncode = 0  # it stays: keep subprocess from complaining that nobody waited for it


def _detach(folder: Path, options: Options) -> "subprocess.Popen[bytes]":
    """Run this module in a session of its own, with our packages in reach wherever they lie."""
    path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    command = module_command("localcluster.supervisor", str(folder), msgspec.json.encode(options).decode())
    with (folder / LOG).open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _follow(folder: Path, process: "subprocess.Popen[bytes]", progress: Progress, timeout: float, clock: Clock) -> None:
    """Pass on what the supervisor says until it is ready; building does not count as waiting."""
    said, deadline = "", clock.monotonic() + timeout
    while True:
        # Before the state is read: what it wrote last is there once it has ended.
        ended = process.poll() is not None
        state = running(folder) or _last_words(folder)
        if state is not None and state.phase == "Ready":
            return
        if ended or (state is not None and state.phase == "Failed"):
            raise LocalClusterError((state and state.message) or f"it did not start:\n{log_tail(folder / LOG)}")
        if state is not None and state.message != said:
            said = state.message
            progress(said)
        if state is not None and state.phase == "Preparing":
            deadline = clock.monotonic() + timeout
        if clock.monotonic() > deadline:
            raise NotReady(f"the cluster did not become ready in time; its logs are in {folder / 'logs'}")
        time.sleep(POLL_SECONDS)


def _last_words(folder: Path) -> SupervisorState | None:
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=SupervisorState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def stop(folder: Path, *, keep: bool = False) -> bool:
    """Stop the cluster in the folder and remove what it left, or ``keep`` its data for another ``up``.

    Returns whether one ran. A supervisor that does not end in time is killed, and its components with it.
    """
    state = running(folder)
    if state is not None:
        os.kill(state.pid, signal.SIGTERM)
        # By id and start: a later process may have the same id.
        if not wait_gone(state.pid, state.started, STOP_SECONDS):
            os.kill(state.pid, signal.SIGKILL)
            wait_gone(state.pid, state.started, STOP_SECONDS)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return state is not None


# From inside


def run(folder: Path, options: Options, *, progress: Progress, ready: Callable[[LocalCluster], None]) -> NoReturn:
    """Own a cluster in ``folder`` until SIGTERM or SIGINT ends this process. ``ready`` is called once it is up.

    Raises AlreadyUp, and what ``LocalCluster.up`` raises.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        # Before anything starts: a signal then ends this process by way of ``finally``, which stops the components
        # gently.
        signal.signal(number, _end_on_signal)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = SupervisorState(pid=os.getpid(), started=start_time(os.getpid()) or 0)

    def tell(phase: str, message: str, pids: Mapping[str, int] | None = None) -> None:
        nonlocal state
        pids = state.pids if pids is None else dict(pids)
        state = msgspec.structs.replace(state, phase=phase, message=message, pids=pids)
        # Whole or not at all: others read it at any moment.
        write_private(folder / STATE, msgspec.json.encode(state))

    def report(message: str) -> None:
        tell("Starting" if message.startswith("starting ") else "Preparing", message)
        progress(message)

    with _lock_folder(folder):
        cluster = LocalCluster(folder, options=options, progress=report)
        report("preparing")
        try:
            cluster.up()
            tell("Ready", "", cluster.pids)
            ready(cluster)
            while True:
                time.sleep(REVIVE_SECONDS)
                changed = _revive(cluster, progress) or _play_kubelets(cluster, progress)
                if (wrong := _run_kubelets(cluster, progress)) is not None:
                    tell("Ready", wrong, cluster.pids)
                elif changed:
                    tell("Ready", state.message, cluster.pids)
        except LocalClusterError as error:
            tell("Failed", str(error))
            raise
        finally:
            # A second Ctrl-C must not interrupt the stop, which would leave components to be killed by the kernel.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            cluster.stop()


def _end_on_signal(number: int, _: object) -> NoReturn:
    raise SystemExit(0 if number == signal.SIGTERM else 130)


def _revive(cluster: LocalCluster, progress: Progress) -> bool:
    """Start what has died; whether anything had. A failure is told and tried again the next time."""
    # The simulated kubelets are `_play_kubelets`': they start with what is wanted now.
    dead = [name for name in cluster.dead() if name != KUBELETS]
    # In the order of start: the API server is of no use before etcd, so the first failure ends the round.
    for name in dead:
        progress(f"{name} died; starting it again")
        try:
            cluster.start(name)
        except (LocalClusterError, OSError) as error:
            progress(str(error))
            break
    return bool(dead)


def _play_kubelets(cluster: LocalCluster, progress: Progress) -> bool:
    """Start the simulated kubelets where somebody asked for them; whether they had to be started."""
    wanted = service.wanted(cluster.directory)
    if wanted is None or KUBELETS in cluster.pids:
        return False
    progress("starting the simulated kubelets")
    try:
        cluster.play_kubelets(wanted)
    except (LocalClusterError, OSError, RequestRefused) as error:
        progress(str(error))
    return True


def _run_kubelets(cluster: LocalCluster, progress: Progress) -> str | None:
    """Have the real kubelets run that are wanted: what went wrong, "" where nothing did; None: all is as it should be.

    Those that died are `_revive`'s.
    """
    wanted = real.wanted(cluster.directory)
    names = {real_name(kind, node.name) for node in wanted for kind in REAL_KINDS}
    if sorted(real.existing(cluster.directory), key=str) == sorted(wanted, key=str) and names <= cluster.pids.keys():
        return None
    progress(f"starting {len(wanted)} real kubelets")
    try:
        cluster.run_kubelets(wanted)
    except (LocalClusterError, OSError, RequestRefused, ValueError) as error:
        progress(str(error))
        return str(error)
    return ""


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyUp(f"a cluster runs in {folder} already") from None
        yield


def main(clock: Clock = SYSTEM) -> None:
    """``python -m localcluster.supervisor DIRECTORY OPTIONS``; OPTIONS is JSON."""
    folder, options = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Options)

    def say(message: str) -> None:
        sys.stderr.write(f"{clock.utc().astimezone().strftime('%Y-%m-%dT%H:%M:%S%z')} {message}\n")
        sys.stderr.flush()

    try:
        run(folder, options, progress=say, ready=lambda _: say("ready"))
    except LocalClusterError as error:
        say(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
