"""One node's inside: its report, the pods on it, the slots whose zones are decided, and what they leave free.

The *base* is what a report says is free, or all that is allocatable; see `engine.numa.zone_ledger` for which of them
counts.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from engine.kubelet.arrival_orders import Free
from engine.kubelet.charge import charge
from engine.kubelet.machine import Machine, NumaPlacement, PodShape, State
from engine.kubelet.rebuild import Amounts, Taker, agree, fits_zones, granted, inner, same_amounts, stepwise
from engine.kubelet.resource_requests import Pairs
from engine.model import Pod
from engine.numa.unrecorded import Rows, amounts_in_zones, held_apart, not_in_report
from engine.reservation_key import HolderKey

SlotKey = tuple[HolderKey, str]  # whose, pod set
Gone = tuple[tuple[str, NumaPlacement], ...]
Taken = tuple[NumaPlacement | None, NumaPlacement]
Decided = dict[SlotKey, tuple[NumaPlacement, ...]]
NO_SLOTS: Final[tuple[NumaPlacement, ...]] = ()


Names = tuple[str, ...] | None  # None: every node the pod set has slots on


class Mark(msgspec.Struct, frozen=True):
    """Where a transaction began."""

    at: int
    pending: tuple[tuple[SlotKey, Names], ...]
    doubtful: tuple[str, ...]
    new: bool


class Reserved(Protocol):
    """What is held, as the reservations tell it."""

    def keys(self) -> Iterator[SlotKey]:
        """Every pod set that holds slots, in the order of the reservations."""

    def shape(self, key: SlotKey) -> PodShape | None:
        """What kubelets look at in the pods of a pod set; None where it holds nothing or that is not known."""

    def unclaimed_slots(self, key: SlotKey, index: Collection[int] | None) -> Iterator[tuple[int, int]]:
        """(node, slots there that no pod claims), for some nodes or all; nodes by their place in the table."""


class Before(NamedTuple):
    """``since`` and ``taken``: as in `NodeZones`; ``here``: an older version of the pod was on the node."""

    since: bool = False
    taken: Taken | None = None
    here: bool = False


NEVER: Final = Before()


class Saved(NamedTuple):
    """What is known of a node's inside beside its report and its pods; the names are those of `NodeZones`."""

    decided: Decided
    since: frozenset[str]
    gone: Gone
    taken: dict[str, Taken]


