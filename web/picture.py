"""A board as JSON: the whole picture, and rows of it that changed. Pure; docs/web.md has the form.

Rows are lists, because there are thousands. Of a host: name, amount, state, problems, then three numbers for each who
holds something: who (0: somebody whom the viewer may not know), used, promised. The form of a holder is `HOLDER`.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

import msgspec

from web.board import Board, Grove
from web.deltas import Changes
from web.sight import Sight

HOLDER: Final = (
    *("number", "namespace", "kind", "name", "workload", "queue", "clusterQueue", "priority", "created", "admitted"),
    *("count", "running", "wants", "state", "reason", "since"),
)
WAITING, STARTING, RUNNING, INACTIVE, FOREIGN = "waiting", "starting", "running", "inactive", "foreign"
Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode


def whole_picture(board: Board, sight: Sight, *, version: int, epoch: str, now: float, cluster: str) -> bytes:
    """All that the viewer may see."""
    groves = board.groves() if sight.hosts else ()
    found: Json = {
        "epoch": epoch,
        "version": version,
        "at": now,
        "cluster": cluster,
        "resource": board.resource,
        "sees": sees(sight),
        "groves": [{"flavor": one.flavor, "levels": one.levels, "tree": nested(one)} for one in groves],
        "hosts": [_host(board, sight, name) for one in groves for name in one.hosts],
        "holders": list(_holders(board, sight, board.all_holders())),
    }
    return _encode(found)


def sees(sight: Sight) -> Json:
    """What the viewer may see, for the page to say so."""
    return {
        "hosts": sight.hosts,
        "queues": sight.queues,
        "all": sight.namespaces is None,
        "namespaces": sorted(sight.namespaces or ()),
    }


def changed(board: Board, sight: Sight, changes: Changes, *, version: int, now: float) -> bytes:
    """What is different since a version, as it is now."""
    # The page knows hosts by their place in the whole picture; the log asks for a new picture when places move.
    at: dict[str, int] = {}
    if sight.hosts and changes.hosts:
        hosts = [name for grove in board.groves() for name in grove.hosts]
        at = {name: index for index, name in enumerate(hosts)}
    found: Json = {
        "since": changes.since,
        "version": version,
        "at": now,
        "hosts": [[at[name], *_host(board, sight, name)[2:]] for name in sorted(changes.hosts) if name in at],
        "holders": list(_holders(board, sight, sorted(changes.holders))),
        "gone": [number for number, namespace in changes.gone.items() if sight.may_name(namespace)],
    }
    return _encode(found)


def nested(grove: Grove) -> list[Any]:
    """The domains within each other: ``[value, [...]]``, the narrowest that hold several hosts as ``[value, count]``.

    A last level of which each domain is one host is left out: hosts tell their names themselves.
    """
    depth = len(grove.levels)
    single = len(set(grove.paths)) == len(grove.hosts)
    return list(_nested(grove.paths, 0, depth - 1 if single and depth else depth))


def _nested(paths: Iterable[tuple[str, ...]], rank: int, depth: int) -> Iterator[list[Any]]:
    if rank >= depth:
        yield ["", sum(1 for _ in paths)]
        return
    for value, group in groupby(paths, key=lambda path: path[rank]):
        within = list(group)
        yield [value, len(within)] if rank == depth - 1 else [value, list(_nested(within, rank + 1, depth))]


def _host(board: Board, sight: Sight, name: str) -> list[Any]:
    row = board.row(name)
    made: list[Any] = [row.name, row.amount, row.state, row.problems]
    used = promised = 0
    for one in row.held:
        if sight.may_name(board.keys[one.holder].partition("/")[0]):
            made += (one.holder, one.used, one.promised)
        else:
            # All others become one entry: separate ones would tell how many there are.
            used, promised = used + one.used, promised + one.promised
    if used or promised:
        made += (0, used, promised)
    return made


def _holders(board: Board, sight: Sight, keys: Iterable[str]) -> Iterator[list[Any]]:
    for key in keys:
        # A changed holder may be gone by now; the list of numbers that are gone names it.
        if (
            sight.may_name(key.partition("/")[0])
            and key in board.numbers
            and (row := holder_row(board, key)) is not None
        ):
            yield row


def holder_row(board: Board, key: str) -> list[Any] | None:
    """One holder, in the form of `HOLDER`; None where nothing of it is left."""
    one = board.find_holder(key)
    if one is None:
        return None
    running = board.running(key)
    if not one.workload:
        state = FOREIGN
    elif one.reason:
        state = WAITING if one.active else INACTIVE
    else:
        state = RUNNING if running >= one.count else STARTING
    return [
        *(board.numbers[key], one.namespace, one.kind, one.name, one.workload, one.queue, one.cluster_queue),
        *(one.priority, one.created, one.admitted, one.count, running, one.wants, state, one.reason, one.since),
    ]
