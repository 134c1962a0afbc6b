"""What a workload was given, and what it gets once others are gone: both as they are held, and as they are stored.

Nothing else reads or writes ``status.admission`` and ``status.nomination`` of a Workload, nor the note of what it held
(`crds.constants.HELD`). What cannot be read counts as not there, and is decided again.
"""

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any, Final

import msgspec

from crds import assignment as stored_form
from crds.constants import HELD
from engine.cluster.assignment import Assignment
from engine.cluster.levels import domain_in_words, word_of
from engine.model import PODS, Amounts
from engine.preemption.model import Strategy
from engine.quantity import format_quantity, parse
from engine.reservation_key import HolderKey, ReservationKey, Role, role_of, workload_of
from kube.workloads import StoredAdmission, StoredNomination, StoredPodSetAssignment, StoredVictim
from queueing.model import Quantities, usage
from queueing.queues.entry import AssumedAdmission
from ungater.model.conditions import timestamp
from ungater.model.job_view import MAIN
from ungater.model.pod_slots import PodSetSlots, Slot

MOST_ANNOTATION: Final = 200_000  # bytes, of the 256 KiB of all annotations of an object
MOST_NAMED: Final = 3  # domains of a place, and
LONGEST_NAMED: Final = 40  # characters of their names; else they are counted


class PodSetAssignment(msgspec.Struct, frozen=True):
    """One pod set of an admission. ``flavors``: by resource; ``usage``: what all its pods take; ``slots``: where."""

    name: str
    count: int
    flavors: Mapping[str, str]
    usage: Mapping[str, int]
    slots: PodSetSlots | None = None

    @property
    def asks(self) -> Amounts | None:
        """What one of its pods may take of a queue's quota; None where that is not known."""
        if not self.usage or not self.count:
            return None
        # Usage is the amount of one pod times the count (`queueing.model.usage`).
        # `pods` is one for each, and no request names it.
        return {name: amount // self.count for name, amount in self.usage.items() if name != PODS}

    def keep_pods(self, slots: PodSetSlots | None, count: int, asks: Amounts | None) -> "PodSetAssignment":
        """The same with fewer pods; with ``asks``, pods that take no more than that."""
        takes = {name: amount // max(1, self.count) * count for name, amount in self.usage.items()}
        if asks is not None and self.usage:
            takes = usage(asks, count)
        left = slots if slots is not None and slots.total else None
        return msgspec.structs.replace(self, count=count, usage=takes if count else {}, slots=left)

    def same_assignment(self, other: "PodSetAssignment") -> bool:
        """Whether both give the same quota and the same slots."""
        same_slots = other.slots is None if self.slots is None else self.slots.same_slots(other.slots)
        return same_slots and (self.name, self.count, dict(self.flavors), dict(self.usage)) == (
            other.name,
            other.count,
            dict(other.flavors),
            dict(other.usage),
        )


def assign_pod_set(
    name: str, count: int, requests: Amounts, flavors: Mapping[str, str] | None, held: Assignment | None
) -> PodSetAssignment:
    """``count`` pods of a pod set, which take ``requests`` each. ``flavors``: None where no queue pays for them."""
    slots = slots_of_assignment(held) if held is not None else None
    if not count:
        return PodSetAssignment(name, 0, {}, {}, slots)
    if flavors is None:
        flavors = dict.fromkeys(sorted(requests) or [PODS], slots.flavor if slots is not None else "")
    # Without a queue too: a restart is to know what each was given.
    return PodSetAssignment(name, count, flavors, usage(requests, count), slots)


def slots_of_assignment(assignment: Assignment) -> PodSetSlots:
    """The engine's assignment as slots, each with its node where it is one node."""
    by_host = assignment.by_host
    slots = (
        Slot(part.values, part.count, part.nodes[0][0] if by_host and len(part.nodes) == 1 else "")
        for part in assignment.slices
    )
    return PodSetSlots(assignment.levels, tuple(slots), assignment.flavor)


class Admission(msgspec.Struct, frozen=True):
    """What a workload was given, as it is stored. ``queue``: the cluster queue, "" for a workload without a queue."""

    queue: str
    parts: tuple[PodSetAssignment, ...]

    def pod_set_named(self, name: str = MAIN) -> PodSetAssignment | None:
        """One pod set of it."""
        for part in self.parts:
            if part.name == name:
                return part
        return None

    def shrink_pod_set(
        self, name: str, slots: PodSetSlots | None, count: int, asks: Amounts | None = None
    ) -> "Admission":
        """The same with fewer pods in one pod set; with ``asks``, pods that take no more than that."""
        parts = [part.keep_pods(slots, count, asks) if part.name == name else part for part in self.parts]
        return Admission(self.queue, tuple(parts))

    @property
    def slots(self) -> PodSetSlots | None:
        """The slots of the first pod set that has some."""
        return next((part.slots for part in self.parts if part.slots is not None), None)

    @property
    def count(self) -> int:
        """Pods in all."""
        return sum(part.count for part in self.parts)

    @property
    def place(self) -> str:
        """Where its pods go, for a column: ``b1/r3/n2``, ``b1/r3: n1, n2``, ``b1: 5 racks``; "" without slots."""
        slots = [part.slots for part in self.parts if part.slots is not None and part.slots.slots]
        if len({one.levels for one in slots}) != 1:
            return ", ".join(dict.fromkeys(one.flavor for one in slots if one.flavor))
        levels, every = slots[0].levels, [slot.values for one in slots for slot in one.slots]
        # What the first and the last one in order have in common, all of them have.
        shared = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(min(every), max(every), strict=True))]
        if len(shared) == len(levels):
            return domain_in_words(shared)
        below = list(dict.fromkeys(values[len(shared)] for values in every))
        named = ", ".join(below)
        if len(below) > MOST_NAMED or len(named) > LONGEST_NAMED:
            named = f"{len(below)} {word_of(levels[len(shared)])}s"
        return ": ".join(filter(None, (domain_in_words(shared), named)))

    @property
    def quota_amounts(self) -> Quantities:
        """What it takes of quota, by flavor and resource."""
        amounts: Quantities = {}
        for part in self.parts:
            for resource, flavor in part.flavors.items():
                # Usage is of the whole pod set: it is not multiplied by the count.
                amounts[flavor, resource] = amounts.get((flavor, resource), 0) + part.usage.get(resource, 0)
        return amounts

    def build_grant(
        self, assignments: Iterable[Assignment] = (), asks: Mapping[str, Amounts] | None = None
    ) -> AssumedAdmission:
        """The same as queueing holds it, with what the engine holds of it (``assignments``)."""
        counts = {part.name: part.count for part in self.parts}
        flavors = {part.name: dict(part.flavors) for part in self.parts}
        return AssumedAdmission(self.queue, counts, flavors, self.quota_amounts, tuple(assignments), asks or {})

    def same_grant(self, other: "Admission | None") -> bool:
        """Whether both give the same quota and the same slots."""
        return (
            other is not None
            and self.queue == other.queue
            and len(self.parts) == len(other.parts)
            and all(mine.same_assignment(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True))
        )


