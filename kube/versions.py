"""Rules of kube-scheduler that differ between minor versions of Kubernetes, as plain data.

Sources: the feature gates and their defaults in ``pkg/features/kube_features.go``, and the code that asks them, of
Kubernetes 1.36.3 and 1.37.1. The version is the API server's: kube-scheduler is of the same minor version, but for the
minutes in which a control plane is upgraded.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?!\d)")


class SchedulerRules(msgspec.Struct, frozen=True):
    """What kube-scheduler of one version does, with its feature gates as they are by default."""

    reads_status: bool = True  # a pod's containers count with what their statuses say (InPlacePodVerticalScaling)
    reads_pod_status: bool = True  # so does the pod as a whole (InPlacePodLevelResourcesVerticalScaling)
    compares_sums: bool = True  # asked for, given and actuated are summed first, and the largest sum counts
    compares_priority: bool = True  # all pods of a PodGroup must have its priority
    reads_features: bool = True  # a node must declare the features that a pod needs (NodeDeclaredFeatures)


NEWEST: Final = SchedulerRules()


def newest(versions: Iterable[str]) -> str:
    """The version with the largest minor; "" where there is none."""
    return max(versions, key=lambda one: _minor(one) or (0, 0), default="")


def _minor(version: str) -> tuple[int, int] | None:
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found is not None else None


def scheduler_rules(version: str) -> SchedulerRules:
    """The rules of a version such as ``v1.36.3``; the newest ones where it names none."""
    minor = _minor(version)
    if minor is None:
        return NEWEST
    return SchedulerRules(
        reads_status=minor >= (1, 33),
        reads_pod_status=minor >= (1, 36),
        compares_sums=minor >= (1, 37),
        compares_priority=minor >= (1, 37),
        reads_features=minor >= (1, 36),
    )
