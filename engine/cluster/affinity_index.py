"""Which pods are where, by namespace and labels: what inter-pod affinity, anti-affinity and spread look at.

Kept only as far as somebody asks: pods with required anti-affinity always (they are few, and they concern everybody),
all pods by labels from the first question on.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from engine.cluster.filters import selects
from engine.cluster.nodes import NodeRecord
from engine.cluster.reservations import Slots
from engine.model import Pod, PodTerm

ANYWHERE = ""  # the place of terms that look into several namespaces

GroupKey = tuple[str, tuple[tuple[str, str], ...], bool]
TermKey = tuple[str, PodTerm]  # the namespace of the pods, and their term
_Who = tuple[str, Mapping[str, str], bool]  # namespace, labels, and whether they terminate
_Key = TypeVar("_Key", GroupKey, TermKey)


class AffinityGroup(msgspec.Struct, frozen=True, eq=False):
    """Pods of equal namespace and labels, that all terminate or do not: how many on which node."""

    namespace: str
    labels: Mapping[str, str]
    terminating: bool = False
    on: dict[NodeRecord, int] = msgspec.field(default_factory=dict)

    def add(self, record: NodeRecord, by: int) -> None:
        """Count pods in or out."""
        now = self.on.get(record, 0) + by
        if now:
            self.on[record] = now
        else:
            self.on.pop(record, None)


class Repelling(msgspec.Struct, frozen=True, eq=False):
    """Pods that keep others away by one required anti-affinity term."""

    term: PodTerm
    pods: AffinityGroup


class AffinityIndex:
    """The index. ``held`` are reservations whose pods will repel others."""

    def __init__(self) -> None:
        self._by_labels: dict[GroupKey, AffinityGroup] | None = None
        self._repelling: dict[str, dict[TermKey, AffinityGroup]] = {}  # by the one namespace that a term looks into
        self._held: dict[int, Slots] = {}

    @property
    def any_repel(self) -> bool:
        """Whether any pod, present or to come, has required anti-affinity."""
        return bool(self._repelling or self._held)

    def count_pod(self, pod: Pod, record: NodeRecord, by: int) -> None:
        """A pod came (by = 1) or went (by = -1)."""
        for term in pod.anti_affinity:
            where = _looks_into(term, pod.namespace)
            # By namespace, so that a question about one namespace walks over no term of the others.
            there = self._repelling.setdefault(where, {})
            _count_in_group(there, (pod.namespace, term), (pod.namespace, {}, False), record, by)
            if not there:
                del self._repelling[where]
        if self._by_labels is not None:
            self._count_labels(self._by_labels, pod, record, by)

    def note_held(self, slots: Slots, by: int) -> None:
        """A reservation of a pod set with anti-affinity came or went."""
        if by > 0:
            # By identity: two reservations may have equal slots. The
            # table keeps the object alive, so its id is nobody else's.
            self._held[id(slots)] = slots
        else:
            self._held.pop(id(slots), None)

    def repelling(self, at: Sequence[NodeRecord], namespace: str) -> Iterator[Repelling]:
        """Every required anti-affinity term of others that may reach a namespace, with the nodes it counts on."""
        for where in dict.fromkeys((namespace, ANYWHERE)):
            for (_, term), pods in self._repelling.get(where, {}).items():
                yield Repelling(term, pods)
        for slots in self._held.values():
            held, source = held_group(slots, at), slots.assignment.source
            if held is not None and source is not None:
                yield from (Repelling(term, held) for term in source.anti_affinity)

    def groups(self, pods: Mapping[str, Pod], records: Mapping[str, NodeRecord]) -> Iterator[AffinityGroup]:
        """All pods by namespace and labels."""
        if self._by_labels is None:
            self._by_labels = {}
            for pod in pods.values():
                self._count_labels(self._by_labels, pod, records[pod.node], 1)
        yield from self._by_labels.values()

    @staticmethod
    def _count_labels(groups: dict[GroupKey, AffinityGroup], pod: Pod, record: NodeRecord, by: int) -> None:
        key = pod.namespace, tuple(pod.labels.items()), pod.terminating
        _count_in_group(groups, key, (pod.namespace, pod.labels, pod.terminating), record, by)


def _looks_into(term: PodTerm, owner: str) -> str:
    """The one namespace in which a term selects pods; `ANYWHERE` where that may be several."""
    if term.unsupported or term.namespaces is None or len(term.namespaces) > 1:
        return ANYWHERE
    return term.namespaces[0] if term.namespaces else owner


def _count_in_group(groups: dict[_Key, AffinityGroup], key: _Key, who: _Who, record: NodeRecord, by: int) -> None:
    group = groups.get(key)
    if group is None:
        group = groups[key] = AffinityGroup(*who)
    group.add(record, by)
    if not group.on:
        del groups[key]


def held_group(slots: Slots, at: Sequence[NodeRecord]) -> AffinityGroup | None:
    """The pods that held slots will bring, as if they were there; None where their pod set is not known."""
    source = slots.assignment.source
    if source is None:
        return None
    positions = np.flatnonzero(slots.held > 0).tolist()
    on = {at[int(slots.index[position])]: int(slots.held[position]) for position in positions}
    return AffinityGroup(source.namespace, source.labels, on=on)


def reaches(term: PodTerm, owner: str, namespace: str, labels: Mapping[str, str]) -> bool:
    """Whether a term of a pod in namespace ``owner`` selects a pod of ``namespace`` with ``labels``.

    A term that could not be expressed whole selects in every namespace: too many rather than too few.
    """
    if not term.unsupported and term.namespaces is not None and namespace not in (term.namespaces or (owner,)):
        return False
    return selects(term.selector, labels)
