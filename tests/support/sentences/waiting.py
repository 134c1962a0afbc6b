"""Why a workload waits, as the engine and the queues say it."""

from collections.abc import Iterator

from support import queue_factories as queued
from support.engine_factories import (
    BLOCK,
    GPU,
    HOST,
    RACK,
    ask,
    make_flavor,
    make_node,
    make_pod,
    make_pod_set,
    make_state,
    placed,
)
from support.numa_factories import make_machine, make_shape, on_zone, pod_on, pods_of, state_of
from support.sentences.golden import Golden

from engine.kubelet.machine import TopologyPolicy
from engine.model import (
    Attached,
    LabelRequirement,
    NodeTerm,
    PodTerm,
    Policy,
    ShareLimits,
    ShareRule,
    SliceLayer,
    SpreadConstraint,
    Taint,
    TopologyRequest,
    volumes_of,
)
from engine.placement.place import extend, replace
from engine.reasons import Reason
from engine.results import Refusal
from queueing import messages
from queueing.model import ClusterQueue, NonPreemptible, Preemption, RunTime, Within
from queueing.preemption.plan import Plan, PlannedVictim
from queueing.queues.minimum_run_time import Minimum

GOLDEN = Golden("waiting")
case = GOLDEN.case


def fleet(*, used: int = 0, **more: object) -> object:
    """Two racks of two nodes of 8 GPUs; so many GPUs of each node are used."""
    nodes = [make_node(f"n{at}", rack=f"r{1 + at // 2}", **more) for at in range(4)]
    return make_state(nodes, pods=[make_pod(f"other/p{at}", f"n{at}", gpu=used) for at in range(4) if used])


GOLDEN.section("room that others have")


@case
def a_rack_that_is_full():
    return ask(fleet(used=8), make_pod_set(2, gpu=8))


@case
def a_rack_with_too_little_left():
    return ask(fleet(used=4), make_pod_set(2, gpu=8, requests={GPU: 8, "cpu": 60_000}))


@case
def one_pod():
    return ask(fleet(used=4), make_pod_set(1, gpu=8, level=HOST))


@case
def the_whole_flavor():
    return ask(fleet(used=4), make_pod_set(4, gpu=8, policy=Policy.PREFERRED))


@case
def nodes_that_are_cordoned_and_not_ready():
    state = fleet()
    for name, change in (("n0", {"unschedulable": True}), ("n1", {"ready": False}), ("n2", {"unschedulable": True})):
        state.set_node(make_node(name, rack="r1" if name != "n2" else "r2", **change))
    return ask(state, make_pod_set(2, gpu=8))


@case
def a_selector_that_too_few_free_nodes_have():
    state = fleet()
    for name in ("n0", "n1"):
        state.set_node(make_node(name, labels={"disk": "ssd"}))
    state.set_pod(make_pod("other/p", "n0", gpu=8))
    return ask(state, make_pod_set(2, gpu=8, node_selector={"disk": "ssd"}))


@case
def slices_that_do_not_fit_whole():
    state = make_state([make_node(f"n{at}", rack=f"r{at}") for at in range(3)])
    state.set_pod(make_pod("other/p", "n0", gpu=6))
    state.set_pod(make_pod("other/q", "n1", gpu=6))
    topology = TopologyRequest(policy=Policy.REQUIRED, level=BLOCK, slices=(SliceLayer(level=RACK, size=4),))
    return ask(state, _with(make_pod_set(12), topology))


def _with(pod_set, topology):
    return type(pod_set)(**{**{f: getattr(pod_set, f) for f in pod_set.__struct_fields__}, "topology": topology})


GOLDEN.section("shares of domains")


def _limited(count=1, *levels, most=450, **more):
    rules = tuple(ShareRule(level=level, most=most) for level in levels or (RACK,))
    shares = ShareLimits(rules=rules, key="app", values=("main",))
    topology = TopologyRequest(policy=Policy.REQUIRED, level=RACK, shares=shares)
    return _with(make_pod_set(count, gpu=8, namespace="ns", labels={"app": "main"}, **more), topology)


def _spread(taken, racks, **more):
    """Racks of one node each, of which so many have one workload."""
    state = make_state([make_node(f"n{at}", rack=f"r{1 + at}", **more) for at in range(racks)])
    for at in range(taken):
        state.reserve(f"ns/{at}", placed(ask(state, _limited(most=1), key=f"ns/{at}")).assignments)
    return state


