"""Jobs that Kueue started, in namespaces that are served here by now: what they have is held, and their pods run on.

Rules
- Kueue's Workload says by which queue and flavors a job runs; the job's pods say where. Nothing is written to the job.
  Its pods get the marks of pods that were let go here (`MarkPods`); until those are seen, they count by their uids.
- What runs is never refused, for want of quota or for a request that is none here: to suspend the job would end its
  pods. What cannot be held as it is leaves the job running, and says why; each look tries again.
- Pods that are missing get the slots that Kueue has for them, as far as there is room; the job grows later else. One of
  which no pod runs, and that has no room, is suspended, and waits.
- Kueue labels the templates that it starts (0.13 and newer), and they lose that when their job is put back here. So a
  job without the label, and one that was admitted here once, is none of Kueue's: who resumes it by hand has it
  suspended again.
- Kueue admits a job before it resumes it, and two watches may tell of that in the other order: a job that is labelled
  and not admitted has a moment.
- Owners that are known by their pods are not taken over. Their pods run on, and as long as they do, others wait.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from crds import kueue_assignment
from crds.constants import HOSTNAME_LABEL, KUEUE_POD_SET
from engine.model import PODS, Amounts, Flavor
from engine.quantity import parse
from kube.objects import Pod, condition, is_true
from kube.pods import convert
from queueing.model import at_least
from ungater.cache.claims.device_quota import DeviceQuota
from ungater.cache.core import Core
from ungater.cache.held.admissions import Admissions
from ungater.cache.held.kept_pods import claim_slots, has_room, largest_amounts
from ungater.cache.held.reservations import Reservations
from ungater.cache.served import BesideKueue
from ungater.jobs.pod_group import mark_of
from ungater.model import kueue_objects
from ungater.model.admission import Admission, PodSetAssignment, assign_pod_set
from ungater.model.conditions import ADMITTED, moment
from ungater.model.job_view import PodSetView
from ungater.model.kueue_objects import KueuePodSetAssignment, KueueWorkload
from ungater.model.pod_slots import PodSetSlots, Slot, Values, finished, is_gated
from ungater.model.taken_over import TakenOver
from ungater.model.workload_entry import WorkloadEntry

LATE: Final = 10.0  # seconds for which a job runs before it is known whether Kueue has admitted it


class _NotAdoptedError(Exception):
    """Why what a job has cannot be held; the text is for people."""


class AdoptedAdmissions:
    """See the module's rules."""

    def __init__(
        self,
        core: Core,
        admissions: Admissions,
        reservations: Reservations,
        quota: DeviceQuota,
        beside: BesideKueue,
    ) -> None:
        self._beside = beside
        self._keys = core.keys
        self._state = core.state
        self._queues = core.queues
        self._clock = core.clock
        self._admissions = admissions
        self._reservations = reservations
        self._quota = quota
        self._hosts: tuple[int, Mapping[str, str]] = -1, {}  # of a layout of the cluster: node by host name
        self._core = core

    def resume_adoption(self, entry: WorkloadEntry) -> None:
        """At a start: one that was taken over may have pods whose marks were not written yet."""
        kueue = self._beside.find(entry.id) if entry.admission is not None and not entry.job.suspended else None
        if kueue is not None and _is_admitted(kueue) and all(map(_is_started, entry.job.pod_sets)):
            entry.take_over(_taken(kueue))
        self.look_at(entry)

    def look_at(self, entry: WorkloadEntry) -> None:
        """Before a look at a job: take over what it has, if Kueue started it, or know why not."""
        if entry.admission is not None:
            self._count_unmarked(entry)
        else:
            entry.leave_running(self._adopt(entry))

    def started_by_kueue(self, entry: WorkloadEntry) -> TakenOver | None:
        """What is known of Kueue's Workload of a job that runs; None where it has none."""
        kueue = self._beside.find(entry.id) if not entry.job.suspended else None
        return _taken(kueue) if kueue is not None else None

    def is_on_hold(self, entry: WorkloadEntry) -> bool:
        """Whether Kueue has a job that waits, and was told to keep it waiting."""
        kueue = self._beside.find(entry.id)
        return kueue is not None and not kueue.spec.active

    def _count_unmarked(self, entry: WorkloadEntry) -> None:
        if entry.taken is None:
            return
        # One that ends too: its node has no room for another before it is gone.
        pods = entry.pods.items()
        unmarked = frozenset(uid for uid, pod in pods if mark_of(pod, self._keys) is None and self._is_of_kueue(pod))
        more = unmarked - entry.adopting
        entry.adopt_pods(unmarked)
        if more and entry.admission is not None:
            # They were charged beside their slots, as pods that nobody let go.
            self._admissions.hold_admission(entry, entry.admission)

    def _is_of_kueue(self, pod: Pod) -> bool:
        """Whether Kueue started a pod, and it may run."""
        started = KUEUE_POD_SET in (pod.metadata.labels or {})
        return started and not is_gated(pod, self._keys.gate) and not finished(pod)

    def _adopt(self, entry: WorkloadEntry) -> str:
        """Take over what a job has; why it is left running instead, "" where it is not."""
        job = entry.job
        if job.over or job.suspended or not job.queue:
            return ""
        if not job.suspendable:
            return self._pods_of_others(entry)
        if not _may_be_taken_over(entry):
            return ""
        if not self._beside.is_known():
            return "Kueue's Workloads could not be read, so it is not known whether Kueue admitted it"
        kueue = self._beside.find(entry.id)
        if kueue is None:
            return entry.unadopted if entry.ran_by_kueue else ""
        return self._take_over(entry, kueue) if _is_admitted(kueue) else self._unadmitted(entry, kueue)

    def _unadmitted(self, entry: WorkloadEntry, kueue: KueueWorkload) -> str:
        """Why one that runs and that Kueue has not admitted is left running; "" where it is not."""
        if is_true(kueue.status.conditions, kueue_objects.EVICTED) and kueue.status.admission is not None:
            entry.run_by_kueue()
            return "Kueue was evicting it: suspend it, or have Kueue serve its namespace again"
        late = self._clock() - entry.see_running(self._clock()) < LATE
        return "Kueue has not admitted it yet" if late else ""

    def _take_over(self, entry: WorkloadEntry, kueue: KueueWorkload) -> str:
        entry.run_by_kueue()
        try:
            admission = self._admission(entry, kueue)
            if not admission.count and any(pod.spec.node_name and not finished(pod) for pod in entry.pods.values()):
                raise _NotAdoptedError("none of its nodes is there any more")  # noqa: TRY301
        except _NotAdoptedError as error:
            return f"what Kueue has admitted cannot be held here: {error}"
        if not admission.count:
            return ""  # none of its pods runs, and there is no room for one: it waits for that as others do
        if entry.observed is None:
            entry.forget_workload(entry.job.queue)
        entry.take_over(_taken(kueue))
        entry.adopt_pods(frozenset(uid for uid, pod in entry.pods.items() if self._is_of_kueue(pod)))
        self._admissions.hold_admission(entry, admission)
        entry.mark_started()
        return ""

    def _pods_of_others(self, entry: WorkloadEntry) -> str:
        """Why pods of an owner that is known by them wait; "" where Kueue started none that runs."""
        ran = [pod for pod in entry.pods.values() if mark_of(pod, self._keys) is None and self._is_of_kueue(pod)]
        names = sorted(pod.metadata.name for pod in ran if pod.spec.node_name)
        if not names:
            return ""
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return (
            f"Kueue started pod {names[0]}{more}, and pods of {entry.job.kind} are not taken over: they run on, and "
            "its other pods wait until these have ended"
        )

    # --- what it has -----------------------------------------------------------------------------------------------

    def _admission(self, entry: WorkloadEntry, kueue: KueueWorkload) -> Admission:
        """What a job has by Kueue's Workload and by its pods. Raises _NotAdoptedError."""
        given = kueue.status.admission or kueue_objects.KueueAdmission()
        queue = self._queue(entry, given.cluster_queue)
        by_name = {one.name.lower(): one for one in given.pod_set_assignments}
        whole: list[PodSetAssignment] = []
        present: list[PodSetAssignment] = []
        pods: dict[str, list[Pod]] = {}
        for pod_set in entry.job.pod_sets:
            part = by_name.get(pod_set.name.lower())
            if part is None:
                raise _NotAdoptedError(f"it has no pod set {pod_set.name}")
            pods[pod_set.name] = mine = [
                pod
                for pod in sorted(entry.pods_of_pod_set(pod_set), key=lambda pod: pod.metadata.name)
                if not finished(pod) and not is_gated(pod, self._keys.gate)
            ]
            for found, missing in ((whole, True), (present, False)):
                found.append(self._part(queue, pod_set, part, mine, missing=missing))
        # With the slots of pods that are missing only where others have not taken their room.
        complete = self._fits(entry, whole, pods)
        return Admission(queue, tuple(whole if complete else present))

    def _queue(self, entry: WorkloadEntry, queue: str) -> str:
        """The ClusterQueue by which a job runs, in Kueue and here. Raises _NotAdoptedError."""
        job, queues = entry.job, self._queues
        local = queues.config.local.get((job.namespace, job.queue))
        if local is None:
            raise _NotAdoptedError(f"there is no LocalQueue {job.queue} of topogate.dev in namespace {job.namespace}")
        if local.cluster_queue != queue:
            raise _NotAdoptedError(
                f"LocalQueue {job.queue} leads to {local.cluster_queue} here, and to {queue} in Kueue"
            )
        if queue not in queues.quotas.queues:
            raise _NotAdoptedError(f"there is no ClusterQueue {queue} of topogate.dev")
        return queue

    def _part(
        self, queue: str, pod_set: PodSetView, part: KueuePodSetAssignment, pods: list[Pod], *, missing: bool
    ) -> PodSetAssignment:
        """What a pod set has, with the slots of its ``missing`` pods or without. Raises _NotAdoptedError."""
        flavors = dict(part.flavors or {})
        for resource, flavor in flavors.items():
            if flavor not in self._queues.config.plain and flavor not in self._state.flavors:
                raise _NotAdoptedError(f"there is no ResourceFlavor {flavor} of topogate.dev")
            if not self._queues.quotas.has_quota(queue, (flavor, resource)):
                raise _NotAdoptedError(f"ClusterQueue {queue} has no quota of {resource} in flavor {flavor}")
        rooms = [self._state.flavors[name] for name in dict.fromkeys(flavors.values()) if name in self._state.flavors]
        if len(rooms) > 1:
            raise _NotAdoptedError(f"flavors {rooms[0].name} and {rooms[1].name} both have a topology")
        if not rooms and part.topology_assignment is not None:
            raise _NotAdoptedError(f"Kueue placed pod set {pod_set.name}, and none of its flavors has a topology here")
        takes = self._takes(pod_set, part, pods)
        slots, count = None, max(len(pods), _needed(pod_set, part)) if missing else len(pods)
        if rooms:
            slots = self._slots(rooms[0], pod_set, part, pods, missing=missing)
            count = slots.total
        mine = {name: flavor for name, flavor in flavors.items() if name == PODS or takes.get(name)}
        made = assign_pod_set(pod_set.name, count, takes, mine, None)
        return PodSetAssignment(made.name, made.count, made.flavors, made.usage, slots if count else None)

    def _takes(self, pod_set: PodSetView, part: KueuePodSetAssignment, pods: list[Pod]) -> Amounts:
        """What one of its pods takes of quota: by Kueue, by the pods that run, and by their template, the most of each.

        Kueue counts what its settings add, and leaves out what they exclude. Raises _NotAdoptedError.
        """
        said = part.resource_usage or {}
        try:
            whole = {name: parse(name, str(amount)) for name, amount in said.items() if name != PODS}
        except ValueError as error:
            raise _NotAdoptedError(f"resourceUsage of pod set {pod_set.name}: {error}") from error
        used = {name: -(-amount // max(1, part.count or 1)) for name, amount in whole.items()}
        own = convert.pod_requests(pod_set.template.spec)
        charged = largest_amounts(map(self._quota.quota_of_pod, pods)) if pods else own
        return at_least(at_least(charged, own), used)

    def _slots(
        self, flavor: Flavor, pod_set: PodSetView, part: KueuePodSetAssignment, pods: list[Pod], *, missing: bool
    ) -> PodSetSlots:
        """The slots of a pod set: those that its pods are in, and those that Kueue has for others of it.

        Raises _NotAdoptedError.
        """
        counts: Counter[Values] = Counter()
        for pod in pods:
            if (place := self._place_of_pod(flavor, pod)) is not None:
                counts[place] += 1
        order = list(dict.fromkeys([*self._domains(flavor, pod_set, part), *sorted(counts)]))
        if missing:
            assigned, left = self._domains(flavor, pod_set, part), _needed(pod_set, part) - counts.total()
            for place, count in assigned.items():
                more = min(max(0, count - counts[place]), max(0, left))
                counts[place] += more
                left -= more
        slots = PodSetSlots(flavor.levels, tuple(Slot(one, counts[one]) for one in order if counts[one]), flavor.name)
        for pod in pods:
            # A pod that is in none of the slots would be deleted, so that another comes to one.
            if pod.spec.node_name in self._state.nodes and slots.of_selector(pod.spec.node_selector) is None:
                lacks = ", ".join(flavor.levels)
                raise _NotAdoptedError(
                    f"the node selector of pod {pod.metadata.name} names no domain of flavor {flavor.name} ({lacks})"
                )
        return slots

    def _place_of_pod(self, flavor: Flavor, pod: Pod) -> Values | None:
        """The domain that a pod is in, or was sent to; None where that is gone. Raises _NotAdoptedError."""
        selector = pod.spec.node_selector or {}
        name = pod.spec.node_name or self._node_of_host(selector.get(HOSTNAME_LABEL, ""))
        node = self._state.nodes.get(name)
        if node is None and not pod.spec.node_name and all(level in selector for level in flavor.levels):
            return tuple(selector[level] for level in flavor.levels)
        if node is None:
            return None
        if not flavor.node_labels.items() <= node.labels.items():
            raise _NotAdoptedError(
                f"pod {pod.metadata.name} is on node {node.name}, which flavor {flavor.name} does not have"
            )
        return tuple(node.labels.get(level, "") for level in flavor.levels)

    def _domains(self, flavor: Flavor, pod_set: PodSetView, part: KueuePodSetAssignment) -> dict[Values, int]:
        """The domains that Kueue assigned, as they are named here, in its order; those that are gone are left out."""
        if part.topology_assignment is None:
            return {}
        try:
            levels, domains = kueue_assignment.decode(part.topology_assignment)
            tree = self._state.tree(flavor.name)
            found: dict[Values, int] = {}
            for values, count in domains:
                place = self._values_of(flavor, levels, values)
                if place is not None and tree is not None and place in tree.domain_of:
                    found[place] = found.get(place, 0) + count
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise _NotAdoptedError(f"topologyAssignment of pod set {pod_set.name} cannot be read: {error}") from error
        return found

    def _values_of(self, flavor: Flavor, levels: tuple[str, ...], values: Values) -> Values | None:
        if levels == flavor.levels:
            return values
        if levels[-1:] != (HOSTNAME_LABEL,):
            return None
        node = self._state.nodes.get(self._node_of_host(values[-1]))
        return tuple(node.labels.get(level, "") for level in flavor.levels) if node is not None else None

    def _node_of_host(self, host: str) -> str:
        """The node of this host name; "" where there is none."""
        layout = self._core.layout
        # By node: host names are labels, which may differ from names. Only jobs that are taken over ask for it.
        if self._hosts[0] != layout:
            self._hosts = (
                layout,
                {node.labels.get(HOSTNAME_LABEL, ""): name for name, node in self._state.nodes.items()},
            )
        return self._hosts[1].get(host, "") if host else ""

    def _fits(self, entry: WorkloadEntry, parts: list[PodSetAssignment], pods: Mapping[str, list[Pod]]) -> bool:
        """Whether there is room for these slots, those of pods that are missing included."""
        state = self._state
        checkpoint = state.begin()
        try:
            for name, mine in pods.items():
                claim_slots(state, entry.key, name, mine)
            placed = [self._reservations.assignment(entry, part) for part in parts if part.slots is not None]
            state.restore_slots(entry.key, placed)
            return has_room(state, list(state.assignments(entry.key).values()))
        finally:
            state.rollback(checkpoint)


def _may_be_taken_over(entry: WorkloadEntry) -> bool:
    """Whether Kueue started a job, and nobody here has admitted it since."""
    said = condition(entry.observed.conditions, ADMITTED) if entry.observed is not None else None
    return said is None and not entry.given_back and all(map(_is_started, entry.job.pod_sets))


def _needed(pod_set: PodSetView, part: KueuePodSetAssignment) -> int:
    """How many pods a pod set needs now, as far as Kueue admitted them."""
    return pod_set.count if part.count is None else min(pod_set.count, part.count)


def _is_started(pod_set: PodSetView) -> bool:
    """Whether Kueue started the pods of a template."""
    return KUEUE_POD_SET in (pod_set.template.metadata.labels or {})


def _is_admitted(kueue: KueueWorkload) -> bool:
    """Whether a job runs by Kueue's Workload."""
    said, status = kueue.status.conditions, kueue.status
    ends = is_true(said, kueue_objects.EVICTED) or is_true(said, kueue_objects.FINISHED)
    return status.admission is not None and is_true(said, kueue_objects.ADMITTED) and not ends


def _taken(kueue: KueueWorkload) -> TakenOver:
    said = condition(kueue.status.conditions, kueue_objects.ADMITTED)
    executed = max(0, kueue.status.accumulated_past_execution_time_seconds or 0)
    return TakenOver(kueue.metadata.name, executed, moment(said.last_transition_time) if said is not None else None)
