"""What is known of the cluster, fed by informer events: the engine's state and one record a job.

Rules
- An event costs O(1): a pod touches its charge in the engine and its entry in one record, nothing else.
- A pod counts as ours (`claim`) only if the job that controls it owns the Workload, our ungating patch marked it, and
  its node selector names one of the Workload's slots. What a user wrote on a pod decides nothing.
- `load` rebuilds everything from lists in a fixed order, so a restart ends in the same state as having been there.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec
import structlog

from crds.constants import HOSTNAME_LABEL, JOB_CONTROLLER, JOB_SET_CONTROLLER, Keys
from crds.request import ParsedRequest, unresolved
from engine.cluster.state import ClusterState
from engine.cluster.unusable_slots import closed
from engine.kubelet.machine import NumaPlacement
from engine.model import Node, Pod, PodSet, Policy, TopologyRequest
from engine.numa.score import ZoneScore
from engine.reasons import Reason
from kube import objects
from kube.informer import Event
from kube.parents import ControllerRevision, JobSet, LeaderWorkerSet
from kube.pods import convert
from kube.pods.exclusive import Additions
from kube.queues import ClusterQueue, LocalQueue, checks, cluster_queue, local_queue, plain_flavor
from kube.replicas import Replicated
from kube.resources import Resource
from kube.topologies import FlexTopo, NodeResourceTopology
from queueing import model
from queueing.lifecycle import LifeRules
from queueing.model import at_least
from queueing.queues.entry import AssumedAdmission
from queueing.queues.queues import Queues
from ungater.cache.orphans import Orphans, answers_for
from ungater.cache.reservations import Reservations
from ungater.cache.stores import Stores
from ungater.guard import Guard
from ungater.jobs.job import owner_of
from ungater.jobs.jobset import made_by, owner_of_jobset, parent_of
from ungater.jobs.leaderworkerset import PREFIX as LEADERS
from ungater.jobs.leaderworkerset import has_pods, owner_of_group, revision_key, set_of
from ungater.jobs.pod_group import GONE, GROUP, POD, mark_of, of_pods, owner_key, owner_of_pods, served
from ungater.jobs.replica_counts import ReplicaCounts, ReplicatedOwners, maker_of
from ungater.model.actions import MissingPods, ReconcileContext
from ungater.model.conditions import ADMITTED
from ungater.model.job_view import JobView, PodSetView, id_of, identity
from ungater.model.pod_slots import PodSetSlots, finished, is_gated
from ungater.model.workload_entry import Admission, ObservedWorkload, WorkloadEntry
from ungater.model.workload_object import Workload, belongs, known_of
from ungater.numa import placement_exchange
from ungater.numa.in_flight import InFlightPods
from ungater.numa.mismatches import PlacementMismatches, refused
from ungater.numa.node_topologies import NodeTopologies, Options, worth_a_look
from ungater.numa.notices import Notices, Silent
from ungater.numa.predictions import promise_again
from ungater.reconcile.missing_pods import Doubts
from ungater.reconcile.partial_eviction import may_be_evicted, outside

BATCH_A_POD = 0.0002  # seconds of waiting for more pods, for each pod the job has
LEAST_BATCH = 0.1
REMOVED = 10_000  # Workloads that were deleted, and of which something may still be heard
UNPROVED = 10.0  # seconds for which a Job is believed that names a JobSet nobody has seen
BARE = 10.0  # seconds for which an owner without pods keeps its place in a queue
SHARED = "exclusive"  # the group of pod sets that have a domain alone, together

Enqueue = Callable[[str, float], None]
View = Callable[[JobView, WorkloadEntry | None, Mapping[str, Node]], JobView]  # how a job is to be looked at
T = TypeVar("T", bound=objects.Object)
log = structlog.get_logger()


class Cache:
    """Everything the controller knows. Not a shell: no I/O, no tasks; keys to look at go to ``enqueue(uid, after)``."""

    def __init__(
        self,
        keys: Keys,
        stores: Stores,
        enqueue: Enqueue,
        signal: Callable[[], None] = lambda: None,
        *,
        notices: Notices | None = None,
        view: View | None = None,
        batch_seconds: float = 1.0,
        options: Options | None = None,
        queueing: model.Rules | None = None,
        life: LifeRules | None = None,
        missing_pods: MissingPods | None = None,
        require_queue: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        guard: Guard | None = None,
    ) -> None:
        options = options or Options()
        self.guard = guard or Guard()
        self.keys = keys
        self.state = ClusterState(
            reconstruct_available=options.reconstruct_available, numa_score=ZoneScore(options.numa_score)
        )
        notices = notices or Silent()
        self.stores = stores
        self.inside = NodeTopologies(self.state, options, stores.nodes, notices.machine)
        self.troubles = PlacementMismatches(enqueue, self.inside.broken, notices.mismatch, clock)
        self._clock = clock
        self._missing: dict[str, float] = {}  # deleted nodes: since when, on the monotonic clock
        self.arrivals = InFlightPods(self.state, self.inside, enqueue, self.record_of, clock=clock, wall=wall)
        self.holdings = Reservations(self.state, queueing, self._pod_priority, self._anywhere, wall)
        self.orphans = Orphans(self.holdings.queues, keys.gate, self._dead)
        self.generation = 0  # grows when something could help those who wait
        self.records: dict[str, WorkloadEntry] = {}  # by id of the job (`JobView.id`)
        self.flavors: dict[str, tuple[str, ...]] = {}
        self.priorities: dict[str, int] = {}
        self.workload_priorities: dict[str, int] = {}  # by WorkloadPriorityClass
        self._defaults: dict[str, int] = {}  # of the PriorityClasses that hold for pods that name none
        self.stray: dict[str, objects.Pod | None] = {}  # gated pods that no served job owns; None: it was told
        self.live = False
        self.layout = 0  # grows when nodes or flavors change
        self._changed: set[str] = set()  # nodes, since it was looked who has slots there
        self.children: dict[str, dict[str, objects.Job]] = {}  # Jobs by the id of the JobSet that made them, and theirs
        self._revisions: dict[tuple[str, str], ControllerRevision] = {}  # by LeaderWorkerSet, and hash
        self._parents: dict[str, str] = {}  # the other way round; also of Jobs that are gone before their pods
        self._unled: dict[str, set[str]] = {}  # by LeaderWorkerSet that was not seen: groups that have pods
        self.wholes = ReplicatedOwners()
        self._unproved: dict[str, float] = {}  # ids of Jobs whose JobSet was not seen: since when, by the clock
        self._leftover: dict[
            str, list[objects.Pod]
        ] = {}  # Workloads that are to be gone, and pods of their owners that came before that was seen
        self._removed: dict[str, None] = {}  # uids of Workloads that we deleted, whose end was not seen yet
        self.groups: dict[str, str] = {}  # owners that are known by their pods alone: id -> key of the Workload
        self._ids: dict[str, str] = {}  # of all owners, by key of the Workload
        self._places: dict[str, WorkloadEntry] = {}  # by pod uid: in whose `WorkloadEntry.left` it is
        self._view = view
        self._enqueue = enqueue
        self._signal = signal
        self._batch = batch_seconds
        self._life = life or LifeRules()
        self._missing_pods = missing_pods or MissingPods()
        self._require_queue = require_queue
        self.doubts = Doubts(clock)
        self._rules: ReconcileContext | None = None

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def rules(self) -> ReconcileContext:
        """What holds for all jobs now."""
        if self._rules is None:
            self._rules = ReconcileContext(
                self.keys,
                dict(self.flavors),
                lost=self._lost,
                dead=self._dead,
                missing=self._missing_since,
                avoided=self.avoided,
                life=self._life,
                missing_pods=self._missing_pods,
                require_queue=self._require_queue,
                doubted=self.doubts.about,
                checks=self.checks_of,
                losing=lambda record: self.holdings.losing(record.key),
                outsiders=self._outsiders,
            )
        return self._rules

    def _seen(self, own: JobView) -> JobView:
        """A job as everything here is to look at it."""
        return own if self._view is None else self._view(own, self.records.get(own.id), self.state.nodes)

    def expect_leader_sets(self, coming: Iterable[LeaderWorkerSet]) -> None:
        """Look these up too, which are not in the cluster yet: a dry run has their pods come."""
        there, new = self.stores.leader_set, {objects.key(one): one for one in coming}
        self.stores = replace(self.stores, leader_set=lambda key: new.get(key) or there(key))

    @property
    def queues(self) -> Queues:
        """All queues, and who waits or holds something in them."""
        return self.holdings.queues

    def record_of(self, key: str) -> WorkloadEntry | None:
        """The job of a workload, by the workload's key."""
        return self.records.get(self._ids.get(key, ""))

    def priority(self, owner: JobView) -> int:
        """The priority of a job: of the class that its label names, else of its pods, as the API server will give it.

        The label names a WorkloadPriorityClass. It may name the PriorityClass of the pods too, which changes nothing.
        One of others is not theirs to have: who may use it is decided where pods are admitted.
        """
        if owner.priority is not None:
            return owner.priority
        if owner.workload_class in self.workload_priorities:
            return self.workload_priorities[owner.workload_class]
        return self._pod_priority(owner)

    def unknown_class(self, owner: JobView) -> bool:
        """Whether a job's label names no class that counts for it."""
        named = owner.workload_class
        return bool(named) and named not in self.workload_priorities and named != owner.priority_class

    @property
    def default_priority(self) -> int:
        """Of pods that name no class: of several defaults the API server takes the lowest."""
        return min(self._defaults.values(), default=0)

    def _pod_priority(self, owner: JobView) -> int:
        """The priority of a job's pods, as kube-scheduler compares them."""
        return self._class_value(owner.priority_class)

    def _added(self, owned: PodSetView) -> Additions:
        """What others add to the pods of a pod set."""
        return owned.added.at(self._class_value(owned.template.spec.priority_class_name))

    def _class_value(self, name: str) -> int:
        return self.priorities.get(name, 0) if name else self.default_priority

    def _group(self, owner: JobView, owned: PodSetView) -> str:
        """The name of those of its pod sets that share one domain of what they ask for; "" where this one does not."""
        if owned.request is None or len(owner.pod_sets) < 2:
            return ""
        if owned.request.group or not owned.shared:
            return owned.request.group
        asks = [one.request for one in owner.pod_sets]
        alike = all(one is not None and one.same(owned.request) and not one.slices for one in asks)
        flavors = [flavor.levels for flavor in self.state.flavors.values() if owned.shared in flavor.levels]
        level = owned.request.level
        inside = owned.request.policy is Policy.REQUIRED and any(
            level in levels and levels.index(level) > levels.index(owned.shared) for levels in flavors
        )
        return SHARED if alike and not inside else ""

    def _outsiders(self, record: WorkloadEntry) -> tuple[tuple[objects.Pod, str], ...]:
        """The pods that no queue admitted and that a preemption waits for, and what each is told."""
        return tuple(
            (pod, text)
            for one, text in self.holdings.outsiders(record.key)
            for pod in self.stores.pods_on(one.node)
            if pod.metadata.uid == one.uid
        )

    def pod_set(
        self, record: WorkloadEntry, owned: PodSetView, topology: TopologyRequest, count: int | None = None
    ) -> PodSet:
        """The engine's view of one pod set, whose pods keep off nodes that refused such pods a short time ago."""
        found = convert.pod_set(
            owned.name,
            owned.count if count is None else count,
            owned.template,
            topology,
            record.owner.namespace,
            group=self._group(record.owner, owned),
            shape=owned.shape,
            without=self.avoided(record, owned),
            added=self._added(owned),
        )
        more = at_least(record.asked.get(owned.name, {}), record.granted(owned.name) or {})
        if record.owner.foretold and record.admission is None:  # its pods may ask for more than their template
            for pod in record.pods_of(owned):
                more = more if finished(pod) else at_least(more, convert.pod_requests(pod.spec))
        return msgspec.structs.replace(found, requests=at_least(found.requests, more)) if more else found

    def avoided(self, record: WorkloadEntry, owned: PodSetView, now: float | None = None) -> frozenset[str]:
        """The nodes that the pods of a pod set keep off now: they refused such a pod, or would as things stand."""
        return self.troubles.avoided(owned.shape, now) | self.arrivals.left_out(record, owned.shape, now)

    def stir(self, flavors: Iterable[str] | None = None) -> None:
        """Something changed that could help a workload that waits, for a place in ``flavors`` (None: in any)."""
        self.generation += 1
        self.queues.freed(self.flavors if flavors is None else flavors)
        self._signal()

    def enter(self, record: WorkloadEntry, until: float = 0.0) -> None:
        """Have a job wait for a place, or for more or other ones."""
        self.holdings.submit(record, self.wish(record), self._rank(record), until=until)
        if record.admission is not None:
            self.holdings.want(record)
        self._signal()

    def stored(self, record: WorkloadEntry) -> None:
        """The write of an admission ended: from here on it may be somebody's victim."""
        if self.queues.stored(record.key):
            self._signal()

    def ask(self, record: WorkloadEntry) -> None:
        """What was said of why it waits counts no more: have it said anew, should it still wait."""
        record.refused = record.told = None
        self.queues.ask(record.key)
        self._signal()

    def leave(self, record: WorkloadEntry) -> None:
        """It waits no more."""
        victims = self.holdings.victims_of(record.key)
        if self.holdings.leave(record):
            self.stir(())
            self._stand_down(victims)

    def wish(self, record: WorkloadEntry) -> tuple[PodSet, ...]:
        """What a job asks for, as queueing takes it: its pod sets that need pods, or all where it holds something."""
        pod_sets, known = record.owner.pod_sets, record.known
        holds = record.admission is not None or (known is not None and known.admission is not None)
        whole = holds or len(pod_sets) == 1
        wanted = pod_sets if whole else [one for one in pod_sets if one.count] or pod_sets[:1]
        return tuple([self.pod_set(record, one, _unresolved(one.request)) for one in wanted])

    def _rank(self, record: WorkloadEntry) -> int:
        queued = record.owner.queue and record.known is not None
        return record.known.priority if queued and record.known is not None else self.priority(record.owner)

    def checks_of(self, record: WorkloadEntry) -> tuple[str, ...]:
        """The admission checks that what a job holds needs."""
        return self.checks_for(record.admission) if record.admission is not None and record.owner.queue else ()

    def unchecked(self) -> set[str]:
        """The keys of those with a queue that hold something and are not admitted yet."""
        return {
            record.key
            for record in self.records.values()
            if record.admission is not None
            and record.owner.queue
            and record.known is not None
            and not objects.is_true(record.known.conditions, ADMITTED)
        }

    def checks_for(self, admission: Admission) -> tuple[str, ...]:
        """The admission checks that an admission needs."""
        found = self.stores.cluster_queue(admission.queue)
        flavors = {flavor for part in admission.parts for flavor in part.flavors.values()}
        return checks(found, flavors) if found is not None else ()

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
        cluster_queues: Iterable[ClusterQueue] = (),
        local_queues: Iterable[LocalQueue] = (),
    ) -> None:
        """Build everything from what was listed; events count from here on. ``pods_of`` must answer already."""
        self._each("flavor", sorted(flavors, key=objects.key), self._set_flavor)
        self._each("namespace", namespaces, self._set_namespace)
        self._each("clusterqueue", cluster_queues, self._set_cluster_queue)
        self._each("localqueue", local_queues, self._set_local_queue)
        self._each("priorityclass", classes, self._set_class)
        self._each("node", sorted(nodes, key=objects.key), self._load_node)
        self._each("job", sorted(jobs, key=objects.key), self._set_job)
        self._each("jobset", sorted(jobsets, key=objects.key), self._set_jobset)
        self._take_in(tuple(pods))
        self.live = True

    def _take_in(self, pods: Sequence[objects.Pod]) -> None:
        """The pods that there are, once their jobs are known."""
        self._each("pod", pods, self._gather)
        self._each("pod", pods, self._note_outside)
        for record in tuple(self.records.values()):
            with self.guard("workload", record.key):
                self._nominate(record)
        self._each("pod", pods, self._load_pod)

    def _load_pod(self, pod: objects.Pod) -> None:
        self._charge(pod)
        self._pay(pod, self._record_of(pod))
        self._note_arrival(pod)
        if (record := self._record_of(pod)) is None:
            self._note_stray(pod)
        elif refused(pod):
            self.troubles.leave_out(record, pod)  # told by whoever led when it happened

    def _load_node(self, node: objects.Node) -> None:
        self.state.set_node(convert.node(node))
        self.inside.refresh(node.metadata.name)

    def _each(self, kind: str, found: Iterable[T], take: Callable[[T], object]) -> None:
        """Take in objects one by one; what one leads to that nobody had foreseen costs that one alone."""
        for one in found:
            with self.guard(kind, objects.key(one)):
                take(one)

    def _nominate(self, record: WorkloadEntry) -> None:
        """After a restart, a preemption that was under way goes on where it stood; its victims are told again."""
        known = record.known
        if known is None or known.nomination is None or known.admission is not None or record.owner.over:
            return
        if not known.active:
            return  # it waits no more: the plan is removed when it is looked at
        workload = self.holdings.workload(record, self.wish(record), self._rank(record))
        self.holdings.nominate(record, known.nomination, workload)
        for key in self.holdings.victims_of(record.key):
            victim = self.record_of(key)
            if victim is not None:
                if key not in self.queues.losing:
                    victim.evict = self.holdings.told(record.key, key)
                self._enqueue(victim.id, 0.0)

    # --- events --------------------------------------------------------------------------------------------------

    def on_node(self, event: Event[objects.Node]) -> None:
        """A node came, changed or went."""
        if not self.live:
            return
        if event.new is None:
            self._missing[event.key] = self._clock()
            changed = self.state.remove_node(event.key)
            self.troubles.forget(event.key)
            self.arrivals.forget(event.key)
        else:
            self._missing.pop(event.key, None)
            if changed := self.state.set_node(convert.node(event.new)):
                self.stir()
        if event.new is None or event.old is None or worth_a_look(event.old, event.new):
            self._look_inside(event.key)
        if changed:
            self.layout += 1
            self._changed.add(event.key)
            self._signal()
            for pod in self.stores.pods_on(event.key):
                if pod.metadata.deletion_timestamp is not None:
                    self._pay(pod, self._record_of(pod))

    def on_topology(self, event: Event[NodeResourceTopology]) -> None:
        """What a node's exporter publishes came, changed or went."""
        if self.live:
            self._look_inside(event.key)

    def on_flex(self, event: Event[FlexTopo]) -> None:
        """What our agent publishes of a node came, changed or went."""
        if self.live:
            self._look_inside(event.key)

    def on_flavor(self, event: Event[objects.ResourceFlavor]) -> None:
        """A flavor came, changed or went: who waits may have a place now, or never; who holds slots keeps them."""
        if not self.live or _same_flavor(event.old, event.new):
            return
        self.layout += 1
        if event.new is None:
            self.flavors.pop(event.key, None)
            self.state.remove_flavor(event.key)
            self.queues.remove_flavor(event.key)
        else:
            self._set_flavor(event.new)
        self.queues.flavors_changed()
        self._rules = None
        self.stir()
        for uid in self.records:
            self._enqueue(uid, 0.0)

    def on_namespace(self, event: Event[objects.Namespace]) -> None:
        """A namespace came, has other labels, or went."""
        if not self.live:
            return
        if event.new is None:
            self.holdings.forget_namespace(event.key)
        else:
            self._set_namespace(event.new)
        self._signal()

    def on_cluster_queue(self, event: Event[ClusterQueue]) -> None:
        """A ClusterQueue came, changed or went."""
        if not self.live:
            return
        if event.new is None:
            self.queues.remove_cluster_queue(event.key)
        else:
            self._set_cluster_queue(event.new)
        self._signal()

    def on_local_queue(self, event: Event[LocalQueue]) -> None:
        """A LocalQueue came, changed or went."""
        if not self.live:
            return
        if event.new is not None:
            self._set_local_queue(event.new)
        elif event.old is not None:
            self.queues.remove_local_queue(event.old.metadata.namespace, event.old.metadata.name)
        self._signal()

    def on_class(self, event: Event[objects.PriorityClass]) -> None:
        """A priority class came or went; it counts for jobs that are looked at from now on."""
        if event.new is not None:
            self._set_class(event.new)
        else:
            self.priorities.pop(event.key, None)
            self._defaults.pop(event.key, None)

    def on_workload_class(self, event: Event[objects.PriorityClass]) -> None:
        """A WorkloadPriorityClass came, changed or went; it counts for jobs that are looked at from now on."""
        if event.new is not None:
            self.workload_priorities[event.key] = event.new.value
        else:
            self.workload_priorities.pop(event.key, None)

    def on_job(self, event: Event[objects.Job]) -> None:
        """A job came, changed or went."""
        if not self.live:
            return
        if event.old is not None and (event.new is None or event.new.metadata.uid != event.old.metadata.uid):
            self._drop_job(id_of(event.old))
            self._forget_child(event.old)
            self._unproved.pop(id_of(event.old), None)
        if event.new is not None:
            self._set_job(event.new)

    def on_jobset(self, event: Event[JobSet]) -> None:
        """A JobSet came, changed or went."""
        if not self.live:
            return
        if event.old is not None and (event.new is None or event.new.metadata.uid != event.old.metadata.uid):
            self._drop_job(id_of(event.old))
        if event.new is not None:
            self._set_jobset(event.new)

    def on_workload(self, event: Event[Workload]) -> None:
        """A Workload changed: by our own hand, which we know already, or by another's, whose record then counts."""
        if not self.live:
            return
        workload = event.new or event.old
        if workload is None:
            return
        if event.old is not None and (event.new is None or event.old.metadata.uid != event.new.metadata.uid):
            self._removed.pop(event.old.metadata.uid, None)
            self.cleared(event.key)
        record = self._owner_of(workload)
        if record is None or workload.metadata.name != record.owner.workload:
            return
        if event.new is None:
            record.gone = workload.metadata.uid
            if record.known is None or record.known.uid == record.gone:
                self.unknown(record)
                self._enqueue(record.id, 0.0)
            return
        if not record.busy:
            self.saw_workload(record, known_of(workload))

    def on_pod(self, event: Event[objects.Pod]) -> None:
        """A pod came, changed or went."""
        if not self.live:
            return
        new, old = event.new, event.old
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._forget_pod(old)
            if new is None:
                return
        if new is None:
            return
        same = old is not None and old.metadata.uid == new.metadata.uid
        if same and old is not None and owner_key(old, self.keys) != owner_key(new, self.keys):
            self._leaves(old, new)
            same = False
        self._gather(new)
        record = self._record_of(new)
        if not (same and old is not None and _charged_alike(old, new)):
            if record is not None and new.spec.node_name and self._marked(record, new):
                with self.guard("pod", event.key):
                    self._settle(record, new)
            self._charge(new)
            self._pay(new, record)
        elif (old.metadata.deletion_timestamp, new.metadata.deletion_timestamp).count(None) == 1:
            self._pay(new, record)  # where nobody ends it, it is not waited for
        self._note_arrival(new)
        if record is None:
            self._note_stray(new)
        else:
            if self._marked(record, new):
                self.troubles.note(record, old if same else None, new)
            self._pod_of(record, old if same else None, new)

    # --- results of our own writes -------------------------------------------------------------------------------

    def saw_workload(self, record: WorkloadEntry, known: ObservedWorkload) -> None:
        """Take over what the API server has of a Workload; where its admission is not what is held, it wins."""
        if known.uid == record.gone or known.uid in self._removed:
            return
        if record.known is not None and known.version <= record.known.version:
            return
        record.known = known
        self._take_over(record, known)
        self._enqueue(record.id, 0.0)

    def _take_over(self, record: WorkloadEntry, known: ObservedWorkload) -> None:
        if known.admission is not None and not known.admission.same(record.admission) and _holds(record.owner):
            self.hold(record, known.admission)

    def written(self, record: WorkloadEntry, known: ObservedWorkload | None) -> None:
        """A write ended: its answer counts, and then whatever came from the API server meanwhile.

        An answer about a Workload that was seen to be deleted comes too late.
        """
        record.busy -= 1
        if not record.busy and record.missed:
            record.missed = False
            self._enqueue(record.id, 0.0)
        if known is not None and known.uid != record.gone:
            record.known = known
            self._take_over(record, known)
        latest = self.stores.workload(record.key)
        if latest is not None and belongs(latest, record.owner):
            self.saw_workload(record, known_of(latest))

    def hold(self, record: WorkloadEntry, admission: Admission) -> None:
        """Have queueing and the engine hold exactly this, which is stored in the API server.

        Nothing where the job went while a write was on its way: its Workload goes too, and nobody would give it back.
        """
        if self.records.get(record.id) is not record:
            return
        before = record.grant
        workload = self.holdings.workload(record, self.wish(record), self._rank(record))
        self.holdings.take(record, admission, workload)
        record.shrink_at = None
        for pod in record.pods.values():
            self._charge(pod)
            self._pay(pod, record)
        self._judge_left(record)
        if not self.live:
            promise_again(self.state, self.inside, record)
        elif before is not None:
            self.queues.gave_back(self.state, before)
            self.stir(())

    def admit(self, record: WorkloadEntry, admission: Admission, grant: AssumedAdmission) -> None:
        """The admission is stored: from here on pods may go."""
        self.holdings.admit(record, admission, grant)
        record.refused = record.told = None
        for pod in record.pods.values():
            if pod.spec.node_name:
                self._charge(pod)
            self._pay(pod, record)
        self._judge_left(record)

    def free(self, record: WorkloadEntry) -> None:
        """Give back all that is held for the job; it waits for nothing any more."""
        victims = self.holdings.victims_of(record.key)
        self._clear(record)
        if self.holdings.free(record):
            self.stir(())
        self._stand_down(victims)
        self._leave_pods(record)

    def back(self, record: WorkloadEntry, until: float = 0.0) -> None:
        """Give back all that is held for the job; it waits again, not before ``until``."""
        self._clear(record)
        record.refused = None
        self.holdings.back(record, until)
        self.stir(())
        self._leave_pods(record)

    def _leave_pods(self, record: WorkloadEntry) -> None:
        """What is held for a job was given back: pods of it that run on are charged by themselves."""
        for pod in record.pods.values():
            self._pay(pod, record)
            if not pod.spec.node_name:
                self._charge(pod)
        self._judge_left(record)

    def _pay(self, pod: objects.Pod, record: WorkloadEntry | None) -> None:
        """Charge a pod by itself where it runs and no workload answers for it, and no more where one does."""
        mark = mark_of(pod, self.keys)
        if record is not None and mark not in {None, record.owner.workload}:
            record = None
        if record is None:
            record = self._left_by(pod, mark)
        elif not is_gated(pod, self.keys.gate):
            self._forget_left(pod)
        if self.orphans.judge(pod, record):
            self._signal()

    def stayed(self, pod: objects.Pod) -> None:
        """The patch of a pod came to nothing after it left its workload, or what was held for that was given back."""
        if self.orphans.unseen(pod):
            self._forget_left(pod)
        if self.orphans.stayed(pod):
            self._signal()

    def _leaves(self, old: objects.Pod, new: objects.Pod) -> None:
        """Somebody relabelled a pod, or it or its Job has another owner: it is nobody's twice.

        One whose patch is under way may run by it: it keeps its place in the workload that it leaves.
        """
        record, uid = self._record_of(old), old.metadata.uid
        sent = record.on_its_way(uid) if record is not None else None
        self._forget_pod(old)
        if record is None or sent is None or not answers_for(record) or not is_gated(new, self.keys.gate):
            return
        self.orphans.sent(new)
        record.left[uid] = record.pod_set_of(old), _heading(new, record.slots_of(old), sent.values)
        self._places[uid] = record

    def _left_by(self, pod: objects.Pod, mark: str | None) -> WorkloadEntry | None:
        """The workload that a pod was let go for and is not part of any more, where it still has its place there."""
        if self.orphans.unseen(pod):
            return self._places.get(pod.metadata.uid)
        record = self.records.get(self._ids.get(f"{pod.metadata.namespace}/{mark}", "")) if mark else None
        uid = pod.metadata.uid
        if self._places.get(uid) is not record:
            self._forget_left(pod)  # whatever it says by now that it was let go for
        if record is None or uid in record.pods or not self.orphans.runs(pod) or not answers_for(record):
            self._forget_left(pod)
            return None
        pod_set = (pod.metadata.annotations or {}).get(self.keys.pod_set, "")
        if uid not in record.left:
            if not record.has_place(pod_set, self.keys.gate):
                return None
            self._enqueue(record.id, 0.0)
        record.left[uid] = pod_set, pod
        self._places[uid] = record
        return record

    def _forget_left(self, pod: objects.Pod) -> None:
        """A pod ended, or has no place in the workload that it left: others of that may go."""
        if (record := self._places.pop(pod.metadata.uid, None)) is not None:
            del record.left[pod.metadata.uid]
            self._enqueue(record.id, 0.0)

    def _judge_left(self, record: WorkloadEntry) -> None:
        """What is held for a job changed: those that left it have their places in it, or are charged by themselves."""
        left, record.left = record.left, {}
        for uid, (pod_set, pod) in left.items():
            if answers_for(record) and self.orphans.unseen(pod):
                record.left[uid] = pod_set, pod
            else:
                del self._places[uid]
        for uid, (_, pod) in left.items():
            if uid not in record.left:
                self._pay(pod, None)

    def _clear(self, record: WorkloadEntry) -> None:
        self.orphans.remember(record)
        record.intents.clear()
        record.exchanges.clear()
        self.arrivals.stop_all(record)
        record.shrink_at = None
        record.asked = {}
        record.patches.clear()
        record.closing = False

    def undo(self, record: WorkloadEntry, until: float = 0.0) -> None:
        """A write failed for certain: hold what was held before it."""
        victims = self.holdings.victims_of(record.key)
        self.holdings.undo(record, until)
        self.stir(())
        self._stand_down(victims)

    def replaced(self, record: WorkloadEntry) -> None:
        """The write of other slots ended: those that it left may be another's from now on."""
        if self.holdings.replaced(record):
            self.stir(())

    def _stand_down(self, victims: Iterable[str]) -> None:
        """Nobody waits for these any more: they may stay."""
        for key in victims:
            victim = self.record_of(key)
            if victim is not None:
                self._enqueue(victim.id, 0.0)

    # --- inside --------------------------------------------------------------------------------------------------

    def _set_flavor(self, wire: objects.ResourceFlavor) -> None:
        flavor, plain = convert.flavor(wire), plain_flavor(wire)
        if flavor is None:
            self.flavors.pop(wire.metadata.name, None)
            self.state.remove_flavor(wire.metadata.name)
        else:
            self.flavors[flavor.name] = flavor.levels
            self.state.set_flavor(flavor)
        if plain is None:
            self.queues.remove_flavor(wire.metadata.name)
        else:
            self.queues.set_flavor(plain)

    def _set_cluster_queue(self, wire: ClusterQueue) -> None:
        try:
            self.queues.set_cluster_queue(cluster_queue(wire))
        except ValueError as error:
            log.warning(
                "a ClusterQueue cannot be read; what was known of it counts", queue=wire.metadata.name, error=error
            )

    def _set_namespace(self, wire: objects.Namespace) -> None:
        self.queues.set_namespace(wire.metadata.name, wire.metadata.labels or {})

    def _set_local_queue(self, wire: LocalQueue) -> None:
        self.queues.set_local_queue(local_queue(wire))

    def _set_class(self, wire: objects.PriorityClass) -> None:
        self.priorities[wire.metadata.name] = wire.value
        self._defaults.pop(wire.metadata.name, None)
        if wire.global_default:
            self._defaults[wire.metadata.name] = wire.value

    def _set_job(self, job: objects.Job) -> None:
        parent = self._parent(job) or self._launched_by(job)
        if self._parents.get(id_of(job), parent) != parent:
            self._forget_child(job)  # it has another owner now
        if parent:
            self._drop(id_of(job))  # it, or pods that name it, were taken for a workload of their own
            self._set_child(parent, job)
            return
        if job.spec.managed_by not in {"", JOB_CONTROLLER}:
            self._drop_job(id_of(job))  # another controller's, who makes its pods elsewhere, or not at all
            return
        uid = id_of(job)
        pods = tuple(self.stores.pods_of(uid)) if uid in self._parents else ()
        for pod in pods:
            self._leaves(pod, pod)  # a JobSet's until now
        self._parents.pop(uid, None)
        self._set_own(owner_of(job, self.keys, self._own_before(uid)))
        for pod in pods:
            self._charge(pod)
            self._pay(pod, self._record_of(pod))
            self._note_arrival(pod)

    def _parent(self, job: objects.Job) -> str:
        """The id of the JobSet that made a Job; "" where none did, whatever the Job says.

        One that was not seen is believed in: watches tell of it before or after its Jobs. But for a Job that names a
        queue that ends after a while, as else any Job could run past its queue.
        """
        named, namespace = parent_of(job.metadata), job.metadata.namespace
        if named is None:
            return ""
        jobset = self.stores.jobset(f"{namespace}/{named.name}")
        if jobset is not None and jobset.metadata.uid == named.uid:
            believed = made_by(jobset, job.metadata)
        elif self.keys.queue_name in (job.metadata.labels or {}):
            believed = self._clock() - self._unproved.setdefault(id_of(job), self._clock()) < UNPROVED
        else:
            believed = True
        return identity(namespace, named.uid) if believed else ""

    def _launched_by(self, job: objects.Job) -> str:
        """The id of the owner whose launcher a Job makes; "" where it makes none."""
        controller = objects.controller_of(job.metadata)
        told = (
            self.wholes.told.get(identity(job.metadata.namespace, controller.uid)) if controller is not None else None
        )
        record = self.records.get(id_of(job))
        if told is None or not told.makes(job, self.keys) or (record is not None and record.admission is not None):
            return ""
        return told.id if self._is_whole(told) else ""

    def on_replicated(self, kind: Resource, event: Event[Replicated]) -> None:
        """An owner came, changed or went that tells how many pods there are of each kind."""
        one = event.new or event.old
        if one is None:
            return
        with self.guard(kind.kind, event.key):
            told = ReplicaCounts.of(one, kind.kind, kind.api_version, self.keys) if event.new is not None else None
            uid = id_of(one)
            if told is not None:
                self.wholes.told[uid] = told
            elif event.new is None:
                self.wholes.gone(uid, has_pods=uid in self.records)
            if self.live:
                self._gather_unseen(uid)
                if uid in self.records:
                    self._enqueue(uid, 0.0)

    def judge_unseen(self) -> None:
        """Take pods for what they tell themselves whose owner was not seen in a while; to be called now and then."""
        now = self._clock()
        for uid in [uid for uid, (since, _) in self.wholes.unseen.items() if now - since >= UNPROVED]:
            self._gather_unseen(uid)

    def _gather_unseen(self, uid: str) -> None:
        _, parts = self.wholes.unseen.pop(uid, (0.0, ()))
        for pod in [pod for key in sorted(parts) for pod in self.stores.pods_of(key)]:
            self._gather(pod, waits=False)
            if self._record_of(pod) is None:
                self._note_stray(pod)

    def _is_whole(self, told: ReplicaCounts) -> bool:
        """Whether the pods of an owner are one workload; not where some were placed before it was seen."""
        if told.id in self.wholes.ids:
            return True
        parts = (told.id, *(f"{told.id}/{kind}" for kind in told.replicas.counts))
        key = f"{told.namespace}/{told.workload}"
        there = self.stores.workload(key)
        apart = (
            any(part in self.records for part in parts)
            or (there is not None and not {one.name for one in there.spec.pod_sets} <= set(told.replicas.counts))
            or any(
                mark_of(pod, self.keys) not in {None, told.workload}
                for part in parts
                for pod in self.stores.pods_of(part)
            )
        )
        if not apart:
            self.wholes.ids.add(told.id)
        return not apart

    def judge_unproved(self) -> None:
        """Look again at Jobs that name a queue and a JobSet that nobody saw; to be called now and then."""
        now = self._clock()
        for uid in [uid for uid, since in self._unproved.items() if now - since >= UNPROVED]:
            job = self.children.get(self._parents.get(uid, ""), {}).get(uid)
            if job is not None and not self._parent(job):
                self._forget_child(job)
                self._set_job(job)

    def _set_jobset(self, jobset: JobSet) -> None:
        uid = id_of(jobset)
        children = self.children.get(uid, {})
        if jobset.spec.managed_by not in {"", JOB_SET_CONTROLLER}:
            self._drop_job(uid)
        elif jobset.spec.replicated_jobs:
            self._set_own(owner_of_jobset(jobset, children.values(), self.keys, self._own_before(uid)))

    def _set_child(self, parent: str, job: objects.Job) -> None:
        """A Job that a JobSet made: its pods are the JobSet's."""
        uid = id_of(job)
        new = uid not in self._parents
        self._parents[uid] = parent
        self.children.setdefault(parent, {})[uid] = job
        record = self.records.get(parent)
        if record is None:
            return
        if new:
            for pod in self._pods_of(uid):
                self.stray.pop(pod.metadata.uid, None)
                self.queues.remove_pod(objects.key(pod))
                record.pods[pod.metadata.uid] = pod
                self._charge(pod)
                self._note_arrival(pod)
            self._enqueue(parent, self._delay(record))
        self._look_at_parent(record)

    def _forget_child(self, job: objects.Job) -> None:
        uid = id_of(job)
        parent = self._parents.get(uid, "")
        children = self.children.get(parent, {})
        if children.pop(uid, None) is None:
            return
        if not children:
            del self.children[parent]
        self._forget_parent(uid)
        if (record := self.records.get(parent)) is not None:
            self._look_at_parent(record)

    def _forget_parent(self, uid: str) -> None:
        """Forget whose a Job was, once it and its pods are gone: watches may tell of the pods later."""
        parent = self._parents.get(uid)
        if parent is not None and uid not in self.children.get(parent, ()) and not any(self.stores.pods_of(uid)):
            del self._parents[uid]
            if (parts := self.wholes.parts.get(parent)) is not None:
                parts.discard(uid)
                if not parts:
                    del self.wholes.parts[parent]

    def _look_at_parent(self, record: WorkloadEntry) -> None:
        jobset = self.stores.jobset(record.owner.key)
        if jobset is not None and id_of(jobset) == record.id:
            self._set_jobset(jobset)

    def _own_before(self, uid: str) -> JobView | None:
        """A job as it was seen last; what pods tell that name its uid is not it."""
        record = self.records.get(uid)
        return record.own if record is not None and uid not in self.groups else None

    def _set_own(self, own: JobView) -> None:
        if own.request is None and not own.gated and not own.queue:
            self._drop_job(own.id)
            return
        if own.id in self.groups:
            self._drop(own.id)  # pods that name it were seen first, and taken for all there is of it
        record = self.records.get(own.id)
        if record is None:
            self._new_record(own)
            return
        if record.own is not None and own.version < record.own.version:
            return  # older than what came of our own write
        record.own = own
        self.review(own.id)

    def saw_job(self, job: objects.Job | JobSet) -> None:
        """Take over what the API server made of our own write."""
        if id_of(job) not in self.records:
            return
        if isinstance(job, JobSet):
            self._set_jobset(job)
        else:
            self._set_job(job)

    def review(self, uid: str) -> None:
        """Look at a job anew: it changed, or what `view` says of it may have."""
        record = self.records.get(uid)
        if record is None or record.own is None:
            return
        before, record.owner = record.owner, self._seen(record.own)
        if not record.owner.suspended and record.admission is not None:
            record.started = True
        if _worth_a_look(before, record.owner):
            self._enqueue(uid, 0.0)

    def _gather(self, pod: objects.Pod, *, waits: bool = True) -> None:
        """Where a pod that no Job owns is the first one seen of its owner, make a record; more may come in a moment.

        ``waits``: for an owner that tells how many pods there are, and that was not seen yet.
        """
        key = part = owner_key(pod, self.keys)
        if key in self.records or self._is_child(key) or not served(pod, self.keys):
            return
        if (maker := maker_of(pod, self.keys)) != "":
            told = self.wholes.told.get(maker)
            known = told is not None and (maker in self.wholes.ids or told.role(pod) in told.replicas.counts)
            if told is not None and known and self._is_whole(told):
                key = self._take_part(maker, part)
            elif told is None and waits and self._may_come(pod, maker):
                return
        if (record := self.records.get(key)) is not None:
            record.pods[pod.metadata.uid] = pod
            return
        pods = {other.metadata.uid: other for other in (*self._pods_of(key), pod)}
        own = self._own_of(key, pods.values())
        if own is not None and not any(self._is_own(own, other) for other in pods.values()):
            return  # all of them were let go for another workload, and run on without it (`ungater.cache.orphans`)
        if own is None:
            self._unled.setdefault(set_of(key), set()).add(key)
            return
        if (waiting := self._leftover.get(own.workload_key)) is not None:
            waiting.append(pod)
            return
        self.groups[key] = own.workload_key
        self._new_record(own, after=self._batch if own.open_ended and self.live else 0.0)
        self.records[key].pods |= pods

    def _is_child(self, uid: str) -> bool:
        """Whether pods of this id are those of a Job that another owner made, whatever kind they name."""
        parent = self._parents.get(uid)
        return parent is not None and uid not in self.wholes.parts.get(parent, ())

    def _take_part(self, whole: str, part: str) -> str:
        """Pods of this key are those of a whole; its id."""
        if part != whole:
            self._parents[part] = whole
            self.wholes.parts.setdefault(whole, set()).add(part)
        return whole

    def _may_come(self, pod: objects.Pod, maker: str) -> bool:
        """Whether an owner that was not seen may be soon: it is watched, and its pods came a moment ago."""
        controller = objects.controller_of(pod.metadata)
        group = controller.api_version.partition("/")[0] if controller is not None else ""
        if not self.live or controller is None or not self.stores.reads(controller.kind, group):
            return False
        self.wholes.unseen.setdefault(maker, (self._clock(), set()))[1].add(owner_key(pod, self.keys))
        return True

    def _is_own(self, own: JobView, pod: objects.Pod) -> bool:
        """Whether a pod waits for its owner's workload, or was let go for it; a LeaderWorkerSet's is made anew else."""
        if is_gated(pod, self.keys.gate) or own.id.startswith(LEADERS):
            return True
        return mark_of(pod, self.keys) == own.workload

    def removed(self, record: WorkloadEntry) -> None:
        """Its Workload was deleted by us; whatever is still heard of that one is old, also by a record made anew."""
        if record.known is not None:
            self._removed[record.known.uid] = None
            if len(self._removed) > REMOVED:
                del self._removed[next(iter(self._removed))]
            record.gone = record.known.uid
        self.unknown(record)

    @staticmethod
    def unknown(record: WorkloadEntry) -> None:
        """It has no Workload any more; who comes now, and the next Workload, have heard nothing yet."""
        if record.known is not None:
            record.queue_before = record.known.queue
        record.known, record.removing, record.told = None, False, None

    def leave_out(self, workload: str) -> None:
        """A Workload, by its key, whose pods are all gone: what it holds is nobody's, and it is to be removed.

        Until that was seen (`cleared`), pods of its owner wait: they would find slots that somebody else may have.
        """
        self._leftover[workload] = []

    def serves(self, workload: str) -> bool:
        """Whether a job is known for the Workload of this key, or its removal is under way."""
        return workload in self._ids or workload in self._leftover

    def without_pods(self, workload: objects.ObjectMeta) -> bool:
        """Whether a Workload that nobody is known for was made for pods; not where their owner was not seen."""
        return of_pods(workload) and not any(has_pods(workload, groups) for groups in self._unled.values())

    def cleared(self, workload: str) -> None:
        """A Workload is seen to be gone: pods of its owner that came meanwhile have another made."""
        for pod in self._leftover.pop(workload, ()):
            there = self.stores.pods_of(owner_key(pod, self.keys))
            if any(other.metadata.uid == pod.metadata.uid for other in there):
                self._gather(pod)

    def regroup(self, record: WorkloadEntry) -> bool:
        """Look at the pods of an owner that is known by them alone; False where it is gone, and forgotten now."""
        if record.id not in self.groups or record.own is None:
            return True
        if not record.pods and record.known is None:
            self._drop(record.id)
            return False
        own = self._own_of(record.id, record.pods.values(), record.own, self._counts(record))
        if own is not None and own.workload != record.own.workload:
            return self._replaced(record)
        waits = own is not None and (own.queue or own.id.startswith(LEADERS))
        if own is not None and own.over == GONE and waits and own.kind not in {POD, GROUP}:
            own = self._maybe_gone(record, own)
        elif record.pods:
            record.bare_since = None
        record.own = own or record.own
        record.owner = self._seen(record.own)
        return True

    def _replaced(self, record: WorkloadEntry) -> bool:
        """A LeaderWorkerSet was made anew under its name. First what is held for the old one is given back."""
        if record.known is None or record.own is None:
            self._drop(record.id)
            for pod in tuple(record.pods.values()):
                self._gather(pod)
            return False
        record.own = replace(record.own, over=GONE)
        record.owner = self._seen(record.own)
        return True

    def _counts(self, record: WorkloadEntry) -> Mapping[str, int]:
        """How many pods each pod set has by the Workload, where that is admitted: some may not be there at a start."""
        held = record.owner.kinds and record.known is not None and record.known.admission is not None
        workload = self.stores.workload(record.key) if held else None
        return {one.name: one.count for one in workload.spec.pod_sets} if workload is not None else {}

    def _own_of(
        self,
        key: str,
        pods: Iterable[objects.Pod],
        before: JobView | None = None,
        stored: Mapping[str, int] | None = None,
    ) -> JobView | None:
        """The view of an owner that is known by its pods; None where what describes them was not seen yet."""
        found = list(pods)
        if not key.startswith(LEADERS) or not found:
            told = self.wholes.told.get(key) if key in self.wholes.ids else None
            return owner_of_pods(key, found, self.keys, before, stored, told) if found or before is not None else None
        whole = self.stores.leader_set(set_of(key))
        if whole is None:
            return before
        return owner_of_group(key, found, whole, self.keys, before, lambda *named: self._revisions.get(named))

    def _maybe_gone(self, record: WorkloadEntry, own: JobView) -> JobView:
        """Between the end of its pods and the next ones an owner keeps its Workload for a moment."""
        now = time.monotonic()
        record.bare_since = now if record.bare_since is None else record.bare_since
        if now - record.bare_since >= BARE:
            return own
        self._enqueue(record.id, BARE)
        pod_sets = tuple([replace(one, count=0) for one in own.pod_sets]) if own.open_ended else own.pod_sets
        return replace(own, over="", ready=0, pod_sets=pod_sets)

    def on_leaders(self, event: Event[LeaderWorkerSet]) -> None:
        """A LeaderWorkerSet came, changed or went."""
        whole = event.new
        if not self.live or whole is None:
            return
        for group in sorted(self._unled.pop(event.key, ())):
            for pod in self.stores.pods_of(group):
                self._gather(pod)
        self._look_at_groups(event.key)

    def on_revision(self, event: Event[ControllerRevision]) -> None:
        """A revision of a LeaderWorkerSet came or went; it never changes."""
        one = event.new or event.old
        if one is None or (named := revision_key(one.metadata)) is None:
            return
        if event.new is not None:
            self._revisions[named] = event.new
        else:
            self._revisions.pop(named, None)
        if self.live:
            self._look_at_groups(named[0])

    def _look_at_groups(self, whole: str) -> None:
        """Have the groups of a LeaderWorkerSet looked at."""
        head = f"{LEADERS}{whole}/"
        for uid in self.groups:
            if uid.startswith(head):
                self._enqueue(uid, 0.0)

    def _owner_of(self, workload: Workload) -> WorkloadEntry | None:
        """Whose Workload it is: that of its controlling owner; of a group of pods, by its name; one that is known."""
        record = self.records.get(self._ids.get(objects.key(workload), ""))
        if record is None or belongs(workload, record.owner):
            return record
        known = record.known is not None and record.known.uid == workload.metadata.uid
        return record if known else None  # whatever somebody wrote on it since

    def _new_record(self, own: JobView, after: float = 0.0) -> None:
        owner = self._seen(own)
        record = self.records[owner.id] = WorkloadEntry(owner, own=own)
        self._ids[record.key] = owner.id
        record.pods = {pod.metadata.uid: pod for pod in self._pods_of(owner.id)}
        workload = self.stores.workload(owner.workload_key)
        if workload is not None and belongs(workload, owner) and workload.metadata.uid not in self._removed:
            record.known = known_of(workload)
            if (held := record.known.admission or record.known.held) is not None and _holds(owner):
                self.hold(record, held)
                record.started = not owner.suspended
        for uid, pod in record.pods.items():
            self.stray.pop(uid, None)
            self.queues.remove_pod(objects.key(pod))
        self._enqueue(owner.id, after)

    def _drop(self, uid: str) -> None:
        record = self.records.pop(uid, None)
        self.groups.pop(uid, None)
        self.wholes.forget(uid)
        if record is not None:
            if self._ids.get(record.key) == uid:
                del self._ids[record.key]
            self.free(record)

    def _drop_job(self, uid: str) -> None:
        """Forget a job; not pods that name its uid and another kind: these have a Workload that goes with them."""
        record = self.records.get(uid)
        if record is None or uid in self.groups:
            return
        self._drop(uid)
        for pod in tuple(record.pods.values()):
            self._gather(pod)

    def _pods_of(self, uid: str) -> Iterable[objects.Pod]:
        """The pods of an owner and of its Jobs."""
        keys = (uid, *self.children.get(uid, ()), *sorted(self.wholes.parts.get(uid, ())))
        return (pod for one in keys for pod in self.stores.pods_of(one))

    def _record_of(self, pod: objects.Pod) -> WorkloadEntry | None:
        key = owner_key(pod, self.keys)
        return self.records.get(self._parents.get(key, key))

    def _pod_of(self, record: WorkloadEntry, old: objects.Pod | None, new: objects.Pod) -> None:
        uid = new.metadata.uid
        record.pods[uid] = new
        gated = is_gated(new, self.keys.gate)
        if not gated and uid in record.intents:
            sent = record.intents.pop(uid)  # our own patch, seen at last
            if not self._stands(record, sent.values):
                self._enqueue(record.id, 0.0)
            return
        if old is not None and _same_to_slots(old, new, self.keys.gate):
            return
        self._enqueue(record.id, self._delay(record))

    def _stands(self, record: WorkloadEntry, values: Sequence[str]) -> bool:
        """Whether there is a slot with these values still, on a node that can take its pod where it is one node."""
        for slots in record.slots_in.values():
            index = slots.index(tuple(values))
            if index is not None:
                name = slots.slots[index].node
                node = self.state.nodes.get(name)
                return not name or (node is not None and node.ready and not node.unschedulable)
        return False

    def _delay(self, record: WorkloadEntry) -> float:
        """How long to wait for more pods of the job: not at all once they are all there."""
        full = record.owner.full
        if record.owner.open_ended and (
            not record.slots_in or len(record.pods) > sum([slots.total for slots in record.slots_in.values()])
        ):
            return self._batch
        if len(record.pods) >= full:
            return 0.0
        return min(self._batch, LEAST_BATCH + BATCH_A_POD * full)

    def _forget_pod(self, pod: objects.Pod) -> None:
        uid = pod.metadata.uid
        self.stray.pop(uid, None)
        self._give_back(pod)
        if self.orphans.gone(pod):
            self._signal()
        self._forget_left(pod)
        self.arrivals.gone(pod)
        record = self._record_of(pod)
        self._forget_parent(key := owner_key(pod, self.keys))
        if (unled := self._unled.get(set_of(key))) is not None and not any(self.stores.pods_of(key)):
            unled.discard(key)
            if not unled:
                del self._unled[set_of(key)]
        if record is None or record.pods.pop(uid, None) is None:
            return
        record.intents.pop(uid, None)
        record.deleting.pop(uid, None)
        record.noted.discard(uid)
        record.troubles.pop(uid, None)
        self.arrivals.stop_waiting(record, uid)
        placement_exchange.forget(record, pod)
        self._enqueue(record.id, self._delay(record))

    def _charge(self, pod: objects.Pod) -> None:
        """Charge a pod that has not finished where it is bound, with its claim, or heads for; others take nothing."""
        if not pod.spec.node_name:
            if node := self._heads_for(pod):
                self.state.set_pod(convert.pod(_bound(pod, node)))
            elif objects.key(pod) in self.state.pods:
                self._give_back(pod)
            return
        if finished(pod):
            self._give_back(pod)
            return
        try:
            shape, placement = self.inside.of_pod(pod, self._in_flight(pod))
            observed = placement is not None and self.inside.observed(pod)
            self.state.set_pod(convert.pod(pod, self._claim(pod), shape=shape, placement=placement, observed=observed))
        except Exception as error:  # noqa: BLE001  (told by the guard)
            self.guard.failed("pod", objects.key(pod), error)
            self.state.set_pod(Pod(key=objects.key(pod), node=pod.spec.node_name, requests={}))  # one pod, at least
        record = self._record_of(pod)
        if record is not None and record.owner.queue:
            self.queues.bind(objects.key(pod), record.key)
        self._note_outside(pod)

    def _heads_for(self, pod: objects.Pod) -> str:
        """The node that a pod was sent to which no workload has slots for any more, as it was orphaned on its way."""
        meta, host = pod.metadata, (pod.spec.node_selector or {}).get(HOSTNAME_LABEL, "")
        if self.keys.workload not in (meta.annotations or {}) or is_gated(pod, self.keys.gate) or finished(pod):
            return ""
        record, node = self._record_of(pod), self.state.nodes.get(host)
        kept = record is not None and self._marked(record, pod)
        return "" if kept or node is None or meta.deletion_timestamp is not None else host

    def _note_outside(self, pod: objects.Pod) -> None:
        """Have a pod that no queue admitted be a candidate, where settings allow that, until it is gone."""
        if not self.queues.rules.pods:
            return
        key = objects.key(pod)
        if self._record_of(pod) is not None or not may_be_evicted(pod, self.keys):
            self.queues.remove_pod(key)
        elif pod.metadata.deletion_timestamp is None and pod.spec.node_name and not finished(pod):
            self.queues.set_pod(outside(pod))

    def _give_back(self, pod: objects.Pod) -> None:
        self.queues.unbind(objects.key(pod))
        self.queues.remove_pod(objects.key(pod))
        charged = self.state.pods.get(objects.key(pod))
        if charged is not None and self.state.remove_pod(charged.key):
            self.troubles.changed(charged.node, self.records.values())
            self.stir(None if _keeps_off(pod) else self.state.flavors_on(charged.node))

    def _note_arrival(self, pod: objects.Pod) -> None:
        """A pod may be on its way to a node, or have come."""
        if not self.state.machines:
            return
        record, node = self._record_of(pod), pod.spec.node_name
        slots = record.slots_of(pod) if record is not None and not node else None
        if record is not None and slots is not None and not is_gated(pod, self.keys.gate):
            index = slots.of_selector(pod.spec.node_selector) if self._marked(record, pod) else None
            node = slots.slots[index].node if index is not None else ""
        if node:
            self.arrivals.saw(record, pod, node)

    def _in_flight(self, pod: objects.Pod) -> NumaPlacement | None:
        record = self._record_of(pod)
        if record is None:
            return None
        intent = record.intents.get(pod.metadata.uid)
        return record.swaps.get(pod.metadata.uid) or (intent.placement if intent is not None else None)

    def _settle(self, record: WorkloadEntry, pod: objects.Pod) -> None:
        """Pods may come to their node in another order than was foreseen."""
        placement_exchange.arrive(record, pod)
        other = placement_exchange.settle(
            self.state, record, pod, self.stores.pods_on(pod.spec.node_name), self._record_of
        )
        if other is not None:
            self._charge(other)

    def _claim(self, pod: objects.Pod) -> tuple[str, str] | None:
        record = self._record_of(pod)
        if record is None or not record.slots_in or not self._marked(record, pod):
            return None
        slots = record.slots_of(pod)
        if slots is None or slots.of_selector(pod.spec.node_selector) is None:
            return None
        return record.key, record.pod_set_of(pod)

    def _look_inside(self, name: str) -> None:
        """What a node publishes of its inside may have changed."""
        found = self.inside.refresh(name)
        if found.zones:
            for pod in self.stores.pods_on(name):
                self._charge(pod)
                self._note_arrival(pod)
        if found.anything:
            self.troubles.changed(name, self.records.values())
            self.arrivals.changed(name)
        if found.more:
            self.stir(self.state.flavors_on(name))

    def _marked(self, record: WorkloadEntry, pod: objects.Pod) -> bool:
        return mark_of(pod, self.keys) == record.owner.workload

    def _note_stray(self, pod: objects.Pod) -> None:
        """Remember a gated pod whose owner is no job that is served, so that somebody tells why it stays gated."""
        if not is_gated(pod, self.keys.gate) or pod.metadata.deletion_timestamp is not None:
            return
        if (waiting := self.wholes.unseen.get(maker_of(pod, self.keys))) is not None and owner_key(
            pod, self.keys
        ) in waiting[1]:
            return
        self.stray.setdefault(pod.metadata.uid, pod)

    def _lost(
        self, record: WorkloadEntry, owned: PodSetView, slots: PodSetSlots, wanted: Sequence[int]
    ) -> tuple[int, ...]:
        """The slices among ``wanted`` where no pod of the pod set can start now."""
        pod_set = self._anywhere(record, owned)

        def look() -> tuple[int, ...]:
            places = [(slots.slots[index].values, slots.slots[index].node) for index in wanted]
            found = closed(self.state, slots.flavor, slots.levels, pod_set, places)
            return tuple(index for index, is_closed in zip(wanted, found, strict=True) if is_closed)

        lost = look()
        if not lost or not self.queues.promised():
            return lost
        with self.queues.counted_once(self.state):
            return look()

    def _anywhere(self, record: WorkloadEntry, owned: PodSetView) -> PodSet:
        """One pod of a pod set, which keeps off no node."""
        unconstrained = TopologyRequest(policy=Policy.UNCONSTRAINED)
        return convert.pod_set(
            owned.name, 1, owned.template, unconstrained, record.owner.namespace, added=self._added(owned)
        )

    def _dead(self, name: str) -> bool:
        """Whether nobody on this node ends pods."""
        node = self.state.nodes.get(name)
        return node is None or not node.ready

    def _missing_since(self, name: str) -> float | None:
        """Since when there is no node of that name, as far as this controller saw; None where there is one."""
        if name in self.state.nodes:
            return None
        return self._missing.setdefault(name, self._clock())

    def forget_missing(self) -> None:
        """Forget deleted nodes on which no pods are any more, and those that came back."""
        known = self.state.nodes
        for name in [name for name in self._missing if name in known or not self.stores.pods_on(name)]:
            del self._missing[name]

    def look_at_changed_nodes(self) -> None:
        """Have those looked at with slots on nodes that changed: they may be lost, or not lost any more.

        All nodes that changed meanwhile cost one pass over the slots.
        """
        if not self._changed:
            return
        changed, self._changed = self._changed | {""}, set()
        for uid, record in self.records.items():
            if any(slot.node in changed for slots in record.slots_in.values() for slot in slots.slots):
                self._enqueue(uid, 0.0)

    def pending(self) -> Mapping[str, int]:
        """How many jobs wait for a place, by reason."""
        counts: dict[str, int] = {}
        for record in self.records.values():
            if record.admission is None and not record.owner.over:
                reason = str(record.refused.reason if record.refused else Reason.PENDING)
                counts[reason] = counts.get(reason, 0) + 1
        return counts


