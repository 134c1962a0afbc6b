"""One pod set with slots: what its pods hold, which of them go where now, and which slots need another place.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.
"""

from collections.abc import Mapping, Sequence

import msgspec

from kube.objects import Pod
from ungater.model.job_view import PodSetView
from ungater.model.pod_slots import PodSetSlots, Tally, assign
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import granted, let_go
from ungater.reconcile.context import ReconcileContext
from ungater.reconcile.granted import Barred
from ungater.reconcile.volume_slots import VolumeSlots


class PodSetUngating(msgspec.Struct, frozen=True):
    """See the module."""

    name: str
    slots: PodSetSlots
    counted: Tally
    going: tuple[tuple[Pod, int], ...]
    awaiting: tuple[tuple[Pod, int], ...]  # may go there, and wait until their claims are made
    lost: tuple[int, ...]
    refused: tuple[int, ...]
    stuck: tuple[int, ...]  # of those that are not lost: where kube-scheduler does not take pods
    moves: tuple[tuple[int, int], ...]
    unplaced: int
    barred: tuple[Barred, ...] = ()
    volumes: VolumeSlots = msgspec.field(default_factory=VolumeSlots)

    def crowded(self, index: int) -> bool:
        """Whether more pods are in a slice than it has slots now: a patch that failed is not tried until one went."""
        return self.counted.used[index] > self.slots.slots[index].count

    @property
    def urgent(self) -> bool:
        """Whether slots have to move on which nobody can run; those that volumes do not reach may stay as they are."""
        return bool(self.lost or self.refused or self.stuck)

    @classmethod
    def from_pod_set(  # noqa: PLR0917
        cls,
        entry: WorkloadEntry,
        pod_set: PodSetView,
        counted: Tally,
        late: let_go.Late,
        rules: ReconcileContext,
        now: float,
        kinds: Mapping[str, int],
    ) -> "PodSetUngating":
        """Where the pods of a pod set go. ``kinds``: as in `as_made.Comparison`."""
        slots = entry.slots_in[pod_set.name]
        taken = None if pod_set.ranks is None else counted.ranks
        layers, choices = entry.layers_of(pod_set), rules.choices(entry, slots, counted.waiting)
        only = {uid: choice.slots for uid, choice in choices.items()}
        placed = assign(
            counted.waiting,
            counted.free_slots(slots),
            slots,
            pod_set.position,
            taken,
            layers,
            pod_set.rank_of_pod,
            only,
        )
        # Slots that pods need and where none can start now: slice -> how many. Those of pods of the job that still run
        # there stay: moving them would end those pods.
        used = {index for _, index in placed}
        needed = sorted(used | {index for index, count in enumerate(counted.unbound) if count})
        closed = rules.lost(entry, pod_set, slots, needed) if needed else ()
        lost = {index: left for index in closed if (left := slots.slots[index].count - counted.bound[index]) > 0}
        # Those on nodes that refused such a pod, as far as pods need them and none holds them.
        avoided = rules.avoided(entry, pod_set, now)
        unheld = counted.free_slots(slots) if avoided else []
        refused = {index: unheld[index] for index in used if slots.slots[index].node in avoided}
        stuck = let_go.moves_of(entry, slots, counted, late)
        volumes = VolumeSlots.from_choices(slots, counted, placed, choices)
        # The last one wins where a slice is in several: of a lost or stuck slice more slots move than the free ones.
        moves = tuple(sorted({**volumes.moves, **refused, **stuck, **lost}.items()))
        # Of slots that others of their slice leave for their volumes, the rest stays.
        held_back = {*refused, *stuck, *lost}
        bars = _bars(entry, pod_set, [pod for pod, _ in placed], rules, kinds)
        barred = tuple(bars.values())
        free = [(pod, at) for pod, at in placed if at not in held_back and pod.metadata.uid not in bars]
        going = tuple([(pod, at) for pod, at in free if not granted.awaits_claims(entry, pod)])
        awaiting = tuple([(pod, at) for pod, at in free if granted.awaits_claims(entry, pod)])
        unplaced = len(counted.waiting) - len(placed)
        only_refused = tuple(sorted(refused.keys() - lost.keys()))
        only_stuck = tuple(sorted(stuck.keys() - lost.keys()))
        of_all = going, awaiting, tuple(sorted(lost)), only_refused, only_stuck, moves, unplaced, barred, volumes
        return cls(pod_set.name, slots, counted, *of_all)


def _bars(
    entry: WorkloadEntry, pod_set: PodSetView, pods: Sequence[Pod], rules: ReconcileContext, kinds: Mapping[str, int]
) -> dict[str, Barred]:
    """By uid, those of these pods that do not go. Pods that are equal and have no claims are judged by one of them."""
    more, found = granted.to_come(entry, rules), {}
    free: set[int] = set()
    for pod in pods:
        kind = kinds.get(pod.metadata.uid)
        if kind in free:
            continue
        if (bar := Barred.find_bar(entry, pod_set.name, pod, rules, more)) is not None:
            found[pod.metadata.uid] = bar
        # Claims are made for each pod by itself: equal specs may have claims that ask for different devices.
        elif kind is not None and not pod.spec.resource_claims:
            free.add(kind)
    return found


def keep_places(slots: PodSetSlots, counted: Tally, left: Sequence[Pod]) -> None:
    """Pods that left the workload, or lost their slot, and run on keep a slot: that where they are, or any.

    So do those that are to go and have not gone yet, outside all slots or as too many in theirs: no more pods run than
    were admitted.
    """
    free = counted.free_slots(slots)
    at = [slots.of_selector(pod.spec.node_selector) for pod in left]
    outside = sum(slots.of_selector(pod.spec.node_selector) is None for pod in counted.moved)
    surplus = sum(max(0, used - slot.count) for slot, used in zip(slots.slots, counted.used, strict=True))
    anywhere = outside + surplus
    for index in at:
        if index is not None and free[index]:
            free[index] -= 1
            counted.used[index] += 1
        else:
            anywhere += 1
    for index, count in enumerate(free):
        kept = min(count, anywhere)
        counted.used[index] += kept
        anywhere -= kept