class Nomination(msgspec.Struct, frozen=True):
    """A preemption under way, as it is stored. ``victims``: uid of each by its key, as queueing names it.

    ``domains``: by victim those in which it loses its slices, where it does not go whole.
    """

    admission: Admission
    victims: Mapping[HolderKey, str]
    priorities: Mapping[HolderKey, int] = msgspec.field(default_factory=dict)
    domains: Mapping[HolderKey, tuple[tuple[str, ...], ...]] = msgspec.field(default_factory=dict)
    strategy: str = Strategy.LEAST_PRIORITY


# --- as stored -----------------------------------------------------------------------------------------------------


def read_admission(stored: StoredAdmission | StoredNomination | None) -> Admission | None:
    """What a Workload says that it was given, or is to get."""
    if stored is None or not stored.pod_set_assignments:
        return None
    try:
        parts = tuple(_read_pod_set(one) for one in stored.pod_set_assignments)
    except (KeyError, TypeError, ValueError):
        return None
    if not stored.cluster_queue and any(part.slots is None and part.count for part in parts):
        return None  # without a queue it is slots or nothing
    return Admission(stored.cluster_queue, parts)


def read_quota(queue: str, stored: StoredAdmission | StoredNomination) -> AssumedAdmission:
    """What it takes of a cluster queue alone, without reading its slots."""
    return Admission(queue, tuple(_read_usage(one) for one in stored.pod_set_assignments)).build_grant()


