"""A rule on the labels of pods."""

import msgspec

from kube.objects import Pod
from kube.replicas import plain
from ungater.model.job_view import MAIN


class Rule(msgspec.Struct, frozen=True):
    """``group``: the API group of the controllers; ``pod_set``: the label that tells a pod's pod set, "" for one alone.

    ``else_by``: the label that tells it where the owner itself is read, of pods without the first. Ranks are read where
    all pods have them (`RANK_LABELS` in `crds.constants`).
    """

    group: str
    pod_set: str = ""
    else_by: str = ""

    def role(self, pod: Pod) -> str:
        """The pod set of a pod as a name that a Workload takes; "" where it tells none."""
        return plain((pod.metadata.labels or {}).get(self.pod_set, ""))

    def of_whole(self, pod: Pod) -> str:
        """The same of a pod whose owner is read."""
        if not self.pod_set:
            return MAIN
        return self.role(pod) or plain((pod.metadata.labels or {}).get(self.else_by, ""))