@case
def racks_that_have_more_than_their_share():
    return ask(_spread(2, 2, gpu=16), _limited(most=450))


@case
def more_racks_with_more_than_their_share_than_are_named():
    return ask(_spread(5, 5, gpu=16), _limited(most=100))


@case
def a_rack_that_is_left_and_has_too_little_room():
    state = _spread(1, 2, gpu=16)
    state.set_pod(make_pod("other/p", "n1", gpu=16))
    return ask(state, _limited())


@case
def a_share_of_a_level_below_the_required_one():
    return ask(_spread(0, 2), _limited(1, HOST))


@case
def a_share_of_a_level_that_the_flavor_lacks():
    return ask(_spread(0, 2), _limited(1, "cloud/zone"), flavors=("tas",))


@case
def a_group_that_limits_shares_in_two_ways():
    one, other = (_limited(1, name=name, group="g", most=most) for name, most in (("leader", 450), ("workers", 500)))
    return ask(_spread(0, 2), one, other)


GOLDEN.section("constraints of pods")


@case
def a_host_port_that_others_have():
    state = fleet()
    for at in (0, 2):
        state.set_pod(make_pod(f"other/p{at}", f"n{at}", namespace="", labels={"app": "x"}))
    return ask(state, make_pod_set(2, gpu=1, anti_affinity=(_own("8080"),), labels={"app": "x"}))


@case
def the_nearer_of_two_flavors():
    state = make_state([make_node("n0", gpu=8, labels={"pool": "a"})], make_flavor("a", node_labels={"pool": "a"}))
    state.set_flavor(make_flavor("b", node_labels={"pool": "b"}))
    state.set_node(make_node("n1", labels={"pool": "b"}))
    return ask(state, make_pod_set(2, gpu=8, node_selector={"pool": "b"}))


GOLDEN.section("nodes that are left out: one of two in each rack, and the others are in use")


def _halves(pod_set, **others):
    """Nodes n0 and n2 differ (``others``), which is why ``pod_set`` is not for them; n1 and n3 take one pod each."""
    state = fleet()
    for name, rack in (("n0", "r1"), ("n2", "r2")):
        state.set_node(make_node(name, rack=rack, **others))
    for name in ("n1", "n3"):
        state.set_node(make_node(name, rack=f"r{1 + (name == 'n3')}", gpu=16, labels={"half": "1"}, features=("F",)))
        state.set_pod(make_pod(f"other/{name}", name, gpu=8))
    return ask(state, pod_set)


_HALF = NodeTerm(labels=(LabelRequirement(key="half", operator="Exists"),))


@case
def half_of_the_nodes_tainted():
    taints = (Taint(key="dedicated", value="ml", effect="NoSchedule"),)
    return _halves(make_pod_set(2, gpu=8), taints=taints)


@case
def half_of_the_nodes_not_selected():
    return _halves(make_pod_set(2, gpu=8, node_selector={"half": "1"}))


@case
def half_of_the_nodes_without_the_affinity():
    return _halves(make_pod_set(2, gpu=8, node_affinity=(_HALF,)))


@case
def half_of_the_nodes_without_a_feature():
    return _halves(make_pod_set(2, gpu=8, features=("F",)))


@case
def half_of_the_nodes_not_reached_by_claims():
    return _halves(make_pod_set(2, gpu=8, claim_nodes=((_HALF,),)))


@case
def half_of_the_nodes_not_reached_by_volumes():
    return _halves(make_pod_set(2, gpu=8, volume_nodes=((_HALF,),)))


@case
def nodes_that_attach_no_further_volume():
    limit = volumes_of("ebs.csi.aws.com")
    state = make_state([make_node(f"n{at}", attachable={limit: 1}) for at in range(2)])
    for at in range(2):
        state.set_pod(make_pod(f"other/p{at}", f"n{at}", gpu=1, attached=Attached(own={limit: 1})))
    return ask(state, make_pod_set(1, attached=Attached(own={limit: 1})))


@case
def nodes_without_the_pods_that_an_affinity_wants():
    state = fleet(used=4)
    state.set_pod(make_pod("other/db", "n0", gpu=0, labels={"app": "db"}, namespace="default"))
    term = PodTerm(HOST, (LabelRequirement(key="app", operator="In", values=("db",)),), ("default",))
    return ask(state, make_pod_set(2, gpu=4, affinity=(term,), namespace="default"))


