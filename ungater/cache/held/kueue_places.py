"""Where the pods of a job are that Kueue placed, and where it has slots for others, as slots of a flavor here."""

from collections import Counter

from crds.constants import HOSTNAME_LABEL
from crds.kueue import assignment as kueue_form
from engine.model import Flavor
from kube.objects import Pod
from ungater.cache.core import Core
from ungater.model.job_view import PodSetView
from ungater.model.kueue_objects import KueuePodSetAssignment
from ungater.model.pod_slots import PodSetSlots, Slot, Values


class NotAdoptedError(Exception):
    """Why what a job has cannot be held; the text is for people."""


class KueuePlaces:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._state = core.state
        self._hosts: tuple[int, dict[str, str]] = -1, {}  # of a layout of the cluster: node by host name

    def slots_of_pod_set(
        self, flavor: Flavor, pod_set: PodSetView, part: KueuePodSetAssignment, pods: list[Pod], *, missing: bool
    ) -> PodSetSlots:
        """The slots of a pod set: those that its pods are in, and those that Kueue has for others of it.

        Raises NotAdoptedError.
        """
        counts: Counter[Values] = Counter()
        for pod in pods:
            if (place := self.place_of_pod(flavor, pod)) is not None:
                counts[place] += 1
        assigned = self.assigned_domains(flavor, pod_set, part)
        order = list(dict.fromkeys([*assigned, *sorted(counts)]))
        if missing:
            left = needed_pods(pod_set, part) - counts.total()
            for place, count in assigned.items():
                more = min(max(0, count - counts[place]), max(0, left))
                counts[place] += more
                left -= more
        slots = PodSetSlots(flavor.levels, tuple(Slot(one, counts[one]) for one in order if counts[one]), flavor.name)
        for pod in pods:
            # A pod that is in none of the slots would be deleted, so that another comes to one.
            if pod.spec.node_name in self._state.nodes and slots.of_selector(pod.spec.node_selector) is None:
                lacks = ", ".join(flavor.levels)
                raise NotAdoptedError(
                    f"the node selector of pod {pod.metadata.name} names no domain of flavor {flavor.name} ({lacks})"
                )
        return slots

    def place_of_pod(self, flavor: Flavor, pod: Pod) -> Values | None:
        """The domain that a pod is in, or was sent to; None where that is gone. Raises NotAdoptedError."""
        selector = pod.spec.node_selector or {}
        name = pod.spec.node_name or self._node_of_host(selector.get(HOSTNAME_LABEL, ""))
        node = self._state.nodes.get(name)
        if node is None and not pod.spec.node_name and all(level in selector for level in flavor.levels):
            return tuple(selector[level] for level in flavor.levels)
        if node is None:
            return None
        if not flavor.node_labels.items() <= node.labels.items():
            raise NotAdoptedError(
                f"pod {pod.metadata.name} is on node {node.name}, which flavor {flavor.name} does not have"
            )
        return tuple(node.labels.get(level, "") for level in flavor.levels)

    def assigned_domains(self, flavor: Flavor, pod_set: PodSetView, part: KueuePodSetAssignment) -> dict[Values, int]:
        """The domains that Kueue assigned, as they are named here, in its order; those that are gone are left out."""
        if part.topology_assignment is None:
            return {}
        try:
            levels, domains = kueue_form.decode(part.topology_assignment)
            tree = self._state.tree(flavor.name)
            found: dict[Values, int] = {}
            for values, count in domains:
                node = None
                # By the host, where Kueue names that alone; its topology has the levels of the flavor elsewhere.
                if levels != flavor.levels and levels[-1:] == (HOSTNAME_LABEL,):
                    node = self._state.nodes.get(self._node_of_host(values[-1]))
                place = values if levels == flavor.levels else ()
                if node is not None:
                    place = tuple(node.labels.get(level, "") for level in flavor.levels)
                if tree is not None and place in tree.domain_of:
                    found[place] = found.get(place, 0) + count
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise NotAdoptedError(f"topologyAssignment of pod set {pod_set.name} cannot be read: {error}") from error
        return found

    def _node_of_host(self, host: str) -> str:
        """The node of this host name; "" where there is none."""
        layout = self._core.layout
        # By node: host names are labels, which may differ from names. Only jobs that are taken over ask for it.
        if self._hosts[0] != layout:
            nodes = self._state.nodes.items()
            self._hosts = layout, {node.labels.get(HOSTNAME_LABEL, ""): name for name, node in nodes}
        return self._hosts[1].get(host, "") if host else ""


def needed_pods(pod_set: PodSetView, part: KueuePodSetAssignment) -> int:
    """How many pods a pod set needs now, as far as Kueue admitted them."""
    return pod_set.count if part.count is None else min(pod_set.count, part.count)
