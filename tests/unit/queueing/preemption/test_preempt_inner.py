"""Victims where the inside of machines decides: against every set of workloads, on the engine's own state."""

import random
from itertools import combinations

import pytest
from support.queue_factories import GPU, HOST, RACK, make_queue, make_queues, make_state, make_workload, run, submit

from engine.kubelet.machine import (
    CPU,
    Container,
    Kubelet,
    Layout,
    Machine,
    NumaPlacement,
    PodShape,
    Qos,
    State,
    TopologyPolicy,
    Zone,
    ZoneUse,
)
from engine.model import Pod, PodSet, Policy, TopologyRequest
from engine.preemption.model import ChoiceRules as VictimRules
from engine.preemption.model import Scoring, Strategy
from engine.results import Refusal
from queueing.cycle.cycle import cycle
from queueing.model import ClusterQueue, FlavorQuotas, Preemption, Quota, ResourceGroup, Rules, Within
from queueing.preemption import proposals
from queueing.preemption.inside_nodes import EvictableUnit, NodesInside
from queueing.preemption.search import plan
from queueing.queues.entry import Phase
from queueing.queues.flavor_assigner import put


def queue(preemption=None):
    quotas = FlavorQuotas(flavor="tas", resources={GPU: Quota(nominal=100), CPU: Quota(nominal=1_000_000)})
    group = ResourceGroup(resources=(GPU, CPU), flavors=(quotas,))
    return ClusterQueue(name="q", groups=(group,), preemption=preemption or Preemption(within=Within.LOWER))


def machine(name, policy=TopologyPolicy.SINGLE):
    amounts = ((4000, 2),) * 2
    layout = Layout(
        zones=(Zone(id=0), Zone(id=1, socket=1)),
        resources=(CPU, GPU),
        capacity=amounts,
        allocatable=amounts,
        kubelet=Kubelet(policy=policy, static_cpu=True),
        threads=1,
    )
    return Machine(node=name, layout=layout, state=State(free=amounts))


def inner_state(racks, hosts, policy=TopologyPolicy.SINGLE, without=()):
    state = make_state(racks, hosts, gpu=4)
    for name in state.nodes:
        if name not in without:
            state.set_machine(machine(name, policy))
    return state


def pods(count, gpus, level, name="main", cpus=None):
    asked = tuple(sorted({CPU: 1000 * (cpus or gpus), GPU: gpus}.items()))
    shape = PodShape(containers=(Container(name="c", requests=asked, limits=asked),), qos=Qos.GUARANTEED)
    policy = Policy.UNCONSTRAINED if level is None else Policy.REQUIRED
    topology = TopologyRequest(policy=policy, level=level)
    return PodSet(name=name, count=count, requests=dict(asked), topology=topology, namespace="ns", shape=shape)


def job(key, count=1, gpus=1, level=None, **more):
    return make_workload(key, pod_sets=(pods(count, gpus, level),), **more)


def fits(crowd, without):
    checkpoint = crowd.state.begin()
    for key in without:
        for pod in crowd.queues.entries[key].pods:
            crowd.state.remove_pod(pod)
        crowd.state.release_workload(key)
    placed = put(crowd.state, "x", crowd.option)
    crowd.state.rollback(checkpoint)
    return not isinstance(placed, Refusal)