@case
def nodes_that_an_anti_affinity_keeps_pods_from():
    state = fleet(used=4)
    state.set_pod(make_pod("other/db", "n0", gpu=0, labels={"app": "db"}, namespace="default"))
    term = PodTerm(HOST, (LabelRequirement(key="app", operator="In", values=("db",)),), ("default",))
    return ask(state, make_pod_set(4, gpu=4, anti_affinity=(term,), namespace="default", level=BLOCK))


@case
def a_spread_beside_too_little_room():
    spread = SpreadConstraint(HOST, 1, (LabelRequirement(key="app", operator="In", values=("x",)),))
    pods = make_pod_set(9, gpu=1, spread=(spread,), labels={"app": "x"}, namespace="default", level=BLOCK)
    return ask(fleet(used=6), pods)


@case
def a_spread_that_leaves_no_room():
    state = fleet()
    for at in range(4):
        gpu = 8 if at else 0
        state.set_pod(make_pod(f"other/p{at}", f"n{at}", gpu=gpu, labels={"app": "x"}, namespace="default"))
    spread = SpreadConstraint(HOST, 1, (LabelRequirement(key="app", operator="In", values=("x",)),))
    return ask(state, make_pod_set(2, gpu=1, spread=(spread,), labels={"app": "x"}, namespace="default"))


GOLDEN.section("with nothing else running")


@case
def a_level_that_is_too_small():
    return ask(fleet(), make_pod_set(3, gpu=8))


@case
def the_widest_level_is_too_small():
    return ask(fleet(), make_pod_set(5, gpu=8, level=BLOCK))


@case
def a_preferred_level_and_a_flavor_that_is_too_small():
    return ask(fleet(), make_pod_set(5, gpu=8, policy=Policy.PREFERRED))


@case
def a_level_that_is_too_small_with_a_selector():
    state = fleet()
    for name in ("n0", "n2"):
        state.set_node(make_node(name, rack=f"r{1 + int(name[1]) // 2}", labels={"disk": "ssd"}))
    return ask(state, make_pod_set(2, gpu=8, node_selector={"disk": "ssd"}))


@case
def a_selector_that_leaves_too_few_nodes_for_all_pods():
    state = fleet()
    state.set_node(make_node("n0", labels={"disk": "ssd"}))
    return ask(state, make_pod_set(2, gpu=8, node_selector={"disk": "ssd"}))


@case
def a_taint_that_leaves_too_few_nodes_for_all_pods():
    state = fleet()
    for name in ("n0", "n1"):
        state.set_node(make_node(name, taints=(Taint(key="dedicated", value="ml", effect="NoSchedule"),)))
    return ask(state, make_pod_set(3, gpu=8))


@case
def pods_that_share_no_node():
    return ask(fleet(), make_pod_set(3, gpu=5))


@case
def a_pod_larger_than_any_node():
    return ask(fleet(), make_pod_set(2, gpu=16))


@case
def a_resource_that_no_node_has():
    return ask(fleet(), make_pod_set(2, requests={"example.com/tpu": 1}))


@case
def a_resource_where_nodes_have_none_of_its_kind():
    return ask(make_state([make_node("n0", gpu=0)]), make_pod_set(1, requests={"example.com/tpu": 1}))


@case
def amounts_that_no_node_has_together():
    state = make_state([make_node("n0", gpu=8, cpu=8_000), make_node("n1", gpu=1, cpu=96_000)])
    return ask(state, make_pod_set(1, requests={GPU: 8, "cpu": 64_000}))


@case
def an_amount_beyond_counting():
    pod_set = make_pod_set(2, requests={"memory": 1 << 47}, cut={"memory": 7 << 60})
    return ask(fleet(), pod_set)


@case
def a_label_that_no_node_has():
    return ask(fleet(), make_pod_set(2, node_selector={"nosuch": "label"}))


@case
def labels_that_no_node_has_together():
    state = fleet()
    state.set_node(make_node("n0", labels={"disk": "ssd"}))
    state.set_node(make_node("n1", labels={"net": "ib"}))
    return ask(state, make_pod_set(2, node_selector={"disk": "ssd", "net": "ib"}))


@case
def a_node_affinity_that_no_node_meets():
    term = NodeTerm(labels=(LabelRequirement(key="zone", operator="In", values=("nowhere",)),))
    return ask(fleet(), make_pod_set(2, node_affinity=(term,)))


