"""Which of a slice's predicted placements each ungated pod gets: those the engine decided, each given out once.

The engine keeps a placement for every slot that no pod claims. A pod claims its slot when it is bound; until then what
was given to it is known from its expectation, and once its patch is seen, from its annotation.
"""

from collections import defaultdict
from collections.abc import Iterable

from crds.constants import NUMA_PLACEMENT_PREDICTED
from crds.numa_placement import decode
from engine.cluster.state import ClusterState
from engine.kubelet.machine import NumaPlacement
from engine.kubelet.rebuild import same_amounts
from kube.objects import Pod
from ungater.model.pod_slots import Slot, Values, finished
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa.node_topologies import NodeTopologies
from ungater.numa.placement_exchange import exchanged

Place = tuple[str, Values]  # a pod set and one of its slices


class Predictions:
    """The placements of one job that are still to be given out. Make one for each look at the job."""

    def __init__(self, state: ClusterState, entry: WorkloadEntry) -> None:
        self._state = state
        self._entry = entry
        self._left: dict[Place, list[NumaPlacement]] = {}
        self._given: dict[Place, list[NumaPlacement]] = defaultdict(list)
        for uid, expectation in entry.expectations.items():
            if expectation.placement is not None and not expectation.gone and (pod := entry.pods.get(uid)) is not None:
                self._given[entry.pod_set_of(pod), expectation.values].append(expectation.placement)
        for place, placement in on_their_way(entry):
            self._given[place].append(placement)

    def prediction_for(self, pod: Pod, slot: Slot) -> NumaPlacement | None:
        """What to predict for a pod in this slot; what it was sent with before stays. None where nothing is known."""
        expectation = self._entry.expectations.get(pod.metadata.uid)
        # A patch that is sent again says the same: the first one may have arrived.
        if expectation is not None and expectation.values == slot.values:
            return expectation.placement
        if not slot.node:
            return None  # kube-scheduler chooses among the nodes of the domain
        place = name, _ = self._entry.pod_set_of(pod), slot.values
        left = self._left.get(place)
        if left is None:
            left = list(self._state.placements(self._entry.key, name, slot.node))
            for given in exchanged(self._entry, (name, slot.node), self._given.get(place, ())):
                # The very same is taken out, devices included, else one of the same zones and amounts.
                alike = (at for at, placement in enumerate(left) if same_amounts(placement, given))
                at = left.index(given) if given in left else next(alike, None)
                if at is not None:
                    del left[at]
            self._left[place] = left
        # Not given to another pod of this look; what is given out holds from the expectation on.
        return left.pop(0) if left else None


def on_their_way(entry: WorkloadEntry) -> Iterable[tuple[Place, NumaPlacement]]:
    """(place, placement) of pods that were let go with a placement and are on no node yet."""
    if not entry.slots_in:
        return
    for pod in entry.pods.values():
        text = (pod.metadata.annotations or {}).get(NUMA_PLACEMENT_PREDICTED)
        if not text or pod.spec.node_name or pod.metadata.deletion_timestamp is not None or finished(pod):
            continue
        slots, placement = entry.slots_of(pod), decode(text)
        index = slots.of_selector(pod.spec.node_selector) if slots is not None else None
        if slots is not None and index is not None and placement is not None:
            yield (entry.pod_set_of(pod), slots.slots[index].values), placement


def promise_again(state: ClusterState, inside: NodeTopologies, entry: WorkloadEntry) -> None:
    """After a restart: pods on their way have placements in their annotations, which their slots keep."""
    promised: dict[tuple[str, str], list[NumaPlacement]] = {}
    nodes = {(name, slot.values): slot.node for name, slots in entry.slots_in.items() for slot in slots.slots}
    for place, placement in on_their_way(entry):
        # An annotation with zones of a node whose ids are not the kubelet's means nothing.
        if inside.predictable(nodes[place]):
            promised.setdefault((place[0], nodes[place]), []).append(placement)
    for (name, node), placements in promised.items():
        state.hold_placements(entry.key, name, node, placements)
