"""Workloads whose pods ask for devices that are not counted here: of resource claims, or of DeviceClasses.

Rules
- Claims that are made of a template for each pod are counted (`engine.devices.ledger`), once the template and its
  DeviceClasses are there, and where all pods of a pod set have the same.
- A workload whose pods have other resource claims waits. Placed by amounts alone, some of its pods would be held to
  nodes on which no device is left, and wait there for ever.
- With a queue one waits too where quota cannot count them (`ungater.cache.held.device_quota`).
- So does one that asks for an extended resource for which a DeviceClass stands, as long as no node publishes that
  resource. Where nodes do (their device plugin), those nodes count, and no others: there kube-scheduler goes by what
  the node publishes, and by no class (`kube.pods.device_claims`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from crds.constants import Keys
from engine.claims.asks import DeviceAsk
from engine.claims.read.asks import same
from engine.model import Node
from kube import objects
from kube.pods.device_claims import DeviceClass, DeviceClasses, claims_by_template, claims_in_words, named_in
from kube.pods.requests import pod_requests
from ungater.cache.held.claimed_devices import ClaimedDevices
from ungater.cache.held.device_quota import DeviceQuota
from ungater.model.job_view import JobView, PodSetView
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry

NOT_ALIKE = "devices are counted where all pods of a pod set have the claims that it names, as their templates are now"
NOT_COUNTED = "devices of such are not counted yet, and pods would be sent to nodes on which none may be left"


class DeviceClaims:
    """See the module's rules; ``reads``, ``refused``: as `ClaimedDevices` has them; ``resources``: as `DeviceQuota`."""

    def __init__(
        self,
        keys: Keys,
        reads: Callable[[], bool],
        refused: Callable[[DeviceAsk], bool],
        resources: Mapping[str, str],
    ) -> None:
        self._keys = keys
        self.claimed = ClaimedDevices(reads, refused)
        self._classes = DeviceClasses()
        self.quota = DeviceQuota(resources, self.claimed, self._classes)
        self._nodes: Counter[str] = Counter()  # how many nodes publish some of an extended resource
        self._templates: dict[str, frozenset[str]] = {}  # by id of a job: templates (``namespace/name``) of its claims
        self._hindered: set[str] = set()  # ids of jobs that wait for something of all this
        self._asking: dict[str, frozenset[str]] = {}  # by id of a job: resources of classes that its pods ask for

    def hindrance(self, entry: WorkloadEntry) -> str | None:
        """Why a workload is given nothing as its pods ask for devices; None where they do not."""
        self.forget(entry.job.id)
        found = self._hindrance(entry) if not entry.job.over else None
        if found is not None:
            self._hindered.add(entry.job.id)
        return found

    def _hindrance(self, entry: WorkloadEntry) -> str | None:
        job = entry.job
        claims = (claim for one in job.pod_sets for claim in claims_by_template(one.template.spec))
        if templates := frozenset([f"{job.namespace}/{template}" for _, template in claims if template]):
            self._templates[job.id] = templates
        for owned in job.pod_sets:
            if owned.count and (why := self._why(job, owned.template.spec)) is not None:
                return f"the pods of pod set {owned.name} {why}"
        first: tuple[str, str] | None = None
        for pod in entry.pods.values():
            if pod.spec.resource_claims is None and not self._classes.asked_by(pod.spec):
                continue  # there may be thousands
            name = pod.metadata.name
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
        if not claims:
            return self._why(job, pod.spec)
        if owned is None or claims_by_template(pod.spec) != claims_by_template(owned.template.spec):
            return f"have {claims}: {NOT_ALIKE}"
        why = self._why(job, pod.spec, made)
        wanted = self.claimed.of(job.namespace, owned.template.spec)
        found = self.claimed.of(job.namespace, pod.spec, made)
        if isinstance(found, DeviceAsk) and isinstance(wanted, DeviceAsk) and not same(found, wanted):
            return f"have {claims}: {NOT_ALIKE}"
        return why

    def given(self, uid: str) -> str:
        """What is told of a job that asks for what nodes publish and classes give too; "" where it does not."""
        names = sorted(self._asking.get(uid, ()))
        named = ((name, self._classes.of_resource(name)) for name in names)
        return "; ".join(f'of {name} no devices of DeviceClass "{one}" are counted' for name, one in named if one)

    def forget(self, uid: str) -> None:
        """A job is gone."""
        self._asking.pop(uid, None)
        self._templates.pop(uid, None)
        self._hindered.discard(uid)

    def _why(
        self, job: JobView, spec: objects.PodSpec, made: Iterable[objects.PodClaimStatus] | None = None
    ) -> str | None:
        """What pods of this spec ask for that is not counted; None where there is nothing. ``made``: a pod's claims."""
        uid, named = job.id, claims_by_template(spec)
        if claims := claims_in_words(spec):
            of_templates = bool(named) and all(template for _, template in named)
            found = self.claimed.of(job.namespace, spec, made) if of_templates else NOT_COUNTED
            if isinstance(found, str):
                return f"have {claims}: {found}"
            if job.queue and (why := self.quota.why(job.namespace, spec, made)) is not None:
                return f"have {claims}: {why}"
        resources = self._classes.asked_by(spec)
        asked = pod_requests(spec) if resources else {}
        wanted = sorted(name for name in resources if asked.get(name, 0) > 0)
        if wanted:
            self._asking[uid] = self._asking.get(uid, frozenset()).union(wanted)
        missing = next((name for name in wanted if not self._nodes[name]), None)
        if missing is None:
            return None
        one = self._classes.of_resource(missing)
        return f'ask for {missing}, which no node publishes and DeviceClass "{one}" stands for: {NOT_COUNTED}'

    # --- what changes it -----------------------------------------------------------------------------------------

    def set_class(self, name: str, found: DeviceClass | None, entries: Mapping[str, WorkloadEntry]) -> list[str]:
        """A DeviceClass came, changed or went: the ids of those that wait and ask for what it stands, or stood, for.

        Of those too that have resource claims: these may name it.
        """
        names = self._classes.note(name, found)
        waiting = ((uid, entry) for uid, entry in entries.items() if entry.admission is None)
        return [
            uid for uid, entry in waiting if any(one.resource_claims or named_in(one, names) for one in _specs(entry))
        ]

    @property
    def hindered(self) -> tuple[str, ...]:
        """The ids of jobs that wait, as what their pods ask for is not counted."""
        return tuple(self._hindered)

    def made_of(self, template: str) -> list[str]:
        """The ids of jobs that have claims of a template (``namespace/name``)."""
        return [uid for uid, names in self._templates.items() if template in names]

    @staticmethod
    def has_claims(entry: WorkloadEntry) -> bool:
        """Whether pods of a job have resource claims, or are to have."""
        return any(claims_in_words(spec) for spec in _specs(entry))

    def set_node(self, before: Node | None, now: Node | None) -> list[str]:
        """A node came, changed or went: the ids of jobs that ask for what some node publishes now, or none any more."""
        was, has = _published(before), _published(now)
        turned: set[str] = set()
        for change, names in ((1, has - was), (-1, was - has)):
            for name in names:
                self._nodes[name] += change
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
