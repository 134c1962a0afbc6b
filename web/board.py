"""Who holds how much on which host, kept up to date fact by fact: what every picture is made of.

Rules
- A fact is keyed (host, pod, holder): telling it twice changes nothing. An event costs what it touches.
- ``promised`` is what is kept for a workload on a host beyond what its pods there take. It is never negative.
- Holders have numbers that stay while they are known, so that a change names them in a few bytes; 0 is nobody's.
- ``changed_hosts`` and ``changed_holders`` say what is to be told again; whoever tells takes them. A host that comes,
  goes or moves in the tree changes the layout: everybody then takes a new picture.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from engine.claims.in_use import Use
from engine.claims.model import DeviceNode
from engine.cluster.state import ClusterState
from engine.devices.taints import TaintRule
from engine.model import Flavor, Node
from web.claim_devices import ClaimDevices, ClaimedDevice, Spec
from web.facts import BoundPod, HolderFacts, Host, HostState

OUTSIDE: Final = ""  # the flavor of hosts that no flavor with a topology has
CROSSES: Final = 4
LOST: Final = 1
OVER: Final = 2


class HostShare(msgspec.Struct, frozen=True):
    """What one holder has on one host."""

    holder: int
    used: int
    promised: int


class HostRow(msgspec.Struct, frozen=True):
    """One host as it is now.

    ``problems``: LOST (it holds something and is not ready), OVER (it holds more than it has), CROSSES (a pod's devices
    are of several sockets though one has as many).
    """

    name: str
    amount: int
    state: int
    problems: int
    held: tuple[HostShare, ...]


class Grove(msgspec.Struct, frozen=True):
    """The hosts of one flavor in tree order. ``paths``: one value a level; the last level may be the host itself."""

    flavor: str
    levels: tuple[str, ...]
    hosts: tuple[str, ...]
    paths: tuple[tuple[str, ...], ...]


class Board:
    """See the module's rules. ``resource`` is what amounts are of."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.hosts: dict[str, Host] = {}
        self.holders: dict[str, HolderFacts] = {}  # workloads of ours
        self.pods: dict[str, BoundPod] = {}
        self.numbers: dict[str, int] = {}
        self.keys: dict[int, str] = {}
        self.changed_hosts: set[str] = set()
        self.changed_holders: set[str] = set()
        self.queues: dict[str, str] = {}  # cluster queues by namespace and local queue
        self.gone: dict[int, str] = {}  # numbers of holders of which nothing is left, and their namespaces
        self.layout = 0
        self.evictions = 0  # since this began
        self._devices = ClaimDevices()
        self._next = 1
        self._names: dict[str, str] = {}  # host name label -> node
        self._labels: dict[str, str] = {}
        self._here: dict[str, dict[str, None]] = {}  # pods by node
        self._of: dict[str, dict[str, None]] = {}  # pods by holder
        self._slots: dict[str, dict[str, int]] = {}  # by host name label: holder -> amount
        self._sockets: dict[str, dict[int, int]] = {}
        self._order = ClusterState()
        self._groves: tuple[int, tuple[Grove, ...]] = (-1, ())

    # --- facts -------------------------------------------------------------------------------------------------------

    def show_flavor(self, flavor: Flavor) -> None:
        """A flavor with a topology."""
        if self._order.set_flavor(flavor):
            self.layout += 1

    def hide_flavor(self, name: str) -> None:
        """A flavor is gone, or has no topology any more."""
        if self._order.remove_flavor(name):
            self.layout += 1

    def set_host(self, node: Node, host: Host, label: str = "") -> None:
        """A node. ``label``: its host name label, by which topologies name it."""
        before = self.hosts.get(host.name)
        known = self._order.nodes.get(node.name)
        # The amount counts too: `groves` shows only hosts that have some of the resource.
        if known is None or known.labels != node.labels or before is None or before.amount != host.amount:
            self.layout += 1
        # Only the labels: the board counts amounts itself, and wants the order of the tree alone.
        self._order.set_node(Node(name=node.name, labels=node.labels, allocatable={}))
        self._names[label or host.name], self._labels[host.name] = host.name, label or host.name
        if before != host:
            self.hosts[host.name] = host
            self.changed_hosts.add(host.name)

    def remove_host(self, name: str) -> None:
        """A node is gone."""
        if self.hosts.pop(name, None) is not None:
            self._order.remove_node(name)
            self._names.pop(self._labels.pop(name), None)
            self._sockets.pop(name, None)
            self.layout += 1

    def set_sockets(self, name: str, sockets: Mapping[int, int]) -> None:
        """Which sockets the zones of a node are in."""
        if self._sockets.get(name, {}) != sockets:
            self._sockets[name] = dict(sockets)
            self.changed_hosts.add(name)

    def set_pod(self, pod: BoundPod) -> None:
        """A pod that has not ended."""
        before = self.pods.get(pod.key)
        if before == pod:
            return
        if before is not None:
            self._forget_pod(before)
        self.pods[pod.key] = pod
        self._of.setdefault(pod.holder, {})[pod.key] = None
        if pod.node:
            self._here.setdefault(pod.node, {})[pod.key] = None
            self.changed_hosts.add(pod.node)
        # Pods may come before their Workload; the number then exists already when the Workload does.
        self._assign_number(pod.holder)
        self.changed_holders.add(pod.holder)

    def hide_pod(self, key: str) -> None:
        """A pod has ended, or is gone."""
        if (before := self.pods.pop(key, None)) is not None:
            self._forget_pod(before)
            self._retire(before.holder)

    def set_holder(self, holder: HolderFacts) -> None:
        """A workload of ours that has not finished."""
        before = self.holders.get(holder.key)
        if before == holder:
            return
        self._forget_slots(before)
        self.evictions += before is not None and holder.evicted and not before.evicted
        self.holders[holder.key] = holder
        for label, amount in holder.slots:
            here = self._slots.setdefault(label, {})
            # Several pod sets of one workload may have slots on the same host.
            here[holder.key] = here.get(holder.key, 0) + amount
            self.changed_hosts.add(self._names.get(label, label))
        self._assign_number(holder.key)
        self.changed_holders.add(holder.key)

    def remove_holder(self, key: str) -> None:
        """A workload of ours has finished, or is gone."""
        if (before := self.holders.pop(key, None)) is not None:
            self._forget_slots(before)
            self._retire(key)

    def set_queue(self, key: str, cluster_queue: str | None) -> None:
        """Where a local queue leads; None where it is gone."""
        if self.queues.get(key) == cluster_queue:
            return
        if cluster_queue is None:
            del self.queues[key]
        else:
            self.queues[key] = cluster_queue
        # Holders carry no cluster queue of their own until they are admitted: they get it by this mapping when they are
        # read.
        self.changed_holders.update(one.key for one in self.holders.values() if f"{one.namespace}/{one.queue}" == key)

    def set_slice(self, name: str, spec: Spec | None) -> None:
        """A ResourceSlice is there as it is published, or gone."""
        # The old one goes first, and its host is reported of: if the new one cannot be read, its devices must not stay.
        self.changed_hosts |= self._devices.remove_slice(name)
        if spec is not None:
            self.changed_hosts |= self._devices.set_slice(name, spec)

    def set_taint_rule(self, name: str, rule: TaintRule | None) -> None:
        """A DeviceTaintRule is there, or gone."""
        self._devices.set_rule(name, rule)

    def set_claim(self, key: str, uses: tuple[Use, ...], pods: frozenset[str]) -> None:
        """What a claim has, () for one that has nothing or is gone; whom it is reserved for."""
        self.changed_hosts |= self._devices.set_claim(key, uses, pods)

    def take_changes(self) -> tuple[set[str], set[str], dict[int, str]]:
        """The hosts and holders that changed since this was asked last, and who is gone: number and namespace."""
        # The sets are handed over and not cleared: the caller keeps them in its log.
        found = self.changed_hosts, self.changed_holders, self.gone
        self.changed_hosts, self.changed_holders, self.gone = set(), set(), {}
        return found

    def _assign_number(self, key: str) -> None:
        if key not in self.numbers:
            self.numbers[key], self.keys[self._next] = self._next, key
            self._next += 1

    def _retire(self, key: str) -> None:
        """A holder of which nothing is left loses its number."""
        self.changed_holders.add(key)
        # Both have to be gone: a workload may lose its pods and stay, and pods may outlive their Workload.
        if key not in self.holders and not self._of.get(key):
            self._of.pop(key, None)
            if (number := self.numbers.pop(key, None)) is not None:
                del self.keys[number]
                # With its namespace, as the key is forgotten here and the viewers differ in what they may be told.
                self.gone[number] = key.partition("/")[0]

    def _forget_pod(self, pod: BoundPod) -> None:
        self._of.get(pod.holder, {}).pop(pod.key, None)
        self.changed_holders.add(pod.holder)
        if pod.node:
            here = self._here.get(pod.node, {})
            here.pop(pod.key, None)
            if not here:
                self._here.pop(pod.node, None)
            self.changed_hosts.add(pod.node)

    def _forget_slots(self, holder: HolderFacts | None) -> None:
        for label, _ in holder.slots if holder is not None else ():
            here = self._slots.get(label, {})
            here.pop(holder.key if holder is not None else "", None)
            if not here:
                self._slots.pop(label, None)
            self.changed_hosts.add(self._names.get(label, label))

    # --- reading -----------------------------------------------------------------------------------------------------

    def groves(self) -> tuple[Grove, ...]:
        """All hosts that have some of the resource, in tree order; each once. Kept until the layout changes."""
        if self._groves[0] != self.layout:
            found: list[Grove] = []
            seen: set[str] = set()
            for name in sorted(self._order.flavors):
                tree = self._order.tree(name)
                if tree is None:
                    continue
                at = [
                    (host, path)
                    for host, path in zip(tree.names, tree.paths, strict=True)
                    # The flavors go by name, so a host of two flavors always lies in the same one.
                    if host not in seen and self._is_shown(host)
                ]
                seen.update(host for host, _ in at)
                if at:
                    hosts, paths = zip(*at, strict=True)
                    found.append(Grove(name, tree.flavor.levels, hosts, paths))
            rest = tuple(sorted(host for host in self.hosts if host not in seen and self._is_shown(host)))
            if rest:
                found.append(Grove(OUTSIDE, (), rest, ((),) * len(rest)))
            self._groves = self.layout, tuple(found)
        return self._groves[1]

    def _is_shown(self, name: str) -> bool:
        return name in self.hosts and self.hosts[name].amount > 0

    def row(self, name: str) -> HostRow:
        """A host as it is now."""
        host = self.hosts[name]
        used: dict[str, int] = {}
        crosses = False
        for key in self._here.get(name, ()):
            pod = self.pods[key]
            used[pod.holder] = used.get(pod.holder, 0) + pod.amount
            crosses = crosses or self.crosses(pod)
        kept = self._slots.get(self._labels[name], {})
        held = [
            # Pods of a workload fill what is kept for it. What they use beyond that counts as used and takes nothing
            # back.
            HostShare(self.numbers[key], used.get(key, 0), max(0, kept.get(key, 0) - used.get(key, 0)))
            for key in dict.fromkeys((*used, *kept))
            if used.get(key) or kept.get(key)
        ]
        # By number, so that equal states give equal rows in whatever order the events came.
        held.sort(key=lambda one: one.holder)
        total = sum(one.used + one.promised for one in held)
        lost = LOST if host.state is HostState.NOT_READY and total else 0
        problems = lost | (OVER if total > host.amount else 0) | (CROSSES if crosses else 0)
        return HostRow(name, host.amount, int(host.state), problems, tuple(held))

    def crosses(self, pod: BoundPod) -> bool:
        """Whether a pod's devices are of several sockets though one socket has as many."""
        sockets = self._sockets.get(pod.node)
        if not sockets or pod.amount < 1 or pod.node not in self.hosts:
            return False
        # A zone whose socket nobody publishes proves nothing.
        of_pod = {sockets[zone] for zone in pod.zones if zone in sockets}
        return len(of_pod) > 1 and pod.amount <= self.hosts[pod.node].amount // len(set(sockets.values()))

    def pods_on(self, name: str) -> list[BoundPod]:
        """The pods on a host, by key."""
        return [self.pods[key] for key in sorted(self._here.get(name, ()))]

    def devices_on(self, name: str, roots: Mapping[str, int]) -> tuple[list[ClaimedDevice], list[str]]:
        """The devices of claims on a host, free ones too; what is wrong with what is published of them.

        ``roots``: the zones of its PCIe roots, as far as they are known.
        """
        node = self._order.nodes[name]
        return self._devices.of_host(DeviceNode(name, node.labels), self._here.get(name, ()), roots)

    def claims_of(self, pod: str) -> Collection[str]:
        """The claims that a pod has devices by."""
        return self._devices.holders.claims_of(pod)

    def pods_of_holder(self, key: str) -> list[BoundPod]:
        """The pods of a holder, by rank and key."""
        found = [self.pods[one] for one in self._of.get(key, ())]
        return sorted(found, key=lambda pod: (pod.rank is None, pod.rank or 0, pod.key))

    def find_holder(self, key: str) -> HolderFacts | None:
        """A holder: a workload of ours, or whoever controls pods; None where nothing of it is left."""
        known = self.holders.get(key)
        if known is not None:
            # An admission names its cluster queue; a local queue may lead to another one by now.
            if known.cluster_queue or not known.queue:
                return known
            queue = self.queues.get(f"{known.namespace}/{known.queue}", "")
            return msgspec.structs.replace(known, cluster_queue=queue)
        pods = self._of.get(key)
        if not pods:
            return None
        kind, name = self.pods[next(iter(pods))].owner
        return HolderFacts(
            key.partition("/")[0], kind, name, count=len(pods), wants=sum(self.pods[p].amount for p in pods)
        )

    def running(self, key: str) -> int:
        """How many pods of a holder run."""
        return sum(self.pods[pod].phase == "Running" for pod in self._of.get(key, ()))

    def all_holders(self) -> Iterable[str]:
        """The keys of everybody who holds or wants something."""
        return self.numbers.keys()
