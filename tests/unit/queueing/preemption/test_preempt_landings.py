"""Of victims that cost the same those go that let the preemptor land best inside its nodes."""

from itertools import combinations

import pytest
from support.queue_factories import GPU, HOST, RACK, make_queues, make_state, run, submit
from test_preempt_inner import Crowd, fits, job, machine, pods, queue

from engine.cluster.assignment import Assignment, Slice
from engine.kubelet.machine import CPU, NumaPlacement, TopologyPolicy, ZoneUse
from engine.model import Pod
from engine.preemption.model import ChoiceRules as VictimRules
from engine.preemption.model import Landing, Scoring, Strategy
from engine.preemption.search import find
from engine.results import Refusal
from queueing.model import Rules, asks_of
from queueing.preemption import inside_nodes
from queueing.preemption.inside_nodes import NodesInside
from queueing.preemption.landings import Landings, landings_of
from queueing.preemption.plan import ranked
from queueing.preemption.search import plan
from queueing.queues.entry import AssumedAdmission
from queueing.queues.flavor_assigner import put
from simulator.paper import RTX_4090, TABLE_3, Filling, full_servers
from simulator.saturated import ANYWHERE, ONE_NODE, SaturatedCluster

STRATEGIES = pytest.mark.parametrize("strategy", list(Strategy))


def price(crowd, rules, victims):
    """What is compared of a set of victims and of where the engine then puts the preemptor; None where it does not."""
    checkpoint = crowd.state.begin()
    for key in victims:
        for pod in crowd.queues.entries[key].pods:
            crowd.state.remove_pod(pod)
        crowd.state.release_workload(key)
    placed = put(crowd.state, "x", crowd.option)
    landings = None if isinstance(placed, Refusal) else landings_of(crowd.state, "x", placed)
    crowd.state.rollback(checkpoint)
    if isinstance(placed, Refusal):
        return None
    values = [crowd.queues.entries[key].workload.priority for key in victims]
    return ranked(rules, max(values), sum(max(value, 0) for value in values), len(values), landings)


@STRATEGIES
@pytest.mark.parametrize("first", range(0, 160, 40))
def test_one_pod_gets_the_best_victims_and_landing_of_all_sets(first, strategy):
    compared = 0
    for seed in range(first, first + 40):
        crowd = Crowd(seed, Rules(victims=VictimRules(strategy)))
        if crowd.entry.workload.pod_sets[0].count > 1 or fits(crowd, ()):
            continue
        rules, own = crowd.queues.rules.victims, crowd.candidates()
        sets = [some for size in range(1, min(len(own), 5) + 1) for some in combinations(own, size)]
        best = min((key for some in sets if (key := price(crowd, rules, some)) is not None), default=None)
        found = plan(crowd.state, crowd.queues, crowd.entry, crowd.option)
        assert (found is None) == (best is None), f"seed {seed}"
        if found is not None:
            assert ranked(rules, *found.cost, found.landings) == best, f"seed {seed}"
            compared += 1
    assert compared > 3


def decided(cluster):
    """What becomes of five more instances, one after the other."""
    for number, name in enumerate("BCCBC"):
        topology = ONE_NODE if number % 2 else ANYWHERE
        found = cluster.plan(f"new-{number}", TABLE_3[name], topology=topology)
        yield None if found is None else cluster.carry_out(found)


@STRATEGIES
@pytest.mark.parametrize("filling", list(Filling))
def test_nodes_that_no_victims_let_land_better_are_passed_over_and_nothing_else_changes(filling, strategy, monkeypatch):
    """Beside the same search without bounds by zones, which asks more kubelets."""
    asked = []
    monkeypatch.setattr(inside_nodes, "find", lambda *search: asked.append(search) or find(*search))
    made = []
    for bounds in (NodesInside.bound_inside, NodesInside.bound_price):
        monkeypatch.setattr(NodesInside, "bound_inside", bounds)
        for number in range(8):
            servers = full_servers(filling, number)
            made.append(list(decided(SaturatedCluster(RTX_4090, servers, VictimRules(strategy)))))
        made.append(len(asked))
        asked.clear()
    with_bounds, looked, without, looked_without = made[:8], made[8], made[9:17], made[17]
    assert with_bounds == without
    assert all(one is not None and one.victims for on in without for one in on)
    assert looked <= looked_without / 2 if filling is Filling.SCATTERED else looked <= looked_without


