"""Keyword factories for queues: a small cluster with queues in a few lines."""

from engine.cluster.state import ClusterState
from engine.model import Flavor, Node, PodSet, Policy, TopologyRequest
from queueing.cycle.cycle import cycle
from queueing.model import ClusterQueue, Cohort, FlavorQuotas, LocalQueue, Quota, ResourceGroup, Workload
from queueing.queues.queues import Queues

RACK, HOST = "rack", "kubernetes.io/hostname"
GPU = "nvidia.com/gpu"


def make_node(name, rack="r0", *, group="tas", gpu=8, pods=110, **more):
    labels = {RACK: rack, HOST: name, "group": group}
    return Node(name=name, labels=labels, allocatable={GPU: gpu, "cpu": 96_000, "pods": pods}, **more)


def make_state(racks=2, hosts=2, *, flavors=("tas",), gpu=8):
    """``racks`` racks of ``hosts`` nodes in each flavor."""
    state = ClusterState()
    for flavor in flavors:
        state.set_flavor(Flavor(name=flavor, levels=(RACK, HOST), node_labels={"group": flavor}))
        for i in range(racks * hosts):
            state.set_node(make_node(f"{flavor}-{i}", f"{flavor}-r{i // hosts}", group=flavor, gpu=gpu))
    return state


def make_queue(name="q", nominal=16, *, flavors=("tas",), borrowing=None, lending=None, **more):
    """One resource group of GPUs with the same quota in each flavor (or a number for each)."""
    sizes = nominal if isinstance(nominal, dict) else dict.fromkeys(flavors, nominal)
    quotas = tuple(
        FlavorQuotas(flavor=flavor, resources={GPU: Quota(nominal=size, borrowing=borrowing, lending=lending)})
        for flavor, size in sizes.items()
    )
    return ClusterQueue(name=name, groups=(ResourceGroup(resources=(GPU,), flavors=quotas),), **more)


def make_groups(quotas):
    """One resource group of flavor ``tas``, of (nominal, borrowing, lending) by (flavor, resource)."""
    resources = {key[1]: Quota(nominal=n, borrowing=b, lending=lend) for key, (n, b, lend) in quotas.items()}
    flavors = (FlavorQuotas(flavor="tas", resources=resources),)
    return (ResourceGroup(resources=tuple(resources), flavors=flavors),) if resources else ()


def make_cohort(name, nominal=0, parent="", *, borrowing=None, lending=None, weight=1000, by_use=False):
    """A cohort with a quota of its own of GPUs of flavor ``tas``."""
    groups = make_groups({("tas", GPU): (nominal, borrowing, lending)})
    return Cohort(name=name, groups=groups, parent=parent, weight=weight, by_use=by_use)


def make_queues(*queues, rules=None):
    """Each ClusterQueue with a LocalQueue of its name in namespace ns."""
    made = Queues(rules)
    made.set_namespace("ns", {"team": "ns"})
    for queue in queues:
        made.set_cluster_queue(queue)
        made.set_local_queue(LocalQueue(namespace="ns", name=queue.name, cluster_queue=queue.name))
    return made


def make_pod_set(count=1, *, gpu=8, level=RACK, policy=None, name="main", **more):
    policy = policy or (Policy.UNCONSTRAINED if level is None else Policy.REQUIRED)
    topology = TopologyRequest(policy=policy, level=level)
    return PodSet(name=name, count=count, requests={GPU: gpu}, topology=topology, namespace="ns", **more)


def make_workload(key, queue="q", count=1, *, gpu=8, level=RACK, priority=0, created=0.0, pod_sets=None, **more):
    sets = pod_sets or (make_pod_set(count, gpu=gpu, level=level),)
    return Workload(
        key=key, namespace="ns", queue=queue, pod_sets=sets, priority=priority, created=created, uid=key, **more
    )


def submit(queues, *workloads, now=0.0):
    for workload in workloads:
        queues.submit(workload, now)


def run(state, queues, now=1.0, limit=64):
    """Cycles until nothing more is to be looked at; all decisions in one."""
    found = cycle(state, queues, now, limit)
    while found.more:
        more = cycle(state, queues, now, limit)
        for name in ("admitted", "preempting", "waiting", "evict"):
            getattr(found, name).extend(getattr(more, name))
        found.more = more.more
    return found


def keys(decisions):
    """Who was admitted, in order."""
    return [one.key for one in decisions.admitted]
