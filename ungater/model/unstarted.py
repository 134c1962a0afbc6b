"""Pods that have a node and do not run yet, and what they wait for. Plain data.

A kubelet (1.29 and later) says by the condition PodReadyToStartContainers whether a pod's sandbox is there, which it is
once volumes are attached and devices are prepared. Images are pulled after that, and a container says itself what it
waits for. Why volumes or devices are not ready is in events alone.
"""

from typing import Final

import msgspec

from kube.objects import Pod, WaitingState, condition
from ungater.model.conditions import shorten
from ungater.model.unscheduled import MOST_WORDS

PATIENCE: Final = 30.0  # seconds after which such a pod is worth a word
_ORDINARY: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
UNPREPARED: Final = "its volumes or devices are not ready there"
SILENT: Final = "its kubelet has said nothing of it yet"


class Unstarted(msgspec.Struct, frozen=True, gc=False):
    """One such pod. ``since``: when it was seen to have its ``node``, in seconds of the clock of who saw it.

    ``lacks``: what its node has not got ready, as far as its kubelet tells; "" for nothing. ``said``: what its
    containers say; ``told``: what its events say. ``counted``: whether it counts against its node.
    """

    since: float
    node: str
    lacks: str = SILENT
    said: str = ""
    told: str = ""
    counted: bool = False

    def see_again(self, pod: Pod) -> "Unstarted":
        """The pod was seen again."""
        waiting = container_waiting(pod)
        said = ": ".join(filter(None, (waiting.reason, waiting.message))) if waiting is not None else ""
        return msgspec.structs.replace(self, lacks=_lacks(pod), said=shorten(said, MOST_WORDS))

    def count(self, told: str) -> "Unstarted":
        """It counts against its node, and that is what events say."""
        return msgspec.structs.replace(self, counted=True, told=told)

    @property
    def words(self) -> str:
        """What it waits for; "" where nothing is amiss, such as while an image is pulled."""
        return self.said or (self.lacks and (self.told or self.lacks))


def _lacks(pod: Pod) -> str:
    found, status = condition(pod.status.conditions, "PodReadyToStartContainers"), pod.status
    if found is not None:
        # Before the container states: until the sandbox is there these say ContainerCreating, whatever the reason is.
        return "" if found.status == "True" else UNPREPARED
    said = status.container_statuses or status.init_container_statuses
    return "" if said else SILENT  # an older kubelet does not tell sandboxes from images


def container_waiting(pod: Pod) -> WaitingState | None:
    """What the first of its containers waits for that waits for something out of the ordinary."""
    for one in (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())):
        waiting = one.state.waiting if one.state is not None else None
        if waiting is not None and waiting.reason not in _ORDINARY:
            return waiting
    return None
