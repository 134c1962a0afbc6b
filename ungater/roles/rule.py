"""A rule on the labels of pods."""

from dataclasses import dataclass

from kube.objects import Pod


@dataclass(frozen=True)
class Rule:
    """``group``: the API group of the controllers; ``pod_set``: the label that tells a pod's pod set.

    Ranks are read where all pods have them (`RANK_LABELS` in `crds.constants`).
    """

    group: str
    pod_set: str

    def role(self, pod: Pod) -> str:
        """The pod set of a pod as a name that a Workload takes; "" where it tells none."""
        return (pod.metadata.labels or {}).get(self.pod_set, "").lower().replace("_", "-").replace(".", "-")
