"""The inside of every node as things stand now: what is free in each zone, and which zones each slot will get.

Rules
- Free is what is allocatable less the placements of the pods on the node and of the slots that no pod claims. What
  NodeResourceTopology says is available is not read, because it lags; but while pods take of the zones of which no
  record says which, what it says is in use beside the others is taken to be theirs (`engine.numa.unrecorded`).
- With full state the report is the base: pods it accounts for that are gone are given back at once, and pods it does
  not know yet are admitted on top, as the kubelet would. Without ``reconstruct`` the available amounts of
  NodeResourceTopology are the base in the same way.
- The zones of a slot are decided when somebody first asks, in the order of the reservations, one slot after another;
  and anew in that order whenever pods come or go there: a kubelet chooses when a pod arrives, not when it was sent. A
  pod that claims a slot holds what was decided for the first one, until it is seen what it really holds.
- ``rollback`` brings every decision back as it was at ``begin``.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from engine.arrays import Ints
from engine.kubelet.arrival_orders import Free
from engine.kubelet.machine import Machine, NumaPlacement, PodShape, State
from engine.model import Pod
from engine.numa.fleets import Fleets
from engine.numa.node_zones import NEVER, NO_SLOTS, Before, Mark, Names, NodeZones, Reserved, Saved, SlotKey, slot_of
from engine.numa.score import Trait, ZoneScore, traits

# Without a bound, a stored admission of a million pods on one node takes ten seconds here.
MOST_SLOTS: Final = 1024  # of a pod set on one node, that are decided: kubelets take fewer pods, and each takes 12 us


class NumaLedger:
    """See the module.

    ``index`` gives a node's place in the table and ``name`` the node of a place; ``touch`` notes that a place changed.
    """

    def __init__(
        self,
        reserved: Reserved,
        index: Callable[[str], int | None],
        name: Callable[[int], str],
        touch: Callable[[int], object],
        *,
        reconstruct: bool = True,
        score: ZoneScore = ZoneScore.LEAST_NUMA_NODES,
    ) -> None:
        self.reconstruct = reconstruct
        self.score = score
        self.differing = Counter[Trait]()  # how many machines have what makes equal nodes differ inside
        self.machines: dict[str, Machine] = {}
        self._reserved = reserved
        self._index = index
        self._name = name
        self._touch = touch
        self._by_name: dict[str, NodeZones] = {}
        self._fleets = Fleets(index, self.machines)
        self._pending: dict[SlotKey, Names] = {}
        self._on: dict[SlotKey, set[str]] = {}  # where a pod set's slots have zones
        self._doubtful: dict[str, None] = {}  # nodes where decided zones may no longer have room
        self._new = False  # a machine came or its layout changed: slots there may wait for their zones
        self._undo: list[tuple[str, Saved]] | None = None
        self.layouts_version = 0  # grows when what is inside a machine, be it taken or not, comes, changes or goes

    @property
    def view(self) -> Mapping[str, Machine]:
        """Machines by node name."""
        return MappingProxyType(self.machines)

    # -- machines ---------------------------------------------------------------------------------------------

    def set_machine(self, machine: Machine) -> bool:
        """Take in a report (or a changed one); False where it only says what is not read now."""
        name, inside = machine.node, self._zones_of_node(machine.node)
        # Before the report is taken in, which resets the pods that came and went since: a rollback brings these back.
        self._save(name, inside)
        old, self.machines[name] = inside.machine, machine
        if not inside.report(machine, by_report=machine.layout.exact or not self.reconstruct):
            return False
        self.differing.update(traits(machine.layout))
        if old is not None:
            self.differing.subtract(traits(old.layout))
        self._doubtful[name] = None
        # Zones of another layout say nothing about this one. With the same layout they are only checked again.
        if old is None or old.layout != machine.layout:
            self._undecide(name, inside)
            self._new = True
            self._reported(name)
        self._mark_node_changed(name)
        return True

    def remove_machine(self, name: str) -> None:
        """Forget a report; the node counts by the amounts of the whole node again."""
        inside = self._by_name[name]
        self._save(name, inside)
        self._undecide(name, inside)
        self.differing.subtract(traits(self.machines.pop(name).layout))
        inside.report(None, by_report=False)
        self._reported(name)
        self._mark_node_changed(name)
        self._drop_idle(name, inside)

    def _reported(self, name: str) -> None:
        self.layouts_version += 1
        self._fleets.reported(name)

    def node_came(self, name: str) -> None:
        """A node got a (new) place in the table."""
        if name in self.machines:
            self._fleets.node_came(name)

    def permute(self, order: Ints) -> None:
        """The node at ``order[i]`` of the table is now at i; nodes that are not named are gone from it."""
        self._fleets.permute(order)

    def mark_counted(self) -> None:
        """All that there was is taken in: what is published counts the pods that are there."""
        for name, inside in self._by_name.items():
            if inside.mark_counted():
                self._mark_node_changed(name)

    def unrecorded(self, name: str) -> int:
        """How many pods on a node hold something in its zones, and no record says in which (`NodeZones.unsure`)."""
        inside = self._by_name.get(name)
        return 0 if inside is None else inside.unsure

    def _zones_of_node(self, name: str) -> NodeZones:
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = NodeZones()
        return found

    def _drop_idle(self, name: str, inside: NodeZones) -> None:
        if inside.is_unknown:
            self._by_name.pop(name, None)

    def _mark_node_changed(self, name: str) -> None:
        self._fleets.mark_changed(name)
        index = self._index(name)
        if index is not None:
            self._touch(index)

    # -- pods -------------------------------------------------------------------------------------------------

    def arrive(self, pod: Pod, before: Before = NEVER) -> None:
        """A pod is on its node now; ``before``: what `remove_pod` said when its older version was taken away."""
        inside = self._zones_of_node(pod.node)
        # Zones that an earlier pod put in doubt are decided again before this one counts:
        # it gets those of the first slot, because its kubelet chooses as the pod arrives.
        if pod.node in self._doubtful:
            del self._doubtful[pod.node]
            self._review(pod.node)
        inside.pods[pod.key] = pod
        if not inside.matters(pod):
            return
        new = inside.dated and not inside.by_report and not before.here
        if new or before.since or before.taken is not None or inside.gone:
            self._save(pod.node, inside)
            inside.came_again(pod, since=new or before.since, taken=before.taken)
        # After `came_again`: what the pod holds may be the zones of a slot that its older version claimed.
        inside.count(pod, 1)
        self._fleets.mark_changed(pod.node)
        if inside.decided:
            self._doubtful[pod.node] = None

    def remove_pod(self, pod: Pod) -> Before:
        """A pod is gone; returns what has to be known where only its newer version takes its place."""
        inside = self._by_name[pod.node]
        del inside.pods[pod.key]
        # Read first: `went` and the removal from `taken` below forget it.
        before = Before(pod.key in inside.since, inside.taken.get(pod.key), here=True)
        if inside.matters(pod):
            if inside.dated or before.taken is not None:
                self._save(pod.node, inside)
            inside.count(pod, -1)
            if inside.dated:
                inside.went(pod)
            # After the pod is counted out, for it is counted out with the zones that it took.
            inside.taken.pop(pod.key, None)
            self._fleets.mark_changed(pod.node)
            if inside.decided:
                self._doubtful[pod.node] = None
        self._drop_idle(pod.node, inside)
        return before

    # -- slots ------------------------------------------------------------------------------------------------

    def put(self, key: SlotKey, shape: PodShape | None, before: PodShape | None) -> None:
        """A pod set holds other slots now, or none; ``shape`` None: nothing inside a node.

        Slots that stay on their node keep their zones; the others get theirs when somebody asks.
        """
        self._pending.pop(key, None)
        held: dict[str, int] = {}
        if shape is not None:
            self._pending[key] = None
            if shape == before and key in self._on:
                held = dict(self.unclaimed_slots(key, self._on[key]))
        for name in sorted(self._on.get(key, ())):
            inside = self._by_name[name]
            units = held.get(name, 0)
            if units < len(inside.decided[key]):
                self._save(name, inside)
                self._decide(name, inside, key, inside.decided[key][:units])
                if inside.decided:
                    self._doubtful[name] = None

    def set_unclaimed(self, key: SlotKey, name: str, units: int, claimant: Pod | None) -> None:
        """So many slots on a node are unclaimed now; ``claimant``: the pod that came to claim one.

        A pod that was not seen yet holds what was decided for the first slot: a kubelet goes by the order in which pods
        come, not by what was predicted for each.
        """
        inside = self._by_name.get(name)
        if inside is None or inside.machine is None:
            return
        left = list(inside.decided.get(key, NO_SLOTS))
        if len(left) < units:
            self._wait(key, name)
        if len(left) <= units:
            return
        self._save(name, inside)
        here = claimant if claimant is not None and claimant.node == name else None
        at = slot_of(here, left)
        taken = left[at or 0]
        # The last slots stay, because pods claim the first ones.
        left = [one for other, one in enumerate(left) if other != (at or 0)][len(left) - 1 - units :]
        self._decide(name, inside, key, tuple(left))
        # A report that does not name its pods may not count this one yet: it is charged beside the report.
        if here is not None and inside.trusted:
            inside.came_again(here, since=True)
        if here is not None and at is None and not here.observed:
            inside.claim_slot(here, taken)

    def reserve_zones(self, key: SlotKey, name: str, placements: Collection[NumaPlacement]) -> None:
        """Give a pod set's unclaimed slots on a node zones that were decided before, as far as it has slots."""
        inside = self._by_name.get(name)
        if inside is None or inside.machine is None:
            return
        units = dict(self.unclaimed_slots(key, (name,))).get(name, 0)
        self._save(name, inside)
        self._decide(name, inside, key, tuple(placements)[:units])
        if len(placements) < units:
            self._wait(key, name)
        self._mark_node_changed(name)

    def placements(self, key: SlotKey, name: str) -> tuple[NumaPlacement, ...]:
        """The zones of a pod set's unclaimed slots on a node, in order; none where they are not known."""
        self.decide()
        inside = self._by_name.get(name)
        return NO_SLOTS if inside is None else inside.decided.get(key, NO_SLOTS)

    def unclaimed(self, name: str) -> Iterator[tuple[SlotKey, PodShape, int]]:
        """(pod set, what its pods ask for, slots) of the unclaimed slots on a node whose zones are decided."""
        self.decide()
        inside = self._by_name.get(name)
        for key, places in inside.decided.items() if inside is not None else ():
            shape = self._reserved.shape(key)
            if shape is not None and places:
                yield key, shape, len(places)

    def held_by(self, pod: Pod) -> NumaPlacement | None:
        """What a pod that is there holds; None where that is not known."""
        inside = self._by_name.get(pod.node)
        return inside.held_by(pod) if inside is not None and pod.key in inside.pods else None

    def unclaimed_slots(self, key: SlotKey, names: Collection[str] | None) -> Iterator[tuple[str, int]]:
        """(node, slots there that no pod claims), for some nodes or all, in the order of the slots."""
        index = None if names is None else [at for name in names if (at := self._index(name)) is not None]
        return ((self._name(at), units) for at, units in self._reserved.unclaimed_slots(key, index))

    def _wait(self, key: SlotKey, name: str) -> None:
        """A pod set has slots on a node whose zones are to be decided."""
        names = self._pending.get(key, ())
        if names is not None and name not in names:
            self._pending[key] = (*names, name)

    def _decide(self, name: str, inside: NodeZones, key: SlotKey, now: tuple[NumaPlacement, ...]) -> None:
        inside.decide(key, now)
        self._fleets.mark_changed(name)
        if now:
            self._on.setdefault(key, set()).add(name)
        elif key in self._on:
            self._on[key].discard(name)
            if not self._on[key]:
                del self._on[key]

    def _undecide(self, name: str, inside: NodeZones) -> None:
        for key in list(inside.decided):
            self._decide(name, inside, key, NO_SLOTS)

    def decide(self) -> None:
        """Decide the zones of every slot that has none yet."""
        # Any pod set may have slots on a machine that came, so all are looked at, in the order of the reservations.
        if self._new:
            self._new = False
            self._pending |= dict.fromkeys(self._reserved.keys())
        # Slots that have zones come before the ones that have none.
        # The order of nodes does not matter: they are independent.
        while self._doubtful:
            self._review(self._doubtful.popitem()[0])
        if not self._pending:
            return
        waiting, self._pending = self._pending, {}
        for key, names in waiting.items():
            shape = self._reserved.shape(key)
            if shape is not None:
                units = self.unclaimed_slots(key, names)
                short = tuple(name for name, held in units if not self._fill(name, key, shape, held))
                # What the kubelet would not take now waits: a pod that goes may make room before somebody asks again.
                if short:
                    self._pending[key] = short

    def _review(self, name: str) -> None:
        """Decide slots anew, in the order in which they were decided: that is what the kubelet will do as they come."""
        inside = self._by_name.get(name)
        if inside is None or inside.machine is None or not inside.decided:
            return
        for key, now in inside.reviewed(self._reserved.shape):
            self._save(name, inside)
            self._decide(name, inside, key, now)

    def _fill(self, name: str, key: SlotKey, shape: PodShape, units: int) -> bool:
        """Admit the slots that have no zones yet, one after another; False where the kubelet would not take all."""
        inside = self._by_name.get(name)
        if inside is None or inside.machine is None:
            return True  # once a machine is reported, all are looked at again
        have, units = inside.decided.get(key, NO_SLOTS), min(units, MOST_SLOTS)
        if len(have) >= units:
            return True
        now = inside.filled(key, shape, units, self._reserved.shape)
        if len(now) > len(have):
            self._save(name, inside)
            self._decide(name, inside, key, now)
        return len(now) == units

    # -- reading ----------------------------------------------------------------------------------------------

    def state(self, name: str) -> State | None:
        """What is left inside a node now; None where that is not known."""
        self.decide()
        inside = self._by_name.get(name)
        return None if inside is None or inside.machine is None else inside.state(self._reserved.shape)

    def free_on_node(self, name: str, coming: Collection[str], ending: Collection[str]) -> Free | None:
        """What is free for pods on their way (`NodeZones.free_for_coming`); None where the inside is not known."""
        inside = self._by_name.get(name)
        return None if inside is None or inside.machine is None else inside.free_for_coming(coming, ending)

    def count_admitted(self, shape: PodShape, most: int) -> Ints:
        """By table index, how many pods of a shape each kubelet would admit, ``most`` at most; -1: not known.

        Nodes behind the last one are not known either.
        """
        self.decide()
        return self._fleets.count_admitted(shape, most, self._state_of_node)

    def alignments(self, shape: PodShape) -> Ints:
        """By table index, how well one more pod of a shape is aligned (`engine.numa.alignment`); less is better.

        Nodes behind the last one are not known.
        """
        self.decide()
        return self._fleets.current_fleet(self._state_of_node).alignments(shape, self.score)

    def in_one_zone(self, shape: PodShape, most: int) -> Ints:
        """As ``count_admitted``, of pods that come out in one zone each where the kubelet does not insist on it."""
        self.decide()
        return self._fleets.current_fleet(self._state_of_node).in_one_zone(shape, most)

    def _state_of_node(self, name: str) -> State:
        return self._by_name[name].state(self._reserved.shape)

    def count_if_empty(self, shape: PodShape, most: int) -> Ints:
        """As ``count_admitted``, if nothing ran on any node."""
        return self._fleets.count_if_empty(shape, most)

    # -- transactions -----------------------------------------------------------------------------------------

    def begin(self) -> Mark:
        """From now on, note how to undo."""
        if self._undo is None:
            self._undo = []
        # Copies, because questions inside the transaction decide slots and empty both tables.
        return Mark(len(self._undo), tuple(self._pending.items()), tuple(self._doubtful), self._new)

    def rollback(self, mark: Mark, *, last: bool) -> None:
        """Bring back what was decided at ``mark``, after pods, machines and slots; ``last``: none is open now."""
        undo = self._undo or []
        for name, saved in dict(reversed(undo[mark.at :])).items():  # of each node what was saved first
            inside = self._zones_of_node(name)
            for key in {*inside.decided, *saved.decided}:
                # By identity: slots whose zones did not change have the same tuple, and are not charged again.
                if inside.decided.get(key) is not saved.decided.get(key):
                    self._decide(name, inside, key, saved.decided.get(key, NO_SLOTS))
            inside.bring_back(saved)
            self._mark_node_changed(name)
            self._drop_idle(name, inside)
        self._undo = None if last else undo[: mark.at]
        self._pending, self._doubtful = dict(mark.pending), dict.fromkeys(mark.doubtful)
        self._new = mark.new

    def commit(self) -> None:
        """No transaction is open any more, and all is kept."""
        self._undo = None

    def _save(self, name: str, inside: NodeZones) -> None:
        if self._undo is not None:
            self._undo.append((name, inside.saved()))
