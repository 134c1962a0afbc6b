"""What is left of devices that several nodes reach, beside all who wait for some on any of these nodes.

Rules
- Pods each of whose requests takes any of one set of such devices are counted: so many of the set go to each pod,
  whatever node it is on.
- Each of these finds its devices, in whatever order pods come, where of every set that is waited for as many are free
  as all may take of it: those who wait for it, and those who wait for another set with some of the same devices, or
  who may be given some otherwise (`Draws.loose`).
- A claim that pods share counts once, on however many nodes they wait.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from engine.claims.asks import DeviceAsk
from engine.claims.counting.draws import DeviceSet, Draws
from engine.devices.changes import ChangeLog
from engine.devices.holders import ClaimHolders
from engine.devices.of_node import UNLIMITED
from engine.devices.turns import DeviceTurn
from engine.devices.waiting import WaitingPods

DrawsAt = Callable[[str, DeviceAsk], Draws | None]
_Part = tuple[DeviceAsk, Draws, int]


class Wanted:
    """So many of each set of devices; ``kept``: sets of which all get theirs."""

    def __init__(self) -> None:
        self.kept: Counter[DeviceSet] = Counter()
        self._all: Counter[DeviceSet] = Counter()
        self._of_pool: dict[tuple[str, str], set[DeviceSet]] = {}

    def add(self, devices: DeviceSet, some: int, *, kept: bool) -> None:
        """So many more of a set; fewer where it is below 0."""
        # Sets that are not kept count for others all the same: what they take is gone.
        for counted in (self.kept, self._all) if kept else (self._all,):
            counted[devices] += some
            if not counted[devices]:
                del counted[devices]
        # By pool, so that sets with common devices are found without comparing all sets: a device is in one pool.
        for pool in {one[:2] for one in devices}:
            of_pool = self._of_pool.setdefault(pool, set())
            (of_pool.add if devices in self._all else of_pool.discard)(devices)
            if not of_pool:
                del self._of_pool[pool]

    def meeting(self, devices: DeviceSet) -> Iterator[tuple[DeviceSet, int]]:
        """The sets that have any of these devices, with how many are wanted of each."""
        found: set[DeviceSet] = set()
        for pool in {one[:2] for one in devices}:
            found |= self._of_pool.get(pool, set())
        return ((one, self._all[one]) for one in found if not one.isdisjoint(devices))

    def demand_for_devices(self, devices: DeviceSet) -> int:
        """How many of these devices may go to all of them together, at most."""
        return sum(some for _, some in self.meeting(devices))

    def add_draws(self, found: Draws, count: int) -> None:
        """So many more pods."""
        for devices, each in found.parts:
            self.add(devices, each * count, kept=not found.loose)


class CommonDemand:
    """See the module's rules. ``draws`` gives what such a pod may be given on a node, None where it asks for nothing.

    ``free`` has the nodes on which somebody else waits.
    """

    def __init__(self, waiting: WaitingPods, holders: ClaimHolders, free: ChangeLog, draws: DrawsAt) -> None:
        self.waiting = waiting
        self.draws = draws
        self._holders = holders
        self._free = free
        self._seen = -1
        self._on: dict[str, list[_Part]] = {}  # by node: who waits for such devices
        self._wanted = Wanted()
        self._once: dict[tuple[DeviceAsk, Draws], set[str]] = {}  # who shares claims, and on which nodes
        self._taken: dict[DeviceSet, int] = {}  # as far as somebody asked

    def uses_changed(self) -> None:
        """Other devices are in use."""
        self._taken.clear()

    def devices_changed(self) -> None:
        """There are other devices, or classes."""
        self._seen = -1
        self._taken.clear()

    def nobody_waits(self) -> None:
        """Nobody waits any more: what was known of those who did goes, though nobody asks."""
        self._seen, self._wanted = -1, Wanted()
        self._on.clear()
        self._once.clear()

    # -- reading ----------------------------------------------------------------------------------------------

    def count_held(self, devices: DeviceSet) -> int:
        """How many of them claims hold."""
        found = self._taken.get(devices)
        if found is None:
            pools = {one[:2] for one in devices}
            used = {use.device for use in self._holders.in_use(pools) if not use.admin}
            found = self._taken[devices] = len(devices & used)
        return found

    def count_left(self, devices: DeviceSet, ask: DeviceAsk, *, kept: bool = True) -> int:
        """How many more may go to such pods, and all who wait still get theirs.

        ``kept``: these pods are to get theirs too. What a shared claim was promised is its own.
        """
        self._catch_up()
        # Also the sets of others, if they meet these devices: taking one here may leave them short there.
        others = {one for one, _ in self._wanted.meeting(devices) if one in self._wanted.kept}
        mine = [(found, nodes) for (one, found), nodes in self._once.items() if ask.shared and one == ask and nodes]
        own = [one for found, _ in mine for one in found.sets]
        least = UNLIMITED
        for one in others | {devices} if kept else others:
            # The ones that share the claim are counted among what is wanted. For one more of them it is no competition.
            promised = sum(each for drawn, each in own if not drawn.isdisjoint(one))
            least = min(least, len(one) - self.count_held(one) - self._wanted.demand_for_devices(one) + promised)
        return max(least, 0)

    def turn(self, name: str, ask: DeviceAsk, coming: Mapping[str, Mapping[DeviceAsk, int]]) -> DeviceTurn:
        """The turn of a pod on a node beside those on their way to all nodes, as far as such devices go."""
        mine = self.draws(name, ask)
        if mine is None or not mine.parts:
            return DeviceTurn.NOW
        # ``beside`` is what others on their way draw: only where they take any of it is there something to wait for.
        beside, wanted = Wanted(), Wanted()
        for node, asks in coming.items():
            for _, found, count in self._draws_of_asks(node, asks):
                beside.add_draws(found, count)
                wanted.add_draws(found, count)
        wanted.add_draws(mine, 1)
        for devices in wanted.kept:
            short = wanted.demand_for_devices(devices) > len(devices) - self.count_held(devices)
            if short and any(not one.isdisjoint(devices) for one, _ in mine.parts):
                return DeviceTurn.LATER if beside.demand_for_devices(devices) else DeviceTurn.NONE
        return DeviceTurn.NOW

    # -- who waits --------------------------------------------------------------------------------------------

    def _draws_of_asks(self, name: str, asks: Mapping[DeviceAsk, int]) -> Iterator[_Part]:
        for ask, count in asks.items():
            found = self.draws(name, ask) if count > 0 else None
            if found is not None and found.parts:
                yield ask, found, count

    def _catch_up(self) -> None:
        # -1 means that nothing noted holds any more, so all nodes are counted again.
        changed = self._free.changed_since(self._seen) if self._seen >= 0 else None
        self._seen = self._free.end
        names = {*self._on, *self.waiting.nodes_with_waiting()}
        for name in names if changed is None else names & changed:
            # Taken back as it was noted. The pods that wait there now may draw on other devices.
            self._count_asks(name, self._on.pop(name, ()), -1)
            if now := list(self._draws_of_asks(name, self.waiting.waiting_on_node(name))):
                self._on[name] = now
                self._count_asks(name, now, 1)

    def _count_asks(self, name: str, parts: Iterable[_Part], sign: int) -> None:
        for ask, found, count in parts:
            if not ask.shared:
                self._wanted.add_draws(found, count * sign)
                continue
            nodes = self._once.setdefault((ask, found), set())
            before = len(nodes)
            (nodes.add if sign > 0 else nodes.discard)(name)
            # A shared claim counts once, from the first node on which it is waited for to the last.
            if bool(nodes) != bool(before):
                self._wanted.add_draws(found, sign)
            if not nodes:
                del self._once[ask, found]
