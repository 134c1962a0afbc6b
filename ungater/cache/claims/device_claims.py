"""Workloads whose pods ask for devices that are not counted here: of resource claims, or of DeviceClasses.

Rules
- Claims that are made of a template for each pod are counted (`engine.devices.ledger`), once the template and its
  DeviceClasses are there, and where all pods of a pod set have the same.
- So are claims that pods name (`ungater.cache.claims.device_turns`): while one has no devices it is for one pod, then
  its pods go where these are reached.
- A workload of which that is not so waits. Placed by amounts alone, some of its pods would be held to nodes on which no
  device is left, and wait there for ever.
- With a queue one waits too where quota cannot count them (`ungater.cache.claims.device_quota`).
- An extended resource for which a DeviceClass stands is counted like the claim that the scheduler makes of it, on
  nodes that publish none of it. Where nodes do (their device plugin), kube-scheduler goes by what the node publishes,
  and by no class (`kube.pods.device_claims`). Where not all is read that tells of devices, such nodes count and no
  others, and as long as there are none the workload waits.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from crds.constants import Keys
from engine.claims.asks import OWN
from engine.claims.read.asks import resources_of, same_devices
from engine.cluster.state import ClusterState
from engine.devices.compute_domains import domains_of
from engine.model import Node
from kube import objects
from kube.pods.device_claims import DeviceClass, claims_by_template, claims_in_words, named_in
from kube.pods.requests import pod_requests
from kube.versions import SchedulerRules
from ungater.cache.claims.claimed_devices import UNREAD, ClaimedDevices
from ungater.cache.claims.device_quota import DeviceQuota
from ungater.cache.claims.device_turns import NamedClaims
from ungater.model.job_view import JobView, PodSetView
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry

NOT_ALIKE = "devices are counted only where all pods of a pod set have the same claims, as their templates are now"
TWO_DOMAINS = "they ask for channels of several ComputeDomains, and a node belongs to one"
UNKNOWN = "it names neither a ResourceClaim nor a template"


class DeviceClaims:
    """See the module's rules; ``reads`` as `ClaimedDevices` has it; ``resources``: as `DeviceQuota`."""

    def __init__(
        self,
        keys: Keys,
        reads: Callable[[], bool],
        state: ClusterState,
        resources: Mapping[str, str],
        scheduler: SchedulerRules,
    ) -> None:
        cluster = state.cluster
        self._keys = keys
        self._publishes = cluster.publishes
        self.claimed = ClaimedDevices(reads, cluster.devices.is_uncounted, cluster.table.delegate)
        self.named = NamedClaims(self.claimed.known_claim, self.claimed.classes, keys, state)
        self._classes = self.claimed.classes
        self.quota = DeviceQuota(resources, self.claimed, self._classes, state.nodes, scheduler)
        self._nodes: Counter[str] = Counter()  # how many nodes publish some of an extended resource
        self._templates: dict[str, frozenset[str]] = {}  # by id of a job: templates (``namespace/name``) of its claims
        self._hindered: set[str] = set()  # ids of jobs that wait for something of all this
        self._asking: dict[str, frozenset[str]] = {}  # by id of a job: resources of classes that its pods ask for

    def device_hindrance(self, entry: WorkloadEntry) -> str | None:
        """Why a workload is given nothing as its pods ask for devices; None where they do not."""
        # Forgotten before it is asked again: `_uncounted_ask` notes the resources again, also the ones of single pods.
        self._asking.pop(entry.job.id, None)
        self._hindered.discard(entry.job.id)
        self.remember_claims(entry)
        found = self._hindrance(entry) if not entry.job.over else None
        if found is not None:
            self._hindered.add(entry.job.id)
        return found

    def _hindrance(self, entry: WorkloadEntry) -> str | None:
        job = entry.job
        # Templates before pods: they tell it before any pod exists, so nothing is admitted that its pods cannot have.
        for owned in job.pod_sets:
            if owned.count and (why := self._uncounted_ask(job, owned.template.spec)) is not None:
                return f"the pods of pod set {owned.name} {why}"
            if owned.count and (why := self.named.claim_hindrance(entry, owned.template.spec)) is not None:
                return f"the pods of pod set {owned.name} have {claims_in_words(owned.template.spec)}: {why}"
        first: tuple[str, str] | None = None
        for pod in entry.pods.values():
            if pod.spec.resource_claims is None and not self._classes.asked_by(pod.spec):
                continue  # there may be thousands
            name = pod.metadata.name
            # Pods that were let go have what they have; a reason for them would hold up the others.
            waits = is_gated(pod, self._keys.gate) and not finished(pod) and pod.metadata.deletion_timestamp is None
            if not waits or (first is not None and name >= first[0]):
                continue
            why = self._why_pod(
                job, pod, next((one for one in job.pod_sets if one.name == entry.pod_set_of(pod)), None)
            )
            if why is not None:
                first = name, why
        return f"its pods, such as {first[0]}, {first[1]}" if first is not None else None

    def _why_pod(self, job: JobView, pod: objects.Pod, owned: PodSetView | None) -> str | None:
        """The same of a pod that is there; all pods of a pod set are to have the same claims."""
        made, claims = pod.status.resource_claim_statuses, claims_in_words(pod.spec)
        if claims and (owned is None or claims_by_template(pod.spec) != claims_by_template(owned.template.spec)):
            return f"have {claims}: {NOT_ALIKE}"
        why = self._uncounted_ask(job, pod.spec, made)
        if owned is None:
            return why
        wanted = self.claimed.device_ask_of_spec(job.namespace, owned.template.spec)
        found = self.claimed.device_ask_of_spec(job.namespace, pod.spec, made)
        if isinstance(found, str) or isinstance(wanted, str) or found is None:
            return why
        alike = wanted is not None and same_devices(found, wanted)
        has = f"have {claims}" if claims else f"ask for {min(resources_of(found), default='devices')}"
        return why if alike else f"{has}: {NOT_ALIKE}"

    def given(self, uid: str) -> str:
        """What is told of a job that asks for what nodes publish and classes give too; "" where all of that counts."""
        if self.claimed.reads:
            return ""
        names = sorted(self._asking.get(uid, ()))
        named = ((name, self._classes.of_resource(name)) for name in names)
        return "; ".join(f'of {name} no devices of DeviceClass "{one}" are counted' for name, one in named if one)

    def remember_claims(self, entry: WorkloadEntry) -> None:
        """A job is there, or asks for something else: whom templates and claims concern."""
        job = entry.job
        claims = (claim for one in job.pod_sets for claim in claims_by_template(one.template.spec))
        if templates := frozenset(
            [f"{job.namespace}/{what}" for _, what in claims if what and not what.startswith(OWN)]
        ):
            self._templates[job.id] = templates
        else:
            self._templates.pop(job.id, None)
        self.named.remember_names(entry)

    def forget_job(self, uid: str) -> list[str]:
        """A job is gone, or over; the ids of those who wait for a claim that it was to have first."""
        self._asking.pop(uid, None)
        self._templates.pop(uid, None)
        self._hindered.discard(uid)
        return self.named.forget_job(uid)

    def _uncounted_ask(
        self, job: JobView, spec: objects.PodSpec, made: Iterable[objects.PodClaimStatus] | None = None
    ) -> str | None:
        """What pods of this spec ask for that is not counted; None where there is nothing. ``made``: a pod's claims."""
        uid, named = job.id, claims_by_template(spec)
        if claims := claims_in_words(spec):
            known = bool(named) and all(what for _, what in named)
            found = self.claimed.device_ask_of_spec(job.namespace, spec, made) if known else UNKNOWN
            if isinstance(found, str):
                return f"have {claims}: {found}"
            if found is not None and len(domains_of(found)) > 1:
                return f"have {claims}: {TWO_DOMAINS}"
            if job.queue and (why := self.quota.explain_unknown(job.namespace, spec, made)) is not None:
                return f"have {claims}: {why}"
        resources = self._classes.asked_by(spec)
        asked = pod_requests(spec) if resources else {}
        wanted = sorted(name for name in resources if asked.get(name, 0) > 0)
        if wanted:
            self._asking[uid] = self._asking.get(uid, frozenset()).union(wanted)
        if wanted and self.claimed.reads:
            found = self.claimed.device_ask_of_spec(job.namespace, spec, made)
            return f"ask for {wanted[0]}: {found}" if isinstance(found, str) else None
        # Without the APIs of devices, a node that publishes the resource itself (its device plugin) still serves it.
        missing = next((name for name in wanted if not self._nodes[name]), None)
        if missing is None:
            return None
        one = self._classes.of_resource(missing)
        return f'ask for {missing}, which no node publishes and DeviceClass "{one}" stands for: {UNREAD}'

    # --- what changes it -----------------------------------------------------------------------------------------

    def record_device_class(
        self, name: str, found: DeviceClass | None, entries: Mapping[str, WorkloadEntry]
    ) -> list[str]:
        """A DeviceClass came, changed or went: the ids of those that ask for what it stands, or stood, for.

        Of those too that wait and have resource claims: these may name it.
        """
        names = self._classes.set_device_class(name, found)
        waiting = ((uid, entry) for uid, entry in entries.items() if entry.admission is None)
        asking = {uid: None for uid, asked in self._asking.items() if names & asked}
        return [
            *asking,
            *(
                uid
                for uid, entry in waiting
                if uid not in asking and any(one.resource_claims or named_in(one, names) for one in _specs(entry))
            ),
        ]

    @property
    def hindered(self) -> tuple[str, ...]:
        """The ids of jobs that wait, as what their pods ask for is not counted."""
        return tuple(self._hindered)

    def made_of(self, template: str) -> list[str]:
        """The ids of jobs that have claims of a template (``namespace/name``)."""
        return [uid for uid, names in self._templates.items() if template in names]

    def has_claims(self, entry: WorkloadEntry) -> bool:
        """Whether pods of a job have resource claims, or are to have: of their own, or made by the scheduler."""
        if any(claims_in_words(spec) for spec in _specs(entry)):
            return True
        parts = entry.grant.assignments if entry.grant is not None else ()
        asked = {one for part in parts if part.devices is not None for one in resources_of(part.devices)}
        nodes = {slot.node for slots in entry.slots_in.values() for slot in slots.slots} if asked else set()
        return any(not self._publishes(node, one) for node in nodes for one in asked)

    def set_node(self, before: Node | None, now: Node | None) -> list[str]:
        """A node came, changed or went: the ids of jobs that ask for what some node publishes now, or none any more."""
        was, has = _published(before), _published(now)
        turned: set[str] = set()
        for change, names in ((1, has - was), (-1, was - has)):
            for name in names:
                self._nodes[name] += change
                # From none to one, or from one to none: only these two change an answer.
                if self._nodes[name] == max(change, 0):
                    turned.add(name)
                if not self._nodes[name]:
                    del self._nodes[name]
        return [uid for uid, names in self._asking.items() if turned & names] if turned else []


def _specs(entry: WorkloadEntry) -> Iterable[objects.PodSpec]:
    yield from (owned.template.spec for owned in entry.job.pod_sets)
    yield from (pod.spec for pod in entry.pods.values())


def _published(node: Node | None) -> set[str]:
    """The extended resources of which a node has some to give."""
    return (
        {name for name, amount in node.allocatable.items() if amount > 0 and "/" in name} if node is not None else set()
    )
