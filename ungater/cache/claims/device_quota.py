"""What pods take of quota for their devices: the DeviceClasses of a mapping count as one resource of ClusterQueues.

Rules (those of Kueue's ``deviceClassMappings``; source: its ``pkg/dra``, ``chargesForClaimSpec`` and
``resolveQuotaKey``, and KEP 2941)
- A request counts as so many of its class's resource as it asks for devices; alternatives count where each of them asks
  for as many of the same resource. What is asked for with ``adminAccess`` counts nothing.
- A channel of a ComputeDomain counts nothing, unless a mapping has its class: each node has one beside its devices.
  Kueue knows no such exception.
- An extended resource counts as the resource of the DeviceClass that stands for it, and not as itself too; where that
  class is in no mapping, as itself.
- A workload with a queue waits where that does not tell what its pods take: a class is in no mapping, all devices are
  asked for, alternatives differ, or a ResourceClaim is named that its pods share with others.
- What was granted to pods counts as long as they have it, whatever their templates and the mappings say by now.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from crds.names import is_of_nodes
from engine.claims.asks import DeviceAsk
from engine.claims.model import EXACT_COUNT, Ask, Request
from engine.claims.read.asks import claims_of
from engine.devices.compute_domains import CHANNELS
from engine.model import Amounts, Node, PodSet
from engine.quantity import bounded
from kube.objects import Pod, PodClaimStatus, PodSpec
from kube.pods.device_claims import DeviceClasses, made_of_templates
from kube.pods.requests import charged_requests, pod_requests
from kube.versions import SchedulerRules
from queueing.model import at_least
from ungater.cache.claims.claimed_devices import ClaimedDevices
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.granted import granted_devices

SETTING: Final = "deviceClassMappings"


class DeviceQuota:
    """See the module's rules. ``resources``: by DeviceClass, what its devices count as. ``nodes``: by name."""

    def __init__(
        self,
        resources: Mapping[str, str],
        claimed: ClaimedDevices,
        classes: DeviceClasses,
        nodes: Mapping[str, Node],
        scheduler: SchedulerRules,
    ) -> None:
        self._resources = dict(resources)
        self._names = frozenset(resources.values())
        self._claimed = claimed
        self._classes = classes
        self._nodes = nodes
        self._scheduler = scheduler

    def explain_unknown(
        self, namespace: str, spec: PodSpec, made: Iterable[PodClaimStatus] | None = None
    ) -> str | None:
        """Why it is not known what such pods take of quota; None where it is. ``made``: the claims that a pod has."""
        if not spec.resource_claims:
            return None
        # A named claim may be shared: counted for each pod it would
        # be paid several times, counted once by nobody in particular.
        if len(made_of_templates(spec)) < len(spec.resource_claims):
            return "quota counts no ResourceClaims that pods name, only those made of templates"
        ask = self._claimed.ask_of_templates(namespace, spec, made)
        return self._of_claims(ask, spec)[1] if isinstance(ask, DeviceAsk) else ask

    def charged(self, entry: WorkloadEntry, pod_set: PodSet) -> Amounts | None:
        """What one pod of a pod set takes of quota, where that is not what it takes of its node; else None."""
        owned = next((one for one in entry.job.pod_sets if one.name == pod_set.name), None)
        if owned is None or not _pays(entry):
            return None
        spec, requests = owned.template.spec, pod_set.requests
        # By what was granted, where it holds something: a template that changed since takes or frees no quota.
        had = granted_devices(entry, pod_set.name) if spec.resource_claims else None
        ask = self._ask_of_pod(entry.job.namespace, spec) if had is None else had
        requests = at_least(pod_requests(spec), requests) if self._classes.asked_by(spec) else requests
        found = self._takes(requests, spec, ask)
        # Never less than it was granted: a mapping that is taken away must not make running devices free.
        for wished in (entry.asked.get(pod_set.name), entry.granted(pod_set.name)):
            if logical := {name: amount for name, amount in (wished or {}).items() if self._is_logical(name)}:
                found = at_least(found, logical)
        return None if found is pod_set.requests or found == pod_set.requests else found

    def of_pods(
        self, entry: WorkloadEntry, requests: Amounts, spec: PodSpec, made: Iterable[PodClaimStatus] | None = None
    ) -> Amounts:
        """What one pod takes of what its workload was granted; ``requests``: of a node."""
        if not _pays(entry):
            return requests
        return self._takes(requests, spec, self._ask_of_pod(entry.job.namespace, spec, made))

    def asked_by(self, pod: Pod) -> Amounts:
        """What a pod that runs takes, where its node may not say more than it has (`charged_requests`)."""
        node = self._nodes.get(pod.spec.node_name)
        return charged_requests(pod, node.allocatable if node is not None else {}, self._scheduler)

    def quota_of_pod(self, pod: Pod) -> Amounts:
        """What a pod that runs takes of the quota of a queue."""
        made = pod.status.resource_claim_statuses
        return self._takes(self.asked_by(pod), pod.spec, self._ask_of_pod(pod.metadata.namespace, pod.spec, made))

    def of_nodes(self, asks: Amounts, template: PodSpec) -> Amounts:
        """What pods take of their nodes that were granted so much for each."""
        found = {name: amount for name, amount in asks.items() if not self._is_logical(name)}
        moved = self._counted_as(template)
        if len(found) == len(asks) and not moved:
            return asks
        requests = pod_requests(template)
        return {**{name: amount for name, amount in requests.items() if name in moved or name in asks}, **found}

    def beside_nodes(self, asks: Amounts) -> Amounts:
        """The same without what is counted for quota alone."""
        return {name: amount for name, amount in asks.items() if not self._is_logical(name)}

    def _ask_of_pod(
        self, namespace: str, spec: PodSpec, made: Iterable[PodClaimStatus] | None = None
    ) -> DeviceAsk | str | None:
        return self._claimed.ask_of_templates(namespace, spec, made) if spec.resource_claims else None

    def _is_logical(self, name: str) -> bool:
        """Whether a resource is one of a mapping, or was: containers may not ask for others without a domain."""
        # By its form too: a stored grant may name a resource of a mapping that is gone.
        return name in self._names or ("/" not in name and not is_of_nodes(name))

    def _takes(self, requests: Amounts, spec: PodSpec, ask: DeviceAsk | str | None) -> Amounts:
        """What is known of it."""
        moved = self._counted_as(spec)
        if not moved and not isinstance(ask, DeviceAsk):
            return requests
        found = {name: amount for name, amount in requests.items() if name not in moved}
        of_claims = self._of_claims(ask, spec)[0] if isinstance(ask, DeviceAsk) else {}
        more = [(logical, requests[name]) for name, logical in moved.items() if name in requests]
        for name, amount in (*more, *of_claims.items()):
            # Bounded at each step: a claim may ask for any number of devices, and sums must stay within 64 bits.
            found[name] = bounded(found.get(name, 0) + amount)
        return found

    def _counted_as(self, spec: PodSpec) -> dict[str, str]:
        """The extended resources of pods that do not count as themselves, with what they count as."""
        if not self._resources:
            return {}
        classes = {name: self._classes.of_resource(name) for name in self._classes.asked_by(spec)}
        return {name: self._resources[one] for name, one in classes.items() if one in self._resources}

    def _of_claims(self, ask: DeviceAsk, spec: PodSpec) -> tuple[Amounts, str | None]:
        """What claims that are made of templates take, as far as that is known, and why the rest is not."""
        found: Amounts = {}
        wrong: str | None = None
        own = made_of_templates(spec)
        for (name, _), claim in zip(ask.named, claims_of(ask), strict=True):
            for request in claim.requests if name in own else ():
                one = self._of_request(request)
                if isinstance(one, str):
                    wrong = wrong or f'request "{request.name}" of claim "{name}" {one}'
                elif one is not None:
                    found[one[0]] = bounded(found.get(one[0], 0) + one[1])
        return found, wrong

    def _of_request(self, request: Request) -> tuple[str, int] | str | None:
        """What it counts as, and how many; None where it counts nothing, a text why that is not known."""
        if request.exactly is not None:
            return None if request.exactly.admin else self._of_ask(request.exactly)
        found = [self._of_ask(one) for one in request.alternatives]
        if (wrong := next((one for one in found if isinstance(one, str)), None)) is not None:
            return wrong
        # The scheduler takes the first alternative that fits, so only equal charges are known before.
        if len(set(found)) != 1:
            return "has alternatives that count differently, and quota does not know which of them it gets"
        return found[0]

    def _of_ask(self, ask: Ask) -> tuple[str, int] | str | None:
        resource = self._resources.get(ask.class_name)
        if resource is None and ask.class_name == CHANNELS:
            return None
        if ask.mode != EXACT_COUNT:
            return f"asks for devices by {ask.mode}, and quota counts numbers of them"
        if resource is None:
            return f'asks for DeviceClass "{ask.class_name}", which no entry of {SETTING} has: quota does not count it'
        return resource, max(0, ask.count)


def _pays(entry: WorkloadEntry) -> bool:
    """Whether a queue pays for it, or is to."""
    return bool(entry.admission.queue if entry.admission is not None else entry.job.queue)
