"""What changed from version to version, so that whoever is some versions behind is told of each host but once. Pure.

Rows are told as they are now, so the changes of several versions are the union of their names. Who is further behind
than what is kept, or saw another layout, takes a whole picture: a slow reader costs no memory.
"""

from collections import deque
from typing import Final

import msgspec

# The feed publishes four times a second at most, so a viewer may be half a minute behind before it takes a whole
# picture.
KEPT: Final = 120  # versions


class Changes(msgspec.Struct, frozen=True):
    """The names of what changed since a version; ``gone``: numbers of holders, with their namespaces."""

    since: int
    hosts: frozenset[str] = frozenset()
    holders: frozenset[str] = frozenset()
    gone: dict[int, str] = {}


class Log:
    """The last changes. ``version`` is that of the last."""

    def __init__(self, kept: int = KEPT) -> None:
        self.version = 0
        self._layout_at = 0  # the version in which the layout changed last
        self._changes: deque[Changes] = deque(maxlen=kept)

    def record_changes(self, hosts: set[str], holders: set[str], gone: dict[int, str], *, layout: bool = False) -> bool:
        """Something may have changed; True where it did, and there is a new version."""
        if not (hosts or holders or gone or layout):
            return False
        self._changes.append(Changes(self.version, frozenset(hosts), frozenset(holders), gone))
        self.version += 1
        if layout:
            self._layout_at = self.version
        return True

    def changes_since(self, version: int) -> Changes | None:
        """All that changed since a version; None where a whole picture is due."""
        # Rows name hosts by their place in the layout: changes across two layouts would land on other hosts.
        if version > self.version or version < self._layout_at:
            return None
        missed = [one for one in self._changes if one.since >= version]
        # The deque has dropped some of them.
        if len(missed) != self.version - version:
            return None
        # Numbers are never given again, so a union is safe.
        gone = {number: namespace for one in missed for number, namespace in one.gone.items()}
        hosts = frozenset[str]().union(*(one.hosts for one in missed))
        holders = frozenset[str]().union(*(one.holders for one in missed))
        return Changes(version, hosts, holders, gone)
