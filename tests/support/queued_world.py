"""A `World` with a ClusterQueue of four CPUs, and jobs that wait in it."""

import msgspec
from support.owned import KEYS, make_job
from support.world import FLAVOR, NODES, World

from kube.objects import Namespace, ObjectMeta
from kube.queues import ClusterQueue, LocalQueue
from ungater.model.job_view import id_of


def read(body, kind):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def cluster_queue(cpus, flavor="gpu", **spec):
    flavor = {"name": flavor, "resources": [{"name": "cpu", "nominalQuota": cpus}]}
    group = {"coveredResources": ["cpu"], "flavors": [flavor]}
    body = {"metadata": {"name": "cq"}, "spec": {"resourceGroups": [group], "namespaceSelector": {}, **spec}}
    return read(body, ClusterQueue)


def filled(made: World, cpus: int = 4, **spec) -> World:
    """The same world with four nodes, a namespace and a queue."""
    made.put("flavor", FLAVOR)
    for node in NODES:
        made.put("node", node)
    made.put("namespace", Namespace(metadata=ObjectMeta(name="ns", labels={"team": "a"})))
    made.put("cluster_queue", cluster_queue(cpus, **spec))
    local = {"metadata": {"namespace": "ns", "name": "team"}, "spec": {"clusterQueue": "cq"}}
    made.put("local_queue", read(local, LocalQueue))
    return made


def queued(world, name, pods=2, **more):
    job = make_job(name, parallelism=pods, labels={KEYS.queue_name: "team"}, suspend=True, **more)
    world.put("job", job)
    return job


def entry_of(world, job):
    return world.memory.entries[id_of(job)]