@case
def a_taint_on_all_nodes():
    taints = (Taint(key="dedicated", value="ml", effect="NoSchedule"),)
    return ask(fleet(taints=taints), make_pod_set(2))


@case
def volumes_that_reach_no_node():
    term = NodeTerm(labels=(LabelRequirement(key=RACK, operator="In", values=("r9",)),))
    return ask(fleet(), make_pod_set(2, volume_nodes=((term,),)))


@case
def devices_of_claims_that_reach_no_node():
    term = NodeTerm(labels=(LabelRequirement(key=RACK, operator="In", values=("r9",)),))
    return ask(fleet(), make_pod_set(2, claim_nodes=((term,),)))


@case
def a_feature_that_no_node_declares():
    return ask(fleet(), make_pod_set(2, features=("InPlacePodLevelResources",)))


@case
def a_host_port_and_too_few_nodes():
    return ask(fleet(), make_pod_set(3, gpu=1, anti_affinity=(_own("8080"),), labels={"app": "x"}))


@case
def two_host_ports_and_too_few_nodes():
    terms = (_own("8080"), _own("8081/UDP"))
    return ask(fleet(), make_pod_set(3, gpu=1, anti_affinity=terms, labels={"app": "x"}))


def _own(host_port=""):
    """A term that keeps the pods of the set apart."""
    selector = (LabelRequirement(key="app", operator="In", values=("x",)),)
    return PodTerm(topology_key=HOST, selector=selector, namespaces=("",), host_port=host_port)


@case
def an_anti_affinity_and_too_few_nodes():
    return ask(fleet(), make_pod_set(3, gpu=1, anti_affinity=(_own(),), labels={"app": "x"}))


@case
def slices_larger_than_any_rack():
    state = make_state([make_node(f"n{at}", rack=f"r{at}", gpu=6) for at in range(3)])
    topology = TopologyRequest(policy=Policy.REQUIRED, level=BLOCK, slices=(SliceLayer(level=RACK, size=4),))
    return ask(state, _with(make_pod_set(16), topology))


GOLDEN.section("inside nodes")


@case
def zones_that_nobody_publishes():
    shape = make_shape({"cpu": 2, GPU: 2}, wish=TopologyPolicy.SINGLE)
    return ask(fleet(), pods_of(shape, 2))


@case
def links_that_nobody_publishes():
    return ask(fleet(), pods_of(make_shape({GPU: 2}, gpu_link="require"), 2))


@case
def zones_that_too_few_nodes_publish():
    state = state_of(make_machine({GPU: 4}, node="n1"))
    state.set_node(make_node("n0", rack="r1", gpu=4))
    return ask(state, pods_of(make_shape({GPU: 2}, wish=TopologyPolicy.SINGLE), 3))


@case
def a_pod_that_no_kubelet_would_admit():
    state = state_of(*(make_machine({"cpu": 4}, {"cpu": 4}, node=f"n{at}") for at in range(2)))
    return ask(state, pods_of(make_shape({"cpu": 6}), 1))


@case
def a_level_whose_zones_are_too_small():
    state = state_of(*(make_machine({"cpu": 5}, {"cpu": 5}, node=f"n{at}") for at in range(2)))
    return ask(state, pods_of(make_shape({"cpu": 3}), 5))


@case
def zones_that_others_have():
    state = state_of(*(make_machine({"cpu": 4}, {"cpu": 4}, node=f"n{at}") for at in range(2)))
    for name in ("n0", "n1"):
        for zone in (0, 1):
            state.set_pod(pod_on(f"{name}/{zone}", make_shape({"cpu": 2}), on_zone(zone, cpu=2), name))
    return ask(state, pods_of(make_shape({"cpu": 3}), 2))


GOLDEN.section("flavors and levels")


@case
def nodes_that_each_lack_a_label():
    state = make_state([make_node("n0", labels={RACK: ""}), make_node("n1", labels={BLOCK: ""})])
    return ask(state, make_pod_set(1))


@case
def nodes_of_one_host_name():
    state = make_state([make_node(f"n{at}", labels={HOST: "same", RACK: ""}) for at in range(2)])
    state.set_node(make_node("n2", labels={BLOCK: ""}))
    return ask(state, make_pod_set(1))


