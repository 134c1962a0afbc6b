"""Which pod holds which slot of an assignment, and which slot a gated pod gets.

Rules
- A slot is one unit of a slice's count; slots of one slice are alike, so a slot is named by the index of its slice.
- A pod holds a slot from the patch that gives it the slot until the pod finished or is gone. One that terminates holds
  it as long as it is bound: its node has no room before. One that was never bound holds nothing once it is deleted, nor
  does one whose node is gone or not ready: nobody there ends it, and its replacement needs a place now.
- An expectation (a patch that was sent) counts like an ungated pod, and never names another slot for the same pod, so a
  patch whose answer was lost is sent again to the same place and cannot give a slot away twice.
- A pod whose volumes do not reach all nodes goes to a slot that they reach, or to none; such pods choose first.
- Rank order: the rank's position among the ranks that are still to finish is its slot; one out of range and a pod
  without a rank take what is free: where kube-scheduler keeps room for it already, else first slot first. A rank twice
  does so too, but where the owner keeps one pod a rank (an Indexed Job) the second waits: its owner deletes one of
  them, and a free slot belongs to a rank that is to come.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from crds.constants import HOSTNAME_LABEL, POD_GROUP_INDEX, RANK_LABELS, Keys
from engine.kubelet.machine import NumaPlacement
from kube.objects import Pod, PodTemplate
from ungater.model import pod_set_slices
from ungater.model.pod_set_slices import Homes, RankLayer

Values = tuple[str, ...]
Position = Callable[[int], int | None]
RankOf = Callable[[Pod], int | None]
NO_CHOICE: Mapping[str, Collection[int]] = {}


class Slot(msgspec.Struct, frozen=True, gc=False):
    """One slice of an assignment: level values (widest first), how many pods, and its node where it is one node."""

    values: Values
    count: int
    node: str = ""


class PodSetSlots:
    """The slices of one pod set in rank order, with what is asked of them on every reconcile."""

    def __init__(self, levels: Sequence[str], slots: Sequence[Slot], flavor: str = "") -> None:
        self.levels = tuple(levels)
        self.slots = tuple(slots)
        self.flavor = flavor
        self.ends = list(accumulate(slot.count for slot in self.slots))
        self.total = self.ends[-1] if self.ends else 0
        self._index = {slot.values: i for i, slot in enumerate(self.slots)}
        self._on: dict[str, int] | None = None
        self._hosts: dict[str, int] | None = None

    def slice_at_position(self, position: int) -> int:
        """The slice that holds this position in rank order."""
        return bisect_right(self.ends, position)

    def index(self, values: Values) -> int | None:
        """The slice with these level values."""
        return self._index.get(values)

    def slice_of_node(self, node: str) -> int | None:
        """The slice that is this node."""
        if self._on is None:
            self._on = {slot.node: i for i, slot in enumerate(self.slots) if slot.node}
        return self._on.get(node)

    def of_selector(self, selector: Mapping[str, str] | None) -> int | None:
        """The slice that a node selector names, by all levels or by the host alone; None where it names none."""
        if not selector:
            return None
        # A level that every node lost has "" in its domain and no key in the selector
        # (`engine.cluster.levels.domain_labels`).
        found = self._index.get(tuple(selector.get(level, "") for level in self.levels))
        # Kueue names the host alone (0.19.2, pkg/controller/tas/topology_ungater.go), which tells all levels above it.
        return self._of_host(selector) if found is None and HOSTNAME_LABEL in selector else found

    def _of_host(self, selector: Mapping[str, str]) -> int | None:
        """The slice of the host that a node selector names, where what it says of other levels is so."""
        if self._hosts is None:
            names = Counter(slot.values[-1] for slot in self.slots)
            lowest = self.levels[-1:] == (HOSTNAME_LABEL,)
            known = {slot.values[-1]: i for i, slot in enumerate(self.slots) if names[slot.values[-1]] == 1}
            self._hosts = known if lowest else {}
        found = self._hosts.get(selector[HOSTNAME_LABEL])
        if found is None:
            return None
        said = zip(self.levels, self.slots[found].values, strict=True)
        return found if all(selector.get(level, value) == value for level, value in said) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PodSetSlots) and self.flavor == other.flavor and self.same_slots(other)

    __hash__ = None  # type: ignore[assignment] # compared, never a key

    def same_slots(self, other: "PodSetSlots | None") -> bool:
        """Whether both give the same slots to the same ranks."""
        return (
            other is not None
            and self.levels == other.levels
            and [(s.values, s.count) for s in self.slots] == [(s.values, s.count) for s in other.slots]
        )

    def without_slots(self, counts: Mapping[int, int]) -> "PodSetSlots":
        """These slots less ``counts`` of them by slice; a slice that is empty then is left out."""
        kept = (
            Slot(slot.values, slot.count - counts.get(i, 0), slot.node)
            for i, slot in enumerate(self.slots)
            if slot.count > counts.get(i, 0)
        )
        return PodSetSlots(self.levels, tuple(kept), self.flavor)


class Expectation(msgspec.Struct, frozen=True, gc=False):
    """A pod was sent to a slot: it counts there until the informer shows it; at ``deadline`` the patch is sent again.

    ``gone``: the API server said that there is no such pod, so it counts nowhere until the informer has seen that too.
    ``refused``: the API server did not take the last patch, so the pod is behind its gate still.
    ``placement``: what was predicted for it inside its node, the same however often it is sent.
    """

    values: Values
    deadline: float
    attempts: int = 1
    gone: bool = False
    refused: bool = False
    placement: NumaPlacement | None = None


class Tally(msgspec.Struct):
    """What the pods of a pod set hold: by slice, slots in use, and pods that finished there with success."""

    used: list[int]
    succeeded: list[int]
    bound: list[int]  # of those in use: by pods on their node, not being deleted
    unbound: list[int]  # by pods that were let go and are on no node yet
    waiting: list[Pod] = msgspec.field(default_factory=list)  # gated, without a slot, not being deleted
    resend: list[tuple[Pod, int]] = msgspec.field(default_factory=list)  # a patch that was never seen to arrive
    moved: list[Pod] = msgspec.field(default_factory=list)  # ungated by us to what is no slot (any more)
    ending: list[Pod] = msgspec.field(default_factory=list)  # the same, on a node where they are still about to end
    strangers: list[Pod] = msgspec.field(default_factory=list)  # of this owner, never gated by us, in no slot
    # Of the slots in use: how many are held by pods that are being deleted.
    ends: dict[int, int] = msgspec.field(default_factory=dict)
    ranks: dict[int, int] = msgspec.field(default_factory=dict)  # of the pods that hold the slots in use: rank -> slice

    @property
    def held(self) -> int:
        """Slots in use."""
        return sum(self.used)

    def free_slots(self, slots: PodSetSlots) -> list[int]:
        """Free slots by slice."""
        return [max(0, slot.count - used) for slot, used in zip(slots.slots, self.used, strict=True)]


def is_gated(pod: Pod | PodTemplate, gate: str) -> bool:
    """Whether our gate still holds the pod back, or will hold those of a template."""
    gates = pod.spec.scheduling_gates
    return gates is not None and gate in [found.name for found in gates]


def role_given(pod: Pod, keys: Keys, roles: Collection[str], labelled: Callable[[Pod], str]) -> str:
    """The pod set of a pod: that in which it has a slot, where it was let go for one of ``roles``; else by its labels.

    Whoever may edit it may relabel it while it runs: it runs on in the slot that it was given.
    """
    given = (pod.metadata.annotations or {}).get(keys.pod_set, "") if not is_gated(pod, keys.gate) else ""
    return given if given in roles else labelled(pod)


def finished(pod: Pod) -> bool:
    """Whether the pod runs no more and never will again."""
    return pod.status.phase in {"Succeeded", "Failed"}


def rank_of(pod: Pod) -> int | None:
    """The index that the pod's controller gave it (`RANK_LABELS`), None where it has none that is a number."""
    labels = pod.metadata.labels or {}
    text = next((labels[key] for key in RANK_LABELS if key in labels), None)
    if text is None:
        # A pod group's index label is under whatever domain the setting says, so it is found by its name alone.
        text = next((labels[key] for key in labels if key.partition("/")[2] == POD_GROUP_INDEX), None)
    return number(text)


