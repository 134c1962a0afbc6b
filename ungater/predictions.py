"""Which of a slice's predicted placements each ungated pod gets: those the engine decided, each given out once.

The engine keeps a placement for every slot that no pod claims. A pod claims its slot when it is bound; until then what
was given to it is known from its intent, and once its patch is seen, from its annotation.
"""

from collections import defaultdict
from collections.abc import Iterable

from crds.constants import NUMA_PLACEMENT_PREDICTED
from crds.numa_placement import decode
from engine.numa.machine import NumaPlacement
from engine.numa.rebuild import same
from engine.state import ClusterState
from kube.objects import Pod
from ungater.inside import Inside
from ungater.jobs import MAIN
from ungater.record import Record
from ungater.slots import Slot, SlotMap, Values, finished
from ungater.swaps import exchanged


class Predictions:
    """The placements of one job that are still to be given out. Make one for each look at the job."""

    def __init__(self, state: ClusterState, record: Record) -> None:
        self._state = state
        self._record = record
        self._left: dict[Values, list[NumaPlacement]] = {}
        self._given: dict[Values, list[NumaPlacement]] = defaultdict(list)
        for intent in record.intents.values():
            if intent.placement is not None and not intent.gone:
                self._given[intent.values].append(intent.placement)
        for values, placement in on_their_way(record.slots, record.pods.values()):
            self._given[values].append(placement)

    def take(self, pod: Pod, slot: Slot) -> NumaPlacement | None:
        """What to predict for a pod in this slot; what it was sent with before stays. None where nothing is known."""
        intent = self._record.intents.get(pod.metadata.uid)
        if intent is not None and intent.values == slot.values:
            return intent.placement
        if not slot.node:
            return None  # kube-scheduler chooses among the nodes of the domain
        left = self._left.get(slot.values)
        if left is None:
            left = list(self._state.placements(self._record.key, MAIN, slot.node))
            for given in exchanged(self._record, slot.node, self._given.get(slot.values, ())):
                _remove(left, given)
            self._left[slot.values] = left
        return left.pop(0) if left else None


def on_their_way(slots: SlotMap | None, pods: Iterable[Pod]) -> Iterable[tuple[Values, NumaPlacement]]:
    """(slice, placement) of pods that were let go with a placement and are on no node yet."""
    if slots is None:
        return
    for pod in pods:
        text = (pod.metadata.annotations or {}).get(NUMA_PLACEMENT_PREDICTED)
        if not text or pod.spec.node_name or pod.metadata.deletion_timestamp is not None or finished(pod):
            continue
        index, placement = slots.of_selector(pod.spec.node_selector), decode(text)
        if index is not None and placement is not None:
            yield slots.slots[index].values, placement


def promise_again(state: ClusterState, inside: Inside, record: Record) -> None:
    """After a restart: pods on their way have placements in their annotations, which their slots keep."""
    promised: dict[str, list[NumaPlacement]] = {}
    nodes = {slot.values: slot.node for slot in record.slots.slots} if record.slots is not None else {}
    for values, placement in on_their_way(record.slots, record.pods.values()):
        if inside.predictable(nodes[values]):
            promised.setdefault(nodes[values], []).append(placement)
    for node, placements in promised.items():
        state.hold_placements(record.key, MAIN, node, placements)


def _remove(left: list[NumaPlacement], given: NumaPlacement) -> None:
    """Take out what was given: the very same, devices included, else one of the same zones and amounts."""
    if given in left:
        left.remove(given)
        return
    alike = next((at for at, placement in enumerate(left) if same(placement, given)), None)
    if alike is not None:
        del left[alike]