@case
def a_flavor_without_nodes():
    return ask(make_state([], make_flavor(node_labels={"pool": "x"})), make_pod_set(1))


@case
def nodes_without_level_labels():
    state = make_state([], make_flavor(node_labels={"pool": "x"}))
    node = make_node("n0", labels={"pool": "x", RACK: ""})
    state.set_node(node)
    return ask(state, make_pod_set(1))


@case
def a_level_that_no_flavor_has():
    return ask(fleet(), make_pod_set(1, level="cloud/row"))


@case
def a_flavor_that_is_not_there():
    return ask(fleet(), make_pod_set(1), flavors=("gone",))


@case
def a_level_that_the_flavor_lacks():
    return ask(fleet(), make_pod_set(1, level="cloud/row"), flavors=("tas",))


@case
def a_spread_that_cannot_be_honoured():
    spread = SpreadConstraint(topology_key=RACK, max_skew=1, selector=(LabelRequirement(key="a", operator="Exists"),))
    return ask(fleet(), make_pod_set(5, gpu=4, level=BLOCK, labels={"a": "b"}, spread=(spread, spread)))


GOLDEN.section("more pods of one that runs")


@case
def more_pods_than_the_rack_has_in_all():
    state = fleet()
    state.reserve("w", placed(ask(state, make_pod_set(2, gpu=8))).assignments)
    return extend(state, "w", make_pod_set(4, gpu=8), 2)


@case
def more_pods_than_are_free_in_the_rack():
    state = fleet()
    state.reserve("w", placed(ask(state, make_pod_set(1, gpu=8))).assignments)
    state.set_pod(make_pod("other/p", "n1", gpu=4))
    return extend(state, "w", make_pod_set(2, gpu=8), 1)


@case
def more_pods_than_are_free_anywhere():
    state = fleet()
    state.reserve("w", placed(ask(state, make_pod_set(1, gpu=8, policy=Policy.PREFERRED))).assignments)
    for name in ("n1", "n2", "n3"):
        state.set_pod(make_pod(f"other/{name}", name, gpu=4))
    return extend(state, "w", make_pod_set(3, gpu=8, policy=Policy.PREFERRED), 2)


@case
def a_rack_without_nodes_left():
    state = make_state([make_node("n0", rack="r1"), make_node("n1", rack="r2")])
    state.reserve("w", placed(ask(state, make_pod_set(1, gpu=8))).assignments)
    gone = next(iter(state.workloads["w"].values())).slices[0].nodes[0][0]
    state.remove_node(gone)
    return replace(state, "w", make_pod_set(1, gpu=8), {gone})


GOLDEN.section("requests that are wrong")


@case
def no_pod_sets():
    return ask(fleet())


@case
def two_pod_sets_of_one_name():
    return ask(fleet(), make_pod_set(1), make_pod_set(1))


@case
def no_pods():
    return ask(fleet(), make_pod_set(0))


@case
def a_policy_without_a_level():
    return ask(fleet(), make_pod_set(1, level=None))


@case
def a_negative_request():
    return ask(fleet(), make_pod_set(1, gpu=-1))


@case
def slices_in_two_pod_sets_of_a_group():
    topology = TopologyRequest(policy=Policy.REQUIRED, level=BLOCK, slices=(SliceLayer(level=RACK, size=4),))
    return ask(fleet(), *(_with(make_pod_set(4, name=name, group="g"), topology) for name in ("one", "other")))


@case
def slices_of_nothing():
    topology = TopologyRequest(policy=Policy.REQUIRED, level=BLOCK, slices=(SliceLayer(level=RACK, size=0),))
    return ask(fleet(), _with(make_pod_set(4), topology))


@case
def slices_that_do_not_divide_the_pods():
    topology = TopologyRequest(
        policy=Policy.REQUIRED, level=BLOCK, slices=(SliceLayer(level=RACK, size=3), SliceLayer(level=HOST, size=1))
    )
    return ask(fleet(), _with(make_pod_set(4), topology))


@case
def a_group_of_different_wishes():
    return ask(fleet(), make_pod_set(1, group="g"), make_pod_set(1, group="g", level=BLOCK, name="other"))


GOLDEN.section("queues")


def _queue(nominal=8, **more):
    queues = queued.make_queues(queued.make_queue(nominal=nominal, **more))
    return queued.make_state(2, 2), queues


