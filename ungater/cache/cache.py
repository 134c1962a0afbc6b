"""What is known of the cluster, fed by informer events: the engine's state and one entry a job.

Rules
- An event costs O(1): a pod touches its charge in the engine and its place in one entry, nothing else.
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
from ungater.cache.volumes import Volumes
from ungater.guard import Guard
from ungater.jobs.job import owner_of
from ungater.jobs.jobset import made_by, owner_of_jobset, parent_of
from ungater.jobs.leaderworkerset import PREFIX as LEADERS
from ungater.jobs.leaderworkerset import has_pods, owner_of_group, revision_key, set_of
from ungater.jobs.pod_group import GONE, GROUP, POD, mark_of, of_pods, owner_key, owner_of_pods, served
from ungater.jobs.replica_counts import ReplicaCounts, ReplicatedOwners, maker_of
from ungater.model.actions import MissingPods, ReconcileContext
from ungater.model.conditions import ADMITTED
from ungater.model.job_view import JobView, PodSetView, controlled_by, id_of, identity
from ungater.model.pod_slots import PodSetSlots, finished, is_gated
from ungater.model.workload_entry import Admission, ObservedWorkload, WorkloadEntry
from ungater.model.workload_object import Workload, observed_of
from ungater.model.workload_spec import belongs
from ungater.numa import placement_exchange
from ungater.numa.in_flight import InFlightPods
from ungater.numa.mismatches import PlacementMismatches, refused
from ungater.numa.node_topologies import NodeTopologies, Options, worth_a_look
from ungater.numa.notices import Notices, Silent
from ungater.numa.predictions import promise_again
from ungater.reconcile.missing_pods import Doubts
from ungater.reconcile.partial_eviction import may_be_evicted, outside

BATCH_A_POD = 0.0002  # seconds of waiting for more pods, for each pod the job has
READY_AFTER = 1.0  # seconds: pods of a workload become ready together
LEAST_BATCH = 0.1
REMOVED = 10_000  # Workloads that were deleted, and of which something may still be heard
UNPROVED = 10.0  # seconds for which a Job is believed that names a JobSet nobody has seen
UNSTORED = 30.0  # seconds after which a Workload that no watch tells of is taken to be deleted
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
        self.volumes = Volumes(stores.storage, stores.pods_with, self.state, keys)
        self.topologies = NodeTopologies(self.state, options, stores.nodes, notices.machine)
        self.mismatches = PlacementMismatches(enqueue, self.topologies.broken, notices.mismatch, clock)
        self._clock = clock
        self._missing: dict[str, float] = {}  # deleted nodes: since when, on the monotonic clock
        self.in_flight = InFlightPods(self.state, self.topologies, enqueue, self.entry_of, clock=clock, wall=wall)
        self.reservations = Reservations(self.state, queueing, self._pod_priority, self._anywhere, wall)
        self.orphans = Orphans(self.reservations.queues, keys.gate, self._dead)
        self.generation = 0  # grows when something could help those who wait
        self.entries: dict[str, WorkloadEntry] = {}  # by id of the job (`JobView.id`)
        self.flavors: dict[str, tuple[str, ...]] = {}
        self.priorities: dict[str, int] = {}
        self.workload_priorities: dict[str, int] = {}  # by WorkloadPriorityClass
        self._defaults: dict[str, int] = {}  # of the PriorityClasses that hold for pods that name none
        self.gated_orphans: dict[str, objects.Pod | None] = {}  # gated pods that no served job owns; None: it was told
        self.live = False
        self.layout = 0  # grows when nodes or flavors change
        self._changed: set[str] = set()  # nodes, since it was looked who has slots there
        self.children: dict[str, dict[str, objects.Job]] = {}  # Jobs by the id of the JobSet that made them, and theirs
        self._revisions: dict[tuple[str, str], ControllerRevision] = {}  # by LeaderWorkerSet, and hash
        self._parents: dict[str, str] = {}  # the other way round; also of Jobs that are gone before their pods
        self._unled: dict[str, set[str]] = {}  # by LeaderWorkerSet that was not seen: groups that have pods
        self.wholes = ReplicatedOwners()
        self._unproved: dict[str, float] = {}  # ids of Jobs whose JobSet was not seen: since when, by the clock
        self._unstored: dict[str, float] = {}  # by job: since when no watch tells of the Workload that we wrote
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
                losing=lambda entry: self.reservations.losing(entry.key),
                outsiders=self._outsiders,
                unready=self.volumes.hindrance,
                choices=self.volumes.choices,
            )
        return self._rules

    def _seen(self, own: JobView) -> JobView:
        """A job as everything here is to look at it."""
        return own if self._view is None else self._view(own, self.entries.get(own.id), self.state.nodes)

    def expect_leader_sets(self, coming: Iterable[LeaderWorkerSet]) -> None:
        """Look these up too, which are not in the cluster yet: a dry run has their pods come."""
        there, new = self.stores.leader_set, {objects.key(one): one for one in coming}
        self.stores = replace(self.stores, leader_set=lambda key: new.get(key) or there(key))

    @property
    def queues(self) -> Queues:
        """All queues, and who waits or holds something in them."""
        return self.reservations.queues

    def entry_of(self, key: str) -> WorkloadEntry | None:
        """The job of a workload, by the workload's key."""
        return self.entries.get(self._ids.get(key, ""))

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

    def _outsiders(self, entry: WorkloadEntry) -> tuple[tuple[objects.Pod, str], ...]:
        """The pods that no queue admitted and that a preemption waits for, and what each is told."""
        return tuple(
            (pod, text)
            for one, text in self.reservations.outsiders(entry.key)
            for pod in self.stores.pods_on(one.node)
            if pod.metadata.uid == one.uid
        )

    def pod_set(
        self, entry: WorkloadEntry, owned: PodSetView, topology: TopologyRequest, count: int | None = None
    ) -> PodSet:
        """The engine's view of one pod set, whose pods keep off nodes that refused such pods a short time ago."""
        found = convert.pod_set(
            owned.name,
            owned.count if count is None else count,
            owned.template,
            topology,
            entry.job.namespace,
            group=self._group(entry.job, owned),
            shape=owned.shape,
            without=self.avoided(entry, owned),
            added=self._added(owned),
        )
        found = self.volumes.added(entry, owned, found)
        more = at_least(entry.asked.get(owned.name, {}), entry.granted(owned.name) or {})
        if (entry.job.foretold or entry.asked_for_more) and entry.admission is None:  # its pods' template is not all
            for pod in entry.pods_of(owned):
                more = more if finished(pod) else at_least(more, convert.pod_requests(pod.spec))
        return msgspec.structs.replace(found, requests=at_least(found.requests, more)) if more else found

    def avoided(self, entry: WorkloadEntry, owned: PodSetView, now: float | None = None) -> frozenset[str]:
        """The nodes that the pods of a pod set keep off now: they refused such a pod, or would as things stand."""
        return self.mismatches.avoided(owned.shape, now) | self.in_flight.left_out(entry, owned.shape, now)

    def queue_inadmissible(self, flavors: Iterable[str] | None = None) -> None:
        """Something changed that could help a workload that waits, for a place in ``flavors`` (None: in any)."""
        self.generation += 1
        self.queues.freed(self.flavors if flavors is None else flavors)
        self._signal()

    def enter(self, entry: WorkloadEntry, until: float = 0.0) -> None:
        """Have a job wait for a place, or for more or other ones."""
        self.reservations.submit(entry, self.wish(entry), self._rank(entry), until=until)
        if entry.admission is not None:
            self.reservations.want(entry)
        self._signal()

    def stored(self, entry: WorkloadEntry) -> None:
        """The write of an admission ended: from here on it may be somebody's victim."""
        if self.queues.stored(entry.key):
            self._signal()

    def ask(self, entry: WorkloadEntry) -> None:
        """What was said of why it waits counts no more: have it said anew, should it still wait."""
        entry.refused = entry.last_event = None
        self.queues.ask(entry.key)
        self._signal()

    def leave(self, entry: WorkloadEntry) -> None:
        """It waits no more."""
        victims = self.reservations.victims_of(entry.key)
        if self.reservations.leave(entry):
            self.queue_inadmissible(())
            self._stand_down(victims)

    def wish(self, entry: WorkloadEntry) -> tuple[PodSet, ...]:
        """What a job asks for, as queueing takes it: its pod sets that need pods, or all where it holds something."""
        pod_sets, observed = entry.job.pod_sets, entry.observed
        holds = entry.admission is not None or (observed is not None and observed.admission is not None)
        whole = holds or len(pod_sets) == 1
        wanted = pod_sets if whole else [one for one in pod_sets if one.count] or pod_sets[:1]
        return tuple([self.pod_set(entry, one, _unresolved(one.request)) for one in wanted])

    def _rank(self, entry: WorkloadEntry) -> int:
        queued = entry.job.queue and entry.observed is not None
        return entry.observed.priority if queued and entry.observed is not None else self.priority(entry.job)

    def checks_of(self, entry: WorkloadEntry) -> tuple[str, ...]:
        """The admission checks that what a job holds needs."""
        return self.checks_for(entry.admission) if entry.admission is not None and entry.job.queue else ()

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
        for entry in tuple(self.entries.values()):
            with self.guard("workload", entry.key):
                self._nominate(entry)
        self._each("pod", pods, self._load_pod)

    def _load_pod(self, pod: objects.Pod) -> None:
        self._charge(pod)
        self._pay(pod, self._entry_of(pod))
        self._note_arrival(pod)
        if (entry := self._entry_of(pod)) is None:
            self._note_gated_orphan(pod)
        elif refused(pod):
            self.mismatches.leave_out(entry, pod)  # told by whoever led when it happened

    def _load_node(self, node: objects.Node) -> None:
        self.state.set_node(convert.node(node, self.volumes.attachable(node)))
        self.topologies.refresh(node.metadata.name)

    def _each(self, kind: str, found: Iterable[T], take: Callable[[T], object]) -> None:
        """Take in objects one by one; what one leads to that nobody had foreseen costs that one alone."""
        for one in found:
            with self.guard(kind, objects.key(one)):
                take(one)

    def _nominate(self, entry: WorkloadEntry) -> None:
        """After a restart, a preemption that was under way goes on where it stood; its victims are told again."""
        observed = entry.observed
        if observed is None or observed.nomination is None or observed.admission is not None or entry.job.over:
            return
        if not observed.active:
            return  # it waits no more: the plan is removed when it is looked at
        workload = self.reservations.workload(entry, self.wish(entry), self._rank(entry))
        self.reservations.nominate(entry, observed.nomination, workload)
        for key in self.reservations.victims_of(entry.key):
            victim = self.entry_of(key)
            if victim is not None:
                if key not in self.queues.losing:
                    victim.evict = self.reservations.told(entry.key, key)
                self._enqueue(victim.id, 0.0)

    # --- events --------------------------------------------------------------------------------------------------

    def on_node(self, event: Event[objects.Node]) -> None:
        """A node came, changed or went."""
        if not self.live:
            return
        if event.new is None:
            self._missing[event.key] = self._clock()
            changed = self.state.remove_node(event.key)
            self.mismatches.forget(event.key)
            self.in_flight.forget(event.key)
        else:
            self._missing.pop(event.key, None)
            if changed := self.state.set_node(convert.node(event.new, self.volumes.attachable(event.new))):
                self.queue_inadmissible()
        if event.new is None or event.old is None or worth_a_look(event.old, event.new):
            self._look_inside(event.key)
        if changed:
            self.layout += 1
            self._changed.add(event.key)
            self._signal()
            for pod in self.stores.pods_on(event.key):
                if pod.metadata.deletion_timestamp is not None:
                    self._pay(pod, self._entry_of(pod))

    def attaches(self, name: str) -> None:
        """A node attaches another number of volumes."""
        node = self.stores.nodes.node(name)
        if node is not None and self.state.set_node(convert.node(node, self.volumes.attachable(node))):
            self.queue_inadmissible(self.state.flavors_on(name))

    def nodes_named(self, host: str) -> list[str]:
        """The names of the nodes with this host name."""
        node = self.state.nodes.get(host)
        if node is not None and node.labels.get(HOSTNAME_LABEL) == host:
            return [host]
        return [node.name for node in self.state.nodes.values() if node.labels.get(HOSTNAME_LABEL) == host]

    def look_at(self, uid: str) -> None:
        """Have a job looked at, where it is known."""
        if uid in self.entries:
            self._enqueue(uid, 0.0)

    def look_at_owner(self, pod: objects.Pod, *, charge: bool) -> None:
        """What a claim of a pod says may have changed; ``charge``: also what counts for it on its node."""
        if charge and pod.spec.node_name:
            self._charge(pod)
        if (entry := self._entry_of(pod)) is not None:
            self._enqueue(entry.id, 0.0)

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
        self.queue_inadmissible()
        for uid in self.entries:
            self._enqueue(uid, 0.0)

    def on_namespace(self, event: Event[objects.Namespace]) -> None:
        """A namespace came, has other labels, or went."""
        if not self.live:
            return
        if event.new is None:
            self.reservations.forget_namespace(event.key)
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
            self._drop(id_of(event.old))
            self._forget_child(event.old)
            self._unproved.pop(id_of(event.old), None)
        if event.new is not None:
            self._set_job(event.new)

    def on_jobset(self, event: Event[JobSet]) -> None:
        """A JobSet came, changed or went."""
        if not self.live:
            return
        if event.old is not None and (event.new is None or event.new.metadata.uid != event.old.metadata.uid):
            self._drop(id_of(event.old))
        if event.new is not None:
            self._set_jobset(event.new)

    def on_workload(self, event: Event[Workload]) -> None:
        """A Workload changed: by our own hand, which we know already, or by another's, whose entry then counts."""
        if not self.live:
            return
        workload = event.new or event.old
        if workload is None:
            return
        if event.old is not None and (event.new is None or event.old.metadata.uid != event.new.metadata.uid):
            self._removed.pop(event.old.metadata.uid, None)
            self.cleared(event.key)
        entry = self._owner_of(workload)
        if entry is None or workload.metadata.name != entry.job.workload:
            return
        if event.new is None:
            entry.gone = workload.metadata.uid
            if entry.observed is None or entry.observed.uid == entry.gone:
                self.unknown(entry)
                self._enqueue(entry.id, 0.0)
            return
        if not entry.busy:
            self.saw_workload(entry, observed_of(workload))

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
        entry = self._entry_of(new)
        if not (same and old is not None and _charged_alike(old, new)):
            if entry is not None and new.spec.node_name and self._marked(entry, new):
                with self.guard("pod", event.key):
                    self._settle(entry, new)
            self._charge(new)
            self._pay(new, entry)
        elif (old.metadata.deletion_timestamp, new.metadata.deletion_timestamp).count(None) == 1:
            self._pay(new, entry)  # where nobody ends it, it is not waited for
        self._note_arrival(new)
        if entry is None:
            self._note_gated_orphan(new)
        else:
            if self._marked(entry, new):
                self.mismatches.note(entry, old if same else None, new)
            self._pod_of(entry, old if same else None, new)

    # --- results of our own writes -------------------------------------------------------------------------------

    def saw_workload(self, entry: WorkloadEntry, observed: ObservedWorkload) -> None:
        """Take over what the API server has of a Workload; where its admission is not what is held, it wins."""
        if observed.uid == entry.gone or observed.uid in self._removed:
            return
        if entry.observed is not None and observed.version <= entry.observed.version:
            return
        entry.observed = observed
        self._take_over(entry, observed)
        self._enqueue(entry.id, 0.0)

    def _take_over(self, entry: WorkloadEntry, observed: ObservedWorkload) -> None:
        if observed.admission is not None and not observed.admission.same(entry.admission) and _holds(entry.job):
            self.hold(entry, observed.admission)

    def written(self, entry: WorkloadEntry, observed: ObservedWorkload | None) -> None:
        """A write ended: its answer counts, and then whatever came from the API server meanwhile.

        An answer about a Workload that was seen to be deleted comes too late.
        """
        entry.busy -= 1
        if not entry.busy and entry.missed:
            entry.missed = False
            self._enqueue(entry.id, 0.0)
        if observed is not None and observed.uid != entry.gone:
            entry.observed = observed
            self._take_over(entry, observed)
        latest = self.stores.workload(entry.key)
        if latest is not None and belongs(latest, entry.job):
            self.saw_workload(entry, observed_of(latest))

    def hold(self, entry: WorkloadEntry, admission: Admission) -> None:
        """Have queueing and the engine hold exactly this, which is stored in the API server.

        Nothing where the job went while a write was on its way: its Workload goes too, and nobody would give it back.
        """
        if self.entries.get(entry.id) is not entry:
            return
        before = entry.grant
        workload = self.reservations.workload(entry, self.wish(entry), self._rank(entry))
        self.reservations.take(entry, admission, workload)
        entry.shrink_at = None
        for pod in entry.pods.values():
            self._charge(pod)
            self._pay(pod, entry)
        self._judge_left(entry)
        if not self.live:
            promise_again(self.state, self.topologies, entry)
        elif before is not None:
            self.queues.gave_back(self.state, before)
            self.queue_inadmissible(())

    def admit(self, entry: WorkloadEntry, admission: Admission, grant: AssumedAdmission) -> None:
        """The admission is stored: from here on pods may go."""
        self.reservations.admit(entry, admission, grant)
        entry.refused = entry.last_event = None
        for pod in entry.pods.values():
            if pod.spec.node_name:
                self._charge(pod)
            self._pay(pod, entry)
        self._judge_left(entry)

    def free(self, entry: WorkloadEntry) -> None:
        """Give back all that is held for the job; it waits for nothing any more."""
        victims = self.reservations.victims_of(entry.key)
        self._clear(entry)
        if self.reservations.free(entry):
            self.queue_inadmissible(())
        self._stand_down(victims)
        self._leave_pods(entry)

    def back(self, entry: WorkloadEntry, until: float = 0.0) -> None:
        """Give back all that is held for the job; it waits again, not before ``until``."""
        self._clear(entry)
        entry.refused = None
        self.reservations.back(entry, until)
        self.queue_inadmissible(())
        self._leave_pods(entry)

    def _leave_pods(self, entry: WorkloadEntry) -> None:
        """What is held for a job was given back: pods of it that run on are charged by themselves."""
        for pod in entry.pods.values():
            self._pay(pod, entry)
            if not pod.spec.node_name:
                self._charge(pod)
        self._judge_left(entry)

    def _pay(self, pod: objects.Pod, entry: WorkloadEntry | None) -> None:
        """Charge a pod by itself where it runs and no workload answers for it, and no more where one does."""
        mark = mark_of(pod, self.keys)
        if entry is not None and mark not in {None, entry.job.workload}:
            entry = None
        if entry is None:
            entry = self._left_by(pod, mark)
        elif not is_gated(pod, self.keys.gate):
            self._forget_left(pod)
        if self.orphans.judge(pod, entry):
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
        entry, uid = self._entry_of(old), old.metadata.uid
        sent = entry.on_its_way(uid) if entry is not None else None
        self._forget_pod(old, charged=self.orphans.unseen(old) and self.orphans.unseen(new))
        if entry is None or sent is None or not answers_for(entry) or not is_gated(new, self.keys.gate):
            return
        self.orphans.sent(new)
        entry.left[uid] = entry.pod_set_of(old), _heading(new, entry.slots_of(old), sent.values)
        self._places[uid] = entry

    def _left_by(self, pod: objects.Pod, mark: str | None) -> WorkloadEntry | None:
        """The workload that a pod was let go for and is not part of any more, where it still has its place there."""
        if self.orphans.unseen(pod):
            return self._places.get(pod.metadata.uid)
        entry = self.entries.get(self._ids.get(f"{pod.metadata.namespace}/{mark}", "")) if mark else None
        uid = pod.metadata.uid
        if self._places.get(uid) is not entry:
            self._forget_left(pod)  # whatever it says by now that it was let go for
        if entry is None or uid in entry.pods or not self.orphans.runs(pod) or not answers_for(entry):
            self._forget_left(pod)
            return None
        pod_set = (pod.metadata.annotations or {}).get(self.keys.pod_set, "")
        if uid not in entry.left:
            if not entry.has_place(pod_set, self.keys.gate):
                return None
            self._enqueue(entry.id, 0.0)
        entry.left[uid] = pod_set, pod
        self._places[uid] = entry
        return entry

    def _forget_left(self, pod: objects.Pod) -> None:
        """A pod ended, or has no place in the workload that it left: others of that may go."""
        if (entry := self._places.pop(pod.metadata.uid, None)) is not None:
            del entry.left[pod.metadata.uid]
            self._enqueue(entry.id, 0.0)

    def _judge_left(self, entry: WorkloadEntry) -> None:
        """What is held for a job changed: those that left it have their places in it, or are charged by themselves."""
        left, entry.left = entry.left, {}
        for uid, (pod_set, pod) in left.items():
            if answers_for(entry) and self.orphans.unseen(pod):
                entry.left[uid] = pod_set, pod
            else:
                del self._places[uid]
        for uid, (_, pod) in left.items():
            if uid not in entry.left:
                self._pay(pod, None)

    def _clear(self, entry: WorkloadEntry) -> None:
        self.orphans.remember(entry)
        entry.expectations.clear()
        entry.exchanges.clear()
        self.in_flight.stop_all(entry)
        entry.shrink_at = None
        entry.asked = {}
        entry.patches.clear()
        entry.closing = False

    def undo(self, entry: WorkloadEntry, until: float = 0.0) -> None:
        """A write failed for certain: hold what was held before it."""
        victims = self.reservations.victims_of(entry.key)
        self.reservations.undo(entry, until)
        self.queue_inadmissible(())
        self._stand_down(victims)

    def replaced(self, entry: WorkloadEntry) -> None:
        """The write of other slots ended: those that it left may be another's from now on."""
        if self.reservations.replaced(entry):
            self.queue_inadmissible(())

    def _stand_down(self, victims: Iterable[str]) -> None:
        """Nobody waits for these any more: they may stay."""
        for key in victims:
            victim = self.entry_of(key)
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
            self._drop(id_of(job))  # where it was taken for a workload of its own
            self._set_child(parent, job)
            return
        if job.spec.managed_by not in {"", JOB_CONTROLLER}:
            self._drop(id_of(job))  # another controller's, who makes its pods elsewhere, or not at all
            return
        uid = id_of(job)
        pods = tuple(self.stores.pods_of(uid)) if uid in self._parents else ()
        for pod in pods:
            self._leaves(pod, pod)  # a JobSet's until now
        self._parents.pop(uid, None)
        self._set_own(owner_of(job, self.keys, self._own_before(uid)))
        for pod in pods:
            self._charge(pod)
            self._pay(pod, self._entry_of(pod))
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
        maker = (
            controlled_by(job.metadata.namespace, controller.kind, controller.api_version, controller.uid)
            if controller is not None
            else ""
        )
        told = self.wholes.told.get(maker)
        entry = self.entries.get(id_of(job))
        if told is None or not told.makes(job, self.keys) or (entry is not None and entry.admission is not None):
            return ""
        return told.id if self._is_whole(told) else ""

    def on_replicated(self, kind: Resource, event: Event[Replicated]) -> None:
        """An owner came, changed or went that tells how many pods there are of each kind."""
        one = event.new or event.old
        if one is None:
            return
        with self.guard(kind.kind, event.key):
            told = ReplicaCounts.of(one, kind.kind, kind.api_version, self.keys) if event.new is not None else None
            uid = controlled_by(one.metadata.namespace, kind.kind, kind.api_version, one.metadata.uid)
            if told is not None:
                self.wholes.told[uid] = told
            elif event.new is None:
                self.wholes.gone(uid, has_pods=uid in self.entries)
            if self.live:
                self._gather_unseen(uid)
                if uid in self.entries:
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
            if self._entry_of(pod) is None:
                self._note_gated_orphan(pod)

    def _is_whole(self, told: ReplicaCounts) -> bool:
        """Whether the pods of an owner are one workload; not where some were placed before it was seen."""
        if told.id in self.wholes.ids:
            return True
        parts = (told.id, *(f"{told.id}/{kind}" for kind in told.replicas.counts))
        key = f"{told.namespace}/{told.workload}"
        there = self.stores.workload(key)
        apart = (
            any(part in self.entries for part in parts)
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

    def judge_unstored(self) -> None:
        """Find Workloads that came and went while a watch was broken, of which no event tells; call at times."""
        now, stored = self._clock(), self.stores.workload
        missing = [
            entry
            for entry in self.entries.values()
            if entry.observed is not None and not entry.busy and stored(entry.key) is None
        ]
        self._unstored = {entry.id: self._unstored.get(entry.id, now) for entry in missing}
        for entry in missing:
            if now - self._unstored[entry.id] >= UNSTORED:
                del self._unstored[entry.id]
                self.unknown(entry)
                self._enqueue(entry.id, 0.0)

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
            self._drop(uid)
        elif jobset.spec.replicated_jobs:
            self._set_own(owner_of_jobset(jobset, children.values(), self.keys, self._own_before(uid)))

    def _set_child(self, parent: str, job: objects.Job) -> None:
        """A Job that a JobSet made: its pods are the JobSet's."""
        uid = id_of(job)
        new = uid not in self._parents
        self._parents[uid] = parent
        self.children.setdefault(parent, {})[uid] = job
        entry = self.entries.get(parent)
        if entry is None:
            return
        if new:
            for pod in self._pods_of(uid):
                self.gated_orphans.pop(pod.metadata.uid, None)
                self.queues.remove_pod(objects.key(pod))
                entry.pods[pod.metadata.uid] = pod
                self._charge(pod)
                self._note_arrival(pod)
            self._enqueue(parent, self._delay(entry))
        self._look_at_parent(entry)

    def _forget_child(self, job: objects.Job) -> None:
        uid = id_of(job)
        parent = self._parents.get(uid, "")
        children = self.children.get(parent, {})
        if children.pop(uid, None) is None:
            return
        if not children:
            del self.children[parent]
        self._forget_parent(uid)
        if (entry := self.entries.get(parent)) is not None:
            self._look_at_parent(entry)

    def _forget_parent(self, uid: str) -> None:
        """Forget whose a Job was, once it and its pods are gone: watches may tell of the pods later."""
        parent = self._parents.get(uid)
        if parent is not None and uid not in self.children.get(parent, ()) and not any(self.stores.pods_of(uid)):
            del self._parents[uid]
            if (parts := self.wholes.parts.get(parent)) is not None:
                parts.discard(uid)
                if not parts:
                    del self.wholes.parts[parent]

    def _look_at_parent(self, entry: WorkloadEntry) -> None:
        jobset = self.stores.jobset(entry.job.key)
        if jobset is not None and id_of(jobset) == entry.id:
            self._set_jobset(jobset)

    def _own_before(self, uid: str) -> JobView | None:
        """A job as it was seen last."""
        entry = self.entries.get(uid)
        return entry.own if entry is not None else None

    def _set_own(self, own: JobView) -> None:
        if own.request is None and not own.gated and not own.queue:
            self._drop(own.id)
            return
        entry = self.entries.get(own.id)
        if entry is None:
            self._new_entry(own)
            return
        if entry.own is not None and own.version < entry.own.version:
            return  # older than what came of our own write
        entry.own = own
        self.review(own.id)

    def saw_job(self, job: objects.Job | JobSet) -> None:
        """Take over what the API server made of our own write."""
        if id_of(job) not in self.entries:
            return
        if isinstance(job, JobSet):
            self._set_jobset(job)
        else:
            self._set_job(job)

    def review(self, uid: str) -> None:
        """Look at a job anew: it changed, or what `view` says of it may have."""
        entry = self.entries.get(uid)
        if entry is None or entry.own is None:
            return
        before, entry.job = entry.job, self._seen(entry.own)
        if not entry.job.suspended and entry.admission is not None:
            entry.started = True
        if _worth_a_look(before, entry.job):
            self._enqueue(uid, 0.0)

    def _gather(self, pod: objects.Pod, *, waits: bool = True) -> None:
        """Where a pod that no Job owns is the first one seen of its owner, make an entry; more may come in a moment.

        ``waits``: for an owner that tells how many pods there are, and that was not seen yet.
        """
        key = part = owner_key(pod, self.keys)
        if key in self.entries or not served(pod, self.keys):
            return
        if (maker := maker_of(pod, self.keys)) != "":
            told = self.wholes.told.get(maker)
            known = told is not None and (maker in self.wholes.ids or told.role(pod) in told.replicas.counts)
            if told is not None and known and self._is_whole(told):
                key = self._take_part(maker, part)
            elif told is None and waits and self._may_come(pod, maker):
                return
        if (entry := self.entries.get(key)) is not None:
            entry.pods[pod.metadata.uid] = pod
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
        self._new_entry(own, after=self._batch if own.open_ended and self.live else 0.0)
        self.entries[key].pods |= pods

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

    def removed(self, entry: WorkloadEntry) -> None:
        """Its Workload was deleted by us; whatever is still heard of that one is old, also by an entry made anew."""
        if entry.observed is not None:
            there = self.stores.workload(entry.key)
            # Of two owners whose Workloads have one name, one is not told of its end: it may have come already.
            if self.entry_of(entry.key) is entry or (there is not None and there.metadata.uid == entry.observed.uid):
                self._removed[entry.observed.uid] = None
            if len(self._removed) > REMOVED:
                del self._removed[next(iter(self._removed))]
            entry.gone = entry.observed.uid
        self.unknown(entry)

    @staticmethod
    def unknown(entry: WorkloadEntry) -> None:
        """It has no Workload any more; who comes now, and the next Workload, have heard nothing yet."""
        if entry.observed is not None:
            entry.queue_before = entry.observed.queue
        entry.observed, entry.removing, entry.last_event = None, False, None

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

    def regroup(self, entry: WorkloadEntry) -> bool:
        """Look at the pods of an owner that is known by them alone; False where it is gone, and forgotten now."""
        if entry.id not in self.groups or entry.own is None:
            return True
        if not entry.pods and entry.observed is None:
            self._drop(entry.id)
            return False
        own = self._own_of(entry.id, entry.pods.values(), entry.own, self._counts(entry))
        if own is not None and own.workload != entry.own.workload:
            return self._replaced(entry)
        waits = own is not None and (own.queue or own.id.startswith(LEADERS))
        if own is not None and own.over == GONE and waits and own.kind not in {POD, GROUP}:
            own = self._maybe_gone(entry, own)
        elif entry.pods:
            entry.bare_since = None
        entry.own = own or entry.own
        entry.job = self._seen(entry.own)
        return True

    def _replaced(self, entry: WorkloadEntry) -> bool:
        """A LeaderWorkerSet was made anew under its name. First what is held for the old one is given back."""
        if entry.observed is None or entry.own is None:
            self._drop(entry.id)
            for pod in tuple(entry.pods.values()):
                self._gather(pod)
            return False
        entry.own = replace(entry.own, over=GONE)
        entry.job = self._seen(entry.own)
        return True

    def _counts(self, entry: WorkloadEntry) -> Mapping[str, int]:
        """How many pods each pod set has by the Workload, where that is admitted: some may not be there at a start."""
        held = entry.job.kinds and entry.observed is not None and entry.observed.admission is not None
        workload = self.stores.workload(entry.key) if held else None
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
        if whole is None:  # its Workload goes with it, though pods that it left behind run on
            return replace(before, over="Deleted") if before is not None else None
        return owner_of_group(key, found, whole, self.keys, before, lambda *named: self._revisions.get(named))

    def _maybe_gone(self, entry: WorkloadEntry, own: JobView) -> JobView:
        """Between the end of its pods and the next ones an owner keeps its Workload for a moment, if it has one."""
        if entry.observed is None:
            return own
        now = time.monotonic()
        entry.bare_since = now if entry.bare_since is None else entry.bare_since
        if now - entry.bare_since >= BARE:
            return own
        self._enqueue(entry.id, BARE)
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
        entry = self.entries.get(self._ids.get(objects.key(workload), ""))
        if entry is None or belongs(workload, entry.job):
            return entry
        ours = entry.observed is not None and entry.observed.uid == workload.metadata.uid
        return entry if ours else None  # whatever somebody wrote on it since

    def _new_entry(self, own: JobView, after: float = 0.0) -> None:
        owner = self._seen(own)
        entry = self.entries[owner.id] = WorkloadEntry(owner, own=own)
        self._ids[entry.key] = owner.id
        try:
            self._fill(entry)
        except Exception:
            self._drop(owner.id)  # half of one would be waited for at a start
            raise
        self._enqueue(owner.id, after)

    def _fill(self, entry: WorkloadEntry) -> None:
        """Take into a new entry what is there already: its pods, its Workload, and what that holds."""
        owner = entry.job
        entry.pods = {pod.metadata.uid: pod for pod in self._pods_of(owner.id)}
        workload = self.stores.workload(owner.workload_key)
        if workload is not None and belongs(workload, owner) and workload.metadata.uid not in self._removed:
            entry.observed = observed_of(workload)
            if (held := entry.observed.admission or entry.observed.held) is not None and _holds(owner):
                self.hold(entry, held)
                entry.started = not owner.suspended
        for uid, pod in entry.pods.items():
            self.gated_orphans.pop(uid, None)
            self.queues.remove_pod(objects.key(pod))

    def _drop(self, uid: str) -> None:
        entry = self.entries.pop(uid, None)
        self.groups.pop(uid, None)
        self.wholes.forget(uid)
        self.volumes.forget(uid)
        if entry is not None:
            if self._ids.get(entry.key) == uid:
                del self._ids[entry.key]
            self.free(entry)

    def _pods_of(self, uid: str) -> Iterable[objects.Pod]:
        """The pods of an owner and of its Jobs."""
        keys = (uid, *self.children.get(uid, ()), *sorted(self.wholes.parts.get(uid, ())))
        return (pod for one in keys for pod in self.stores.pods_of(one))

    def _entry_of(self, pod: objects.Pod) -> WorkloadEntry | None:
        key = owner_key(pod, self.keys)
        return self.entries.get(self._parents.get(key, key))

    def _pod_of(self, entry: WorkloadEntry, old: objects.Pod | None, new: objects.Pod) -> None:
        uid = new.metadata.uid
        entry.pods[uid] = new
        gated = is_gated(new, self.keys.gate)
        if entry.id in self.groups and _ready(old) != _ready(new):
            self._enqueue(entry.id, READY_AFTER)  # no owner tells how many of them are ready
        if not gated and uid in entry.expectations:
            sent = entry.expectations.pop(uid)  # our own patch, seen at last
            if not self._stands(entry, sent.values):
                self._enqueue(entry.id, 0.0)
            return
        if old is not None and _same_to_slots(old, new, self.keys.gate):
            return
        self._enqueue(entry.id, self._delay(entry))

    def _stands(self, entry: WorkloadEntry, values: Sequence[str]) -> bool:
        """Whether there is a slot with these values still, on a node that can take its pod where it is one node."""
        for slots in entry.slots_in.values():
            index = slots.index(tuple(values))
            if index is not None:
                name = slots.slots[index].node
                node = self.state.nodes.get(name)
                return not name or (node is not None and node.ready and not node.unschedulable)
        return False

    def _delay(self, entry: WorkloadEntry) -> float:
        """How long to wait for more pods of the job: not at all once they are all there."""
        full = entry.job.full
        if entry.job.open_ended and (
            not entry.slots_in or len(entry.pods) > sum([slots.total for slots in entry.slots_in.values()])
        ):
            return self._batch
        if len(entry.pods) >= full:
            return 0.0
        return min(self._batch, LEAST_BATCH + BATCH_A_POD * full)

    def _forget_pod(self, pod: objects.Pod, *, charged: bool = False) -> None:
        """A pod is gone, or leaves its owner; ``charged``: it may run, and is charged by itself on."""
        uid = pod.metadata.uid
        self.gated_orphans.pop(uid, None)
        self._give_back(pod)
        if not charged and self.orphans.gone(pod):
            self._signal()
        self._forget_left(pod)
        self.in_flight.gone(pod)
        entry = self._entry_of(pod)
        self._forget_parent(key := owner_key(pod, self.keys))
        if (unled := self._unled.get(set_of(key))) is not None and not any(self.stores.pods_of(key)):
            unled.discard(key)
            if not unled:
                del self._unled[set_of(key)]
        if entry is None or entry.pods.pop(uid, None) is None:
            return
        entry.expectations.pop(uid, None)
        entry.deleting.pop(uid, None)
        entry.noted.discard(uid)
        entry.mismatches.pop(uid, None)
        self.in_flight.stop_waiting(entry, uid)
        placement_exchange.forget(entry, pod)
        self._enqueue(entry.id, self._delay(entry))

    def _charge(self, pod: objects.Pod) -> None:
        """Charge a pod that has not finished where it is bound, with its claim, or heads for; others take nothing."""
        if not pod.spec.node_name:
            if node := self._heads_for(pod):
                self.state.set_pod(convert.pod(_bound(pod, node), attached=self.volumes.attached(pod)))
            elif objects.key(pod) in self.state.pods:
                self._give_back(pod)
            return
        if finished(pod):
            self._give_back(pod)
            return
        node = pod.spec.node_name
        before = self.state.free(node) if self.live and node in self.state.nodes else {}
        try:
            shape, placement = self.topologies.of_pod(pod, self._in_flight(pod))
            observed = placement is not None and self.topologies.observed(pod)
            claim, attached = self._claim(pod), self.volumes.attached(pod)
            self.state.set_pod(
                convert.pod(pod, claim, shape=shape, placement=placement, observed=observed, attached=attached)
            )
        except Exception as error:  # noqa: BLE001  (told by the guard)
            self.guard.failed("pod", objects.key(pod), error)
            self.state.set_pod(Pod(key=objects.key(pod), node=node, requests={}))  # one pod, at least
        after = self.state.free(node) if before else {}
        if any(after.get(resource, 0) > amount for resource, amount in before.items()):  # it takes less than its slot
            self.queue_inadmissible(self.state.flavors_on(node))
        entry = self._entry_of(pod)
        if entry is not None and entry.job.queue:
            self.queues.bind(objects.key(pod), entry.key)
        self._note_outside(pod)

    def _heads_for(self, pod: objects.Pod) -> str:
        """The node that a pod was sent to which no workload has slots for any more, as it was orphaned on its way."""
        meta, host = pod.metadata, (pod.spec.node_selector or {}).get(HOSTNAME_LABEL, "")
        if self.keys.workload not in (meta.annotations or {}) or is_gated(pod, self.keys.gate) or finished(pod):
            return ""
        entry, node = self._entry_of(pod), self.state.nodes.get(host)
        kept = entry is not None and self._marked(entry, pod)
        return "" if kept or node is None or meta.deletion_timestamp is not None else host

    def _note_outside(self, pod: objects.Pod) -> None:
        """Have a pod that no queue admitted be a candidate, where settings allow that, until it is gone."""
        if not self.queues.rules.pods:
            return
        key = objects.key(pod)
        if self._entry_of(pod) is not None or not may_be_evicted(pod, self.keys):
            self.queues.remove_pod(key)
        elif pod.metadata.deletion_timestamp is None and pod.spec.node_name and not finished(pod):
            self.queues.set_pod(outside(pod))

    def _give_back(self, pod: objects.Pod) -> None:
        self.queues.unbind(objects.key(pod))
        self.queues.remove_pod(objects.key(pod))
        charged = self.state.pods.get(objects.key(pod))
        if charged is not None and self.state.remove_pod(charged.key):
            self.mismatches.changed(charged.node, self.entries.values())
            self.queue_inadmissible(None if _keeps_off(pod) else self.state.flavors_on(charged.node))

    def _note_arrival(self, pod: objects.Pod) -> None:
        """A pod may be on its way to a node, or have come."""
        if not self.state.machines:
            return
        entry, node = self._entry_of(pod), pod.spec.node_name
        slots = entry.slots_of(pod) if entry is not None and not node else None
        if entry is not None and slots is not None and not is_gated(pod, self.keys.gate):
            index = slots.of_selector(pod.spec.node_selector) if self._marked(entry, pod) else None
            node = slots.slots[index].node if index is not None else ""
        if node:
            self.in_flight.saw(entry, pod, node)

    def _in_flight(self, pod: objects.Pod) -> NumaPlacement | None:
        entry = self._entry_of(pod)
        if entry is None:
            return None
        expectation = entry.expectations.get(pod.metadata.uid)
        return entry.swaps.get(pod.metadata.uid) or (expectation.placement if expectation is not None else None)

    def _settle(self, entry: WorkloadEntry, pod: objects.Pod) -> None:
        """Pods may come to their node in another order than was foreseen."""
        placement_exchange.arrive(entry, pod)
        other = placement_exchange.settle(
            self.state, entry, pod, self.stores.pods_on(pod.spec.node_name), self._entry_of
        )
        if other is not None:
            self._charge(other)

    def _claim(self, pod: objects.Pod) -> tuple[str, str] | None:
        entry = self._entry_of(pod)
        if entry is None or not entry.slots_in or not self._marked(entry, pod):
            return None
        slots = entry.slots_of(pod)
        if slots is None or slots.of_selector(pod.spec.node_selector) is None:
            return None
        return entry.key, entry.pod_set_of(pod)

    def _look_inside(self, name: str) -> None:
        """What a node publishes of its inside may have changed."""
        found = self.topologies.refresh(name)
        if found.zones:
            for pod in self.stores.pods_on(name):
                self._charge(pod)
                self._note_arrival(pod)
        if found.anything:
            self.mismatches.changed(name, self.entries.values())
            self.in_flight.changed(name)
        if found.more:
            self.queue_inadmissible(self.state.flavors_on(name))

    def _marked(self, entry: WorkloadEntry, pod: objects.Pod) -> bool:
        return mark_of(pod, self.keys) == entry.job.workload

    def _note_gated_orphan(self, pod: objects.Pod) -> None:
        """Remember a gated pod whose owner is no job that is served, so that somebody tells why it stays gated."""
        if not is_gated(pod, self.keys.gate) or pod.metadata.deletion_timestamp is not None:
            return
        if (waiting := self.wholes.unseen.get(maker_of(pod, self.keys))) is not None and owner_key(
            pod, self.keys
        ) in waiting[1]:
            return
        self.gated_orphans.setdefault(pod.metadata.uid, pod)

    def _lost(
        self, entry: WorkloadEntry, owned: PodSetView, slots: PodSetSlots, wanted: Sequence[int]
    ) -> tuple[int, ...]:
        """The slices among ``wanted`` where no pod of the pod set can start now."""
        pod_set = self._anywhere(entry, owned)

        def look() -> tuple[int, ...]:
            places = [(slots.slots[index].values, slots.slots[index].node) for index in wanted]
            found = closed(self.state, slots.flavor, slots.levels, pod_set, places)
            return tuple(index for index, is_closed in zip(wanted, found, strict=True) if is_closed)

        lost = look()
        if not lost or not self.queues.promised():
            return lost
        with self.queues.counted_once(self.state):
            return look()

    def _anywhere(self, entry: WorkloadEntry, owned: PodSetView) -> PodSet:
        """One pod of a pod set, which keeps off no node."""
        unconstrained = TopologyRequest(policy=Policy.UNCONSTRAINED)
        found = convert.pod_set(
            owned.name, 1, owned.template, unconstrained, entry.job.namespace, added=self._added(owned)
        )
        attached = self.volumes.added(entry, owned, found).attached
        return msgspec.structs.replace(found, attached=attached) if attached.own or attached.shared else found

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
        observed = self.state.nodes
        for name in [name for name in self._missing if name in observed or not self.stores.pods_on(name)]:
            del self._missing[name]

    def look_at_changed_nodes(self) -> None:
        """Have those looked at with slots on nodes that changed: they may be lost, or not lost any more.

        All nodes that changed meanwhile cost one pass over the slots.
        """
        if not self._changed:
            return
        changed, self._changed = self._changed | {""}, set()
        for uid, entry in self.entries.items():
            if any(slot.node in changed for slots in entry.slots_in.values() for slot in slots.slots):
                self._enqueue(uid, 0.0)

    def pending(self) -> Mapping[str, int]:
        """How many jobs wait for a place, by reason."""
        counts: dict[str, int] = {}
        for entry in self.entries.values():
            if entry.admission is None and not entry.job.over:
                reason = str(entry.refused.reason if entry.refused else Reason.PENDING)
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


def _ready(pod: objects.Pod | None) -> bool:
    return pod is not None and objects.is_true(pod.status.conditions, "Ready")


def _same_to_slots(old: objects.Pod, new: objects.Pod, gate: str) -> bool:
    """Whether nothing changed that decides which slot the pod holds or needs."""
    return (
        is_gated(old, gate) == is_gated(new, gate)
        and finished(old) == finished(new)
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        and old.spec.node_selector == new.spec.node_selector
        and old.metadata.annotations == new.metadata.annotations
        and old.metadata.labels == new.metadata.labels
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