def read_held(annotations: Mapping[str, str]) -> Admission | None:
    """What its pods were given, as it is noted on a Workload that was made anew."""
    try:
        return read_admission(msgspec.json.decode(annotations.get(HELD, "null"), type=StoredAdmission | None))
    # Text in an annotation may be nested so deeply that the decoder gives up with RecursionError.
    except (msgspec.DecodeError, RecursionError):
        return None


def read_nomination(stored: StoredNomination | None) -> Nomination | None:
    """What a Workload says of the preemption that is under way for it."""
    admission = read_admission(stored)
    # Nobody is evicted for a plan that cannot be read: another one is made.
    if stored is None or admission is None:
        return None
    victims: dict[HolderKey, StoredVictim] = {}
    for victim in stored.victims:
        name = f"{victim.namespace}/{victim.name}"
        victims[ReservationKey.for_pod(name) if victim.kind == "Pod" else name] = victim  # as queueing names it
    return Nomination(
        admission,
        {key: victim.uid for key, victim in victims.items()},
        {key: victim.priority or 0 for key, victim in victims.items()},
        {key: victim.domains for key, victim in victims.items() if victim.domains},
        stored.strategy or Strategy.LEAST_PRIORITY,
    )


def _read_usage(entry: StoredPodSetAssignment) -> PodSetAssignment:
    taken = {name: parse(name, value) for name, value in (entry.resource_usage or {}).items()}
    return PodSetAssignment(entry.name, entry.count, entry.flavors or {}, taken)


def _read_pod_set(entry: StoredPodSetAssignment) -> PodSetAssignment:
    part = _read_usage(entry)
    if entry.topology_assignment is None:
        return part
    levels, domains = stored_form.decode(entry.topology_assignment)
    flavor = next(iter(part.flavors.values()), "")
    slots = PodSetSlots(levels, tuple(Slot(values, count) for values, count in domains), flavor)
    # The slots decide how many pods go, whatever number is stored beside them.
    return msgspec.structs.replace(part, count=slots.total, slots=slots)


def write_admission(admission: Admission) -> dict[str, Any]:
    """An admission as ``status.admission`` has it."""
    place = {"place": admission.place} if admission.place else {}
    return _write_queue(admission) | place | _write_pod_sets(admission)


def write_held(admission: Admission | None) -> dict[str, str]:
    """The note of what a Workload held that is made anew; empty where it held nothing, or more than fits in there."""
    said = msgspec.json.encode(write_admission(admission)) if admission is not None else b""
    return {HELD: said.decode()} if 0 < len(said) <= MOST_ANNOTATION else {}


def write_nomination(nomination: Nomination, now: float) -> dict[str, Any]:
    """The plan of a preemption as ``status.nomination`` has it. ``now``: seconds since the epoch."""
    victims: list[dict[str, Any]] = []
    for key, uid in nomination.victims.items():
        namespace, _, name = workload_of(key).partition("/")
        kind = "Pod" if role_of(key) is Role.POD else "Workload"
        who = {"kind": kind, "namespace": namespace, "name": name, "uid": uid}
        domains = nomination.domains.get(key)
        told = {"domains": [list(domain) for domain in domains]} if domains else {}
        victims.append({**who, "priority": nomination.priorities.get(key, 0), **told})
    about = {"time": timestamp(now), "strategy": nomination.strategy, "victims": victims}
    return _write_queue(nomination.admission) | about | _write_pod_sets(nomination.admission)


def _write_queue(admission: Admission) -> dict[str, Any]:
    return {"clusterQueue": admission.queue} if admission.queue else {}


def _write_pod_sets(admission: Admission) -> dict[str, Any]:
    written: list[dict[str, Any]] = []
    for part in admission.parts:
        body: dict[str, Any] = {"name": part.name, "flavors": dict(part.flavors), "count": part.count}
        if taken := {name: format_quantity(name, amount) for name, amount in sorted(part.usage.items())}:
            body["resourceUsage"] = taken
        if part.slots is not None:
            domains = [(slot.values, slot.count) for slot in part.slots.slots]
            body["topologyAssignment"] = stored_form.encode(part.slots.levels, domains)
        written.append(body)
    return {"podSetAssignments": written}
