"""What the event of a node changes, or of what is published about its inside."""

from collections.abc import Iterator, Sequence
from itertools import islice

from crds.constants import HOSTNAME_LABEL
from engine.model import Node
from kube import objects
from kube.informer import Event
from kube.pods import convert
from kube.topologies import FlexTopo, NodeResourceTopology
from ungater.cache.charges.left_pods import LeftPods
from ungater.cache.charges.pod_charges import Charges
from ungater.cache.claims.device_claims import DeviceClaims
from ungater.cache.claims.pod_volumes import PodVolumes
from ungater.cache.core import Core
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa.node_topologies import worth_a_look

MOST_NAMED = 3  # nodes in a message


class NodeEvents:
    """See the module."""

    def __init__(
        self, core: Core, charges: Charges, left_pods: LeftPods, volumes: PodVolumes, devices: DeviceClaims
    ) -> None:
        self._core = core
        self._state = core.state
        self._stores = core.stores
        self._entries = core.entries
        self._enqueue = core.enqueue
        self._signal = core.signal
        self._clock = core.clock
        self._topologies = core.inside.topologies
        self._in_flight = core.inside.in_flight
        self._mismatches = core.inside.mismatches
        self._refusals = core.inside.refusals
        self._node_refusals = core.inside.node_refusals
        self._charges = charges
        self._left_pods = left_pods
        self._volumes = volumes
        self._devices = devices
        self._missing: dict[str, float] = {}  # deleted nodes: since when, on the monotonic clock
        self._changed: set[str] = set()  # nodes, since it was looked who has slots there
        self._relabelled: dict[str, dict[str, str]] = {}  # by job: nodes of its pods, and what changed there

    def load(self, node: objects.Node) -> None:
        """A node that is there at a start."""
        name = node.metadata.name
        before = self._state.nodes.get(name)
        self._state.set_node(self._read(node))
        self._devices.set_node(before, self._state.nodes[name])
        self._topologies.reread_node(name)

    def _read(self, node: objects.Node) -> Node:
        return convert.node(node, self._volumes.attachable(node), self._core.scheduler)

    def on_node(self, event: Event[objects.Node]) -> None:
        """A node came, changed or went."""
        if not self._core.live:
            return
        before = self._state.nodes.get(event.key)
        if event.new is None:
            # The time of the loss, as seen here: after a restart it begins
            # when a pod's node is first asked for (`missing_since`).
            self._missing[event.key] = self._clock()
            changed = self._state.remove_node(event.key)
            self._mismatches.forget_node(event.key)
            self._refusals.forget_node(event.key)
            self._node_refusals.forget_node(event.key)
            self._in_flight.forget_node(event.key)
        else:
            self._missing.pop(event.key, None)
            # A kubelet writes its node's status every few minutes, and mostly nothing of it is read here.
            if changed := self._state.set_node(self._read(event.new)):
                self._refusals.shorten_backoff(event.key, self._entries.values())
                self._core.queue_inadmissible()
        if event.new is None or event.old is None or worth_a_look(event.old, event.new):
            # After the node itself: its inside is read with what it has to give now.
            self._look_inside(event.key)
        if changed and before is not None and event.new is not None:
            self._note_relabelled(before, self._state.nodes[event.key])
        if changed:
            for uid in self._devices.set_node(before, self._state.nodes.get(event.key)):
                self._enqueue(uid, 0.0)
            self._core.layout_changed()
            self._changed.add(event.key)
            self._signal()
            # Ready again: its kubelet ends pods, so pods that were told to stop meanwhile count as leaving from now on.
            for pod in self._stores.pods_on(event.key):
                if pod.metadata.deletion_timestamp is not None:
                    self._left_pods.pay(pod, self._entries.entry_of_pod(pod))
                    self._charges.note_stop(pod)  # one that was told to stop while nobody there ended it

    def _note_relabelled(self, before: Node, after: Node) -> None:
        """Pods that run by labels of levels which their node had until now, and has no more."""
        if before.labels == after.labels:
            return
        for pod in self._stores.pods_on(after.name):
            entry, selector = self._entries.entry_of_pod(pod), pod.spec.node_selector or {}
            slots = entry.slots_of(pod) if entry is not None else None
            for level in slots.levels if slots is not None else ():
                was, now = before.labels.get(level), after.labels.get(level)
                # Only where the pod's own selector names the old value: it was sent there for that label.
                if entry is not None and was != now and was == selector.get(level):
                    text = f"{after.name} ({level} was {was}, is {now or 'gone'})"
                    self._relabelled.setdefault(entry.id, {}).setdefault(after.name, text)

    def relabelled(self) -> Iterator[tuple[WorkloadEntry, str]]:
        """Workloads under whose pods labels of levels changed since this was asked last, and how, for a person."""
        found, self._relabelled = self._relabelled, {}
        for uid, nodes in found.items():
            entry, few = self._entries.get(uid), list(islice(nodes.values(), MOST_NAMED))
            if entry is not None:
                yield entry, relabelled_in_words(few, len(nodes))

    def attaches(self, name: str) -> None:
        """A node attaches another number of volumes."""
        node = self._stores.nodes.node(name)
        if node is not None and self._state.set_node(self._read(node)):
            self._core.queue_inadmissible(self._state.flavors_on(name))

    def nodes_of_host(self, host: str) -> list[str]:
        """The names of the nodes with this host name."""
        node = self._state.nodes.get(host)
        if node is not None and node.labels.get(HOSTNAME_LABEL) == host:
            return [host]
        # The name of a node and its host name label may differ (cloud providers), so one look-up is not always enough.
        return [node.name for node in self._state.nodes.values() if node.labels.get(HOSTNAME_LABEL) == host]

    def on_topology(self, event: Event[NodeResourceTopology]) -> None:
        """What a node's exporter publishes came, changed or went."""
        if self._core.live:
            self._look_inside(event.key)

    def on_flex(self, event: Event[FlexTopo]) -> None:
        """What our agent publishes of a node came, changed or went."""
        if self._core.live:
            self._look_inside(event.key)

    def _look_inside(self, name: str) -> None:
        """What a node publishes of its inside may have changed."""
        found = self._topologies.reread_node(name)
        if found.zones:
            # Other zones are known now, so which of them each pod has is read again.
            for pod in self._stores.pods_on(name):
                self._charges.charge_pod(pod)
                self._charges.note_arrival(pod)
        if found.anything:
            self._mismatches.shorten_backoff(name, self._entries.values())
            self._in_flight.requeue_waiting(name)
        if found.more:
            self._core.queue_inadmissible(self._state.flavors_on(name))

    def missing_since(self, name: str) -> float | None:
        """Since when there is no node of that name, as far as this controller saw; None where there is one."""
        if name in self._state.nodes:
            return None
        return self._missing.setdefault(name, self._clock())

    def forget_missing(self) -> None:
        """Forget deleted nodes on which no pods are any more, and those that came back."""
        observed = self._state.nodes
        for name in [name for name in self._missing if name in observed or not self._stores.pods_on(name)]:
            del self._missing[name]

    def look_at_changed(self) -> None:
        """Have those looked at with slots on nodes that changed or are overdrawn: they may be lost, or not any more.

        All nodes that changed meanwhile cost one pass over the slots.
        """
        self._changed |= self._charges.overdrawn()
        if not self._changed:
            return
        # Slots without a node are those of wide domains: any node that changed may be one of theirs.
        changed, self._changed = self._changed | {""}, set()
        for uid, entry in self._entries.items():
            if any(slot.node in changed for slots in entry.slots_in.values() for slot in slots.slots):
                self._enqueue(uid, 0.0)


def relabelled_in_words(few: Sequence[str], count: int) -> str:
    """How labels changed on so many nodes, the first few of which are told."""
    more = f" and {count - len(few)} more" if count > len(few) else ""
    return f"labels changed on {count} of the nodes where its pods run: {', '.join(few)}{more}"