def number(text: str | None) -> int | None:
    """The number that a label holds; None where it holds none."""
    # `isdigit` alone takes digits such as superscripts, at which `int` raises: a label is whatever its user wrote.
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def tally(
    slots: PodSetSlots,
    pods: Iterable[Pod],
    expectations: Mapping[str, Expectation],
    *,
    gate: str,
    mark: str,
    workload: str,
    now: float,
    rank: RankOf = rank_of,
    dead: Callable[[str], bool],
    first: Collection[str] | None = None,
    adopting: Collection[str] = (),
) -> Tally:
    """Count what the pods of one pod set hold.

    ``mark``: the annotation that our ungating patch writes. ``dead``: whether the node of this name is gone or not
    ready. ``first``: the workload is moved; where a slice has more pods than slots, pods with these uids go before
    others, and those that end already are among those that go. ``adopting``: uids of pods that count as marked.
    """
    none = [0] * len(slots.slots)
    result = Tally(none[:], none[:], none[:], none[:])
    members: dict[int, list[Pod]] = {}
    for pod in pods:
        expectation = expectations.get(pod.metadata.uid)
        if expectation is not None and expectation.gone:
            continue
        # Before all else: a pod that nobody ends may stay for ever, and its slot with it.
        if pod.metadata.deletion_timestamp is not None and pod.spec.node_name and dead(pod.spec.node_name):
            continue
        if finished(pod):
            if pod.status.phase == "Succeeded" and (at := slots.of_selector(pod.spec.node_selector)) is not None:
                result.succeeded[at] += 1
        elif is_gated(pod, gate):
            _count_gated(result, slots, pod, expectation, now, rank)
        else:
            ours = (pod.metadata.annotations or {}).get(mark) == workload or pod.metadata.uid in adopting
            _count_ungated(result, slots, pod, members, rank, ours=ours)
    for index, inside in members.items():
        # During a move the ones that end already make the room: no further pod has to go for it.
        ends = result.ends.get(index, 0) if first is not None else 0
        surplus = result.used[index] - ends - slots.slots[index].count
        if surplus > 0:
            # Those of ``first`` go, those that are on no node yet, then the youngest.
            inside.sort(
                key=lambda pod: (
                    pod.metadata.uid in (first or ()),
                    not pod.spec.node_name,
                    pod.metadata.creation_timestamp or "",
                    pod.metadata.name,
                )
            )
            result.moved += inside[-surplus:]
    return result


