"""A `Memory` that hears of every change of the stores that informers would keep."""

import msgspec
from support.owned import KEYS, LEVELS

from engine.model import HOSTNAME_LABEL
from kube.informer import Event, EventKind
from kube.objects import (
    Condition,
    FlavorTopology,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    OwnerReference,
    ResourceFlavor,
    ResourceFlavorSpec,
    key,
)
from ungater import workloads
from ungater.admission import ask
from ungater.memory import Memory
from ungater.workloads import Workload

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


class World:
    """Stores as informers keep them, and a memory that hears of every change."""

    def __init__(self):
        self.stores = {"node": {}, "flavor": {}, "class": {}, "job": {}, "workload": {}, "pod": {}}
        self.asked: list[str] = []
        self.memory = self.make()
        self.memory.load((), (), (), (), ())

    def make(self):
        memory = Memory(KEYS, lambda uid, _after: self.asked.append(uid))
        memory.pods_of = lambda uid: [
            pod for pod in self.stores["pod"].values() if any(ref.uid == uid for ref in pod.metadata.owner_references)
        ]
        memory.workload_of = self.stores["workload"].get
        return memory

    def restarted(self):
        memory = self.make()
        stores = (self.stores[kind].values() for kind in ("node", "flavor", "class", "job", "pod"))
        memory.load(*stores)
        return memory

    def put(self, kind, obj):
        name, store = key(obj), self.stores[kind]
        old, store[name] = store.get(name), obj
        event = Event(EventKind.MODIFIED if old else EventKind.ADDED, name, old, obj)
        getattr(self.memory, f"on_{kind}")(event)

    def drop(self, kind, obj):
        old = self.stores[kind].pop(key(obj))
        getattr(self.memory, f"on_{kind}")(Event(EventKind.DELETED, key(old), old, None))

    def admit(self, job):
        """Place, reserve, store and admit, as the shell does."""
        record = self.memory.records[job.metadata.uid]
        answer = ask(self.memory, record)
        assert answer.refusal is None, answer.refusal
        self.memory.state.reserve(record.key, [answer.result])
        slots = self.memory.slots_of(answer.result)
        self.memory.admit(record, answer.result, slots)
        stored = stored_workload(record.owner, slots)
        record.known = workloads.known_of(stored)
        self.put("workload", stored)
        return slots


def stored_workload(owner, slots, version="7"):
    reference = OwnerReference(kind="Job", name=owner.name, uid=owner.uid, controller=True)
    body = workloads.status_patch(workloads.Known("w", "u", "6", 1, 1), (), slots=slots)["status"]["admission"]
    return Workload(
        metadata=ObjectMeta(
            name=owner.workload,
            namespace=owner.namespace,
            uid=f"wl-{owner.uid}",
            resource_version=version,
            owner_references=(reference,),
        ),
        status=workloads.Status(admission=msgspec.convert(body, workloads.Admission)),
    )