class Crowd:
    """Machines of two zones, full of small workloads, some of whose pods run; one that wants whole zones."""

    def __init__(self, seed, rules=None):
        self.dice = dice = random.Random(seed)
        racks, hosts = dice.randint(1, 3), dice.randint(1, 2)
        policy = dice.choice((TopologyPolicy.SINGLE, TopologyPolicy.RESTRICTED, TopologyPolicy.BEST_EFFORT))
        self.state = inner_state(racks, hosts, policy, without=("tas-0",) if dice.random() < 0.2 else ())
        self.queues = make_queues(queue(), rules=rules)
        for i in range(10):
            count, gpus = dice.choice(((1, 1), (1, 1), (2, 1), (1, 2)))
            submit(self.queues, job(f"w{i}", count, gpus, priority=dice.randint(0, 2), created=float(i)))
        run(self.state, self.queues)
        for key, entry in list(self.queues.entries.items()):
            if entry.phase is not Phase.ADMITTED or dice.random() < 0.2:
                self.queues.remove_workload(self.state, key)
            elif dice.random() < 0.5:
                self.bind(key, entry)
        cycle(self.state, self.queues, 2.0)
        count, gpus, level = dice.choice(((1, 2, HOST), (2, 2, RACK), (2, 1, HOST), (1, 2, None), (3, 1, RACK)))
        submit(self.queues, job("x", count, gpus, level, priority=dice.randint(1, 4), created=50.0))
        self.entry = self.queues.entries["x"]
        (self.option,) = self.queues.options_of(self.state, self.entry.group).found

    def bind(self, key, entry):
        (assignment,) = entry.grant.assignments
        for number, (node, _) in enumerate(on for part in assignment.slices for on in part.nodes):
            held = self.state.placements(key, "main", node)
            pod = Pod(
                key=f"{key}-{number}",
                node=node,
                requests=assignment.requests,
                claim=(key, "main"),
                shape=assignment.shape,
                placement=held[0] if held else None,
            )
            self.state.set_pod(pod)
            self.queues.bind(pod.key, key)

    def candidates(self):
        mine, entries = self.entry.workload.priority, self.queues.entries
        return [key for key in sorted(self.queues.holders.held_in("q")) if entries[key].workload.priority < mine]


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_a_plan_is_found_if_there_is_one_and_costs_the_least_highest_priority(first):
    compared = 0
    for seed in range(first, first + 40):
        crowd = Crowd(seed)
        if fits(crowd, ()):
            continue
        before = {name: (crowd.state.free_on_node(name), crowd.state.state_inside(name)) for name in crowd.state.nodes}
        found = plan(crowd.state, crowd.queues, crowd.entry, crowd.option)
        assert {
            name: (crowd.state.free_on_node(name), crowd.state.state_inside(name)) for name in crowd.state.nodes
        } == before
        own = crowd.candidates()
        sets = [
            some for size in range(1, min(len(own), 8) + 1) for some in combinations(own, size) if fits(crowd, some)
        ]
        assert (found is None) == (not sets), f"seed {seed}"
        if found is None:
            continue
        names = [victim.key for victim in found.victims]
        assert fits(crowd, names)
        for left in names:
            assert not fits(crowd, [key for key in names if key != left]), f"seed {seed}: {left} is not needed"
        priority = {key: crowd.queues.entries[key].workload.priority for key in own}
        assert found.cost[0] == min(max(priority[key] for key in some) for some in sets), f"seed {seed}"
        compared += 1
    assert compared > 3


def test_by_amounts_any_two_would_do_but_the_kubelet_needs_one_zone():
    """Two of the four are in one zone; those that amounts rank first are not."""
    state, queues = inner_state(1, 1), make_queues(queue())
    for number, priority in enumerate((0, 3, 1, 1)):  # zone 0 gets the first two
        submit(queues, job(f"w{number}", priority=priority, created=float(number)))
        run(state, queues)
    cycle(state, queues, 2.0)
    submit(queues, job("x", 1, 2, HOST, priority=9, created=9.0))
    (planned,) = run(state, queues).preempting
    assert {victim.key for victim in planned.victims} == {"w2", "w3"}


