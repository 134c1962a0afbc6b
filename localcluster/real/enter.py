"""Becomes a kubelet that sees a described machine: ``enter.py NODE_FOLDER PROGRAM ARGUMENT...``.

Run as a file with ``python -I -S``: it costs 20 ms and imports nothing of ours. ``enter.py --check`` ends with 0 where
the system lets this user do all of it, else with 1 and the reason on standard error.

Rules
- A user namespace of its own, in which this user is root: no right over the host comes with it, whoever calls.
- A mount namespace of its own, whose mounts are all read-only before anything starts, /proc/sys and /sys among them:
  root in a user namespace that maps the host's root could write kernel settings otherwise. Writable are the node's own
  folder, at /var/lib/kubelet, and memory at /var/lib and /var/log.
- The described machine lies over /sys/devices/system/{cpu,node} and /proc/{cpuinfo,meminfo}.
- Needs Linux 5.12 (mount_setattr); see user_namespaces(7), mount_setattr(2), prctl(2).
"""

import ctypes
import errno
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY = 0x1
SYS_MOUNT_SETATTR = 442  # the same number on every architecture
PR_SET_PDEATHSIG = 1
HOME = "/var/lib/kubelet"
EMPTIED = ("/var/lib", "/var/log")  # the kubelet writes below them
MACHINE = (
    ("sys/devices/system/cpu", "/sys/devices/system/cpu"),
    ("sys/devices/system/node", "/sys/devices/system/node"),
    ("proc/cpuinfo", "/proc/cpuinfo"),
    ("proc/meminfo", "/proc/meminfo"),
)
# What a refusal means that the system's own words do not tell.
HINTS = {
    "unshare": {
        errno.EPERM: "user namespaces are not for this user: see a container's seccomp profile, or the sysctl"
        " kernel.unprivileged_userns_clone",
        errno.ENOSPC: "no user namespace is allowed here: see the sysctl user.max_user_namespaces",
    },
    "mount": {
        errno.EACCES: "a security module forbids mounts in user namespaces: see the sysctl"
        " kernel.apparmor_restrict_unprivileged_userns",
        errno.EPERM: "mounts are not allowed in user namespaces here, as in most containers",
    },
    "mount_setattr": {errno.ENOSYS: "Linux 5.12 or newer is needed"},
}
libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    """``struct mount_attr``."""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _checked(result: int, call: str, of: str) -> None:
    """Leave with a line that says what the system refused."""
    if result != 0:
        number = ctypes.get_errno()
        hint = HINTS.get(call, {}).get(number)
        sys.exit(f"{call}({of}): {os.strerror(number)}{f' ({hint})' if hint else ''}")


def _unshare() -> None:
    """New namespaces; inside, the user is root, and nobody else is there."""
    # Before the namespace: in it these ids are those of nobody until the maps are written.
    user, group = os.geteuid(), os.getegid()
    # Both at once: the mount namespace then belongs to the new user namespace, whose root may mount.
    _checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare", "CLONE_NEWUSER | CLONE_NEWNS")
    try:
        # "setgroups" first: without it an ordinary user may not write "gid_map" (user_namespaces(7)).
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    except OSError as error:
        sys.exit(f"{error.filename or '/proc/self'}: {error.strerror}")


def _mount(source: str, target: str, flags: int, kind: str = "", data: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None)
    _checked(libc.mount(*arguments), "mount", f"{source!r}, {target!r}")


def _read_only(path: str, yes: bool, *, recursive: bool = False) -> None:
    wanted = _Attributes(set=MOUNT_ATTR_RDONLY) if yes else _Attributes(clear=MOUNT_ATTR_RDONLY)
    flags = ctypes.c_uint(AT_RECURSIVE if recursive else 0)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    call = (ctypes.c_long(SYS_MOUNT_SETATTR), ctypes.c_int(AT_FDCWD), path.encode(), flags, ctypes.byref(wanted), size)
    _checked(libc.syscall(*call), "mount_setattr", repr(path))


def _isolate() -> None:
    """Mounts by which nothing of the host can be written."""
    # First of all: shared mounts would carry everything below back to the host.
    _mount("none", "/", MS_REC | MS_PRIVATE)
    # Everything, before anything writable is mounted over it.
    _read_only("/", yes=True, recursive=True)
    for path in EMPTIED:
        _mount("tmpfs", path, MS_NOSUID | MS_NODEV, "tmpfs", "mode=755,size=16m")


def _enter_machine(folder: str) -> None:
    """See the machine of the node in ``folder``, and the folder's part ``kubelet`` as the kubelet's own."""
    # In this namespace, whose mounts alone may be bound; and before memory lies over where they may be.
    own = os.open(f"{folder}/kubelet", os.O_PATH)
    pieces = [(os.open(f"{folder}/{source}", os.O_PATH), target) for source, target in MACHINE]
    _isolate()
    Path(HOME).mkdir()
    _mount(f"/proc/self/fd/{own}", HOME, MS_BIND)
    _read_only(HOME, yes=False)
    for source, target in pieces:
        _mount(f"/proc/self/fd/{source}", target, MS_BIND)
    for descriptor in (own, *(source for source, _ in pieces)):
        os.close(descriptor)


def main() -> NoReturn:
    """Become the program, which SIGKILL reaches when the parent ends."""
    if sys.argv[1] == "--check":
        _unshare()
        _isolate()
        sys.exit(0)
    parent, folder, program = os.getppid(), sys.argv[1], sys.argv[2]
    _unshare()
    # Before the mounts: memory may lie over the folder of the program afterwards.
    binary = os.open(program, os.O_RDONLY | os.O_CLOEXEC)
    _enter_machine(folder)
    os.chdir("/")
    # It was set before (``localcluster.launch``), and new credentials may have cleared it.
    _checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl", "PR_SET_PDEATHSIG")
    # The parent may have ended while there was no signal to tell of it.
    if os.getppid() != parent:
        sys.exit("the parent is gone")
    os.execve(binary, sys.argv[2:], os.environ)  # noqa: S606 -- as in `localcluster.launch`


if __name__ == "__main__":
    main()