def _holds(owner: JobView) -> bool:
    """Whether what is stored for it is held: until it is over; and of pods that are all gone until it is removed."""
    return owner.over in {"", GONE}


def _heading(pod: objects.Pod, slots: PodSetSlots | None, values: Sequence[str]) -> objects.Pod:
    """A pod as it will be once it is sent to a slot with these values."""
    if slots is None:
        return pod
    selector = {**(pod.spec.node_selector or {}), **dict(zip(slots.levels, values, strict=True))}
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_selector=selector))


def _bound(pod: objects.Pod, node: str) -> objects.Pod:
    """A pod as it will be on this node."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


def _keeps_off(pod: objects.Pod) -> bool:
    """Whether others keep off whole domains because of it, and not only of its node."""
    return pod.spec.affinity is not None and pod.spec.affinity.pod_anti_affinity is not None


def _same_flavor(old: objects.ResourceFlavor | None, new: objects.ResourceFlavor | None) -> bool:
    """Whether nothing but its status changed."""
    return old is not None and new is not None and old.metadata.uid == new.metadata.uid and old.spec == new.spec


def _charged_alike(old: objects.Pod, new: objects.Pod) -> bool:
    """Whether both versions of a pod take the same from the same node."""
    return (
        old.spec == new.spec
        and finished(old) == finished(new)
        and old.metadata.labels == new.metadata.labels
        and old.metadata.annotations == new.metadata.annotations
    )


def _same_to_slots(old: objects.Pod, new: objects.Pod, gate: str) -> bool:
    """Whether nothing changed that decides which slot the pod holds or needs."""
    return (
        is_gated(old, gate) == is_gated(new, gate)
        and finished(old) == finished(new)
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        and old.spec.node_selector == new.spec.node_selector
        and old.metadata.annotations == new.metadata.annotations
    )


def _worth_a_look(before: JobView, after: JobView) -> bool:
    """Whether a job changed in what is decided on; its pods' readiness counts only as all or not all."""
    return _quiet(before) != _quiet(after)


def _quiet(owner: JobView) -> JobView:
    ready = 1 if owner.ready >= owner.count > 0 else 0
    pod_sets = tuple([replace(pod_set, done=()) for pod_set in owner.pod_sets])
    return replace(owner, ready=ready, pod_sets=pod_sets, version=0, outcome="")


def _unresolved(request: ParsedRequest | None) -> TopologyRequest:
    return unresolved(request) if request is not None else TopologyRequest(policy=Policy.UNCONSTRAINED)
