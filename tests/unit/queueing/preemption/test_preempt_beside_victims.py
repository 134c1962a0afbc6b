"""One preemptor after the other, while victims of the first are still there: nobody goes for room that both count."""

import random

import pytest
from support.numa_factories import make_machine, make_shape, pod_on
from support.queue_factories import (
    GPU,
    keys,
    make_node,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.model import Pod, PodSet, Policy, TopologyRequest
from queueing.model import ClusterQueue, FlavorQuotas, Preemption, Quota, ResourceGroup, Rules, Within
from queueing.queues.entry import Phase

LOWER = Preemption(within=Within.LOWER)
TOPOLOGY = TopologyRequest(policy=Policy.UNCONSTRAINED)


def victims(decisions):
    return {one.key: sorted(victim.key for victim in one.victims) for one in decisions.preempting}


def crowd(*sizes, hosts=1, nominal=64):
    """Workloads w0, w1 ... of so many GPUs and ever higher priority, all there with their pods."""
    state, queues = make_state(1, hosts), make_queues(make_queue("q", nominal, preemption=LOWER))
    submit(queues, *(make_workload(f"w{i}", gpu=gpu, priority=i, created=float(i)) for i, gpu in enumerate(sizes)))
    admitted = run(state, queues).admitted
    assert len(admitted) == len(sizes)
    for one in admitted:
        (piece,) = state.assignments(one.key)["main"].slices
        (gpus,) = [gpu for i, gpu in enumerate(sizes) if one.key == f"w{i}"]
        bind(state, queues, one.key, piece.nodes[0][0], gpus)
    return state, queues


def bind(state, queues, key, node, gpus):
    state.set_pod(Pod(key=f"{key}-0", node=node, requests={GPU: gpus}, claim=(key, "main")))
    queues.bind(f"{key}-0", key)


def gone(state, queues, key):
    for pod in list(queues.entries[key].pods):
        state.remove_pod(pod)
    queues.remove_workload(state, key)


def test_what_a_victim_holds_and_its_preemptor_is_promised_is_counted_once():
    state, queues = crowd(2, 2, 2, 2)
    submit(queues, make_workload("first", gpu=2, priority=9, created=10.0))
    assert victims(run(state, queues)) == {"first": ["w0"]}
    submit(queues, make_workload("second", gpu=2, priority=9, created=11.0))
    assert victims(run(state, queues)) == {"second": ["w1"]}, "w2 as well would go in vain"
    for key, admitted in (("w1", ["second"]), ("w0", ["first"])):
        gone(state, queues, key)
        found = run(state, queues)
        assert (keys(found), found.given_up) == (admitted, [])
    assert queues.entries["w2"].phase is Phase.ADMITTED
    assert min(state.free_on_node("tas-0").values()) >= 0


def test_who_fits_beside_victims_of_another_has_nobody_evicted_and_waits_for_nobody():
    """On tas-1 first's victim w0 is still there, beside it there is room; w2 on tas-0 would be second's victim."""
    state, queues = crowd(4, 2, 8, hosts=2)
    submit(queues, make_workload("first", gpu=4, priority=9, created=10.0))
    assert victims(run(state, queues)) == {"first": ["w0"]}
    assert state.free_on_node("tas-1")[GPU] == -2
    submit(queues, make_workload("second", gpu=2, priority=9, created=11.0))
    found = run(state, queues)
    assert (keys(found), found.preempting) == (["second"], [])
    gone(state, queues, "w0")
    assert keys(run(state, queues)) == ["first"]
    assert {queues.entries[key].phase for key in ("w1", "w2")} == {Phase.ADMITTED}
    assert min(state.free_on_node("tas-1").values()) == 0


def test_who_gets_room_of_victims_that_nobody_is_promised_has_nobody_evicted_for_it():
    state, queues = crowd(6, 2)
    submit(queues, make_workload("first", gpu=2, priority=9, created=10.0))
    assert victims(run(state, queues)) == {"first": ["w0"]}
    submit(queues, make_workload("second", gpu=2, priority=9, created=11.0))
    assert not run(state, queues).preempting
    gone(state, queues, "w0")
    assert keys(run(state, queues)) == ["first", "second"]


SIZES = (3, 1, 2, 2)  # w0 and w1 in zone 0, w2 and w3 in zone 1


def job(key, gpus, **more):
    """Of one guaranteed pod, whose GPUs its kubelet takes of one zone."""
    shape = make_shape({"cpu": 1, GPU: gpus})
    requests = {GPU: gpus, "cpu": 1000}
    pod_set = PodSet(name="main", count=1, requests=requests, namespace="ns", shape=shape, topology=TOPOLOGY)
    return make_workload(key, pod_sets=(pod_set,), **more)


def inside(priorities, *, leaving=0.0):
    """A machine of two zones of 4 GPUs, full. ``leaving``: seconds for which who leaves is believed to do so; where
    that is none nobody waits for what victims of others leave, and all plan in a row."""
    quotas = FlavorQuotas(flavor="tas", resources={GPU: Quota(nominal=64), "cpu": Quota(nominal=64_000)})
    group = ResourceGroup(resources=(GPU, "cpu"), flavors=(quotas,))
    queue = ClusterQueue(name="q", groups=(group,), preemption=LOWER)
    state, queues = make_state(1, 1), make_queues(queue, rules=Rules(leaving=leaving))
    state.set_machine(make_machine({"cpu": 8, GPU: 4}, {"cpu": 8, GPU: 4}, node="tas-0"))
    for i, (gpus, priority) in enumerate(zip(SIZES, priorities, strict=True)):
        assert runs(state, queues, f"w{i}", gpus, priority=priority, created=float(i)) == ("tas-0", i // 2)
    return state, queues


def runs(state, queues, key, gpus, **more):
    """A job comes and runs; returns the node and the zone of its pod."""
    submit(queues, job(key, gpus, **more))
    (one,) = run(state, queues).admitted
    (piece,), shape = one.grant.assignments[0].slices, one.grant.assignments[0].shape
    (place,) = state.placements(key, "main", node := piece.nodes[0][0])
    state.set_pod(pod_on(f"{key}-0", shape, place, node, (key, "main"), observed=True))
    queues.bind(f"{key}-0", key)
    return node, place.zones[0].zone


def test_zones_are_counted_once_as_well():
    """The first one will have the room of w0, which is of another zone than w2 and w3."""
    state, queues = inside((0, 3, 1, 2))
    submit(queues, job("first", 2, priority=9, created=10.0))
    assert victims(run(state, queues)) == {"first": ["w0"]}
    submit(queues, job("second", 2, priority=9, created=11.0))
    assert victims(run(state, queues)) == {"second": ["w2"]}, "w3 as well would go in vain"


def test_who_needs_a_whole_zone_does_not_count_on_the_other_one_for_who_comes_before_it():
    """Once w2 and all of zone 0 are gone a kubelet gives ``first``, which may come first, a half of zone 0."""
    state, queues = inside((1, 2, 0, 8))
    state.set_node(make_node("tas-1", "tas-r1"))
    state.set_machine(make_machine({"cpu": 8, GPU: 4}, {"cpu": 8, GPU: 4}, node="tas-1"))
    assert [runs(state, queues, key, 4, priority=7, created=5.0)[0] for key in ("x0", "x1")] == ["tas-1"] * 2
    submit(queues, job("first", 2, priority=9, created=10.0))
    assert victims(run(state, queues)) == {"first": ["w2"]}
    submit(queues, job("second", 4, priority=9, created=11.0))
    (gone,) = victims(run(state, queues)).values()
    assert gone in (["x0"], ["x1"]), "w0 and w1 are less important, but would not do"


def refused(state):
    """Who has a slot that the kubelet of the node would not take, in the order of the slots."""
    at = "main", "tas-0"
    return [key for key in state.workloads if len(state.placements(key, *at)) < state.unclaimed_on(key, *at)]


@pytest.mark.parametrize("leaving", [0.0, 60.0])
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_preemptors_in_a_row_all_come_in_whoever_of_the_victims_is_gone_first(first, leaving):
    planned = 0
    for seed in range(first, first + 20):
        dice = random.Random(seed)
        state, queues = inside([dice.randint(0, 3) for _ in SIZES], leaving=leaving)
        sizes = dice.choice(([2, 2], [1, 2, 2], [1, 1, 1, 2], [2, 4], [4, 1, 1], [3, 1, 2], [1, 1, 1, 1, 1]))
        for i, gpus in enumerate(sizes):
            submit(queues, job(f"p{i}", gpus, priority=dice.choice((5, 5, 9)), created=10.0 + i))
            run(state, queues)
            if queues.holders.evicting and dice.random() < 0.4:
                gone(state, queues, dice.choice(sorted(queues.holders.evicting)))
                run(state, queues)
        while queues.holders.evicting:
            planned += len(queues.holders.evicting)
            gone(state, queues, dice.choice(sorted(queues.holders.evicting)))
            found = run(state, queues)
            assert found.given_up == [], seed
        assert not queues.holders.promised()
        assert min(state.free_on_node("tas-0").values()) >= 0, seed
        assert refused(state) == [], seed
        came = [entry for key, entry in queues.entries.items() if key.startswith("p")]  # one may be another's victim
        assert {entry.phase for entry in came} == {Phase.ADMITTED}, seed
    assert planned > 20
