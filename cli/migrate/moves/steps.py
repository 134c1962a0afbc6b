"""Which queues and namespaces move together, and what there is to say of that. Pure.

Rules
- A namespace is served by one of the two, so it moves whole; a ClusterQueue is served by one of the two, so all of its
  namespaces move together. Queues that are joined by namespaces are one step.
- Cohorts may be divided: what has moved lends and borrows among itself only, and the quota of a Cohort itself stays
  with Kueue until no queue of its tree is left there.
- A flavor with a topology is better not divided: Kueue does not count pods with topology annotations that it did not
  place (0.19.2, belongsToNonTASCache in pkg/controller/tas/non_tas_usage_controller.go).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from cli.migrate.rows import Json
from cli.output import Failure, some
from engine.quantity import format_quantity, parse

_FLAG: Final = "--shared-nodes"


class LinkedQueue(NamedTuple):
    """A LocalQueue of Kueue."""

    namespace: str
    name: str
    cluster_queue: str


class QueueLinks(msgspec.Struct, frozen=True):
    """What decides about steps. ``specs``: those of Kueue's ClusterQueues by name, from before a move where they moved.

    ``parents``: of its Cohorts; ``topologies``: its flavors that have one; ``moved``: queues whose move has begun.
    """

    specs: Mapping[str, Json]
    local_queues: Sequence[LinkedQueue]
    parents: Mapping[str, str]
    topologies: Collection[str]
    moved: Collection[str] = frozenset()


class MoveStep(msgspec.Struct, frozen=True):
    """What moves at once, in the order of names."""

    queues: tuple[str, ...]
    namespaces: tuple[str, ...]


class MoveNote(NamedTuple):
    """Something to know before a step. ``flag``: the option without which the step is refused; "" where it is not."""

    text: str
    flag: str = ""


def group_queues(view: QueueLinks) -> list[MoveStep]:
    """All ClusterQueues in the smallest groups that can move by themselves."""
    leaders: dict[str, str] = {}

    def find(name: str) -> str:
        while leaders.setdefault(name, name) != name:
            # Half the way up with each look, so that long chains become short.
            leaders[name] = name = leaders[leaders[name]]
        return name

    # A slash keeps namespaces apart from queues: no name has one.
    for one in view.local_queues:
        if one.cluster_queue in view.specs:
            leaders[find(one.cluster_queue)] = find(f"/{one.namespace}")
    groups: defaultdict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for name in view.specs:
        groups[find(name)][0].append(name)
    for namespace in {one.namespace for one in view.local_queues}:
        # A namespace whose queues lead nowhere moves with nobody.
        if (leader := find(f"/{namespace}")) in groups:
            groups[leader][1].append(namespace)
    found = [MoveStep(tuple(sorted(queues)), tuple(sorted(names))) for queues, names in groups.values()]
    return sorted(found, key=lambda one: one.queues)


def choose_step(view: QueueLinks, wanted: Collection[str]) -> MoveStep:
    """The groups of these queues as one step; of all queues where none is named. Raises Failure for an unknown name."""
    if unknown := sorted(set(wanted) - view.specs.keys()):
        known = f"it has {some(sorted(view.specs))}" if view.specs else "it has none"
        raise Failure(f"Kueue has no ClusterQueue {some(unknown)}: {known}")
    chosen = [one for one in group_queues(view) if not wanted or set(wanted) & set(one.queues)]
    return join_steps(chosen)


def join_steps(steps: Iterable[MoveStep]) -> MoveStep:
    """Several steps at once."""
    every = list(steps)
    return MoveStep(
        tuple(sorted(name for one in every for name in one.queues)),
        tuple(sorted(name for one in every for name in one.namespaces)),
    )


def root_of(cohort: str, parents: Mapping[str, str]) -> str:
    """The Cohort at the top; of a circle, the one of it that comes first by name."""
    way: dict[str, None] = {}
    while cohort not in way:
        way[cohort] = None
        if not (above := parents.get(cohort)):
            return cohort
        cohort = above
    # The same name from everywhere in the circle, else its queues would be of several trees.
    names = [*way]
    return min(names[names.index(cohort) :])


def tree_of(queue: str, view: QueueLinks) -> str:
    """The root of a queue's tree; "" where it is in none."""
    cohort = view.specs[queue].get("cohortName")
    return root_of(cohort, view.parents) if isinstance(cohort, str) and cohort else ""