def _job(name, count=1, **more):
    return queued.make_workload(f"ns/job-{name}-5a1c", count=count, owner=f"Job ns/{name}", **more)


def _waits(state, queues, *jobs):
    for at, job in enumerate(jobs):
        queued.submit(queues, job, now=float(at))
        found = queued.run(state, queues, now=float(at))
    return f"{found.waiting[-1].reason}: {found.waiting[-1].message}"


@case
def quota_that_others_of_the_queue_use():
    return _waits(*_queue(), _job("train"), _job("eval", created=1.0))


@case
def quota_that_a_cohort_uses():
    queues = queued.make_queues(queued.make_queue("a", 8, cohort="c"), queued.make_queue("q", 8, cohort="c"))
    taker = queued.make_workload("ns/job-taker-1", queue="a", count=2, owner="Job ns/taker")
    return _waits(queued.make_state(2, 2), queues, taker, _job("train", created=1.0))


@case
def quota_with_a_borrowing_limit():
    queues = queued.make_queues(
        queued.make_queue("a", 8, cohort="c"), queued.make_queue("q", 8, cohort="c", borrowing=4)
    )
    return _waits(queued.make_state(2, 2), queues, _job("train"), _job("eval", created=1.0, gpu=6))


@case
def quota_that_the_limit_of_a_cohort_stops():
    queues = queued.make_queues(*(queued.make_queue(name, 4, cohort="team") for name in "aq"))
    queues.set_cohort(queued.make_cohort("team", 4, "org", borrowing=4))
    queues.set_cohort(queued.make_cohort("org", 32))
    taker = queued.make_workload("ns/job-taker-1", queue="a", gpu=6, owner="Job ns/taker")
    return _waits(queued.make_state(2, 2), queues, taker, _job("train"), _job("eval", created=1.0, gpu=8))


@case
def more_than_the_queue_may_ever_use():
    return _waits(*_queue(), _job("train", 2))


@case
def more_than_the_queue_may_ever_use_and_any_node_has():
    return _waits(*_queue(), _job("train", 2, gpu=16))


@case
def more_than_one_that_is_nobodys_victim_may_use():
    queues = queued.make_queues(queued.make_queue("a", 8, cohort="c"), queued.make_queue("q", 8, cohort="c"))
    spared = {"non_preemptible": NonPreemptible.BY_CLASS}
    return _waits(queued.make_state(2, 2), queues, _job("train", 2, **spared))


@case
def quota_that_is_used_by_those_who_are_nobodys_victims():
    queues = queued.make_queues(queued.make_queue("a", 8, cohort="c"), queued.make_queue("q", 8, cohort="c"))
    spared = {"non_preemptible": NonPreemptible.BY_CLASS}
    return _waits(queued.make_state(2, 2), queues, _job("train", **spared), _job("eval", created=1.0, **spared))


@case
def the_same_as_one_before_it_waits_for():
    return _waits(*_queue(), _job("train"), _job("eval", created=1.0), _job("late", created=2.0))


@case
def the_same_without_a_queue():
    queues = queued.make_queues(ClusterQueue(name="(no queue)", unlimited=True, claims=False))
    jobs = [_job(name, queue="(no queue)", count=2, created=at) for at, name in enumerate(("a", "b", "eval", "late"))]
    return _waits(queued.make_state(2, 2), queues, *jobs)


@case
def the_same_of_one_that_can_never_fit():
    return _waits(*_queue(nominal=64), _job("train", 8), _job("late", 8, created=1.0))


@case
def behind_the_first_of_a_strict_queue():
    state, queues = _queue(strict=True)
    return _waits(state, queues, _job("train"), _job("eval", created=1.0), _job("late", created=2.0, gpu=4))


@case
def one_that_makes_others_go():
    state, queues = _queue(preemption=Preemption(within=Within.LOWER))
    queued.submit(queues, _job("train"))
    queued.run(state, queues)
    queued.submit(queues, _job("urgent", priority=5, created=1.0), now=1.0)
    return queued.run(state, queues, now=2.0).preempting[0].message


@case
def one_that_has_to_go():
    state, queues = _queue(preemption=Preemption(within=Within.LOWER))
    queued.submit(queues, _job("train"))
    queued.run(state, queues)
    queued.submit(queues, _job("urgent", priority=5, created=1.0), now=1.0)
    made = queued.run(state, queues, now=2.0).preempting[0]
    return made.message_to(made.victims[0])


