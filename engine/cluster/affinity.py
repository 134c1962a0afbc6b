"""Inter-pod affinity, anti-affinity and topology spread, honoured in the counts or refused with the reason.

Semantics are kube-scheduler's (plugins InterPodAffinity, PodTopologySpread, Kubernetes 1.36), where a topology domain
is the set of nodes with one value of the topology key, whatever their parents. Held slots count as if their pods were
there. What depends on the pods of the set itself becomes a cap: so many pods of the set for each value of a key.

- others' required anti-affinity that selects our pods, our anti-affinity that selects others: those nodes take none;
- our anti-affinity that selects our own pods: one pod a value;
- our affinity: only values where a pod that all terms select is; where there is none and the terms select our own pods,
  all of them must share one domain of the key;
- devices of claims that several nodes reach: so many pods on these nodes together; and where the pods share a claim
  that has none yet, on nodes alone that all reach what it may be given (`engine.devices.common`);
- slices that are to be alone: of the domains of their level that have one value of its label, one takes pods;
- spread: a value takes max_skew more than the least value has now, less what it has. That is safe in whatever order the
  pods start. Placements that need all values filled evenly are beyond this, and refused as unsupported. Where a pod is
  let go to a domain with fewer values than ``minDomains``, kube-scheduler counts those alone, and the least as 0.
  Pods that terminate count in affinity and anti-affinity, and not in spread.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.arrays import Ints, capped
from engine.cluster.affinity_index import AffinityGroup, reaches
from engine.cluster.filters import Mask, NodeFilter, selects
from engine.cluster.fit_counts import Counts
from engine.cluster.state import ClusterState
from engine.cluster.tree import Tree
from engine.model import HOSTNAME_LABEL, PodSet, PodTerm, SpreadConstraint
from engine.reasons import Reason

Codes = NDArray[np.int32]


class Unsupported(Exception):  # noqa: N818  (a refusal on its way to the caller, not an error)
    """A constraint that the count cannot honour; the text is for a person."""


class Cap(msgspec.Struct, frozen=True):
    """At most ``most[code]`` pods of the set on the leaves with that code; code 0 (no such label) is not capped."""

    reason: Reason
    codes: Codes
    most: Ints


class OneOfAValue(msgspec.Struct, frozen=True):
    """Of the domains of ``rank`` with one code, one alone takes pods: a domain of the label is all of them."""

    rank: int
    codes: Codes

    def kept(self, tree: Tree, leaf: Ints, owner: Ints) -> Ints:
        """Counts in those domains that have most, 0 elsewhere; ``owner``: of each leaf, whose domains are compared."""
        first = tree.bounds[self.rank][:-1]
        group = owner[first] * (int(self.codes.max(initial=0)) + 1) + self.codes[first]
        if len(np.unique(group)) == len(group):
            return leaf
        # The sort is stable: of domains that take equally many the first in tree order stays.
        order = np.lexsort((-np.add.reduceat(leaf, first), group))
        best = order[np.diff(group[order], prepend=-1) != 0]
        return np.where(np.isin(tree.owners[self.rank], best), leaf, 0)


class OneNumber(msgspec.Struct, frozen=True):
    """Nodes with one number alone take pods; ``numbers`` is by leaf."""

    numbers: Ints

    def kept(self, leaf: Ints, owner: Ints) -> Ints:
        """Of the leaves with one owner, the counts of those that take most together; 0 elsewhere."""
        _, code = np.unique(self.numbers, return_inverse=True)
        groups, first, group = np.unique(
            owner * (int(code.max(initial=0)) + 1) + code, return_index=True, return_inverse=True
        )
        sums = np.zeros(len(groups), np.int64)
        np.add.at(sums, group, leaf)
        order = np.lexsort((first, -sums, owner[first]))
        best = order[np.diff(owner[first][order], prepend=-1) != 0]
        return np.where(np.isin(group, best), leaf, 0)


class ConstrainedCounts(msgspec.Struct):
    """Counts with inter-pod constraints: ``counts`` after the masks, the caps still to apply.

    ``ceiling``: the rank of which one domain must hold all pods whatever was asked for; -1 where none must. ``alone``:
    for each layer of slices that are to be alone. ``one``: where pods share a claim.
    """

    tree: Tree
    counts: Counts
    caps: tuple[Cap, ...] = ()
    ceiling: int = -1
    alone: tuple[OneOfAValue, ...] = ()
    one: OneNumber | None = None

    def counts_within(self, rank: int) -> Counts:
        """Counts for a placement inside one domain of ``rank``; -1: anywhere."""
        if not self.caps and not self.alone and self.one is None:
            return self.counts
        leaf = self.counts.leaf
        owner = self.tree.owners[rank] if rank >= 0 else np.zeros(self.tree.size, np.int64)
        # Caps come first: which domain takes most, and so stays, is known only by what they leave.
        for cap in self.caps:
            leaf = capped(leaf, owner, cap.codes, cap.most)
        for one in self.alone:
            leaf = one.kept(self.tree, leaf, owner)
        if self.one is not None:
            leaf = self.one.kept(leaf, owner)
        return Counts(self.tree, leaf)


def room(state: ClusterState, tree: Tree, pod_set: PodSet, counts: Counts) -> ConstrainedCounts:
    """What is left of ``counts`` once inter-pod constraints hold. Raises Unsupported."""
    constrained = pod_set.affinity or pod_set.anti_affinity or pod_set.spread or state.affinity_index.any_repel
    if not constrained and not any(part.alone for part in pod_set.topology.slices):
        return _with_devices(state, ConstrainedCounts(tree, counts), pod_set)
    return _with_devices(state, Constraints(state, tree, pod_set).applied(counts), pod_set)


def device_caps(state: ClusterState, tree: Tree, pod_set: PodSet, *, emptied: bool = False) -> tuple[Cap, ...]:
    """What caps a pod set by devices that several nodes reach; ``emptied``: as if nothing ran."""
    ask = pod_set.devices
    caps = state.cluster.devices.common.caps(ask, emptied=emptied) if ask is not None else ()
    return tuple([Cap(Reason.INSUFFICIENT_DEVICES, one.codes[tree.span], one.most) for one in caps])


def _with_devices(state: ClusterState, found: ConstrainedCounts, pod_set: PodSet) -> ConstrainedCounts:
    common, ask, tree = state.cluster.devices.common, pod_set.devices, found.tree
    if ask is None:
        return found
    if caps := device_caps(state, tree, pod_set):
        found = replace(found, caps=(*found.caps, *caps))
    if not ask.shared or not common.spread(ask):
        return found
    numbers, where = common.together_by_node(ask)
    leaf, numbers = found.counts.leaf, numbers[tree.span]
    if where is not None:
        leaf = leaf * where[tree.span]
    if tree.size and tree.flavor.levels[-1] != HOSTNAME_LABEL:  # kube-scheduler takes any node of the narrowest domain
        starts = tree.bounds[tree.last][:-1]
        alike = np.minimum.reduceat(numbers, starts) == np.maximum.reduceat(numbers, starts)
        leaf = leaf * alike[tree.owners[tree.last]]
    if leaf is not found.counts.leaf:
        found = replace(found, counts=Counts(tree, leaf))
    return replace(found, one=OneNumber(numbers))


class Constraints(msgspec.Struct, frozen=True):
    """The inter-pod constraints of one pod set on one tree."""

    state: ClusterState
    tree: Tree
    pod_set: PodSet

    def applied(self, counts: Counts) -> ConstrainedCounts:
        """See ``room``."""
        self._refuse_unsupported()
        leaf = counts.leaf
        for _, mask in self.masks():
            leaf = leaf * mask
        exclusive = (part.level for part in self.pod_set.topology.slices if part.alone)
        known = ((rank, level) for level in exclusive if (rank := self.tree.rank_of_level(level)) is not None)
        found = replace(
            self._with_ceiling(ConstrainedCounts(self.tree, counts)),
            caps=tuple(self._caps()),
            alone=tuple([OneOfAValue(rank, self._codes(level)[self.tree.span]) for rank, level in known]),
        )
        return found if leaf is counts.leaf else replace(found, counts=Counts(self.tree, leaf))

    def _refuse_unsupported(self) -> None:
        for kind, terms in (
            ("affinity", self.pod_set.affinity),
            ("anti-affinity", self.pod_set.anti_affinity),
            ("spread", self.pod_set.spread),
        ):
            for term in terms:
                if term.unsupported:
                    raise Unsupported(f"pod {kind} by {term.topology_key}: {term.unsupported} is not supported")

    # -- masks ------------------------------------------------------------------------------------------------

    def masks(self) -> Iterator[tuple[Reason, Mask]]:
        """(reason, nodes that may still be used) for each constraint that other pods decide."""
        for other in self.state.affinity_index.repelling(self.state.cluster.at, self.pod_set.namespace):
            if reaches(other.term, other.pods.namespace, self.pod_set.namespace, self.pod_set.labels):
                yield other.term.repels, ~self._near(other.term.topology_key, [other.pods])
        groups = list(self.state.pod_groups()) if self.pod_set.anti_affinity or self.pod_set.affinity else []
        for term in self.pod_set.anti_affinity:
            yield term.repels, ~self._near(term.topology_key, self._selected(groups, (term,)))
        # As kube-scheduler in interpodaffinity/filtering.go: a pod counts where all terms select it. Where no pod
        # does, pods that match their own terms are the first of their series and go to any node with the key.
        matching = self._selected(groups, self.pod_set.affinity)
        for term in self.pod_set.affinity:
            if matching:
                yield Reason.POD_AFFINITY, self._near(term.topology_key, matching)
            else:
                labelled = self._codes(term.topology_key)[self.tree.span] > 0
                yield Reason.POD_AFFINITY, labelled & self._selects_own(self.pod_set.affinity)

    def _selected(self, groups: Iterable[AffinityGroup], terms: Sequence[PodTerm]) -> list[AffinityGroup]:
        """Groups that every term selects; none where there are no terms."""
        own = self.pod_set.namespace
        return [g for g in groups if terms and all(reaches(term, own, g.namespace, g.labels) for term in terms)]

    def _selects_own(self, terms: Sequence[PodTerm]) -> bool:
        """Whether every term selects our own pods."""
        return all(reaches(term, self.pod_set.namespace, self.pod_set.namespace, self.pod_set.labels) for term in terms)

    def _codes(self, key: str) -> Codes:
        return self.state.cluster.columns.labels(key)[1]

    def _per_code(self, key: str, groups: Iterable[AffinityGroup]) -> Ints:
        """How many pods of the groups there are for each code of a key."""
        codes = self._codes(key)
        pods = np.zeros(int(codes.max(initial=0)) + 1, np.int64)
        for group in groups:
            index = np.fromiter((record.index for record in group.on), np.int64, len(group.on))
            np.add.at(pods, codes[index], np.fromiter(group.on.values(), np.int64, len(group.on)))
        # Code 0 stands for nodes without the key: pods on them are in no domain of it.
        pods[0] = 0
        return pods

    def _near(self, key: str, groups: Iterable[AffinityGroup]) -> Mask:
        """Leaves in a topology domain where a pod of the groups is."""
        near: Mask = (self._per_code(key, groups) > 0)[self._codes(key)[self.tree.span]]
        return near

    # -- what the pods of the set do to one another -----------------------------------------------------------

    def _with_ceiling(self, found: ConstrainedCounts) -> ConstrainedCounts:
        terms = self.pod_set.affinity
        if not terms or self._selected(self.state.pod_groups(), terms) or not self._selects_own(terms):
            return found
        return replace(found, ceiling=max(self._ceiling(term) for term in terms))

    def _ceiling(self, term: PodTerm) -> int:
        rank = self.tree.rank_of_level(term.topology_key)
        if rank is not None:
            return rank
        codes = self._codes(term.topology_key)[self.tree.span]
        if len(np.unique(codes[codes > 0])) > 1:
            raise Unsupported(
                f"pod affinity of the pods to each other by {term.topology_key}: the key must be one of the levels "
                f"{', '.join(self.tree.flavor.levels)}"
            )
        return -1

    def _caps(self) -> Iterator[Cap]:
        # Several terms by one key, as of several host ports, are one cap: beside it another would be beyond the count.
        apart = {
            term.topology_key: term.repels
            for term in reversed(self.pod_set.anti_affinity)
            if self._selects_own((term,))
        }
        for key, reason in apart.items():
            codes = self._codes(key)
            yield Cap(reason, codes[self.tree.span], np.ones(int(codes.max(initial=0)) + 1, np.int64))
        for constraint in self.pod_set.spread:
            yield self._spread(constraint)

    def _spread(self, constraint: SpreadConstraint) -> Cap:
        """The cap of a spread constraint; nodes without the key take none.

        Values count, full or not, where some node of the tree passes the pod set's selector and affinity.
        """
        own, key = self.pod_set.namespace, constraint.topology_key
        groups = (group for group in self.state.pod_groups() if group.namespace == own and not group.terminating)
        pods = self._per_code(key, [group for group in groups if selects(constraint.selector, group.labels)])
        codes = self._codes(key)[self.tree.span]
        counted: Mask = codes > 0
        # The defaults of a constraint: nodeAffinityPolicy Honor, nodeTaintsPolicy
        # Ignore. `kube.pods.convert` marks others as unsupported.
        for _, mask in NodeFilter.for_pod_set(self.pod_set, ()).labels(self.state.cluster.columns, self.tree.span):
            counted &= mask
        values = np.unique(codes[counted])
        # As `minMatchNum` in podtopologyspread/filtering.go: with
        # fewer domains than minDomains the global minimum is 0.
        least: int | Ints = int(pods[values].min()) if len(values) and len(values) >= constraint.min_domains else 0
        if constraint.min_domains > 1:
            least = np.where(self._narrowed(codes, counted, len(pods), constraint.min_domains), 0, least)
        spare = np.maximum(constraint.max_skew + least - pods, 0)
        if not selects(constraint.selector, self.pod_set.labels):
            # The pods do not match their own constraint (selfMatchNum is 0 in kube-scheduler):
            # they change no skew, so a value takes any number of them or none.
            spare = np.where(pods - least <= constraint.max_skew, np.iinfo(np.int32).max, 0)
        # Nodes without the key get a code of their own that takes none.
        return Cap(Reason.TOPOLOGY_SPREAD, np.where(codes > 0, codes, len(spare)).astype(np.int32), np.append(spare, 0))

    def _narrowed(self, codes: Codes, counted: Mask, known: int, least: int) -> Mask:
        """By code: whether fewer values than ``least`` are left where a pod is that is let go to that value.

        Letting it go narrows its node selector to one domain of the lowest level (seen on Kubernetes 1.37.1).
        """
        owner, codes = self.tree.owners[self.tree.last][counted], codes[counted]
        domains, values = np.unique(np.stack([owner, codes]), axis=1)
        few = np.bincount(domains, minlength=1) < least
        found = np.zeros(known, np.bool_)
        found[values[few[domains]]] = True
        return found
