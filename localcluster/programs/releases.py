"""Where the official release files of our programs are, and what their SHA-256 has to be. Pure, except for `main`.

Rules
- A file counts only with a sum: the one in ``SHA256SUMS`` beside this module, else the one that the release server
  publishes. That is asked of the release server itself over TLS, whatever mirror brings the file.
- What has neither is not taken.
"""

import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcluster.programs.build import ETCD_VERSION, KUBELET, KUBERNETES_PROGRAMS, KUBERNETES_VERSION, KWOK_VERSION

SUMS: Final = Path(__file__).with_name("SHA256SUMS")
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_SUM = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ReleaseFile:
    """One file of a release. ``member``: what of an archive it is; "" for a program itself.

    ``sums``: where the release server publishes its sum, "" where it does not.
    """

    program: str
    version: str
    url: str
    sums: str = ""
    member: str = ""

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]

    def address_on_mirror(self, mirror: str) -> str:
        """Its address; on a mirror that of the release server is a path, without the scheme."""
        return f"{mirror.rstrip('/')}/{self.url.partition('://')[2]}" if mirror else self.url


def releases(machine: str = "") -> Mapping[str, ReleaseFile]:
    """By program, for a machine as ``uname -m`` names it (default: this one); empty where no files are made for it."""
    arch = MACHINES.get(machine or platform.machine(), "")
    if not arch or not sys.platform.startswith("linux"):
        return {}
    kubernetes = f"https://dl.k8s.io/v{KUBERNETES_VERSION}/bin/linux/{arch}"
    found = {
        name: ReleaseFile(name, KUBERNETES_VERSION, f"{kubernetes}/{name}", f"{kubernetes}/{name}.sha256")
        for name in (*KUBERNETES_PROGRAMS, KUBELET)
    }
    etcd, name = (
        f"https://github.com/etcd-io/etcd/releases/download/v{ETCD_VERSION}",
        f"etcd-v{ETCD_VERSION}-linux-{arch}",
    )
    found["etcd"] = ReleaseFile("etcd", ETCD_VERSION, f"{etcd}/{name}.tar.gz", f"{etcd}/SHA256SUMS", f"{name}/etcd")
    kwok = f"https://github.com/kubernetes-sigs/kwok/releases/download/v{KWOK_VERSION}"
    found["kwok"] = ReleaseFile("kwok", KWOK_VERSION, f"{kwok}/kwok-linux-{arch}")
    return found


def pinned(text: str) -> dict[str, str]:
    """The sums that the repository holds, by address. ValueError for a line that is none."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        digest, _, url = line.partition("  ")
        if not _SUM.fullmatch(digest) or not url.startswith("https://"):
            raise ValueError(f"{SUMS.name}, line {number}: expected 64 hex digits, two spaces and an address")
        found[url] = digest
    return found


def published(text: str, file: str) -> str:
    """The sum of a file in what a release server publishes: a bare sum, or a list with file names; "" without one."""
    for line in text.splitlines():
        digest, *names = line.split()[:2] or [""]
        if _SUM.fullmatch(digest.lower()) and (not names or names[0].lstrip("*") == file):
            return digest.lower()
    return ""


def main() -> int:
    """Print the sums as the release servers publish them now, for ``SHA256SUMS``; 1 where one cannot be had."""
    from localcluster.programs.fetch import NotFetched, text

    failed = 0
    for machine in ("x86_64", "aarch64"):
        for one in releases(machine).values():
            try:
                digest = published(text(one.sums), one.file) if one.sums else ""
            except NotFetched as error:
                digest = ""
                sys.stderr.write(f"{error}\n")
            failed |= not digest
            sys.stdout.write(f"{digest}  {one.url}\n" if digest else f"# no sum: {one.url}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
