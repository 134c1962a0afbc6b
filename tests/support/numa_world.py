"""A `World` whose nodes publish their zones, with kubelets that align pods to one of them."""

import msgspec
from support.owned import KEYS, LEVELS, make_pod
from support.published import GI, GPU, nrt, nrt_zone
from support.world import FLAVOR, World

from clock import SYSTEM, Clock
from crds.constants import NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED
from crds.numa_placement import encode
from engine.model import HOSTNAME_LABEL
from kube.informer import Event, EventKind
from kube.objects import Condition, Node, NodeInfo, NodeStatus, ObjectMeta
from ungater.jobs.job import owner_of
from ungater.model.job_view import id_of

ZONE = {"cpu": 8, "memory": 64 * GI, GPU: 4}
AMOUNTS = {"cpu": "4", "memory": "4Gi", GPU: "2"}
POD = {"containers": [{"name": "c", "resources": {"requests": AMOUNTS, "limits": AMOUNTS}}]}


def machine_node(host, cpu="16"):
    name = f"r1-{host}"
    labels = {"pool": "gpu", "block": "b", "rack": "r1", HOSTNAME_LABEL: name}
    status = NodeStatus(
        allocatable={"cpu": cpu, "memory": "128Gi", GPU: "8", "pods": "20"},
        conditions=(Condition(type="Ready", status="True"),),
        node_info=NodeInfo(kubelet_version="v1.36.0"),
    )
    return Node(metadata=ObjectMeta(name=name, labels=labels), status=status)


class NumaWorld(World):
    """Two nodes of two zones that align each container to one of them."""

    def __init__(self):
        self.now = 1000.0
        self.topologies = {}
        super().__init__()
        self.put("flavor", FLAVOR)
        for host in ("h1", "h2"):
            self.put("node", machine_node(host))
            self.publish(f"r1-{host}")

    def make(self, **options):
        return super().make(clock=Clock(SYSTEM.now, lambda: self.now), **options)

    def publish(self, name, zones=(0, 1), **options):
        options = {"policy": "single-numa-node", **options}
        old, new = self.topologies.get(name), nrt([nrt_zone(zone, ZONE) for zone in zones], name=name, **options)
        self.topologies[name] = new
        self.memory.nodes.on_topology(Event(EventKind.MODIFIED if old else EventKind.ADDED, name, old, new))

    def record(self, job):
        return self.memory.entries[id_of(job)]

    def free(self, name="r1-h1", memory=None):
        """Free GPUs of each zone of a node."""
        memory = memory or self.memory
        at = memory.state.machines[name].layout.resources.index(GPU)
        return [row[at] for row in memory.state.state_inside(name).free]


def sent(world, job, rank, slot, placement, *, node="", phase="Pending", name="", observed=None, reason="", spec=POD):
    """A pod as it is seen after our patch."""
    name = name or f"{job.metadata.name}-{rank}"
    at = dict(zip(LEVELS, slot.values, strict=True))
    pod = make_pod(name, owner=owner_of(job, KEYS), rank=rank, at=tuple(at.values()), node=node, phase=phase, spec=spec)
    annotations = {**pod.metadata.annotations, NUMA_PLACEMENT_PREDICTED: encode(placement)}
    if observed is not None:
        annotations[NUMA_PLACEMENT_OBSERVED] = observed
    meta = msgspec.structs.replace(pod.metadata, annotations=annotations)
    return msgspec.structs.replace(pod, metadata=meta, status=msgspec.structs.replace(pod.status, reason=reason))