def assign(  # noqa: PLR0917  (pods and slots, and what is known of ranks)
    waiting: Iterable[Pod],
    free: Sequence[int],
    slots: PodSetSlots,
    position: Position,
    taken: Mapping[int, int] | None = None,
    layers: Sequence[RankLayer] = (),
    rank_of: RankOf = rank_of,
    only: Mapping[str, Collection[int]] = NO_CHOICE,
) -> list[tuple[Pod, int]]:
    """Slots for gated pods, in rank order: (pod, slice). Pods for which nothing is free are left out.

    ``position`` maps a rank to its place in rank order, None for a rank that is done or out of range. ``taken``: the
    ranks that hold a slot and where, where a rank has one pod at a time; None where ranks may repeat. ``layers``: of
    slices whose ranks have to be together. ``only``: by uid, the slices that a pod may go to, where those are not all.
    """
    # A copy: the caller reads what was free before this.
    free = list(free)
    unique = taken is not None
    ranks = set(taken or ())
    homes = _homes(layers, slots, free, taken or {})
    placed: list[tuple[Pod, int]] = []
    rest: list[Pod] = []
    # With slices, the order of ranks alone decides in which domain each slice begins.
    for pod in sorted(waiting, key=lambda pod: _turn(pod, only if homes is None else {}, rank_of)):
        rank, may = rank_of(pod), only.get(pod.metadata.uid)
        if unique and rank is not None:
            if rank in ranks:
                continue
            ranks.add(rank)
        place = None if rank is None else position(rank)
        index = slots.slice_at_position(place) if place is not None and 0 <= place < slots.total else None
        if homes is not None and rank is not None and index is not None:
            index = homes.choose(rank, index)
            # With slices such a pod waits: a slot that its volumes reach elsewhere would take it away from its slice.
            if index is None or (may is not None and index not in may):
                continue
            # Before the next rank is asked: it must follow into the same domain. One that waits is in no domain.
            homes.record_slot(rank, index)
        elif may is not None and (index is None or index not in may or not free[index]):
            index = next((at for at in sorted(may) if free[at]), None) if homes is None else None
            if index is None:
                continue
        if index is not None and free[index] > 0:
            free[index] -= 1
            placed.append((pod, index))
        else:
            rest.append(pod)
    # All these take the first free slot. The pointer only moves on: one pass over the slots.
    following = 0
    for pod in (
        rest if not any(pod.status.nominated_node_name for pod in rest) else _unkept_pods(rest, free, slots, placed)
    ):
        while following < len(free) and free[following] == 0:
            following += 1
        if following == len(free):
            break
        free[following] -= 1
        placed.append((pod, following))
    return placed