def full_racks(spoiled):
    """Two racks of two nodes; in rack ``spoiled`` the low ones hold a GPU in each zone, in the other a whole zone."""
    state = make_state(2, 2, gpu=4)
    for name in state.nodes:
        state.set_machine(machine(name, TopologyPolicy.BEST_EFFORT))
    for at, name in enumerate(state.nodes):
        zones = ((0, 1), (0, 1)) if at // 2 == spoiled else ((0, 0), (1, 1))
        for priority, held in zip((9, 0), zones, strict=True):
            for number, zone in enumerate(held):
                yield state, name, f"{name}-{priority}-{number}", priority, zone


def started(state, queues, key, *, node, priority, zone):
    """A workload of one pod of one GPU runs in a zone of a node."""
    workload = job(key, priority=priority)
    (pod_set,) = workload.pod_sets
    labels = state.nodes[node].labels
    slots = Slice((labels[RACK], node), 1, ((node, 1),))
    assignment = Assignment(
        pod_set="main",
        flavor="tas",
        levels=(RACK, HOST),
        requests=pod_set.requests,
        slices=(slots,),
        shape=pod_set.shape,
    )
    amounts = {("tas", name): amount for name, amount in pod_set.requests.items()}
    flavors = {"main": dict.fromkeys(pod_set.requests, "tas")}
    grant = AssumedAdmission("q", {"main": 1}, flavors, amounts, (assignment,), asks_of(workload))
    queues.restore_workload(state, workload, grant, 0.0)
    held = NumaPlacement(zones=(ZoneUse(zone=zone, amounts={CPU: 1000, GPU: 1}),))
    pod = Pod(key, node, pod_set.requests, claim=(key, "main"), shape=pod_set.shape, placement=held, observed=True)
    state.set_pod(pod)
    queues.bind(key, key)


@STRATEGIES
@pytest.mark.parametrize("level", [RACK, None])
@pytest.mark.parametrize("spoiled", [0, 1])
def test_a_gang_goes_where_all_its_pods_land_in_one_zone(spoiled, level, strategy):
    queues = make_queues(queue(), rules=Rules(victims=VictimRules(strategy)))
    for state, name, key, priority, zone in full_racks(spoiled):
        started(state, queues, key, node=name, priority=priority, zone=zone)
    submit(queues, job("x", 2, 2, level, priority=5, created=9.0))
    (planned,) = run(state, queues).preempting
    nodes = {name for part in planned.grant.assignments for piece in part.slices for name, _ in piece.nodes}
    assert {state.nodes[name].labels[RACK] for name in nodes} == {f"tas-r{1 - spoiled}"}
    assert len(planned.victims) == 4
    assert landings_of(state, "y", planned.grant.assignments) is not None


def test_what_is_compared_of_landings():
    """Fewest across sockets, then fewest across zones; or the mean of T in S, against the sum of priorities."""
    least, minimal = VictimRules(), VictimRules(Strategy.INCREMENTAL_MINIMAL, Scoring(alpha=0.5))
    good, mixed = Landings.count_landings([Landing.ZONE] * 2), Landings.count_landings([Landing.ZONE, Landing.ACROSS])
    sockets = Landings.count_landings([Landing.SOCKET] * 2)
    assert ranked(least, 5, 7, 2, good) < ranked(least, 5, 7, 2, sockets) < ranked(least, 5, 7, 2, mixed)
    assert ranked(least, 5, 6, 2, mixed) < ranked(least, 5, 7, 2, good), "priorities come first"
    assert mixed.score(minimal, 100) == sockets.score(minimal, 100) == 0.5 / 100 + 0.5 * 0.5
    assert ranked(minimal, 5, 900, 2, good) < ranked(minimal, 5, 100, 2, mixed) < ranked(minimal, 5, 100, 3, good)


def test_pods_that_take_nothing_inside_nodes_have_no_landings():
    state = make_state(1, 1, gpu=4)
    asks = Assignment(
        pod_set="main",
        flavor="tas",
        levels=(RACK, HOST),
        requests={GPU: 1},
        slices=(Slice(("tas-r0", "tas-0"), 1, (("tas-0", 1),)),),
        shape=pods(1, 1, None).shape,
    )
    assert landings_of(state, "x", (asks,)) is None, "the insides of no nodes are known"
    state.set_machine(machine("tas-0"))
    assert landings_of(state, "x", (asks,)) == Landings(zone=1)
    plain = Assignment(pod_set="main", flavor="tas", levels=(RACK, HOST), requests={GPU: 1}, slices=asks.slices)
    assert landings_of(state, "x", (plain,)) is None
