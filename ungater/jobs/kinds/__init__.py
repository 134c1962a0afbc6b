"""How the pods of other controllers tell their pod set and their rank: one rule a file.

A new kind needs a file with its rule, and a place in `RULES`. It is found by the API group of the pods' controller.
"""

from kube.objects import Pod, controller_of
from ungater.jobs.kinds import apps, kubeflow, ray
from ungater.jobs.kinds.rule import Rule

RULES = (apps.RULE, kubeflow.RULE, ray.RULE)


def rule_of(pod: Pod) -> Rule | None:
    """The rule for a pod; None where its controller makes pods that are all alike, or it has none."""
    controller = controller_of(pod.metadata)
    group = controller.api_version.partition("/")[0] if controller is not None else ""
    return next((rule for rule in RULES if rule.group == group), None)
