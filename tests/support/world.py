"""A `Cache` that hears of every change of the stores that informers would keep."""

import msgspec
from support.owned import KEYS, LEVELS, make_admission, make_known

from clock import SYSTEM
from engine.model import HOSTNAME_LABEL
from kube.informer import Event, EventKind
from kube.objects import (
    Condition,
    FlavorTopology,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    ResourceFlavor,
    ResourceFlavorSpec,
    key,
)
from kube.pods.volumes import claims_of
from kube.volumes.available import host_of, is_available
from kube.volumes.binding import Storage
from kube.workloads import ObservedStatus, StoredAdmission, WorkloadObject
from queueing.cycle.cycle import cycle
from ungater.cache.cache import Cache
from ungater.cache.stores import Stores
from ungater.guard import Guard
from ungater.jobs.pod_group import owner_key
from ungater.model import workload_status
from ungater.model.admission import Admission
from ungater.model.job_view import id_of
from ungater.model.workload_entry import ObservedWorkload
from ungater.model.workload_spec import new_workload
from ungater.numa.node_topologies import Sources

DEVICES = ("device_class", "taint_rule", "resource_slice", "claim_template", "resource_claim")
GROUPS = ("native_group",)
DEFAULTS = ("limit_range", "runtime_class")
VOLUMES = ("claim", "volume", "storage_class", "csi_node", "csi_driver", "capacity")
FLAVOR = ResourceFlavor(
    metadata=ObjectMeta(name="gpu"),
    spec=ResourceFlavorSpec(node_labels={"pool": "gpu"}, topology=FlavorTopology(levels=LEVELS)),
)


def make_node(rack, host, *, cpu="2", ready=True, unschedulable=False):
    name = f"{rack}-{host}"
    labels = {"pool": "gpu", "block": "b", "rack": rack, HOSTNAME_LABEL: name}
    return Node(
        metadata=ObjectMeta(name=name, labels=labels),
        spec=NodeSpec(unschedulable=unschedulable),
        status=NodeStatus(
            allocatable={"cpu": cpu, "pods": "9"},
            conditions=(Condition(type="Ready", status="True" if ready else "False"),),
        ),
    )


NODES = [make_node(rack, host) for rack in ("r1", "r2") for host in ("h1", "h2")]


class Ticking:
    """A clock that stands still until a test moves it."""

    def __init__(self):
        self.at = 1000.0

    def monotonic(self):
        return self.at

    def now(self):
        return SYSTEM.now()


def without_hosts(flavor: ResourceFlavor) -> ResourceFlavor:
    """The same, with no hosts among its levels: slots are wider domains."""
    levels = tuple(level for level in flavor.spec.topology.levels if level != HOSTNAME_LABEL)
    topology = msgspec.structs.replace(flavor.spec.topology, levels=levels)
    return msgspec.structs.replace(flavor, spec=msgspec.structs.replace(flavor.spec, topology=topology))


