"""What the cohorts above queues have and use, from the root of each tree down to the queues."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from math import isinf

import msgspec

from cli.cluster.live_queues import QueueReading
from engine.quantity import format_part, format_quantity
from queueing.model import FlavorResource, Quantities
from queueing.queues.cohort_tree import TreeNode
from queueing.status import Standing, Standings


class Member(msgspec.Struct, frozen=True):
    """What one queue of a cohort uses of one quota. ``over_time``: as of a `CohortView`."""

    queue: str
    nominal: str
    used: str
    borrowed: str
    over_time: float | None = None


class CohortUse(msgspec.Struct, frozen=True):
    """One flavor and resource over everything below a cohort.

    ``own``: the nominal quota of the cohort itself; ``nominal``: with those of all queues and cohorts below it.
    ``borrowed``: of its parent. ``members``: the queues that name this cohort.
    """

    flavor: str
    resource: str
    nominal: str
    used: str
    members: tuple[Member, ...]
    own: str = "0"
    borrowed: str = "0"
    borrowing_limit: str | None = None
    lending_limit: str | None = None


class CohortView(msgspec.Struct, frozen=True):
    """Queues and cohorts that lend each other what they do not use.

    ``path``: the cohorts above it, the root first. ``exists``: there is an object of kind Cohort with its name.
    ``consumed``: what it used over time beyond its own, by resource, where its parent goes by that; ``over_time``: what
    that is of what its parent may use, in thousandths, for its weight. None too with weight 0, which is last.
    """

    name: str
    quotas: tuple[CohortUse, ...]
    path: tuple[str, ...]
    exists: bool
    weight: str
    active: bool
    reason: str
    message: str
    pending: int
    admitted: int
    weighted_share: int | None
    over_time: float | None = None
    consumed: dict[str, str] | None = None


def views(reading: QueueReading, found: Standings, queues: Collection[str] | None) -> Iterator[CohortView]:
    """The cohorts above these queues, those of one tree together: each before what is below it, by name.

    ``queues``: None for all, and cohorts without queues too.
    """
    tree = reading.queues.quotas.tree
    cohorts = tree.cohorts.keys() if queues is None else {one.name for name in queues for one in tree.queues[name].path}
    nominal = _nominal_below(chain(tree.queues.values(), tree.cohorts.values()))
    paths = {name: (*path_of(tree.cohorts[name]), name) for name in cohorts}
    for name in sorted(paths, key=paths.__getitem__):
        node = tree.cohorts[name]
        view = _view(reading, node, found, nominal[name])
        # A cohort that only its queues name, and none of them has a quota: there is nothing to tell of it.
        if view.quotas or view.exists or not all(one.is_queue for one in node.children.values()):
            yield view


def path_of(node: TreeNode) -> tuple[str, ...]:
    """The names of the cohorts above a queue or cohort, the root first."""
    return tuple(one.name for one in reversed(node.path))


def _nominal_below(nodes: Iterable[TreeNode]) -> dict[str, Quantities]:
    """By cohort: the nominal quotas of itself, and of all queues and cohorts below it."""
    sums: dict[str, Quantities] = defaultdict(dict)
    for node in nodes:
        for cohort in (*(() if node.is_queue else (node,)), *node.path):
            for key, quota in node.quota.items():
                sums[cohort.name][key] = sums[cohort.name].get(key, 0) + quota.nominal
    return sums


def _view(reading: QueueReading, node: TreeNode, found: Standings, nominal: Quantities) -> CohortView:
    standing = found.cohorts[node.name]
    members = sorted((one for one in node.children.values() if one.is_queue), key=lambda one: one.name)
    keys = (key for key in standing.reserved if reading.has_flavor(key[0]))
    return CohortView(
        node.name,
        tuple(_use(node, members, key, nominal.get(key, 0), found) for key in keys),
        path=path_of(node),
        exists=node.exists,
        weight=format_quantity("cpu", node.weight),
        active=standing.active,
        reason=str(standing.reason),
        message=standing.message,
        pending=standing.pending,
        admitted=standing.admitted,
        weighted_share=standing.share,
        over_time=share_over_time(standing),
        consumed=consumed_over_time(standing),
    )


def share_over_time(standing: Standing) -> float | None:
    """The share of a cluster queue or cohort over time; None where it has none, or an infinite one."""
    return None if standing.consumed is None or isinf(standing.score) else round(standing.score, 3)


def consumed_over_time(standing: Standing) -> dict[str, str] | None:
    """What was used over time, by resource; None where that is not counted."""
    if standing.consumed is None:
        return None
    return {resource: format_part(resource, amount) for resource, amount in standing.consumed.items()}


def _use(
    node: TreeNode, members: Collection[TreeNode], key: FlavorResource, nominal: int, found: Standings
) -> CohortUse:
    (flavor, resource), standing = key, found.cohorts[node.name]
    quota = node.quota.get(key)
    borrowing, lending = (quota.borrowing, quota.lending) if quota is not None else (None, None)
    return CohortUse(
        flavor,
        resource,
        nominal=format_quantity(resource, nominal),
        used=format_quantity(resource, standing.reserved[key]),
        members=tuple(
            _member(one, key, found.cluster.get(one.name)) for one in members if key in one.quota or key in one.usage
        ),
        own=format_quantity(resource, quota.nominal if quota is not None else 0),
        borrowed=format_quantity(resource, standing.borrowed(standing.reserved, key) or 0),
        borrowing_limit=None if borrowing is None else format_quantity(resource, borrowing),
        lending_limit=None if lending is None else format_quantity(resource, lending),
    )


def _member(queue: TreeNode, key: FlavorResource, standing: Standing | None) -> Member:
    nominal, used = queue.quota[key].nominal if key in queue.quota else 0, queue.usage.get(key, 0)
    quota, held, borrowed = (format_quantity(key[1], amount) for amount in (nominal, used, max(0, used - nominal)))
    return Member(queue.name, quota, held, borrowed, share_over_time(standing) if standing is not None else None)
