"""``python -m localcluster``: find or build every program and print where it is; ``--tools``: the tests' too.

For before tests, whose time is limited: a first build takes minutes.
"""

import argparse
import sys

from localcluster.errors import BinariesMissing
from localcluster.programs.binaries import NODE_PROGRAMS, PROGRAMS, TOOLS, Binaries

UP = "\x1b[A\x1b[K"  # to the line before, and empty it


class _Teller:
    """Prints what is under way. On a terminal, what goes on with the same work takes the place of the line before."""

    def __init__(self) -> None:
        self._last = ""

    def print_line(self, message: str) -> None:
        """One line."""
        # Progress messages have what changes in brackets, so the text before them names the work.
        kind = message.partition("(")[0]
        up = UP if sys.stderr.isatty() and kind == self._last else ""
        sys.stderr.write(f"{up}{message}\n")
        self._last = kind


def main() -> None:
    """Exit status 1 where a program can be neither found nor built."""
    parser = argparse.ArgumentParser(prog="python -m localcluster", description=__doc__)
    parser.add_argument("--tools", action="store_true", help="the kubelet, helm and kustomize too")
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="these alone")
    asked = parser.parse_args()
    more = {**NODE_PROGRAMS, **TOOLS}
    if unknown := set(asked.names) - PROGRAMS.keys() - more.keys():
        parser.error(f"there is no program {', '.join(sorted(unknown))}; known are {', '.join([*PROGRAMS, *more])}")
    names = asked.names or [*PROGRAMS, *(more if asked.tools else ())]
    try:
        found = Binaries.find(names, progress=_Teller().print_line)
    except BinariesMissing as error:
        sys.exit(f"Error: {error}")
    sys.stdout.writelines(f"{name:24} {path}\n" for name, path in found.paths.items())


if __name__ == "__main__":
    main()