class World:
    """Stores as informers keep them, and a memory that hears of every change."""

    def __init__(self):
        for name in ("jobsets", "leader_sets", "topologies"):
            vars(self).setdefault(name, {})  # those that say how they look these up have them already
        self.mismatches = []
        self.unscheduled_pods = []
        self.nodes_left_out = []
        self.reads_devices = True  # whether all is read that tells of devices
        self.reads_groups = False  # whether PodGroups of Kubernetes itself are served
        self.workloads_reached = 1 << 40  # up to which resource version Workloads are known
        self.reads = False  # whether owners are read that tell how many pods they make
        kinds = ("node", "flavor", "class", "job", "workload", "pod", "namespace", "cluster_queue", "local_queue")
        self.stores = {kind: {} for kind in (*kinds, *VOLUMES, *DEVICES, *GROUPS, *DEFAULTS)}
        self.asked: list[str] = []
        self.waits: list[tuple[str, float]] = []  # the same, with the seconds until they are to be looked at
        self.memory = self.make()
        for _ in self.memory.load((), (), (), (), ()):
            pass

    def make(self, **options):
        options = {"clock": SYSTEM, "guard": Guard(SYSTEM, [].append), **options}
        return Cache(KEYS, self.look_ups(), self._ask, lambda: None, notices=self, **options)

    def _ask(self, uid, after):
        self.asked.append(uid)
        self.waits.append((uid, after))

    def look_ups(self):
        return Stores(
            pods_of=lambda uid: [pod for pod in self.stores["pod"].values() if owner_key(pod, KEYS) == uid],
            pods_on=lambda name: [pod for pod in self.stores["pod"].values() if pod.spec.node_name == name],
            workload=self.workload,
            jobset=self.jobset,
            leader_set=self.leader_set,
            cluster_queue=lambda _: None,
            nodes=Sources(self.stores["node"].get, self.topologies.get, lambda _: None),
            reads=lambda _kind, _group: self.reads,
            pods_with=self.pods_with,
            storage=Storage(
                claim=self.stores["claim"].get,
                volume=self.stores["volume"].get,
                storage_class=self.stores["storage_class"].get,
                classes=self.stores["storage_class"].values,
                available=self.available,
                local=lambda host: [one for one in self.stores["volume"].values() if host and host_of(one) == host],
                csi_node=self.stores["csi_node"].get,
                csi_driver=self.stores["csi_driver"].get,
                capacities=self.capacities,
            ),
            pods_in_group=self.pods_in_group,
            native_group=self.native_group,
            reads_groups=lambda: self.reads_groups,
            limit_ranges=lambda name: [
                one for one in self.stores["limit_range"].values() if one.metadata.namespace == name
            ],
            runtime_class=self.stores["runtime_class"].get,
            reads_devices=lambda: self.reads_devices,
            workloads_reached=lambda: self.workloads_reached,
        )

    def pods_in_group(self, name):
        pods = self.stores["pod"].values()
        return [pod for pod in pods if f"{pod.metadata.namespace}/{pod.spec.pod_group}" == name]

    def native_group(self, name):
        return self.stores["native_group"].get(name)

    def pods_with(self, name):
        pods = self.stores["pod"].values()
        return [pod for pod in pods if name in {f"{pod.metadata.namespace}/{one.name}" for one in claims_of(pod)}]

    def available(self, name):
        volumes = self.stores["volume"].values()
        return [one for one in volumes if one.spec.storage_class_name == name and is_available(one)]

    def capacities(self, name):
        return [one for one in self.stores["capacity"].values() if one.storage_class_name == name]

    def workload(self, name):
        return self.stores["workload"].get(name)

    def jobset(self, name):
        return self.jobsets.get(name)

    def leader_set(self, name):
        return self.leader_sets.get(name)

    def machine(self, *news):
        pass

    def mismatch(self, _record, mismatch):
        self.mismatches.append(mismatch)

    def unscheduled(self, record, count, words):
        self.unscheduled_pods.append((record.key, count, words))

    def node_left_out(self, name, words, seconds):
        self.nodes_left_out.append((name, words, seconds))

    def restarted(self, **options):
        memory = self.make(**options)
        stores = (self.stores[kind].values() for kind in ("node", "flavor", "class", "job", "pod"))
        queues = {f"{kind}s": self.stores[kind].values() for kind in ("namespace", "cluster_queue", "local_queue")}
        for kind in DEVICES:
            for name, one in self.stores[kind].items():
                told_of(memory, kind)(Event(EventKind.ADDED, name, None, one))
        for _ in memory.load(*stores, **queues):
            pass
        return memory

    def put(self, kind, obj):
        name, store = key(obj), self.stores[kind]
        old, store[name] = store.get(name), obj
        event = Event(EventKind.MODIFIED if old else EventKind.ADDED, name, old, obj)
        self.hears(kind, event)

    def drop(self, kind, obj):
        old = self.stores[kind].pop(key(obj))
        self.hears(kind, Event(EventKind.DELETED, key(old), old, None))

    def hears(self, kind, event):
        told_of(self.memory, kind)(event)
        if kind == "pod":
            self.memory.volumes.requeue_claimants(event)

    def refused(self, job):
        """Wait, and be refused by a cycle: the refusal."""
        record = self.memory.entries[id_of(job)]
        record.observed = record.observed or make_known(record.job)
        self.memory.admissions.enqueue_entry(record)
        assert not cycle(self.memory.state, self.memory.queues, 0.0).admitted
        return self.memory.queues.entries[record.key].refusal

    def admit(self, job):
        """Wait, be admitted by a cycle, store and admit, as the shell does."""
        return self.admit_entry(self.memory.entries[id_of(job)])

    def admit_entry(self, record):
        """`admit`, of whatever owner."""
        record.observed = record.observed or make_known(record.job)
        self.memory.admissions.enqueue_entry(record)
        made = next(one for one in cycle(self.memory.state, self.memory.queues, 0.0).admitted if one.key == record.key)
        admission = self.memory.reservations.admission_of(record, made.grant)
        self.memory.admissions.store_admission(record, admission, made.grant)
        stored = stored_workload(record.job, admission)
        record.observed = workload_status.observed_of(stored)
        self.put("workload", stored)
        return record.slots


def told_of(memory, kind):
    """Who in a cache is told of the changes of objects of a kind."""
    return {
        "node": memory.nodes.on_node,
        "flavor": memory.config.on_flavor,
        "class": memory.classes.on_class,
        "limit_range": memory.pod_defaults.on_limit_range,
        "runtime_class": memory.pod_defaults.on_runtime_class,
        "workload_class": memory.classes.on_workload_class,
        "job": memory.jobs.on_job,
        "workload": memory.workloads.on_workload,
        "pod": memory.pods.handle_pod,
        "namespace": memory.config.on_namespace,
        "cluster_queue": memory.config.on_cluster_queue,
        "local_queue": memory.config.on_local_queue,
        "claim": memory.volumes.on_claim,
        "volume": memory.volumes.on_volume,
        "storage_class": memory.volumes.on_class,
        "device_class": memory.devices.on_class,
        "resource_slice": memory.devices.on_slice,
        "taint_rule": memory.devices.on_rule,
        "claim_template": memory.devices.on_template,
        "resource_claim": memory.devices.on_claim,
        "csi_node": memory.volumes.on_csi_node,
        "csi_driver": memory.volumes.on_csi_driver,
        "capacity": memory.volumes.on_capacity,
        "native_group": memory.pod_groups.on_native,
    }[kind]


def stored_workload(owner, admission, version="7"):
    admission = admission if isinstance(admission, Admission) else make_admission(admission)
    body = workload_status.status_patch(ObservedWorkload("w", "u", "6", 1, (1,)), (), admission=admission)["status"][
        "admission"
    ]
    return WorkloadObject(
        metadata=msgspec.convert(
            {**new_workload(owner, 0)["metadata"], "uid": f"wl-{owner.uid or owner.name}", "resourceVersion": version},
            ObjectMeta,
        ),
        status=ObservedStatus(admission=msgspec.convert(body, StoredAdmission)),
    )


def live_world(clock) -> World:
    """A world with four nodes whose cache has begun, by this clock; an error that nobody foresaw ends nothing."""
    made = World()
    made.memory = made.make(clock=clock, guard=Guard(SYSTEM, [].append))
    for _ in made.memory.load((), (), (), (), ()):
        pass
    made.put("flavor", FLAVOR)
    for node in NODES:
        made.put("node", node)
    return made
