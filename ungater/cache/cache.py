"""What is known of the cluster, fed by informer events: the engine's state and one entry a job.

Rules
- The event of a pod costs the same in a cluster of any size: it changes charges, the place in one entry and what waits
  for it. Only the pods of its node, and workloads that name its PodGroup, may be looked at with it.
- A pod counts as ours (`ungater.cache.charges.pod_charges`) only if the job that controls it owns the Workload, our
  ungating patch marked it, and its node selector names one of the slots. What a user wrote on a pod decides nothing.
- `load` rebuilds everything from lists in a fixed order, so a restart ends in the same state as having been there. It
  does so in slices; nothing may change, and nobody may decide anything, before the last of them.

What an event changes is said in one file a kind: `jobs`, `pod_groups`, `pods`, `workloads`, `nodes`, `config`,
`volumes`, `devices`, `pdb`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from clock import Clock
from crds.constants import Keys
from crds.levels import LevelNames
from engine.cluster.state import ClusterState
from engine.model import Amounts
from engine.numa.score import AlignmentOverPacking, ZoneScore
from engine.reasons import Reason
from kube import objects
from kube.parents import JobSet
from kube.queues import ClusterQueue, Cohort, LocalQueue
from kube.versions import NEWEST, SchedulerRules
from queueing import model
from queueing.queues.queues import Queues
from ungater.cache.charges.left_pods import LeftPods
from ungater.cache.charges.pod_charges import Charges
from ungater.cache.claims.device_claims import DeviceClaims
from ungater.cache.claims.pod_volumes import PodVolumes
from ungater.cache.config import ClassEvents, ConfigEvents, PriorityClasses
from ungater.cache.core import Core, NodeInsides
from ungater.cache.devices import DeviceEvents
from ungater.cache.entries import Entries
from ungater.cache.held.admissions import Admissions
from ungater.cache.held.adopted import AdoptedAdmissions
from ungater.cache.held.pod_sets import RequestedPodSets, unrestricted_pod_set
from ungater.cache.held.rebuilt import RebuiltAdmissions
from ungater.cache.held.reservations import Reservations
from ungater.cache.jobs import JobEvents
from ungater.cache.made_pods import MadePods, PodDefaults
from ungater.cache.nodes import NodeEvents
from ungater.cache.owners import NamedGroups
from ungater.cache.pod_groups import PodGroups
from ungater.cache.pods import PodEvents
from ungater.cache.served import BesideKueue, ServedNamespaces
from ungater.cache.stores import Stores
from ungater.cache.views import JobViews, View
from ungater.cache.volumes import VolumeEvents
from ungater.cache.workloads import WorkloadEvents
from ungater.guard import Guard
from ungater.let_go.coming_pods import ComingPods
from ungater.let_go.node_refusals import NodeRefusals
from ungater.let_go.place_refusals import PlaceRefusals
from ungater.model.class_rules import ClassRules
from ungater.model.conditions import ADMITTED, QUOTA_RESERVED
from ungater.model.job_view import id_of
from ungater.model.life import LifeRules
from ungater.model.pod_slots import PodSetSlots, finished
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa.in_flight import InFlightPods
from ungater.numa.mismatches import PlacementMismatches
from ungater.numa.node_topologies import NodeTopologies, TopologyOptions
from ungater.numa.notices import Notices
from ungater.reconcile import granted
from ungater.reconcile import missing_pods as missing
from ungater.reconcile.context import MissingPods, PodChoice, ReconcileContext
from ungater.reconcile.missing_pods import Doubts

S = TypeVar("S")
T = TypeVar("T", bound=objects.Object)
PATIENCE: Final = 10.0  # seconds for which kube-scheduler may refuse a pod, where no setting says so
SLICE: Final = 200  # objects that are taken in at a time: some 70 microseconds each
_REASONS = frozenset(map(str, Reason))


class Cache:
    """Everything the controller knows, in its parts. No I/O, no tasks; ``enqueue(uid, after)`` gets keys to look at."""

    def __init__(
        self,
        keys: Keys,
        stores: Stores,
        enqueue: Callable[[str, float], None],
        signal: Callable[[], None],
        *,
        notices: Notices,
        view: View | None = None,
        beside: BesideKueue | None = None,
        batch_seconds: float = 1.0,
        options: TopologyOptions | None = None,
        queueing: model.Rules | None = None,
        life: LifeRules | None = None,
        missing_pods: MissingPods | None = None,
        require_queue: bool = False,
        nominates: bool = False,
        patience: float | None = PATIENCE,
        device_resources: Mapping[str, str] | None = None,
        scheduler: SchedulerRules = NEWEST,
        clock: Clock,
        guard: Guard,
    ) -> None:
        self.keys, self.stores, self.guard = keys, stores, guard
        options = options or TopologyOptions()
        self.state = _engine_state(options)
        self._served = ServedNamespaces(beside)
        self.entries = Entries(keys, stores.pods_of, self._served.serves)
        self.gated_orphans = self.entries.gated_orphans
        self.topologies = NodeTopologies(self.state, options, stores.nodes, notices.machine)
        broken, unreported = self.topologies.broken, self.topologies.unreported
        nodes, monotonic = self.state.nodes, clock.monotonic
        self.refusals = PlaceRefusals(nodes.values, enqueue=enqueue, tell=notices.unscheduled, clock=monotonic)
        self.node_refusals = NodeRefusals(lambda: len(self.state.nodes), notices.node_left_out, monotonic)
        left_out = self.node_refusals
        self.mismatches = PlacementMismatches(
            enqueue, broken, unreported, notices.mismatch, monotonic, refused=left_out.note_refused
        )
        self.coming = ComingPods(
            *(keys.gate, patience),
            enqueue=enqueue,
            started=left_out.started,
            unstarted=left_out.note_unready,
            clock=monotonic,
        )
        self.in_flight = InFlightPods(self.state, self.topologies, enqueue, self.entries.of_workload, clock=clock)
        self.priorities = priorities = PriorityClasses(classes := ClassRules())
        self.pod_volumes = volumes = PodVolumes(stores.storage, stores.pods_with, self.state, keys)
        self.device_claims = devices = DeviceClaims(
            keys, stores.reads_devices, self.state, device_resources or {}, scheduler
        )
        apart, quota = partial(unrestricted_pod_set, self.state, priorities, volumes, devices), devices.quota
        # Before `Core`: the queues that all parts share are those of the reservations.
        self.reservations = Reservations(
            self.state, queueing, priorities.of_pods, apart, clock.now, classes=classes, quota=quota
        )
        self._core = core = self._shared(enqueue, signal, clock, scheduler)
        self.pod_sets = RequestedPodSets(core, priorities, volumes, devices)
        self._charges = charges = Charges(core, classes, volumes, devices.claimed)
        self.left_pods = left = LeftPods(core, quota)
        self.admissions = Admissions(core, self.reservations, self.pod_sets, charges, left, self._gives_back)
        self.named_groups = named = NamedGroups(self.entries.get, core.enqueue)
        self.views = JobViews(core, self.admissions, volumes, devices, named, priorities, MadePods(core), view)
        self.pod_defaults = PodDefaults(core, self.views.review)
        self.pod_groups = groups = PodGroups(core, self.views, named, batch_seconds)
        self.pods = PodEvents(core, groups, charges, left, named, batch_seconds)
        self.jobs = JobEvents(core, self.views, groups, self.pods, charges=charges, left_pods=left)
        self.nodes = NodeEvents(core, charges, left, volumes, devices)
        self.volumes = VolumeEvents(core, self.nodes, charges, volumes, self.pods.delay)
        self.devices = DeviceEvents(core, devices, charges)
        self.workloads = WorkloadEvents(core, self.admissions, groups)
        self.classes = ClassEvents(
            core, classes, self.reservations.class_changed, charges.note_outside, self.views.review_grouped
        )
        self.config = ConfigEvents(core, self.reservations.forget_namespace, self.views.review_all)
        by = self.admissions, self.reservations, quota
        self.adopted = AdoptedAdmissions(core, *by, beside) if beside is not None else None
        self.doubts = Doubts(clock.monotonic)
        times = life or LifeRules(), missing_pods or MissingPods(), patience
        self.rules = self._context(*times, require_queue=require_queue, nominates=nominates)

    def _gives_back(self, entry: WorkloadEntry) -> None:
        """A job is about to hold nothing any more."""
        self.doubts.given_back(entry, self.rules.missing_pods)

    def count_pods(self, entry: WorkloadEntry, now: float) -> None:
        """Count the pods of a job before it is looked at. ``now``: seconds of the monotonic clock."""
        if self.adopted is not None:
            self.adopted.look_at(entry)
        # A job that is suspended before its pods came has used up that much of its namespace's time for missing pods.
        if (entry.own or entry.job).suspended:
            self._gives_back(entry)
        others = granted.of_other_queues(entry, self.keys, now)
        entry.bar_pods(Counter(one.pod_set for one in others))
        # After the pods that wait for another queue are barred: these are not missing, and their slots go back at once.
        missing.note(entry, now, doubted=self.doubts.about(entry.job.namespace, now) > 0)

    def _shared(
        self,
        enqueue: Callable[[str, float], None],
        signal: Callable[[], None],
        clock: Clock,
        scheduler: SchedulerRules,
    ) -> Core:
        """What all parts know."""
        return Core(
            self.keys,
            self.stores,
            self.state,
            self.queues,
            self.entries,
            inside=NodeInsides(
                self.topologies, self.in_flight, self.mismatches, self.coming, self.refusals, self.node_refusals
            ),
            enqueue=enqueue,
            signal=signal,
            guard=self.guard,
            clock=clock.monotonic,
            scheduler=scheduler,
            served=self._served,
        )

    def _context(
        self,
        life: LifeRules,
        missing_pods: MissingPods,
        patience: float | None,
        *,
        require_queue: bool,
        nominates: bool,
    ) -> ReconcileContext:
        """What holds for all jobs."""
        return ReconcileContext(
            self.keys,
            self._core.flavors,
            level_names=self._core.level_names,
            lost=self.pod_sets.lost,
            dead=self._core.dead,
            missing=self.nodes.missing_since,
            avoided=self.pod_sets.avoided_nodes,
            patience=patience,
            life=life,
            missing_pods=missing_pods,
            default_class=self.classes.rules.default_name,
            require_queue=require_queue,
            nominates=nominates,
            planned=self.reservations.planned,
            doubted=self.doubts.about,
            no_queue=lambda entry: self.queues.config.missing_objects(entry.job.namespace, entry.job.queue),
            find_stop=self.reservations.find_stop,
            checks=self.admissions.checks_of,
            losing=lambda entry: self.reservations.losing(entry.key),
            outsiders=self.admissions.outsiders,
            unkept=self.unkept,
            uncounted=self.device_claims.device_hindrance,
            devices=self.device_claims.claimed.device_ask_of_spec,
            charged=self.device_claims.quota.of_pods,
            asked_by=self.device_claims.quota.asked_by,
            unready=self.pod_volumes.volume_hindrance,
            in_group=self.stores.pods_in_group,
            grouped=self.named_groups.group_hindrance,
            choices=self._choices,
        )

    def _choices(
        self, entry: WorkloadEntry, slots: PodSetSlots, waiting: Collection[objects.Pod]
    ) -> Mapping[str, PodChoice]:
        """The slots that gated pods may go to, where volumes or claims of devices leave not all of them."""
        found = dict(self.pod_volumes.choices(entry, slots, waiting))
        for uid, choice in self.device_claims.named.choices(entry, slots, waiting).items():
            other = found.get(uid)
            # A pod with both kinds of claims goes only to slots that both leave it.
            found[uid] = choice if other is None else PodChoice(other.slots & choice.slots, other.why or choice.why)
        return found

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> Queues:
        """All queues, and who waits or holds something in them."""
        return self.reservations.queues

    @property
    def flavors(self) -> Mapping[str, tuple[str, ...]]:
        """The levels of each flavor that has a topology, by its name."""
        return self._core.flavors

    @property
    def level_names(self) -> LevelNames:
        """What jobs may ask for levels by."""
        return self._core.level_names

    @property
    def live(self) -> bool:
        """Whether all was listed, so that events count."""
        return self._core.live

    @property
    def generation(self) -> int:
        """Grows when something could help those who wait."""
        return self._core.generation

    @property
    def layout(self) -> int:
        """Grows when nodes or flavors change."""
        return self._core.layout

    def queue_inadmissible(self, flavors: Iterable[str] | None = None) -> None:
        """Something changed that could help a workload that waits, for a place in ``flavors`` (None: in any)."""
        self._core.queue_inadmissible(flavors)

    def unkept(self, entry: WorkloadEntry) -> Mapping[str, str]:
        """By uid, what pods of a workload ask for of the inside of their nodes and did not get."""
        strayed = (uid for uid, mismatch in entry.mismatches.items() if not mismatch.refused)
        pods = {uid: pod for uid in strayed if (pod := entry.pods.get(uid)) is not None and not finished(pod)}
        return {uid: text for uid, pod in pods.items() if (text := self.topologies.unkept(pod))}

    def charged(self, entry: WorkloadEntry) -> Mapping[str, Amounts]:
        """By pod set, what one pod of a job takes of quota, where that is not what it takes of its node."""
        return self.reservations.charged(entry, self.pod_sets.wish(entry))

    def unchecked(self) -> set[str]:
        """The keys of those with a queue that hold something and are not admitted yet."""
        return {
            entry.key
            for entry in self.entries.values()
            if entry.admission is not None
            and entry.job.queue
            and entry.observed is not None
            and not objects.is_true(entry.observed.conditions, ADMITTED)
        }

    def pending(self) -> Mapping[str, int]:
        """How many jobs wait for a place, by reason."""
        counts: dict[str, int] = {}
        for entry in self.entries.values():
            if entry.admission is None and not entry.job.over:
                reason = self._reason_of_waiting(entry)
                counts[reason] = counts.get(reason, 0) + 1
        return counts

    def _reason_of_waiting(self, entry: WorkloadEntry) -> str:
        """Why a job waits: what was found in its queue, or what its Workload says of one that is in none."""
        # In no queue's order, so queueing knows no reason: without this all of these would count as Pending.
        if entry.key not in self.queues.entries and entry.observed is not None:
            said = objects.condition(entry.observed.conditions, QUOTA_RESERVED)
            if said is not None and said.status == "False" and said.reason in _REASONS:
                return said.reason
        return str(entry.refused.reason if entry.refused else Reason.PENDING)

    # --- rebuilding ----------------------------------------------------------------------------------------------

    def load(
        self,
        nodes: Iterable[objects.Node],
        flavors: Iterable[objects.ResourceFlavor],
        classes: Iterable[objects.PriorityClass],
        jobs: Iterable[objects.Job],
        pods: Iterable[objects.Pod],
        *,
        jobsets: Iterable[JobSet] = (),
        namespaces: Iterable[objects.Namespace] = (),
        cohorts: Iterable[Cohort] = (),
        cluster_queues: Iterable[ClusterQueue] = (),
        local_queues: Iterable[LocalQueue] = (),
    ) -> Iterator[None]:
        """Build everything from what was listed, a slice with each step of the iterator; events count from its end on.

        ``pods_of`` must answer already. What is listed and what ``stores`` answer must stay the same until the end.
        """
        # What was used over time goes by when it was stored, and by when each workload began to hold what it holds.
        self.reservations.pass_time()
        # Before everything else: jobs ask for levels by the names of flavors, and nodes are counted by them.
        yield from self._each("flavor", sorted(flavors, key=objects.key), self.config.read_flavor)
        yield from self._each("namespace", namespaces, self.config.read_namespace)
        # Before their queues: a queue is put into a tree that is there, and what it holds is charged once.
        yield from self._each("cohort", cohorts, self.config.read_cohort)
        yield from self._each("clusterqueue", cluster_queues, self.config.set_cluster_queue)
        yield from self._each("localqueue", local_queues, self.config.set_local_queue)
        yield from self._each("priorityclass", classes, self.classes.read_class)
        # Sorted, so that a restart numbers nodes and jobs alike whatever order the API server lists them in.
        yield from self._each("node", sorted(nodes, key=objects.key), self.nodes.load)
        # Jobs after queues and nodes: what a Workload holds is held as soon as its entry is made.
        yield from self._each("job", sorted(jobs, key=objects.key), self.jobs.set_job, self._pods_in)
        yield from self._each("jobset", sorted(jobsets, key=objects.key), self.jobs.set_jobset, self._pods_in)
        yield from self._take_in(tuple(pods))
        # Once all pods are in: from here on the reports of nodes count as made with all of these pods there.
        self.state.finish_listing()
        # Last: an event before this would be judged by half of what there is.
        self._core.go_live()

    def _take_in(self, pods: Sequence[objects.Pod]) -> Iterator[None]:
        """The pods that there are, once their jobs are known."""
        # Owners that are known by their pods alone have no entry
        # before this, and a pod without an entry counts as nobody's.
        yield from self._each("pod", pods, self.pod_groups.gather)
        yield from self._each("pod", pods, self._charges.note_outside)
        # Nominations after all admissions: a victim that holds nothing yet would be taken for one that is gone.
        yield from self._each_entry(self.admissions.nominate)
        yield from self._each("pod", pods, self.pods.load)
        # After all pods: claims may be reserved for pods that ended while no controller was there.
        self.devices.load(pods)
        rebuilt = RebuiltAdmissions(
            self._core, self.admissions, self.reservations, self.pod_sets, self.device_claims.quota
        )
        if self.adopted is not None:
            # Before pods are asked what they have: marks of ours, by which they are asked, come after this.
            yield from self._each_entry(self.adopted.resume_adoption)
        # Last: a job without a Workload may have only slots that no stored admission holds.
        yield from self._each_entry(rebuilt.rebuild_admission)

    def _each(
        self, kind: str, found: Iterable[T], take: Callable[[T], object], many: Callable[[T], int] | None = None
    ) -> Iterator[None]:
        """Take in objects one by one. ``many``: how many pods were taken in with one, where that may be some."""
        return self._sliced(kind, found, objects.key, take, many)

    def _each_entry(self, take: Callable[[WorkloadEntry], object]) -> Iterator[None]:
        """The same with each workload that is known."""
        entries = tuple(self.entries.values())
        return self._sliced("workload", entries, lambda entry: entry.key, take, lambda entry: len(entry.pods))

    def _sliced(
        self,
        kind: str,
        found: Iterable[S],
        key_of: Callable[[S], str],
        take: Callable[[S], object],
        many: Callable[[S], int] | None,
    ) -> Iterator[None]:
        """A slice a step; what one leads to that nobody had foreseen costs that one alone."""
        taken = 0
        for one in found:
            with self.guard(kind, key_of(one)):
                take(one)
            # Pods count as well: a job with 10,000 of them takes longer than a
            # slice of small ones, and the lease is renewed between slices alone.
            taken += 1 + (many(one) if many else 0)
            if taken >= SLICE:
                yield
                taken = 0
        yield

    def _pods_in(self, owner: objects.Job | JobSet) -> int:
        entry = self.entries.get(id_of(owner))
        return 0 if entry is None else len(entry.pods)


def _engine_state(options: TopologyOptions) -> ClusterState:
    return ClusterState(
        reconstruct_available=options.reconstruct_available,
        numa_score=ZoneScore(options.numa_score),
        alignment_over_packing=AlignmentOverPacking(options.alignment_over_packing),
        nodes_per_opened_domain=options.nodes_per_opened_domain,
        xpus=options.xpu_resources,
        uncounted=options.uncounted_resources,
    )
