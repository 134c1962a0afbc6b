"""The devices of every node: what claims hold of them, what is promised, and how many pods with claims fit.

Rules
- A device is taken while any claim's allocation names it, by the name of that claim (`engine.devices.holders`).
- Pods that were let go and have no devices yet, and slots that no pod claims, *wait* for devices. As many more pods fit
  a node as get theirs beside all that wait there, whatever order they come in (`engine.claims.counting.beside`).
- A node on which those who wait do not all get their devices any more takes nobody else.
- What a node's device plugins give of an extended resource is not asked of its devices; so two nodes may be asked for
  different claims by one pod (`DeviceAsk.extended`). Where all is given by plugins, devices limit nothing.
- A claim that a pod names holds what it has, and nobody waits for that any more. One that pods share counts once on a
  node, however many of them wait there: where it fits, or is waited for already, devices limit their number no more.
- Pods whose devices have to be where a kubelet gives them CPUs (`DeviceAsk.aligned`) wait on no node with others that
  do not wait too long (`wait_long`).
- What fits a node is counted as if it alone reached its devices. Where several nodes do, ``common`` caps the sum over
  these, as far as their number decides who gets some; else nobody is given such a device
  (`engine.claims.hardware.NodeHardware.common`).
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager

from engine.arrays import Ints
from engine.claims.allocate import allocate, prepare
from engine.claims.asks import DeviceAsk
from engine.claims.budget import Budget
from engine.claims.counting.draws import NOTHING, Draws
from engine.claims.counting.looks import NodeDevices
from engine.claims.features import DEFAULT
from engine.claims.hardware import NodeHardware
from engine.claims.in_use import InUse, Use
from engine.claims.model import DeviceClass, DeviceNode, PoolId
from engine.claims.pools import Inventory
from engine.claims.read.asks import at_node, claims_of, classes_of, resources_of
from engine.claims.slices import ResourceSlice
from engine.devices.changes import ChangeLog
from engine.devices.common.caps import CommonCaps
from engine.devices.common.demand import CommonDemand
from engine.devices.device_counts import CountedNodes, DeviceCounts
from engine.devices.facts import DeviceFacts
from engine.devices.first_fits import OUT_OF_TURN, NodeAsk, out_of_turn
from engine.devices.holders import ClaimHolders
from engine.devices.kinds import CALL_STEPS, LOOK_STEPS, Kind
from engine.devices.known_kinds import KnownKinds
from engine.devices.node_counts import NodePlaces
from engine.devices.of_node import UNLIMITED, BothStates, bar_nodes, pod_count
from engine.devices.taints import TaintRule, TaintRules
from engine.devices.turns import TURN_STEPS, DeviceTurn, turn_of
from engine.devices.waiting import WaitingPods
from engine.devices.words import message_of

WORDS_STEPS = 5_000  # to tell why one node takes no more: a cycle may tell it of many pods
COSTLY = "counting such devices takes too many steps"
_NOTHING = InUse()


class DeviceLedger:
    """See the module's rules.

    ``places`` knows where nodes are in the table, ``labels`` gives a node's labels, None where there is no such node;
    ``publishes`` says whether a node's device plugins have some of an extended resource.
    ``touch`` notes that what is free at a place changed, ``changed`` that what is there at all did.
    """

    def __init__(
        self,
        places: NodePlaces,
        labels: Callable[[str], Mapping[str, str] | None],
        publishes: Callable[[str, str], bool],
        touch: Callable[[int], object],
        changed: Callable[[int], object],
    ) -> None:
        self._places = places
        self._labels = labels
        self._publishes = publishes
        self._touch = touch
        self._changed = changed
        self._slices: dict[str, tuple[ResourceSlice, ResourceSlice]] = {}  # as published, and with rules' taints
        self._rules = TaintRules()
        self._inventory = Inventory.from_slices(())
        self._asked = KnownKinds()
        self.holders = ClaimHolders()
        self._long: Mapping[str, set[DeviceAsk]] = {}  # by node, those who wait there too long
        self._known: dict[str, BothStates] = {}  # by node, made when somebody asks
        self._stale: set[str] = set()  # those of them on which something else is in use by now
        self._free = ChangeLog()  # nodes on which something else is taken or promised
        self._there = ChangeLog()  # nodes that have other devices
        self.waiting = WaitingPods(self._free.add, lambda: self._demand.nobody_waits())  # noqa: PLW0108  (made below)
        nodes = CountedNodes(
            *(places, self._free, self._there, self._count_on_node, self._count_bare),
            devices=self._states_of_node,
            awaited=self.waiting.nodes_with_waiting,
        )
        self.counting = DeviceCounts(nodes, self._asked, changed)
        self._demand = CommonDemand(self.waiting, self.holders, self._free, self._draws)
        self.common = CommonCaps(places, self._there, lambda: self._inventory.any_shared, self._demand)

    # -- what there is ----------------------------------------------------------------------------------------

    def set_slice(self, name: str, found: ResourceSlice | None) -> None:
        """A ResourceSlice came, changed or went."""
        _, before = self._slices.pop(name, (None, None))
        now = None
        if found is not None:
            now = self._rules.tainted(found)
            self._slices[name] = found, now
        self._exchange(before, now)

    def set_rule(self, name: str, found: TaintRule | None) -> None:
        """A DeviceTaintRule came, changed or went."""
        before = self._rules.put(name, found)
        for slice_name, (published, tainted) in tuple(self._slices.items()):
            if any(rule is not None and rule.selects(published) for rule in (before, found)):
                now = self._rules.tainted(published)
                self._slices[slice_name] = published, now
                self._exchange(tainted, now)

    def _exchange(self, before: ResourceSlice | None, now: ResourceSlice | None) -> None:
        touched: set[str] | None = set()
        for one, there in ((before, False), (now, True)):
            if one is None:
                continue
            # A slice is in the inventory while its nodes are asked for. A pool without slices names no nodes, and then
            # none would be told of the change.
            if there:
                self._inventory.add(one)
            nodes = self._inventory.nodes_of(one.pool_id)
            touched = None if touched is None or nodes is None else touched | nodes
            if not there:
                self._inventory.remove(one)
        for node in self._places.nodes_by_place() if touched is None else touched:
            self.node_changed(node)
        for counted in (self._asked, self._demand, self.common):
            counted.devices_changed()

    def set_device_class(self, name: str, found: DeviceClass | None) -> None:
        """A DeviceClass came, changed or went."""
        self._asked.set_device_class(name, found)
        for counted in (self._demand, self.common):
            counted.devices_changed()
        for node in self._places.nodes_by_place():
            if (index := self._places.index(node)) is not None:
                self._changed(index)

    def node_changed(self, name: str) -> None:
        """A node came, or has other labels, other devices, or plugins of other resources."""
        self.forget_node(name)
        self._free.add(name)
        self._there.add(name)
        if (index := self._places.index(name)) is not None:
            self._changed(index)

    # -- who has what -----------------------------------------------------------------------------------------

    def set_uses(self, claim: str, uses: tuple[Use, ...], pods: frozenset[str] = frozenset()) -> None:
        """What a claim's allocation holds, () for one that has none or is gone; ``pods``: whom it is reserved for."""
        # Before the holders know: those that wait by the name of the claim ask for something else only when it gets its
        # first devices, or loses its last.
        before = claim in self.holders
        pools = self.holders.set(claim, uses, pods)
        turned = set(self.waiting.naming(claim)) if before != (claim in self.holders) else set()
        if turned:
            self.common.claim_changed(claim)
        self._asked.claim_changed(claim)
        self._count_again(pools, turned)

    def pod_came(self, pod: str) -> None:
        """A pod is on its node, and has what its claims have."""
        self._count_again(self.holders.came(pod))

    def pod_ended(self, pod: str) -> None:
        """A pod is gone, or has finished: its claims give back what they have, when they are deallocated."""
        self._count_again(self.holders.end_pod(pod))

    def think_away(self, pod: str) -> None:
        """As if a pod were gone and its claims deallocated, until it `pod_came`."""
        self._count_again(self.holders.think_away(pod))

    @contextmanager
    def deallocated(self) -> Iterator[None]:
        """As if the claims whose pods are gone were deallocated by now."""
        before = self.holders.expecting
        self._count_again(self.holders.expect(deallocated=True))
        try:
            yield
        finally:
            self._count_again(self.holders.expect(deallocated=before))

    def _count_again(self, pools: Iterable[PoolId], names: Iterable[str] = ()) -> None:
        """Something else is in use of these pools, or waited for on these nodes."""
        self._demand.uses_changed()
        for name in set(names).union(*map(self._reaching, pools)):
            self._free.add(name)
            # Only the devices in use are found again; what the node reaches stays (`_states_of_node`).
            self._stale |= {name} & self._known.keys()
            if (index := self._places.index(name)) is not None:
                self._touch(index)

    def _reaching(self, pool: PoolId) -> Iterable[str]:
        """The nodes that reach a pool, as far as anybody asked what they reach."""
        found = self._inventory.nodes_of(pool)
        if found is not None:
            return found
        # Any node may reach the pool. A node that nobody asked about has nothing to correct.
        return [name for name, known in self._known.items() if known.now.hardware.has(pool)]

    def take_over(self, known: DeviceFacts) -> None:
        """All that another ledger knew is there."""
        # Classes clear what is known of kinds, and rules go over all slices: both are cheap only before there are
        # slices.
        for class_name, device_class in known.classes.items():
            self.set_device_class(class_name, device_class)
        for rule_name, rule in known.rules.items():
            self.set_rule(rule_name, rule)
        for slice_name, one in known.slices.items():
            self.set_slice(slice_name, one)
        for claim, uses in known.uses.items():
            self.set_uses(claim, uses, known.pods.get(claim, frozenset()))

    def clear_places(self) -> None:
        """Nodes have other places, or there are others."""
        self._places.clear_places()

    def forget_node(self, name: str) -> None:
        """What was known of a node's devices is not so any more."""
        self._known.pop(name, None)
        self._stale.discard(name)

    def wait_long(self, asks: Mapping[str, set[DeviceAsk]]) -> bool:
        """Those who wait for longer than a scheduler takes, by node, keep no others off it. True where any did."""
        before, self._long = self._long, asks
        self._count_again((), [one for one in {**before, **asks} if before.get(one) != asks.get(one)])
        return any(these - before.get(node, set()) for node, these in asks.items())

    # -- reading ----------------------------------------------------------------------------------------------

    def count_by_node(self, ask: DeviceAsk) -> Ints:
        """By table index, how many more pods with these claims fit each node, `MOST_PODS` at most.

        `UNLIMITED` where they ask for no devices. Do not modify; it holds until the next question.
        """
        found = self.counting.count_by_node(ask)
        # A pod with a wish for zones shares a node with no others that wait. One without a wish is kept off nodes only
        # by the ones that have one.
        others = self.waiting.nodes_with_waiting() if ask.aligned else self.waiting.aligned
        late = [name for name in others if self._out_of_turn(name, ask)]
        return bar_nodes(found, [at for name in late if (at := self._places.index(name)) is not None])

    def count_if_unclaimed(self, ask: DeviceAsk) -> Ints:
        """As ``count_by_node``, if no claim held anything, and nobody waited."""
        return self.counting.count_if_unclaimed(ask)

    def has_devices(self, name: str, ask: DeviceAsk) -> bool:
        """Whether a node has devices for one such pod, if no claim held any."""
        place = self._places.index(name)
        return place is not None and 0 < int(self.count_if_unclaimed(ask)[place]) < UNLIMITED

    def _count_on_node(self, name: str, ask: DeviceAsk, budget: Budget) -> int | None:
        kind = self._kind_at(name, ask)
        # The claim is promised to this node already: its devices are counted among the ones that wait, and once.
        if kind is None or (ask.shared and ask in self.waiting.waiting_on_node(name)):
            return UNLIMITED
        # While victims are thought away, states come up that no cluster is in. Their cost gives no kind up.
        real = not self.holders.thinking
        return pod_count(ask, kind.count(self._states_of_node(name).now, self._waiting_kinds(name), budget, real=real))

    def _count_bare(self, name: str, ask: DeviceAsk, budget: Budget) -> int | None:
        kind = self._kind_at(name, ask)
        return UNLIMITED if kind is None else pod_count(ask, kind.count(self._states_of_node(name).bare, (), budget))

    def relieved(self, ask: DeviceAsk, pods: Collection[str], slots: Mapping[str, Mapping[DeviceAsk, int]]) -> Ints:
        """``count_by_node``, if these pods were gone, their claims deallocated, and so many fewer waited, by node."""
        found, freed, budget = self.count_by_node(ask).copy(), self.holders.freed_by(pods), Budget(CALL_STEPS)
        touched = [self._inventory.nodes_of(pool) for pool in frozenset().union(*freed.values())]
        # None stands for a pool that any node may reach.
        for name in (
            self._places.nodes_by_place() if None in touched else sorted(set(slots).union(*filter(None, touched)))
        ):
            place, kind = self._places.index(name), self._kind_at(name, ask)
            if place is None or kind is None:
                continue
            hardware = self._states_of_node(name).now.hardware
            devices = NodeDevices(hardware, self._in_use(hardware, freed))
            # past the budget it counts as if nobody there were gone
            fit = pod_count(ask, kind.count(devices, self._waiting_kinds(name, slots.get(name)), budget, real=False))
            found[place] = found[place] if fit is None else fit
        return found

    def first_fit(self, name: str, ask: DeviceAsk) -> tuple[Use, ...] | None:
        """The devices that kube-scheduler would give to the claims of one more pod on a node; None: it gets none.

        What is promised to others does not count, as it knows nothing of that.
        """
        if (here := self._at(name, ask)) is None:
            return ()
        devices, known = self._states_of_node(name).now, self._asked.request_context(LOOK_STEPS)
        found = allocate(prepare(devices.hardware, claims_of(here), known), devices.in_use, known.budget)
        self.counting.spend_steps(known.budget.compiled)
        return tuple(found.uses()) if found.allocated else None

    def ask_of_node(self, name: str, ask: DeviceAsk, *, emptied: bool = False) -> NodeAsk | None:
        """What is asked of a node's devices as they are now, or as if no claim held any; None: nothing."""
        here, kind, of = self._at(name, ask), self._kind_at(name, ask), self._states_of_node(name)
        # Devices with admin access are looked at, not held.
        held = [use.device for one in ask.claims for use in self.holders.uses_of(one) if not use.admin]
        devices = of.bare if emptied else of.now
        if here is None or kind is None:
            return NodeAsk(None, (), devices, self._asked.request_context, tuple(held)) if held else None
        # Charged to the round. Otherwise a tenant gets expressions compiled for nothing by asking for zones.
        self.counting.compile_kind(kind)
        search = kind.number, kind.state_class(devices)
        return NodeAsk(search, claims_of(here), devices, self._asked.request_context, tuple(held))

    def turn(self, name: str, ask: DeviceAsk, coming: Mapping[str, Mapping[DeviceAsk, int]]) -> DeviceTurn:
        """Whether a pod may go to a node beside so many, by node, that are on their way and have no devices yet."""
        kind = self._kind_at(name, ask)
        # A kind that is not counted has no turn to wait for: it would wait for ever.
        if kind is None or kind.is_refused:
            return DeviceTurn.NOW
        here = self._kinds_at(name, coming.get(name, {}))
        found = turn_of(self._states_of_node(name).now, kind, here, self._asked.request_context(TURN_STEPS))
        if found is not DeviceTurn.NOW or not self._inventory.any_shared:
            return found
        return self._demand.turn(name, ask, coming)

    @property
    def published(self) -> bool:
        """Whether any devices are."""
        return bool(self._slices)

    def facts(self) -> DeviceFacts:
        """All that it was told of devices."""
        slices = {name: published for name, (published, _) in self._slices.items()}
        return DeviceFacts(slices, self._rules.all, dict(self._asked.classes), *self.holders.all())

    def lingering(self, name: str) -> list[str]:
        """The claims with devices of a node whose pods are gone: they are to be deallocated."""
        return self.holders.lingering([pool.pool_id for pool, _ in self._states_of_node(name).now.hardware.by_pool])

    def missing_classes(self, name: str, ask: DeviceAsk) -> tuple[str, ...]:
        """The DeviceClasses that pods ask for, of a node for which no devices are published; () where some are."""
        return () if self._states_of_node(name).now.hardware.candidates else tuple(sorted(classes_of(ask)))

    def is_uncounted(self, ask: DeviceAsk) -> bool:
        """Whether pods with these claims are not counted, as that took too many steps: none fits any node."""
        return self._asked.is_uncounted(ask)

    def explain_devices(self, name: str, ask: DeviceAsk) -> str:
        """In words, why a node takes no more pods with these claims."""
        devices, here = self._states_of_node(name).now, self._at(name, ask)
        waiting = sum(
            count for one, count in self.waiting.waiting_on_node(name).items() if self._at(name, one) is not None
        )
        # First, because nothing below is known of a kind whose count was given up.
        if self.is_uncounted(ask):
            return COSTLY
        if here is None:
            return "only its device plugins provide what the pods ask for"
        if self._out_of_turn(name, ask):
            return OUT_OF_TURN
        used = (each for pool, _ in devices.hardware.by_pool for each in self.holders.of_pool(pool.pool_id))
        known = self._asked.request_context(WORDS_STEPS)
        holders = {use.device: claim for claim, use in used if not use.admin}
        common = self.common.explain_caps(name, ask)
        told = message_of(devices, claims_of(here), known, waiting=waiting, holders=holders, common=common)
        self.counting.spend_steps(known.budget.compiled)
        return told

    def _out_of_turn(self, name: str, ask: DeviceAsk) -> bool:
        return out_of_turn(ask, self.waiting.waiting_on_node(name).keys() - self._long.get(name, set()))

    def _waiting_kinds(self, name: str, less: Mapping[DeviceAsk, int] | None = None) -> list[tuple[Kind, int]]:
        """Those that wait on a node, by kind; ``less``: so many fewer than wait."""
        waiting = self.waiting.waiting_on_node(name)
        return self._kinds_at(
            name, {ask: count - less.get(ask, 0) for ask, count in waiting.items()} if less else waiting
        )

    def _kinds_at(self, name: str, waiting: Mapping[DeviceAsk, int]) -> list[tuple[Kind, int]]:
        found: dict[str, int] = {}
        asks = {}
        for whole, count in waiting.items():
            if count <= 0 or (ask := self._at(name, whole)) is None:
                continue
            if classes_of(ask) <= self._asked.classes.keys():  # without its class it gets nothing
                units = min(count, 1) if whole.shared else count
                asks[ask.key], found[ask.key] = ask, found.get(ask.key, 0) + units
        return [(self._asked.kind(asks[key]), count) for key, count in sorted(found.items())]

    def _draws(self, name: str, ask: DeviceAsk) -> Draws | None:
        """What a pod may be given on a node of what others reach too; None where it asks for nothing there."""
        here = self._at(name, ask)
        if here is None or not classes_of(here) <= self._asked.classes.keys():
            return None
        kind, hardware = self._asked.kind(here), self._states_of_node(name).now.hardware
        if not hardware.common:
            return NOTHING
        self.counting.compile_kind(kind)
        return kind.draws(hardware)

    def _at(self, name: str, ask: DeviceAsk) -> DeviceAsk | None:
        """What is asked of a node's devices; None for nothing."""
        if not ask.varies:
            return ask
        published = frozenset([one for one in resources_of(ask) if self._publishes(name, one)])
        return at_node(ask, published, frozenset([one for one in ask.claims if one in self.holders]))

    def _kind_at(self, name: str, ask: DeviceAsk) -> Kind | None:
        here = self._at(name, ask)
        if here is None:
            return None
        if ask.varies:
            # So that `is_uncounted` finds the kinds that this ask comes to on single nodes.
            self._asked.varying(ask).keys.add(here.key)
        return self._asked.kind(here)

    def _states_of_node(self, name: str) -> BothStates:
        found = self._known.get(name)
        if found is not None and name not in self._stale:
            return found
        if found is None:
            labels = self._labels(name)
            # A node that is gone reaches nothing, whatever slices still name it.
            there = self._inventory if labels is not None else Inventory.from_slices(())
            bare = NodeDevices(NodeHardware.for_node(there, DeviceNode(name, labels or {}), DEFAULT), _NOTHING)
        else:
            # Hardware keeps its identity: views, draws and counts are remembered by it.
            bare = found.bare
        self._stale.discard(name)
        found = self._known[name] = BothStates(NodeDevices(bare.hardware, self._in_use(bare.hardware)), bare)
        return found

    def _in_use(self, hardware: NodeHardware, without: Container[str] = ()) -> InUse:
        return InUse.from_uses(self.holders.in_use([pool.pool_id for pool, _ in hardware.by_pool], without))
