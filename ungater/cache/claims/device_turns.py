"""Who names which ResourceClaims, where these let pods go, and whose turn it is where one has no devices yet.

Rules
- Pods go where the devices of their claims are reached from, once these are given. Until then one pod goes ahead, and
  the others follow it.
- Of a claim without devices nobody knows which these will be; so all pods of a workload that share one go onto one node
  that has devices for it, or onto nodes that all reach whatever it may be given.
- A claim without devices is one workload's: whoever has a place for it, else who looked first. The others wait for it.
- A claim is for 256 pods at one time.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from crds.constants import Keys
from engine.cluster.state import ClusterState
from engine.cluster.unusable_slots import SlotNodes
from engine.model import NodeTerm
from kube import objects
from kube.pods.device_claims import DeviceClasses
from ungater.cache.claims.known_claims import MOST_USERS, KnownClaim, claims_named, named_by
from ungater.model.job_view import JobView
from ungater.model.pod_slots import PodSetSlots, finished, is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.context import PodChoice

SHARED: Final = "and only pods without other claims, slices and a shared domain can share it"


class NamedClaims:
    """See the module's rules; ``known`` gives a claim by ``namespace/name``."""

    def __init__(
        self, known: Callable[[str], KnownClaim | None], classes: DeviceClasses, keys: Keys, state: ClusterState
    ) -> None:
        self._known = known
        self._classes = classes
        self._keys = keys
        self._state = state
        self._named: dict[str, dict[str, WorkloadEntry]] = {}  # by claim and id of a job
        self._of: dict[str, frozenset[str]] = {}  # the other way round
        self._first: dict[str, str] = {}  # by claim: the id of the job whose it is while it has no devices

    # --- who names it --------------------------------------------------------------------------------------------

    def remember_names(self, entry: WorkloadEntry) -> None:
        """A job is there, or names other claims."""
        job = entry.job
        now = frozenset([claim for one in job.pod_sets for claim in named_by(job.namespace, one.template.spec)])
        before = self._of.get(entry.id, frozenset())
        for claim in before - now:
            self._drop(claim, entry.id)
        for claim in now:
            self._named.setdefault(claim, {})[entry.id] = entry
        if now:
            self._of[entry.id] = now
        else:
            self._of.pop(entry.id, None)

    def forget_job(self, uid: str) -> list[str]:
        """A job is gone, or over: the ids of those who waited for its claims."""
        return [one for claim in self._of.pop(uid, ()) if self._drop(claim, uid) for one in self._named.get(claim, ())]

    def _drop(self, claim: str, uid: str) -> bool:
        """A job names a claim no more; True where it was the first of several."""
        named = self._named.get(claim, {})
        named.pop(uid, None)
        if not named:
            self._named.pop(claim, None)
        if self._first.get(claim) != uid:
            return False
        del self._first[claim]
        return bool(named)

    def naming(self, claim: str) -> Collection[str]:
        """The ids of the jobs that name a claim."""
        return tuple(self._named.get(claim, ()))

    # --- why it waits --------------------------------------------------------------------------------------------

    def claim_hindrance(self, entry: WorkloadEntry, spec: objects.PodSpec) -> str | None:
        """Why pods of this spec cannot have the claims that they name, though these are there; None where they can."""
        job = entry.job
        for claim in named_by(job.namespace, spec):
            known, name = self._known(claim), claim.partition("/")[2]
            if known is None:
                continue
            pods = self._count_pods_with(job, claim)
            others = len(known.users - entry.pods.keys()) if known.users else 0
            # resource.k8s.io allows 256 users of a claim: one pod more would hang at kube-scheduler with its slot held.
            if others + pods > MOST_USERS:
                left = max(MOST_USERS - others, 0)
                return f'ResourceClaim "{name}" takes {MOST_USERS} pods, of which {left} may still come: {pods} name it'
            # With devices given, `reach` decides where its pods go, and nobody has to be first.
            if known.allocated:
                continue
            why = self._unshareable(job, spec, claim) or _grouped(entry, spec) if pods > 1 else ""
            if why:
                return f'ResourceClaim "{name}" has no devices yet, {SHARED}: {why}'
            if (other := self._other(claim, entry)) is not None:
                return f'ResourceClaim "{name}" has no devices yet, and {other.job.called} is to have it first'
        return None

    def shared(self, job: JobView, spec: objects.PodSpec) -> bool:
        """Whether pods of this spec, several of which there are, name a claim that has no devices yet."""
        return any(
            known is not None and not known.allocated and self._count_pods_with(job, claim) > 1
            for claim in named_by(job.namespace, spec)
            for known in (self._known(claim),)
        )

    @staticmethod
    def _count_pods_with(job: JobView, claim: str) -> int:
        return sum(one.count for one in job.pod_sets if claim in named_by(job.namespace, one.template.spec))

    def _unshareable(self, job: JobView, spec: objects.PodSpec, claim: str) -> str:
        """Why pods of this spec cannot share a claim without devices; "" where they can."""
        naming = [one for one in job.pod_sets if claim in named_by(job.namespace, one.template.spec)]
        if len(naming) > 1:
            return f"pod sets {naming[0].name} and {naming[1].name} share it"
        if any(one.resource_claim_template_name for one in spec.resource_claims or ()) or self._classes.asked_by(spec):
            return "they have other devices too"
        request = naming[0].request if naming else None
        if request is not None and (request.slices or request.group or (naming[0].shared and len(job.pod_sets) > 1)):
            return "they ask for slices, or for a domain that they share with others"
        return ""

    def _other(self, claim: str, entry: WorkloadEntry) -> WorkloadEntry | None:
        """The workload that is to have a claim before this one; None where this one may go on."""
        named = self._named.get(claim, {})
        first = named.get(self._first.get(claim, ""))
        if first is None or not _contends(first):
            contend = [one for one in named.values() if _contends(one)]
            # Holders first, then the oldest; kept then, so that two that look in turn do not both wait for each other.
            first = min(contend or [entry], key=lambda one: (one.admission is None, one.job.created, one.key))
            self._first[claim] = first.id
        return None if first.id == entry.id else first

    # --- where pods go -------------------------------------------------------------------------------------------

    def reach(self, namespace: str, spec: objects.PodSpec) -> tuple[tuple[NodeTerm, ...], ...]:
        """Where the claims that pods of this spec name let them go, as far as these have devices."""
        found = (self._known(claim) for claim in named_by(namespace, spec))
        return tuple(dict.fromkeys([one.nodes for one in found if one is not None and one.nodes is not None]))

    def choices(
        self, entry: WorkloadEntry, slots: PodSetSlots, waiting: Iterable[objects.Pod]
    ) -> Mapping[str, PodChoice]:
        """By uid, the slots that gated pods may go to by the claims that they name, where those are not all of them."""
        found: dict[str, PodChoice] = {}
        ahead: dict[str, str] | None = None
        where: dict[object, frozenset[int]] = {}
        nodes: SlotNodes | None = None
        # By name: which pod goes ahead must not depend on the order of events.
        for pod in sorted((pod for pod in waiting if claims_named(pod)), key=lambda pod: pod.metadata.name):
            ahead = self._ahead(entry) if ahead is None else ahead
            if why := self._follows(entry, pod, ahead):
                found[pod.metadata.uid] = PodChoice(frozenset(), why)
                continue
            reach = self.reach(pod.metadata.namespace, pod.spec)
            if not reach:
                continue
            # Thousands of pods may name claims on the same nodes: slots are compared once for each set of nodes.
            if reach not in where:
                places = [(slot.values, slot.node) for slot in slots.slots]
                nodes = nodes or SlotNodes(self._state, slots.flavor, slots.levels, places)
                where[reach] = nodes.reached(reach)
            if len(where[reach]) < len(slots.slots):
                found[pod.metadata.uid] = PodChoice(where[reach])
        return found

    def _ahead(self, entry: WorkloadEntry) -> dict[str, str]:
        """By claim, a pod of a job that was let go with it and is to be given devices first."""
        found: dict[str, str] = {}
        for uid, pod in entry.pods.items():
            claims = claims_named(pod)
            if claims and not finished(pod) and (not is_gated(pod, self._keys.gate) or entry.on_its_way(uid)):
                found.update(dict.fromkeys(claims, pod.metadata.name))
        return found

    def _follows(self, entry: WorkloadEntry, pod: objects.Pod, ahead: dict[str, str]) -> str:
        """Whom a pod waits for; "" where it may go, and others follow it."""
        for claim in claims_named(pod):
            known = self._known(claim)
            if known is None:
                continue
            if known.allocated:
                if first := _given_to(entry, known):
                    return f'ResourceClaim "{claim.partition("/")[2]}" is just being given to pod {first}'
                continue
            if (first := ahead.setdefault(claim, pod.metadata.name)) != pod.metadata.name:
                return f'ResourceClaim "{claim.partition("/")[2]}" has no devices yet, and pod {first} is to get them'
        return ""


def _given_to(entry: WorkloadEntry, known: KnownClaim) -> str:
    """The pod that a claim has its devices for, until anybody who has the claim is on a node; "" from then on.

    kube-scheduler takes the claim as one that it is allocating until it has bound the pod, and takes the devices back
    where it cannot.
    """
    users = [entry.pods[uid] for uid in known.users if uid in entry.pods]
    # With users of other workloads, or one that is bound, kube-scheduler is not allocating the claim any more.
    if not users or len(users) < len(known.users) or any(pod.spec.node_name for pod in users):
        return ""
    return min(pod.metadata.name for pod in users)


def _grouped(entry: WorkloadEntry, spec: objects.PodSpec) -> str:
    """Why pods of native PodGroups share no claim without devices; "" for others. One cannot go ahead of its group."""
    grouped = spec.pod_group or entry.job.scheduling or any(pod.spec.pod_group for pod in entry.pods.values())
    return "kube-scheduler lets the pods of their PodGroup go all at once" if grouped else ""


def _contends(entry: WorkloadEntry) -> bool:
    """Whether a job holds a place, or waits for one."""
    job = entry.job
    return not job.over and (entry.admission is not None or bool(job.queue) or not job.suspended)
