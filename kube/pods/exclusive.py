"""Exclusive placement by JobSet and LeaderWorkerSet: what their controllers and webhooks put into pods, for the engine.

None of it is in the templates that they are made from. Facts: ``pkg/webhooks/pod_webhook.go`` of JobSet and of
LeaderWorkerSet, ``labelAndAnnotateObject`` and ``addNamespacedJobNodeSelector`` of the JobSet controller.

Rules
- The first pod of each Job of a JobSet, and the leader of each group of a LeaderWorkerSet, has to be where pods of its
  own are, and keeps off pods that have such a label with another value; the others follow by a node selector. So the
  terms hold for all pods of a Job or group. Subgroups have the terms on each pod.
- All pods of JobSets carry `JOB_KEY`, all pods of LeaderWorkerSets `GROUP_KEY`: those that are not exclusive keep away
  from those that are.
- JobSet keeps apart what has one priority, by a label that older ones do not write.
- The value of `JOB_KEY` differs between the Jobs of a replicated job, that of `SUBGROUP_KEY` between the subgroups of a
  group. Those are slices of one pod set. So here the pods of one pod set have one value in common (`in_common`).
"""

from collections.abc import Mapping, Sequence
from hashlib import sha1

import msgspec
from msgspec.structs import replace

from engine.model import LabelRequirement, PodTerm, Toleration

JOB_SET_NAME = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_KEY = "jobset.sigs.k8s.io/job-key"
PRIORITY = "jobset.sigs.k8s.io/priority"
NAMESPACED_JOB = "alpha.jobset.sigs.k8s.io/namespaced-job"
NO_SCHEDULE = "alpha.jobset.sigs.k8s.io/no-schedule"
GROUP_KEY = "leaderworkerset.sigs.k8s.io/group-key"
SUBGROUP_KEY = "leaderworkerset.sigs.k8s.io/subgroup-key"


class Additions(msgspec.Struct, frozen=True):
    """What others add to the pods of a template, as far as placement looks at it."""

    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()

    def additions_for_priority(self, priority: int) -> "Additions":
        """The same for pods of this priority, which pods of JobSets tell by a label."""
        if JOB_KEY not in self.labels:
            return self
        # A label value cannot begin with a minus sign: JobSet writes n and the absolute value.
        value = f"n{-priority}" if priority < 0 else str(priority)
        alike = LabelRequirement(key=PRIORITY, operator="In", values=(value,))
        untold = LabelRequirement(key=PRIORITY, operator="DoesNotExist")
        terms = [
            msgspec.structs.replace(term, selector=(*(term.selector or ()), which))
            for term in self.anti_affinity
            for which in (alike, untold)
        ]
        return replace(self, labels={**self.labels, PRIORITY: value}, anti_affinity=tuple(terms))


def of_jobs(namespace: str, jobset: str, role: str, *, level: str = "", several: bool = False) -> Additions:
    """Of the pods of one replicated job. ``level``: each of its Jobs has a domain of it alone; "" where none has.

    Where there are ``several``, that the pods of a Job are together is said by slices.
    """
    value = _replicated(namespace, jobset, role)
    alone = _additions_for(JOB_KEY, value, level, None) if level else Additions()
    return replace(alone, labels={JOB_KEY: value}, affinity=() if several else alone.affinity)


def of_labelled(namespace: str, jobset: str, role: str) -> Additions:
    """Of the pods of the only Job of a replicated job, where somebody labels and taints nodes for it."""
    selector = {NAMESPACED_JOB: f"{namespace}_{jobset}-{role}-0"}
    toleration = Toleration(key=NO_SCHEDULE, operator="Exists", effect="NoSchedule")
    return replace(of_jobs(namespace, jobset, role), node_selector=selector, tolerations=(toleration,))


def of_group(namespace: str, key: str, *, level: str = "", sub_level: str = "", subgroups: int = 0) -> Additions:
    """Of the pods of one group with this value of `GROUP_KEY`.

    ``level``: the group has a domain of it alone; ``sub_level``: each of its ``subgroups`` has.
    """
    labels = {GROUP_KEY: key, **({SUBGROUP_KEY: key} if subgroups else {})}
    whole = _additions_for(GROUP_KEY, key, level, (namespace,)) if level else Additions()
    parts = _additions_for(SUBGROUP_KEY, key, sub_level, (namespace,)) if sub_level and subgroups else Additions()
    together = parts.affinity if subgroups == 1 else ()
    terms = (*whole.anti_affinity, *parts.anti_affinity)
    return Additions(labels, (*whole.affinity, *together), terms)


def group_key_of(namespace: str, leader: str) -> str:
    """The value of `GROUP_KEY` that a leader of this name gives its group."""
    # As LeaderWorkerSet does in genGroupUniqueKey of its pod webhook; it is a name, and protects nothing.
    return sha1(f"{namespace}/{leader}".encode(), usedforsecurity=False).hexdigest()


def in_common(labels: Mapping[str, str], namespace: str) -> dict[str, str]:
    """The labels of a pod with another value here: the one that the pods of its pod set have in common."""
    found = {}
    if JOB_KEY in labels and JOB_SET_NAME in labels and REPLICATED_JOB in labels:
        found[JOB_KEY] = _replicated(namespace, labels[JOB_SET_NAME], labels[REPLICATED_JOB])
    if SUBGROUP_KEY in labels and GROUP_KEY in labels:
        found[SUBGROUP_KEY] = labels[GROUP_KEY]
    return found


def with_common(terms: Sequence[PodTerm], labels: Mapping[str, str], common: Mapping[str, str]) -> tuple[PodTerm, ...]:
    """A pod's terms, with what its pod set has in common where they name the pod's own label."""
    return tuple([_with_common(term, labels, common) for term in terms])


def _with_common(term: PodTerm, labels: Mapping[str, str], common: Mapping[str, str]) -> PodTerm:
    if term.selector is None:
        return term
    selector = tuple(
        [
            msgspec.structs.replace(need, values=(common[need.key],))
            if need.key in common and need.values == (labels[need.key],)
            else need
            for need in term.selector
        ]
    )
    return term if selector == term.selector else msgspec.structs.replace(term, selector=selector)


def _replicated(namespace: str, jobset: str, role: str) -> str:
    """No label has such a value, so that nobody's pods are taken for these."""
    return f"{namespace}/{jobset}/{role}"


def _additions_for(label: str, value: str, level: str, namespaces: tuple[str, ...] | None) -> Additions:
    own = LabelRequirement(key=label, operator="In", values=(value,))
    others = (
        LabelRequirement(key=label, operator="Exists"),
        LabelRequirement(key=label, operator="NotIn", values=(value,)),
    )
    return Additions(
        affinity=(PodTerm(topology_key=level, selector=(own,), namespaces=namespaces),),
        anti_affinity=(PodTerm(topology_key=level, selector=others, namespaces=namespaces),),
    )