@case
def one_that_was_admitted():
    state, queues = _queue(nominal=16)
    queued.submit(queues, _job("train", 2))
    return queued.run(state, queues).admitted[0].message


def _of_messages() -> Iterator[tuple[str, Refusal | str]]:
    """Sentences of `queueing.messages` that take long histories to come about, from what those end in."""
    _, queues = _queue()
    victims = (
        PlannedVictim("ns/job-a-1", "a", 0, Reason.IN_CLUSTER_QUEUE),
        PlannedVictim("ns/job-b-1", "b", 0, Reason.IN_CLUSTER_QUEUE, (("b1", "r1"),)),
    )
    job, other = "Job ns/train", "Job ns/eval"
    yield "devices that are being counted", messages.counting(3)
    yield "devices of one node that are being counted", messages.counting(1)
    yield "quota that is kept", messages.kept_quota_refusal(job, "cohort c")
    yield "room that is kept", messages.behind_in_room([job])
    yield "room that is kept for two", messages.behind_in_room([job, other])
    yield "room that comes free bit by bit", messages.behind_successors([job])
    yield "room that comes free bit by bit for several", messages.behind_successors([job, other, job, other])
    yield "zones that are promised", messages.beside_promised_zones()
    yield "one that has nobody evicted", messages.following(messages.behind_in_room([job]))
    yield (
        "one that leaves those alone who had it evicted",
        messages.leaving_alone(messages.behind_in_room([job]), [other]),
    )
    yield (
        "one that leaves several alone who had it evicted",
        messages.leaving_alone(messages.behind_in_room([job]), [other, job]),
    )
    yield from _of_minimum_run_times()
    yield "several that go, one of them in part", messages.preempting(queues, Plan(victims, ()))
    yield "slices that go", messages.losing([("b1", "r1")], messages.preempted(job, "q", Reason.IN_CLUSTER_QUEUE))
    yield "claims that keep their devices", messages.deallocating(["gpus"])
    yield "claims that keep their devices, several", messages.deallocating(["a", "b", "c", "d"])
    for reason in (Reason.RECLAIMED, Reason.RECLAIMED_WHILE_BORROWING, Reason.FAIR_SHARING, Reason.OUTSIDE_QUEUES):
        yield f"one that has to go by {reason}", messages.preempted(job, "q", reason)
    yield "one that has to go for a cohort", messages.preempted(job, "q", Reason.RECLAIMED, "research")
    yield "one that was admitted in part", messages.admitted("q", {"main": 1}, ["tas"], partly=True)
    yield "one of two pod sets", messages.admitted("q", {"leader": 1, "workers": 4}, ["tas"], partly=False)


def _of_minimum_run_times() -> Iterator[tuple[str, str]]:
    """Who is safe, and until when, in a tree where each queue and cohort says something else."""
    each = {
        "nothing": {"of": RunTime(), "above": RunTime()},
        "its queue alone": {"of": RunTime(within=300), "above": RunTime()},
        "all alike": {"of": RunTime(within=600, reclaim=600), "above": RunTime(reclaim=600)},
        "each another": {"of": RunTime(within=300, reclaim=120), "above": RunTime(reclaim=600)},
    }
    for name, said in each.items():
        queues = queued.make_queues(queued.make_queue("q", 64, cohort="a", minimum=said["of"]))
        queues.set_cohort(queued.make_cohort("a", parent="t", minimum=said["above"]))
        queues.set_cohort(queued.make_cohort("t"))
        state = queued.make_state()
        queued.submit(queues, queued.make_workload("ns/job-a-1"))
        queued.run(state, queues, 1000.0)
        queues.run_times.note_start("ns/job-a-1", 1000.0, 1005.0)
        yield f"how long one runs at least: {name}", messages.safe_at_first(queues, "q") or "-"
        yield f"until when one is safe: {name}", messages.safe_until_when(queues, queues.entries["ns/job-a-1"]) or "-"
    for last, which in ((1605.0, "one that is safe"), (2605.0, "one that is safe, and others")):
        queues.run_times.begin_look()
        queues.run_times.leave_out_safe("ns/job-a-1", 1605.0, last, Minimum(600.0, "Cohort a"))
        yield f"who waits for {which}", messages.safe_yet(queues)


for _name, _found in _of_messages():
    GOLDEN.add(_name, lambda found=_found: found)
