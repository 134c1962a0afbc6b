"""Small clusters and jobs."""

from engine.model import HOSTNAME_LABEL, Flavor, Node, PodSet, Policy, TopologyRequest
from simulator.model import SimulatedCluster, SimulatedJob, guaranteed
from simulator.run import Simulation

RACK = "example.com/rack"
GPU = "nvidia.com/gpu"
GIB = 2**30


def make_cluster(racks=2, hosts=2, *, gpus=8, **fields):
    nodes = []
    for rack in range(racks):
        for host in range(hosts):
            name = f"r{rack}h{host}"
            has = {"cpu": 64_000, "memory": 512 * GIB, GPU: gpus, "pods": 110}
            nodes.append(Node(name=name, labels={RACK: f"r{rack}", HOSTNAME_LABEL: name}, allocatable=has))
    flavor = Flavor(name="default", levels=(RACK, HOSTNAME_LABEL))
    return SimulatedCluster(**({"flavors": (flavor,), "nodes": tuple(nodes)} | fields))


def make_job(name, arrival=0, duration=100, *, pods=1, gpus=8, required=None, preferred=None, shaped=False, **fields):
    requests = {"cpu": 4000 * gpus, "memory": 32 * GIB * gpus, GPU: gpus}
    policy = Policy.REQUIRED if required else Policy.PREFERRED if preferred else Policy.UNCONSTRAINED
    pod_set = PodSet(
        name="main",
        count=pods,
        requests=requests,
        topology=TopologyRequest(policy=policy, level=required or preferred),
        namespace="default",
        shape=guaranteed(requests) if shaped else None,
    )
    return SimulatedJob(name=name, arrival=float(arrival), duration=float(duration), pod_sets=(pod_set,), **fields)


def simulate(cluster, jobs, policy, options=None, **how):
    return Simulation(cluster, jobs, policy, options).run(**how)


def waits(result):
    return {one.name: one.wait for one in result.outcomes}


def ends(result):
    return {one.name: one.finished for one in result.outcomes}