class NodeZones(msgspec.Struct, eq=False):
    """``by_report``: the base is what the report says is free. ``decided``: zones of slots that no pod claims.

    ``since`` and ``gone`` are kept where a report does not say which pods it accounts for: pods that it does not count
    yet, and what pods held that left since. Where the base is the report, only pods that took a decided slot are noted
    in ``since``, else all that came, until a report shows as much in use as they take. ``taken``: pod -> (its own
    record when it claimed a slot, the zones that were decided for that slot): they count until the record is another
    one. ``unrecorded``: what pods take of zones of which no record says which.
    """

    machine: Machine | None = None
    by_report: bool = False
    pods: dict[str, Pod] = msgspec.field(default_factory=dict)
    decided: Decided = msgspec.field(default_factory=dict)
    since: frozenset[str] = frozenset()
    gone: Gone = ()
    taken: dict[str, Taken] = msgspec.field(default_factory=dict)
    unrecorded: dict[str, Pairs] = msgspec.field(default_factory=dict)
    _amounts: Amounts | None = None  # kept up to date; None where it has to be made
    _state: State | None = None  # of full state; None where it has to be made

    @property
    def trusted(self) -> bool:
        """Whether the base is a report that does not say which pods it accounts for."""
        return self.by_report and self.dated

    @property
    def dated(self) -> bool:
        """Whether there is a report that does not say which pods it accounts for."""
        return self.machine is not None and self.machine.holds is None

    @property
    def unsure(self) -> int:
        """How many pods hold something in zones, and no record says in which; none where there is only one zone."""
        return len(self.unrecorded) if self.machine is not None and len(self.machine.layout.zones) > 1 else 0

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known of this node."""
        return self.machine is None and not self.pods

    # -- changes ----------------------------------------------------------------------------------------------

    def report(self, machine: Machine | None, *, by_report: bool) -> bool:
        """Take in a report, or that there is none any more; False where it only says what is not read now."""
        old, self.machine, self.by_report = self.machine, machine, by_report
        # A report stands for all that was noted since the last one, but for pods that it cannot count yet.
        self.since, self.gone = self._late() if self.dated and not by_report else frozenset(), ()
        self.list_unrecorded()
        if old is None or machine is None or by_report or self.unrecorded:
            self.forget_free()
            return True
        same = (old.layout, old.state.declared_free, old.pcie_roots) == (
            *(machine.layout, machine.state.declared_free, machine.pcie_roots),
        )
        if not same:
            self.forget_free()
        return not same

    def list_unrecorded(self) -> None:
        """Look at all pods for what no record says."""
        self.unrecorded = {key: pairs for key, pod in self.pods.items() if (pairs := self._takes_unseen(pod))}

    def _takes_unseen(self, pod: Pod) -> Pairs:
        """What a pod takes of zones though no record says which."""
        machine = self.machine
        if machine is None or machine.layout.exact or not self.matters(pod):
            return ()
        placement = self.held_by(pod)
        known = placement is not None and fits_zones(machine.layout, placement)
        return () if known else amounts_in_zones(machine.layout, pod.shape)

    def _late(self) -> frozenset[str]:
        """Those pods noted since the last report that a new one cannot count yet."""
        machine = self.machine
        if machine is None or not self.since:
            return frozenset()
        layout = machine.layout
        there = {
            key: (amounts_in_zones(layout, pod.shape), self.held_by(pod))
            for key, pod in self.pods.items()
            if self.matters(pod)
        }
        doubtful = {key: each for key, each in there.items() if key in self.since}
        sure = [each for key, each in there.items() if key not in self.since]
        return not_in_report(layout, machine.state.free, sure, doubtful)

    def forget_free(self) -> None:
        """What is free has to be made anew."""
        self._amounts = self._state = None

    def matters(self, pod: Pod) -> bool:
        """Whether a pod can make a difference here."""
        if self.machine is None:
            return False
        held = pod.placement is not None or pod.key in (self.machine.holds or ())
        return held or inner(pod.shape) is not None

    def count(self, pod: Pod, sign: int) -> None:
        """A pod came (1) or went (-1): correct what is free."""
        self._state = None
        unseen, before = self._takes_unseen(pod), bool(self.unrecorded)
        if unseen and sign > 0:
            self.unrecorded[pod.key] = unseen
        else:
            self.unrecorded.pop(pod.key, None)
        # What a pod without a record holds is a difference of sums
        # over all pods: it cannot be corrected by one of them.
        if self.by_report or before or self.unrecorded:
            self._amounts = None
        elif self._amounts is not None and (placement := self.held_by(pod)) is not None:
            self._amounts.apply_placement(placement, sign)

    def held_by(self, pod: Pod) -> NumaPlacement | None:
        """What a pod holds: what was decided for its slot is newer than what was predicted when it was let go."""
        taken = self.taken.get(pod.key)
        return pod.placement if taken is None or pod.observed or taken[0] != pod.placement else taken[1]

    def claim_slot(self, pod: Pod, decided: NumaPlacement) -> None:
        """A pod that is counted already claimed a slot for which these zones were decided."""
        self.count(pod, -1)
        # Out with the pod's own record above, in with the zones
        # of the slot below: `held_by` reads this between the two.
        self.taken[pod.key] = pod.placement, decided
        self.count(pod, 1)

    def came_again(self, pod: Pod, *, since: bool, taken: Taken | None = None) -> None:
        """Note that a pod is there (again)."""
        if taken is not None:
            self.taken[pod.key] = taken
        self.since |= {pod.key} if since else frozenset()
        self.gone = tuple(item for item in self.gone if item[0] != pod.key)
        self._dated_anew()

    def went(self, pod: Pod) -> None:
        """Note that a pod is not there any more, where the report may count it still."""
        if pod.key in self.since:
            self.since -= {pod.key}
        elif (placement := self.held_by(pod)) is not None:
            self.gone = tuple(sorted((*self.gone, (pod.key, placement)), key=lambda item: item[0]))
        self._dated_anew()

    def mark_counted(self) -> bool:
        """The report counts every pod that is there; True where that was not so."""
        if not self.since and not self.gone:
            return False
        self.since, self.gone = frozenset(), ()
        self.forget_free()
        return True

    def _dated_anew(self) -> None:
        """Which pods the report counts is another matter now."""
        if self.by_report or self.unrecorded:
            self.forget_free()

    def decide(self, key: SlotKey, now: tuple[NumaPlacement, ...]) -> None:
        """Set the zones of a pod set's slots."""
        before = self.decided.get(key, NO_SLOTS)
        if now:
            self.decided[key] = now
        else:
            self.decided.pop(key, None)
        self._state = None
        if self._amounts is not None:
            for placement in before:
                self._amounts.apply_placement(placement, -1)
            for placement in now:
                self._amounts.apply_placement(placement, 1)

    def saved(self) -> Saved:
        """What `bring_back` needs."""
        return Saved(dict(self.decided), self.since, self.gone, dict(self.taken))

    def bring_back(self, saved: Saved) -> None:
        """Make it what it was, the order of the slots included."""
        same_records = self.taken == saved.taken
        self.decided, self.since, self.gone, self.taken = saved
        self._state = None
        if same_records:
            self._dated_anew()
        else:
            self.list_unrecorded()
            self.forget_free()

    # -- reading ----------------------------------------------------------------------------------------------

    def state(self, shape_of: Callable[[SlotKey], PodShape | None]) -> State:
        """What is left now. Only where there is a machine."""
        machine = self.machine
        assert machine is not None  # noqa: S101  (every caller looked)
        if machine.layout.exact:
            if self._state is None:
                self._state = stepwise(machine, self.without_slots(), (), self._slots(shape_of))
            return self._state
        if self._amounts is None:
            self._amounts = self._of_pods(machine)
            for slot in self._slots(shape_of):
                if slot.placement is not None:
                    self._amounts.apply_placement(slot.placement, 1)
        return self._amounts.state()

    def without_slots(self) -> State:
        """What pods leave."""
        machine = self.machine
        assert machine is not None  # noqa: S101  (every caller looked)
        if not machine.layout.exact:
            return self._of_pods(machine).state()
        return stepwise(machine, machine.state, self._given_back(machine), self._uncounted(machine))

    def reviewed(
        self, shape_of: Callable[[SlotKey], PodShape | None]
    ) -> list[tuple[SlotKey, tuple[NumaPlacement, ...]]]:
        """The zones that slots get if they come now in their order, of pod sets that get others than were decided.

        A slot that the kubelet would refuse now keeps its zones. Only where there is a machine.
        """
        machine, changed = self.machine, []
        assert machine is not None  # noqa: S101  (every caller looked)
        state = self.without_slots()
        for key, before in self.decided.items():
            shape, now = shape_of(key), []
            for placement in before:
                found = None if shape is None else granted(machine, state, shape)
                # Zones that agree keep the placement as it was decided,
                # with its devices, so that no slot counts as changed.
                now.append(placement if found is None or agree(placement, found[0]) else found[0])
                state = stepwise(machine, state, (), (Taker(shape, now[-1]),))
            if tuple(now) != before:
                changed.append((key, tuple(now)))
        return changed

    def filled(
        self, key: SlotKey, shape: PodShape, units: int, shape_of: Callable[[SlotKey], PodShape | None]
    ) -> tuple[NumaPlacement, ...]:
        """The zones of so many slots of a pod set, those that have none admitted one after another.

        Fewer where the kubelet would not take all. Only where there is a machine.
        """
        machine, now = self.machine, list(self.decided.get(key, NO_SLOTS))
        assert machine is not None  # noqa: S101  (every caller looked)
        state = self.state(shape_of)
        while len(now) < units and (found := granted(machine, state, shape)) is not None:
            now.append(found[0])
            state = found[1]
        return tuple(now)

    def free_for_coming(self, coming: Collection[str], ending: Collection[str]) -> Free:
        """What is free for pods on their way, without slots; ``coming``: those of them that are bound already.

        ``ending``: pods that may end before those have come. Only where there is a machine.
        """
        machine = self.machine
        assert machine is not None  # noqa: S101  (every caller looked)
        if machine.layout.exact:
            takers = self._uncounted(machine, coming)
            least = stepwise(machine, machine.state, self._given_back(machine), takers)
        else:
            least = self._of_pods(machine, coming).state()
        most = least
        for key in sorted(ending):
            placement = self.held_by(self.pods[key]) if key in self.pods else None
            if placement is not None:
                most = charge(machine.layout, most, placement, -1, machine.device_ids)
        return Free(least, most)

    def _of_pods(self, machine: Machine, without: Collection[str] = ()) -> Amounts:
        base = machine.state.free if self.by_report else self._less_unrecorded(machine)
        found = Amounts(machine.layout, base, machine.state.declared_free)
        for placement in self._given_back(machine):
            found.apply_placement(placement, -1)
        for pod in self._uncounted(machine, without):
            if pod.placement is not None:
                found.apply_placement(pod.placement, 1)
        return found

    def _less_unrecorded(self, machine: Machine) -> Rows:
        """What is allocatable, less what pods without a record hold."""
        layout, need = machine.layout, dict[int, int]()
        if not self.unrecorded:
            return layout.allocatable
        for pairs in self.unrecorded.values():
            for row, amount in pairs:
                need[row] = need.get(row, 0) + amount
        # Pods that came after the report are not in what it says is in use, so they are not taken off it.
        there = [self.held_by(pod) for key, pod in self.pods.items() if key not in self.since]
        counted = [placement for placement in (*there, *[one for _, one in self.gone]) if placement is not None]
        apart = held_apart(layout, machine.state.free, need, counted)
        return tuple(
            tuple(amount - hidden if amount >= 0 else amount for amount, hidden in zip(*rows, strict=True))
            for rows in zip(layout.allocatable, apart, strict=True)
        )

    def _given_back(self, machine: Machine) -> list[NumaPlacement]:
        """What the base still counts though its pod is gone."""
        if not self.by_report:
            return []
        if machine.holds is None:
            return [placement for _, placement in self.gone]
        return [placement for key, placement in sorted(machine.holds.items()) if key not in self.pods]

    def _uncounted(self, machine: Machine, without: Collection[str] = ()) -> Iterator[Taker]:
        """Pods that the base does not count, by name; ``without`` these."""
        for key in sorted(self.pods):
            if key in without:
                continue
            # A report with `holds` names the pods that it counts; for any other the notes in `since` stand in for that.
            counted = self.by_report and (key not in self.since if machine.holds is None else key in machine.holds)
            if not counted:
                yield Taker(self.pods[key].shape, self.held_by(self.pods[key]))

    def _slots(self, shape_of: Callable[[SlotKey], PodShape | None]) -> Iterator[Taker]:
        """Unclaimed slots whose zones are decided, in the order of that."""
        for key, placements in self.decided.items():
            shape = shape_of(key)
            yield from (Taker(shape, placement) for placement in placements)


def slot_of(claimant: Pod | None, slots: Sequence[NumaPlacement]) -> int | None:
    """Which slot a pod claims by what it holds; None: the first, though its record says otherwise or nothing.

    Of equal slots it is the one with the devices that it was sent with.
    """
    own = None if claimant is None else claimant.placement
    if claimant is None or own is None or not (claimant.observed or same_amounts(own, slots[0])):
        return None
    # Slot 0 is falsy and goes on to the second search, which finds it again.
    return next((at for at, one in enumerate(slots) if one == own), None) or next(
        (at for at, one in enumerate(slots) if same_amounts(one, own)), None
    )
