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
  suspended again. What is started here has the label too, so that Kueue could go on with it; such a job has no Workload
  of Kueue's that is admitted, or has one because Kueue took it back.
- While Kueue's Workloads cannot be read, a job that ran when the term began is left running. One that was started later
  is none of Kueue's, which leaves the namespace out: so nobody has a job run uncounted by labelling its template.
- Kueue admits a job before it resumes it, and two watches may tell of that in the other order: a job that is labelled
  and not admitted has a moment.
- Owners that are known by their pods are not taken over. Their pods run on, and as long as they do, others wait.
"""

from typing import Final

from crds.constants import KUEUE_POD_SET
from crds.kueue.names import kueue_workload_name
from engine.model import PODS, Amounts
from engine.quantity import parse
from kube.objects import Pod, condition, is_true
from kube.pods import convert
from queueing.model import at_least
from ungater.cache.claims.device_quota import DeviceQuota
from ungater.cache.core import Core
from ungater.cache.held.admissions import Admissions
from ungater.cache.held.kept_pods import claim_slots, has_room, largest_amounts
from ungater.cache.held.kueue_places import KueuePlaces, NotAdoptedError, needed_pods
from ungater.cache.held.reservations import Reservations
from ungater.cache.served import BesideKueue
from ungater.jobs.pod_group import mark_of
from ungater.model import kueue_objects
from ungater.model.admission import Admission, PodSetAssignment, assign_pod_set
from ungater.model.conditions import ADMITTED, moment
from ungater.model.job_view import PodSetView
from ungater.model.kueue_objects import KueuePodSetAssignment, KueueWorkload, TakenOver
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry

LATE: Final = 10.0  # seconds for which a job runs before it is known whether Kueue has admitted it
PARTING: Final = 60.0  # seconds of a term in which Kueue may not have seen yet that the namespace is not its own
UNREAD: Final = "Kueue's Workloads could not be read, so it is not known whether Kueue admitted it"


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
        self._places = KueuePlaces(core)
        self._began = core.clock()
        self._ran: set[str] = set()  # by id, jobs that have been running since the term began

    def resume_adoption(self, entry: WorkloadEntry) -> None:
        """At a start: one that was taken over may have pods whose marks were not written yet."""
        self._began = self._clock()
        if not entry.job.suspended:
            self._ran.add(entry.id)
        kueue = self._beside.find(entry.id) if entry.admission is not None and not entry.job.suspended else None
        if kueue is not None and _is_admitted(kueue) and all(map(_is_started, entry.job.pod_sets)):
            entry.take_over(_taken(kueue))
        self.look_at(entry)

    def look_at(self, entry: WorkloadEntry) -> None:
        """Before a look at a job: take over what it has, if Kueue started it, or know why not."""
        if entry.admission is None:
            entry.leave_running(self._adopt(entry))
            return
        if entry.taken is None:
            return
        # One that ends too: its node has no room for another before it is gone.
        pods = entry.pods.items()
        unmarked = frozenset(uid for uid, pod in pods if mark_of(pod, self._keys) is None and self._is_of_kueue(pod))
        more = unmarked - entry.adopting
        entry.adopt_pods(unmarked)
        if more:
            # They were charged beside their slots, as pods that nobody let go.
            self._admissions.hold_admission(entry, entry.admission)

    def started_by_kueue(self, entry: WorkloadEntry) -> TakenOver | None:
        """What is known of Kueue's Workload of a job that runs; None where it has none."""
        kueue = self._beside.find(entry.id) if not entry.job.suspended else None
        return _taken(kueue) if kueue is not None else None

    def is_on_hold(self, entry: WorkloadEntry) -> bool:
        """Whether Kueue has a job that waits, and was told to keep it waiting."""
        kueue = self._beside.find(entry.id)
        return kueue is not None and not kueue.spec.active

    def name_in_kueue(self, entry: WorkloadEntry) -> str:
        """The name for the Workload by which Kueue could take a job back that is started here; none has it yet.

        A pod that names a Workload of Kueue's that is there, and has no place on the pod's node, is failed by Kueue
        before it is bound, in whatever namespace (0.19.2, pkg/controller/tas/node_controller.go, getPodsToTerminate).
        """
        kueue, job = self._beside.find(entry.id), entry.job
        # One name for as long as the job waits: its start may be sent twice, and the second must not change it.
        extra = kueue.metadata.name if kueue is not None else ""
        return kueue_workload_name(job.kind, job.api_version, job.name, job.uid, extra)

    def _is_of_kueue(self, pod: Pod) -> bool:
        """Whether Kueue started a pod, and it may run."""
        started = KUEUE_POD_SET in (pod.metadata.labels or {})
        return started and not is_gated(pod, self._keys.gate) and not finished(pod)

    def _adopt(self, entry: WorkloadEntry) -> str:
        """Take over what a job has; why it is left running instead, "" where it is not."""
        job = entry.job
        if job.over or job.suspended:
            self._ran.discard(entry.id)
        if job.over or job.suspended or not job.queue:
            return ""
        if not job.suspendable:
            return self._pods_of_others(entry)
        # Who admitted it here answers for it, and who resumes it by hand is none of Kueue's.
        if not _may_be_taken_over(entry):
            return ""
        if not self._beside.is_known():
            may_be_kueues = entry.id in self._ran or self._clock() - self._began < PARTING
            return UNREAD if may_be_kueues else ""
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
                raise NotAdoptedError("none of its nodes is there any more")  # noqa: TRY301
        except NotAdoptedError as error:
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
        """What a job has by Kueue's Workload and by its pods. Raises NotAdoptedError."""
        given = kueue.status.admission or kueue_objects.KueueAdmission()
        queue, job = given.cluster_queue, entry.job
        local = self._queues.config.local.get((job.namespace, job.queue))
        if local is None:
            raise NotAdoptedError(f"there is no LocalQueue {job.queue} of topogate.dev in namespace {job.namespace}")
        if local.cluster_queue != queue:
            raise NotAdoptedError(
                f"LocalQueue {job.queue} leads to {local.cluster_queue} here, and to {queue} in Kueue"
            )
        if queue not in self._queues.quotas.queues:
            raise NotAdoptedError(f"there is no ClusterQueue {queue} of topogate.dev")
        # Kueue writes names of pod sets in lower case (0.19.2, ``NewPodSetReference``); a JobSet's may be in any.
        by_name = {one.name.lower(): one for one in given.pod_set_assignments}
        whole: list[PodSetAssignment] = []
        present: list[PodSetAssignment] = []
        pods: dict[str, list[Pod]] = {}
        for pod_set in entry.job.pod_sets:
            part = by_name.get(pod_set.name.lower())
            if part is None:
                raise NotAdoptedError(f"it has no pod set {pod_set.name}")
            pods[pod_set.name] = mine = [
                pod
                for pod in sorted(entry.pods_of_pod_set(pod_set), key=lambda pod: pod.metadata.name)
                if not finished(pod) and not is_gated(pod, self._keys.gate)
            ]
            for found, missing in ((whole, True), (present, False)):
                found.append(self._part(queue, pod_set, part, mine, missing=missing))
        # With the slots of pods that are missing only where others have not taken their room.
        state = self._state
        checkpoint = state.begin()
        try:
            for name, mine in pods.items():
                claim_slots(state, entry.key, name, mine)
            placed = [self._reservations.assignment(entry, part) for part in whole if part.slots is not None]
            state.restore_slots(entry.key, placed)
            complete = has_room(state, list(state.assignments(entry.key).values()))
        finally:
            state.rollback(checkpoint)
        return Admission(queue, tuple(whole if complete else present))

    def _part(
        self, queue: str, pod_set: PodSetView, part: KueuePodSetAssignment, pods: list[Pod], *, missing: bool
    ) -> PodSetAssignment:
        """What a pod set has, with the slots of its ``missing`` pods or without. Raises NotAdoptedError."""
        flavors = dict(part.flavors or {})
        for resource, flavor in flavors.items():
            if flavor not in self._queues.config.plain and flavor not in self._state.flavors:
                raise NotAdoptedError(f"there is no ResourceFlavor {flavor} of topogate.dev")
            if not self._queues.quotas.has_quota(queue, (flavor, resource)):
                raise NotAdoptedError(f"ClusterQueue {queue} has no quota of {resource} in flavor {flavor}")
        rooms = [self._state.flavors[name] for name in dict.fromkeys(flavors.values()) if name in self._state.flavors]
        if len(rooms) > 1:
            raise NotAdoptedError(f"flavors {rooms[0].name} and {rooms[1].name} both have a topology")
        if not rooms and part.topology_assignment is not None:
            raise NotAdoptedError(f"Kueue placed pod set {pod_set.name}, and none of its flavors has a topology here")
        takes = self._takes(pod_set, part, pods)
        slots, count = None, max(len(pods), needed_pods(pod_set, part)) if missing else len(pods)
        if rooms:
            slots = self._places.slots_of_pod_set(rooms[0], pod_set, part, pods, missing=missing)
            count = slots.total
        mine = {name: flavor for name, flavor in flavors.items() if name == PODS or takes.get(name)}
        made = assign_pod_set(pod_set.name, count, takes, mine, None)
        return PodSetAssignment(made.name, made.count, made.flavors, made.usage, slots if count else None)

    def _takes(self, pod_set: PodSetView, part: KueuePodSetAssignment, pods: list[Pod]) -> Amounts:
        """What one of its pods takes of quota: by Kueue, by the pods that run, and by their template, the most of each.

        Kueue counts what its settings add, and leaves out what they exclude. Raises NotAdoptedError.
        """
        said = part.resource_usage or {}
        try:
            whole = {name: parse(name, str(amount)) for name, amount in said.items() if name != PODS}
        except ValueError as error:
            raise NotAdoptedError(f"resourceUsage of pod set {pod_set.name}: {error}") from error
        # Kueue says what all pods take. Rounded up for each, as the rest would be lent to others while they use it.
        used = {name: -(-amount // max(1, part.count or 1)) for name, amount in whole.items()}
        own = convert.pod_requests(pod_set.template.spec)
        charged = largest_amounts(map(self._quota.quota_of_pod, pods)) if pods else own
        return at_least(at_least(charged, own), used)


def _may_be_taken_over(entry: WorkloadEntry) -> bool:
    """Whether Kueue started a job, and nobody here has admitted it since."""
    said = condition(entry.observed.conditions, ADMITTED) if entry.observed is not None else None
    return said is None and not entry.given_back and all(map(_is_started, entry.job.pod_sets))


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