def divided_trees(view: QueueLinks, here: Collection[str]) -> set[str]:
    """Roots of trees of which some queues are ``here``, in Topogate, and others stay in Kueue."""
    ours = {tree_of(name, view) for name in here}
    theirs = {tree_of(name, view) for name in view.specs if name not in here}
    return (ours & theirs) - {""}


def flavors_of(spec: Json) -> Iterator[Json]:
    """The flavors of a ClusterQueue with their quotas, as far as they have the form that Kueue's schema asks for."""
    for group in spec.get("resourceGroups") or ():
        yield from (one for one in group.get("flavors") or () if isinstance(one.get("name"), str))


def find_notes(
    view: QueueLinks, step: MoveStep, used: Mapping[str, Mapping[tuple[str, str], int]]
) -> Iterator[MoveNote]:
    """What there is to know before a step moves. ``used``: what admitted workloads have, by queue, flavor, resource."""
    here = set(step.queues) | set(view.moved)
    stays = [name for name in sorted(view.specs) if name not in here]
    names = {one["name"] for queue in step.queues for one in flavors_of(view.specs[queue])}
    for flavor in sorted(names & set(view.topologies)):
        if shared := [queue for queue in stays if flavor in {one["name"] for one in flavors_of(view.specs[queue])}]:
            yield MoveNote(
                f"flavor {flavor} has a topology, and ClusterQueue {some(shared)} of it stays in Kueue, which does not "
                "count pods with topology annotations that it did not place (0.19.2, non_tas_usage_controller.go): its "
                "later jobs may be sent to nodes that are full, and wait there",
                _FLAG,
            )
    divided = divided_trees(view, here)
    for root in sorted(divided & {tree_of(name, view) for name in step.queues}):
        left = [queue for queue in stays if tree_of(queue, view) == root]
        yield MoveNote(
            f"cohort {root} is divided: until ClusterQueue {some(left)} has moved too, what moved lends and borrows "
            "among itself only, and the quota of the Cohorts themselves stays with Kueue"
        )
    # A tree that moves whole goes on borrowing here, so nothing is said of it.
    for queue in step.queues:
        if tree_of(queue, view) in divided:
            yield from tell_borrowed(queue, view.specs[queue], used.get(queue, {}))


def tell_borrowed(queue: str, spec: Json, used: Mapping[tuple[str, str], int]) -> Iterator[MoveNote]:
    """What a queue holds beyond its own quota, which nobody lends to it in a divided tree."""
    own = nominal_of(spec)
    for (flavor, resource), amount in sorted(used.items()):
        if (more := amount - own.get((flavor, resource), 0)) > 0:
            yield MoveNote(
                f"ClusterQueue {queue} holds {format_quantity(resource, more)} {resource} of flavor {flavor} more than "
                "its own quota; nothing that needs more is admitted until it holds less"
            )


def nominal_of(spec: Json) -> dict[tuple[str, str], int]:
    """The quota of a ClusterQueue itself, by flavor and resource; what cannot be read counts nothing."""
    found: dict[tuple[str, str], int] = {}
    for flavor in flavors_of(spec):
        for one in flavor.get("resources") or ():
            found[flavor["name"], one["name"]] = read_amount(one["name"], one.get("nominalQuota"))
    return found


def read_amount(resource: str, value: Any) -> int:
    """A quantity as the engine counts it; 0 where it is none."""
    try:
        return parse(resource, value)
    except (ValueError, TypeError):
        return 0
