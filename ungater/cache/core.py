"""What all parts of the cache share: what they know and charge, and whom they tell."""

from collections.abc import Callable, Iterable

import msgspec

from crds.constants import Keys
from crds.levels import LevelNames
from engine.cluster.state import ClusterState
from kube.versions import SchedulerRules
from queueing.queues.queues import Queues
from ungater.cache.entries import Entries
from ungater.cache.served import ServedNamespaces
from ungater.cache.stores import Stores
from ungater.guard import Guard
from ungater.let_go.coming_pods import ComingPods
from ungater.let_go.node_refusals import NodeRefusals
from ungater.let_go.place_refusals import PlaceRefusals
from ungater.numa.in_flight import InFlightPods
from ungater.numa.mismatches import PlacementMismatches
from ungater.numa.node_topologies import NodeTopologies


class NodeInsides(msgspec.Struct, frozen=True):
    """What is known of nodes' insides, of pods that are on their way into them, and of what went otherwise."""

    topologies: NodeTopologies
    in_flight: InFlightPods
    mismatches: PlacementMismatches
    coming: ComingPods
    refusals: PlaceRefusals
    node_refusals: NodeRefusals


class Core:
    """See the module. ``enqueue(uid, after)`` has a job looked at, ``signal`` a cycle run soon.

    ``clock``: seconds that never go back. ``live``: whether all was listed, so that events count. ``scheduler``: what
    kube-scheduler does in this version. ``served``: the namespaces whose jobs are served.
    """

    def __init__(
        self,
        keys: Keys,
        stores: Stores,
        state: ClusterState,
        queues: Queues,
        entries: Entries,
        *,
        inside: NodeInsides,
        enqueue: Callable[[str, float], None],
        signal: Callable[[], None],
        guard: Guard,
        clock: Callable[[], float],
        scheduler: SchedulerRules,
        served: ServedNamespaces,
    ) -> None:
        self.keys = keys
        self.stores = stores
        self.state = state
        self.queues = queues
        self.entries = entries
        self.inside = inside
        self.enqueue = enqueue
        self.signal = signal
        self.guard = guard
        self.clock = clock
        self.scheduler = scheduler
        self.served = served
        self.flavors: dict[str, tuple[str, ...]] = {}  # the levels of each, by its name
        self.level_names = LevelNames()  # what jobs may ask for them by
        self.live = False
        self.generation = 0  # grows when something could help those who wait
        self.layout = 0  # grows when nodes or flavors change

    def go_live(self) -> None:
        """All that was listed is taken in: events count from here on."""
        self.live = True

    def layout_changed(self) -> None:
        """A node or a flavor changed."""
        self.layout += 1

    def queue_inadmissible(self, flavors: Iterable[str] | None = None) -> None:
        """Something changed that could help a workload that waits, for a place in ``flavors`` (None: in any)."""
        self.generation += 1
        # Also with no flavors at all: that wakes workloads whose pods look at other pods.
        self.queues.pending.room_freed(self.flavors if flavors is None else flavors)
        self.signal()

    def dead(self, name: str) -> bool:
        """Whether nobody on this node ends pods."""
        node = self.state.nodes.get(name)
        # A kubelet that does not answer ends no pod; it may take hours until somebody deletes it by force.
        return node is None or not node.ready
