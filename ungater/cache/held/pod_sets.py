"""What a job asks for, as the engine and queueing take it: its pod sets, its priority, and the nodes it keeps off."""

from collections.abc import Sequence

import msgspec

from crds.request import ParsedRequest, unresolved
from engine.claims.asks import DeviceAsk
from engine.cluster.state import ClusterState
from engine.cluster.unusable_slots import closed
from engine.devices.first_fits import aligned
from engine.model import HOSTNAME_LABEL, PodSet, Policy, TopologyRequest
from kube.pods import convert
from queueing.model import at_least
from ungater.cache.claims.device_claims import DeviceClaims
from ungater.cache.claims.pod_volumes import PodVolumes
from ungater.cache.config import PriorityClasses
from ungater.cache.core import Core
from ungater.model.job_view import JobView, PodSetView
from ungater.model.pod_slots import PodSetSlots, finished
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.granted import granted_devices

ONE_NODE = TopologyRequest(policy=Policy.REQUIRED, level=HOSTNAME_LABEL)
SHARED = "exclusive"  # the group of pod sets that have a domain alone, together


class RequestedPodSets:
    """See the module."""

    def __init__(self, core: Core, priorities: PriorityClasses, volumes: PodVolumes, devices: DeviceClaims) -> None:
        self._state = core.state
        self._queues = core.queues
        self._priorities = priorities
        self._volumes = volumes
        self._devices = devices
        self._quota = devices.quota
        self._in_flight = core.inside.in_flight
        self._mismatches = core.inside.mismatches
        self._refusals = core.inside.refusals
        self._node_refusals = core.inside.node_refusals

    def pod_set(
        self, entry: WorkloadEntry, owned: PodSetView, topology: TopologyRequest, count: int | None = None
    ) -> PodSet:
        """The engine's view of one pod set, whose pods keep off nodes that refused such pods a short time ago."""
        found = convert.pod_set(
            owned.name,
            owned.count if count is None else count,
            owned.template,
            _of_owner(topology, entry.job),
            entry.job.namespace,
            group=_group_of(self._state, entry.job, owned),
            shape=owned.shape,
            without=self.avoided_nodes(entry, owned),
            added=self._priorities.added(owned),
        )
        found = self._volumes.added(entry, owned, found)
        if (devices := _claims_per_pod(self._devices, entry, owned)) is not None:
            reach = self._devices.named.reach(entry.job.namespace, owned.template.spec)
            # Nobody knows which devices a shared claim will get, so its pods go to
            # one node that has some; not where all nodes reach whatever it may get.
            one = devices.shared and not self._state.cluster.devices.common.spread(devices)
            where = ONE_NODE if one else found.topology
            found = msgspec.structs.replace(found, devices=devices, claim_nodes=reach, topology=where)
        asked = at_least(entry.asked.get(owned.name, {}), entry.granted(owned.name) or {})
        more = self._quota.beside_nodes(asked)
        if (entry.job.foretold or entry.asked_for_more) and entry.admission is None:  # its pods' template is not all
            # By the largest pod: all pods of a pod set are placed alike,
            # and a smaller slot would take none of the larger ones.
            for pod in entry.pods_of_pod_set(owned):
                more = more if finished(pod) else at_least(more, convert.pod_requests(pod.spec))
        return msgspec.structs.replace(found, requests=at_least(found.requests, more)) if more else found

    def avoided_nodes(self, entry: WorkloadEntry, owned: PodSetView, now: float | None = None) -> frozenset[str]:
        """The nodes that the pods of a pod set keep off now: they refused such a pod, or would as things stand."""
        refused = self._mismatches.nodes_to_avoid(owned.shape, now) | self._refusals.avoided_nodes(entry, owned, now)
        return refused | self._in_flight.left_out(entry, owned.shape, now) | self._node_refusals.avoided_names(now)

    def wish(self, entry: WorkloadEntry) -> tuple[PodSet, ...]:
        """What a job asks for, as queueing takes it: its pod sets that need pods, or all where it holds something."""
        pod_sets, observed = entry.job.pod_sets, entry.observed
        holds = entry.admission is not None or (observed is not None and observed.admission is not None)
        # Pod sets without pods stay in what is stored, so a workload that holds something keeps all of them.
        whole = holds or len(pod_sets) == 1
        wanted = pod_sets if whole else [one for one in pod_sets if one.count] or pod_sets[:1]
        return tuple([self.pod_set(entry, one, _unresolved(one.request)) for one in wanted])

    def priority_of_entry(self, entry: WorkloadEntry) -> int:
        """The priority with which a job waits: that of its Workload, where it has a queue."""
        queued = entry.job.queue and entry.observed is not None
        # Administrators may change the priority of a Workload; the class says only what it was made with.
        return (
            entry.observed.effective_priority
            if queued and entry.observed is not None
            else self._priorities.priority_of_job(entry.job)
        )

    def lost(
        self, entry: WorkloadEntry, owned: PodSetView, slots: PodSetSlots, wanted: Sequence[int]
    ) -> tuple[int, ...]:
        """The slices among ``wanted`` where no pod of the pod set can start now."""
        pod_set = unrestricted_pod_set(self._state, self._priorities, self._volumes, self._devices, entry, owned)

        def unusable() -> tuple[int, ...]:
            places = [(slots.slots[index].values, slots.slots[index].node) for index in wanted]
            found = closed(self._state, slots.flavor, slots.levels, pod_set, places)
            return tuple(index for index, is_closed in zip(wanted, found, strict=True) if is_closed)

        lost = unusable()
        # Room that victims and their preemptor both hold makes nodes
        # look full: before pods are moved for that, it is counted once.
        if not lost or not self._queues.holders.promised():
            return lost
        with self._queues.holders.counted_once(self._state):
            return unusable()


