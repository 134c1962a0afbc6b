"""Keyword factories for the engine's data: small clusters in one line."""

from engine.cluster.assignment import Assignment, Slice
from engine.cluster.state import ClusterState
from engine.model import Flavor, Node, Pod, PodSet, Policy, TopologyRequest
from engine.placement.place import place
from engine.results import Placement, WorkloadRequest

BLOCK, RACK, HOST = "cloud/block", "cloud/rack", "kubernetes.io/hostname"
LEVELS = (BLOCK, RACK, HOST)
GPU = "nvidia.com/gpu"
GIB = 2**30


def make_node(name="n1", block="b1", rack="r1", *, gpu=8, cpu=96_000, pods=110, labels=None, allocatable=None, **more):
    own = {BLOCK: block, RACK: rack, HOST: name}
    amounts = {"cpu": cpu, "memory": 768 * GIB, GPU: gpu, "pods": pods} | (allocatable or {})
    return Node(name=name, labels=own | (labels or {}), allocatable=amounts, **more)


def make_flavor(name="tas", levels=LEVELS, **more):
    return Flavor(name=name, levels=levels, **more)


def make_pod(key="default/p", node="n1", gpu=1, requests=None, **more):
    return Pod(key=key, node=node, requests={GPU: gpu} | (requests or {}), **more)


def make_pod_set(count=1, policy=Policy.REQUIRED, level=RACK, *, name="main", gpu=1, requests=None, **more):
    level = None if policy is Policy.UNCONSTRAINED else level
    topology = TopologyRequest(policy=policy, level=level)
    amounts = {GPU: gpu} if requests is None else requests
    return PodSet(name=name, count=count, requests=amounts, topology=topology, **more)


def make_state(nodes=(), flavor=None, pods=()):
    state = ClusterState()
    state.set_flavor(flavor or make_flavor())
    for node in nodes:
        state.set_node(node)
    for pod in pods:
        state.set_pod(pod)
    return state


def racks(rooms, levels=LEVELS):
    """A state from {"b1/r1": [gpus of each host, ...]}; hosts are n0, n1, ... in the order given."""
    nodes = []
    for path, gpus in rooms.items():
        block, rack = path.split("/")
        nodes += [make_node(f"n{len(nodes) + i}", block, rack, gpu=gpu) for i, gpu in enumerate(gpus)]
    return make_state(nodes, make_flavor(levels=levels))


def ask(state, *pod_sets, flavors=(), key="w"):
    return place(state, WorkloadRequest(key, tuple(pod_sets), flavors))


def nodes_of(answer, pod_set=0):
    """{node: pods} of one assignment; fails on a refusal."""
    assignment = answer if isinstance(answer, Assignment) else placed(answer).assignments[pod_set]
    found = {}
    for part in assignment.slices:
        for name, pods in part.nodes:
            found[name] = found.get(name, 0) + pods
    return found


def placed(answer):
    assert isinstance(answer, Placement), answer
    return answer


def stored(assignment):
    """The assignment as it comes back from the API server: no nodes, no pod set."""
    return Assignment(
        pod_set=assignment.pod_set,
        flavor=assignment.flavor,
        levels=assignment.levels,
        requests=assignment.requests,
        slices=[Slice(part.values, part.count) for part in assignment.slices],
    )