@pytest.mark.parametrize(
    ("strategy", "victims"), [(Strategy.LEAST_PRIORITY, {"w0", "w1"}), (Strategy.INCREMENTAL_MINIMAL, {"w2"})]
)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("said_by", ["rules", "queue"])
def test_least_priority_or_fewest_as_the_rules_or_the_queue_say(strategy, victims, known, said_by):
    state = inner_state(1, 1) if known else make_state(1, 1, gpu=4)
    other = next(one for one in Strategy if one is not strategy)
    of_all = VictimRules(strategy if said_by == "rules" else other)
    own = None if said_by == "rules" else strategy
    queues = make_queues(queue(preemption=Preemption(within=Within.LOWER, strategy=own)), rules=Rules(victims=of_all))
    for number, gpus in enumerate((1, 1, 2)):
        submit(queues, job(f"w{number}", 1, gpus, priority=number, created=float(number)))
        run(state, queues)
    cycle(state, queues, 2.0)
    submit(queues, job("x", 1, 2, HOST, priority=9, created=9.0))
    (planned,) = run(state, queues).preempting
    assert {victim.key for victim in planned.victims} == victims


def test_alpha_of_a_queue_counts_in_its_score_and_no_others():
    rules = VictimRules(Strategy.INCREMENTAL_MINIMAL, Scoring(alpha=0.5, medium=0.25))
    own = make_queue("q", preemption=Preemption(strategy=Strategy.INCREMENTAL_MINIMAL, alpha=1.0))
    queues = make_queues(own, make_queue("other"), rules=Rules(victims=rules))
    assert queues.victim_rules("q").scoring == Scoring(alpha=1.0, medium=0.25)
    assert queues.victim_rules("other") == rules


def test_a_gang_that_goes_for_one_node_is_gone_from_the_others_too():
    """Freeing two zones of two nodes takes one workload of two pods rather than two of one."""
    state, queues = inner_state(1, 2), make_queues(queue())
    submit(queues, job("pair", 2, 2, RACK, created=0.0))
    run(state, queues)
    submit(queues, *(job(f"one{i}", 1, 2, created=1.0 + i) for i in range(2)))
    run(state, queues)
    cycle(state, queues, 2.0)
    submit(queues, job("x", 2, 2, RACK, priority=1, created=9.0))
    (planned,) = run(state, queues).preempting
    assert {victim.key for victim in planned.victims} == {"pair"}


def test_a_node_that_costs_as_much_as_before_one_of_its_victims_went():
    """``wide`` goes for the first node; what it holds on the other, a CPU, nobody needs."""
    state = inner_state(1, 2)

    def holder(key, *held):
        own = []
        for node, gpus, zone in held:
            asks = {CPU: 1000} | ({GPU: gpus} if gpus else {})
            placement = NumaPlacement(zones=(ZoneUse(zone=zone, amounts=asks),))
            shape = pods(1, 1, None).shape
            own.append(Pod(f"{key}-{node}", node, asks, shape=shape, placement=placement, observed=True))
            state.set_pod(own[-1])
        return EvictableUnit(key, 0, tuple(own))

    wide = holder("wide", ("tas-0", 2, 0), ("tas-1", 0, 0))
    one, two, three = (
        holder(key, (node, 2, zone)) for key, node, zone in (("1", "tas-0", 1), ("2", "tas-1", 0), ("3", "tas-1", 1))
    )
    inner = NodesInside.for_pod_set(state, pods(2, 2, RACK), VictimRules())
    assert inner.victims(["tas-0", "tas-1"], {"tas-0": [wide, one], "tas-1": [wide, two, three]}).keys == ["wide", "1"]


def test_whoever_holds_something_on_many_nodes_is_read_once(monkeypatch):
    state, queues = inner_state(1, 4), make_queues(queue())
    submit(queues, job("wide", 8, 2, RACK))
    run(state, queues)
    read = []
    monkeypatch.setattr(proposals, "EvictableUnit", lambda *one: read.append(one[0]) or EvictableUnit(*one))
    submit(queues, *(job(f"x{gpus}", 1, gpus, HOST, priority=gpus, created=9.0) for gpus in (2, 1)))
    assert len(run(state, queues).preempting) == 1
    assert read == ["wide"]
