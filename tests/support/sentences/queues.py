"""Why queues admit nothing, or not this, as their conditions and those of waiting workloads say it."""

from types import SimpleNamespace

from msgspec.structs import replace
from support import queue_factories as queued
from support.sentences.golden import Golden

from engine.model import Policy, Taint, TopologyRequest
from engine.results import Refusal
from queueing.cycle import shield
from queueing.model import LocalQueue, PlainFlavor, Stop
from queueing.queues.flavor_assigner import options
from queueing.status import standings

GOLDEN = Golden("queues")
case = GOLDEN.case


STOPPED = {"stop": Stop.DRAIN}


def led(*, cluster="q", held=Stop.NONE, local=True, **more):
    """Queues of which LocalQueue team leads to ClusterQueue q."""
    queues = queued.make_queues(queued.make_queue(**more))
    if local:
        queues.set_local_queue(LocalQueue(namespace="ns", name="team", cluster_queue=cluster, stop=held))
    return queues


GOLDEN.section("workloads of a queue")


def refused(queues):
    return queues.config.refuse_workload(queued.make_workload("ns/w", queue="team"))[0]


@case
def a_local_queue_that_is_not_there():
    return refused(led(local=False))


@case
def a_local_queue_without_its_cluster_queue():
    return refused(led(cluster="gone"))


@case
def a_local_queue_on_hold():
    return refused(led(held=Stop.HOLD))


@case
def a_cluster_queue_that_is_drained():
    return refused(led(**STOPPED))


@case
def a_namespace_that_is_not_selected():
    return refused(led(namespaces=None))


def below(*parents):
    """A workload in a queue below the first of these cohorts, each of which is below the next, the last below it."""
    queues = queued.make_queues(queued.make_queue(cohort=parents[0]))
    for at, name in enumerate(parents):
        queues.set_cohort(queued.make_cohort(name, 0, parents[(at + 1) % len(parents)]))
    queued.submit(queues, queued.make_workload("ns/w"))
    waits = queued.run(queued.make_state(), queues).waiting[0]
    return Refusal(waits.reason, waits.message)


@case
def a_cohort_that_is_its_own_parent():
    return below("a")


@case
def cohorts_that_are_each_others_parents():
    return below("org", "research", "product")


@case
def many_cohorts_that_are_each_others_parents():
    return below(*(f"c{at}" for at in range(9)))


GOLDEN.section("flavors of a queue")


def offered(*flavors, flavor="tas", **more):
    queue = queued.make_queue(flavors=(flavor,))
    pod_set = replace(queued.make_pod_set(1), **more)
    workload = queued.make_workload("ns/w", pod_sets=(pod_set,))
    return options(queued.make_state(1, 1), queue, {one.name: one for one in flavors}, workload).refusal


@case
def a_resource_without_quota():
    return offered(requests={"example.com/tpu": 1})


@case
def a_flavor_that_is_not_there():
    return offered(flavor="gone")


@case
def a_flavor_without_a_topology():
    return offered(PlainFlavor(name="plain"), flavor="plain")


@case
def a_flavor_that_the_node_selector_excludes():
    return offered(PlainFlavor(name="plain", node_labels={"zone": "a"}), flavor="plain", node_selector={"zone": "b"})


@case
def a_flavor_with_a_taint():
    taints = (Taint(key="dedicated", value="ml", effect="NoSchedule"),)
    return offered(PlainFlavor(name="plain", taints=taints), flavor="plain")


@case
def a_level_that_the_flavor_lacks():
    return offered(topology=TopologyRequest(policy=Policy.REQUIRED, level="cloud/row"))


@case
def no_flavor_with_a_topology():
    queue = replace(queued.make_queue(), groups=(), unlimited=True)
    return options(queued.make_state(flavors=()), queue, {}, queued.make_workload("ns/w")).refusal


def of_two_groups(*pod_sets):
    """GPUs in one flavor with a topology, and CPUs in another one."""
    cpus = queued.make_queue(flavors=("other",)).groups[0]
    flavors = tuple(replace(one, resources={"cpu": one.resources[queued.GPU]}) for one in cpus.flavors)
    groups = (*queued.make_queue().groups, replace(cpus, resources=("cpu",), flavors=flavors))
    workload = queued.make_workload("ns/w", pod_sets=pod_sets)
    state = queued.make_state(1, 1, flavors=("tas", "other"))
    return options(state, replace(queued.make_queue(), groups=groups), {}, workload).refusal


@case
def two_flavors_with_a_topology():
    return of_two_groups(replace(queued.make_pod_set(1), requests={queued.GPU: 1, "cpu": 1000}))


@case
def a_group_without_a_flavor_in_common():
    one, other = queued.make_pod_set(1, name="a"), queued.make_pod_set(1, name="b")
    return of_two_groups(replace(one, group="g"), replace(other, group="g", requests={"cpu": 1000}))


@case
def devices_and_a_flavor_without_a_topology():
    return offered(PlainFlavor(name="plain"), flavor="plain", devices=SimpleNamespace(named=("gpu",), claims=()))


GOLDEN.section("conditions of queues")


def active(queues, flavors=("tas",), *, local=False):
    found = standings(queues, flavors)
    return (found.local["ns", "team"] if local else found.cluster["q"]).message


@case
def a_cluster_queue_that_admits():
    return active(led())


@case
def a_cluster_queue_on_hold():
    return active(led(**STOPPED))


@case
def a_cluster_queue_whose_flavor_is_not_there():
    return active(led(), ())


@case
def a_cluster_queue_of_which_one_flavor_is_not_there():
    return active(led(flavors=("tas", "gone")))


@case
def a_cluster_queue_without_quota():
    queues = led()
    queues.set_cluster_queue(replace(queued.make_queue(), groups=()))
    return active(queues)


@case
def a_cluster_queue_with_a_scope_that_the_settings_give_no_half_life():
    return active(led(by_use=True))


@case
def a_cohort_with_a_scope_that_the_settings_give_no_half_life():
    queues = led()
    queues.set_cohort(queued.make_cohort("team", by_use=True))
    return standings(queues, ("tas",)).cohorts["team"].message


@case
def a_local_queue_that_leads_nowhere():
    return active(led(cluster="gone"), local=True)


@case
def a_local_queue_that_is_stopped():
    return active(led(held=Stop.HOLD), local=True)


@case
def a_local_queue_of_a_namespace_that_is_not_selected():
    return active(led(namespaces=None), local=True)


def of_a_cohort(*cohorts, name="a"):
    """What is said of a cohort: queue q is below cohort a, and there are these: (name, parent)."""
    queues = led(cohort="a")
    for one, parent in cohorts:
        queues.set_cohort(queued.make_cohort(one, 0, parent))
    return standings(queues, ("tas",)).cohorts[name].message


@case
def a_cohort_that_lends():
    return of_a_cohort(("a", ""))


@case
def a_cohort_without_its_parent():
    return of_a_cohort(("a", "org"))


@case
def a_cohort_that_nobody_names():
    return of_a_cohort(("b", ""), name="b")


@case
def a_cohort_in_a_circle():
    return of_a_cohort(("a", "b"), ("b", "a"))


@case
def a_workload_that_an_error_keeps():
    return shield.in_words(ValueError("x"))
