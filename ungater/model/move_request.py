"""What an administrator asks of a Workload: that its pods go to some nodes. An annotation (`crds.constants.MOVE_TO`).

Policy ``topogate-workloads`` lets those write it alone who have the verb ``move``. It says where pods may be, not how
many go where: the engine decides that anew, and refuses what does not fit as things are then.
"""

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from ungater.model.conditions import moment, timestamp

# An API object takes 256 KiB of annotations in all.
MOST = 128 * 1024  # characters
MOST_ID = 64


class MoveRequest(msgspec.Struct, frozen=True):
    """``id`` tells it from others. ``until``: it counts no more after that time, in seconds since the epoch.

    ``nodes``: by pod set, the names of those on which its pods may be then.
    """

    id: str
    until: float
    nodes: Mapping[str, frozenset[str]]

    @property
    def mark(self) -> str:
        """How what is said of it names it."""
        return f"(request {self.id})"


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    until: str
    nodes: dict[str, tuple[str, ...]]


def mark_in(text: str) -> str:
    """The mark of the request that a text is about; "" where it is about none."""
    _, found, rest = text.partition("(request ")
    name, closed, _ = rest.partition(")")
    return f"{found}{name}{closed}" if found and closed else ""


@lru_cache(maxsize=256)
def parse(text: str) -> MoveRequest | None:
    """The request; None where there is none that can be read."""
    # Checked before it is decoded. Deep nesting raises RecursionError below, and lone surrogates UnicodeError.
    if not text or len(text) > MOST:
        return None
    try:
        found = msgspec.json.decode(text, type=_Written)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    until = moment(found.until)
    nodes = {name: frozenset(listed) for name, listed in found.nodes.items()}
    if until is None or not found.id or len(found.id) > MOST_ID or not nodes or not all(nodes.values()):
        return None
    return MoveRequest(found.id, until, nodes)


def encode(request: MoveRequest) -> str:
    """The annotation."""
    nodes = {name: tuple(sorted(listed)) for name, listed in request.nodes.items()}
    return msgspec.json.encode(_Written(request.id, timestamp(request.until), nodes)).decode()