def unrestricted_pod_set(  # noqa: PLR0917  (what is known, then of which pod set)
    state: ClusterState,
    priorities: PriorityClasses,
    volumes: PodVolumes,
    claims: DeviceClaims,
    entry: WorkloadEntry,
    owned: PodSetView,
) -> PodSet:
    """One pod of a pod set, which keeps off no node."""
    shares = owned.request.shares if owned.request is not None else None
    unconstrained = _of_owner(TopologyRequest(policy=Policy.UNCONSTRAINED, shares=shares), entry.job)
    found = convert.pod_set(
        owned.name,
        1,
        owned.template,
        unconstrained,
        entry.job.namespace,
        group=_group_of(state, entry.job, owned),
        added=priorities.added(owned),
    )
    attached = volumes.added(entry, owned, found).attached
    devices = _claims_per_pod(claims, entry, owned)
    if devices is None and not (attached.own or attached.shared):
        return found
    return msgspec.structs.replace(found, attached=attached, devices=devices)


def _group_of(state: ClusterState, owner: JobView, owned: PodSetView) -> str:
    """The name of those of its pod sets that share one domain of what they ask for; "" where this one does not."""
    if owned.request is None or len(owner.pod_sets) < 2:
        return ""
    if owned.request.group or not owned.shared:
        return owned.request.group
    asks = [one.request for one in owner.pod_sets]
    alike = all(one is not None and one.same_request(owned.request) and not one.slices for one in asks)
    flavors = [flavor.levels for flavor in state.flavors.values() if owned.shared in flavor.levels]
    level = owned.request.level
    inside = owned.request.policy is Policy.REQUIRED and any(
        level in levels and levels.index(level) > levels.index(owned.shared) for levels in flavors
    )
    # A required level inside the shared domain binds each pod set to a domain of its own there.
    return SHARED if alike and not inside else ""


def _of_owner(topology: TopologyRequest, owner: JobView) -> TopologyRequest:
    """The request with its owner's uid, where that is what says who belongs together."""
    if topology.shares is None or topology.shares.key:
        return topology
    return msgspec.structs.replace(topology, shares=msgspec.structs.replace(topology.shares, owner=owner.uid))


def _claims_per_pod(claims: DeviceClaims, entry: WorkloadEntry, owned: PodSetView) -> DeviceAsk | None:
    """The claims of each pod: those that it was admitted with, else (after a start too) what its template asks for."""
    if entry.grant is not None:
        return granted_devices(entry, owned.name)
    found = claims.claimed.device_ask_of_spec(entry.job.namespace, owned.template.spec)
    if found is None or isinstance(found, str):
        return None
    shared = claims.named.shared(entry.job, owned.template.spec)
    return aligned(msgspec.structs.replace(found, shared=True) if shared else found, owned.shape)


def _unresolved(request: ParsedRequest | None) -> TopologyRequest:
    return unresolved(request) if request is not None else TopologyRequest(policy=Policy.UNCONSTRAINED)