def _unkept_pods(rest: Iterable[Pod], free: list[int], slots: PodSetSlots, placed: list[tuple[Pod, int]]) -> list[Pod]:
    """Those for which no room is kept on a node with a free slot; all others get that."""
    others: list[Pod] = []
    for pod in rest:
        index = slots.slice_of_node(pod.status.nominated_node_name)
        if index is not None and free[index] > 0:
            free[index] -= 1
            placed.append((pod, index))
        else:
            others.append(pod)
    return others


def _homes(
    layers: Sequence[RankLayer], slots: PodSetSlots, free: Sequence[int], taken: Mapping[int, int]
) -> Homes | None:
    if not layers:
        return None
    homes = Homes(layers, [slot.values for slot in slots.slots], [slot.count for slot in slots.slots], free)
    for rank, index in taken.items():
        homes.record_slot(rank, index)
    return homes


def surplus(slots: PodSetSlots, counted: Tally, keep: int, layers: Sequence[RankLayer] = ()) -> dict[int, int]:
    """Which free slots to give back so that ``keep`` (or what is in use) remain: slice -> how many.

    Slots whose pod finished with success go first, as no pod comes back to them; then from the end of rank order. Where
    there are ``layers`` of slices, whole ones go, from the end.
    """
    # Slots in use stay, however few are to be kept: a pod that runs is never left without one.
    spare = slots.total - max(keep, counted.held)
    free = counted.free_slots(slots)
    if layers:
        values, counts = zip(*[(slot.values, slot.count) for slot in slots.slots], strict=True) if free else ((), ())
        return pod_set_slices.slots_to_give_back(layers, values, counts, free, spare)
    give: dict[int, int] = {}
    reversed_slices = range(len(free) - 1, -1, -1)
    # The first pass is limited by pods that succeeded, the second by
    # what is free: each takes less what is given already.
    for limit in (counted.succeeded, free):
        for index in reversed_slices:
            take = min(spare, limit[index] - give.get(index, 0), free[index] - give.get(index, 0))
            if take > 0:
                give[index] = give.get(index, 0) + take
                spare -= take
    return give


def _count_gated(  # noqa: PLR0917
    result: Tally, slots: PodSetSlots, pod: Pod, expectation: Expectation | None, now: float, rank: RankOf
) -> None:
    if pod.metadata.deletion_timestamp is not None:
        return
    index = None if expectation is None else slots.index(expectation.values)
    if expectation is None or (index is None and expectation.deadline <= now):
        result.waiting.append(pod)  # sent to a slot that moved, and gated still: if it went after all, this is refused
    elif index is not None:
        _use_slot(result, index, rank(pod))
        if expectation.deadline <= now:
            result.resend.append((pod, index))


def _count_ungated(
    result: Tally, slots: PodSetSlots, pod: Pod, members: dict[int, list[Pod]], rank: RankOf, *, ours: bool
) -> None:
    terminating = pod.metadata.deletion_timestamp is not None
    # The API server gives a pod without a node no grace period
    # (CheckGracefulDelete in pkg/registry/core/pod/strategy.go).
    if terminating and not pod.spec.node_name:
        return
    index = slots.of_selector(pod.spec.node_selector) if ours else None
    if index is not None:
        _use_slot(result, index, rank(pod))
        if terminating:
            result.ends[index] = result.ends.get(index, 0) + 1
        else:
            (result.bound if pod.spec.node_name else result.unbound)[index] += 1
            members.setdefault(index, []).append(pod)
    elif not terminating:
        # Without our mark somebody else took the gate off: it is not ours to delete.
        (result.moved if ours else result.strangers).append(pod)
    elif ours:
        result.ending.append(pod)


def _use_slot(result: Tally, index: int, rank: int | None) -> None:
    result.used[index] += 1
    if rank is not None:
        result.ranks[rank] = index


def _turn(pod: Pod, only: Mapping[str, Collection[int]], rank_of: RankOf) -> tuple[float, int, str]:
    """Who may go to few slices comes first, and then the lowest rank."""
    may, rank = only.get(pod.metadata.uid), rank_of(pod)
    # Behind all ranks: those who have none take what is left.
    return math.inf if may is None else len(may), 1 << 62 if rank is None else rank, pod.metadata.name
