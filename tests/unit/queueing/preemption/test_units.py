"""Gangs that lose slices and keep the others, and pods that no queue admitted: who is taken, and that it is enough."""

import random
from itertools import combinations

import msgspec
import pytest
from support.queue_factories import (
    GPU,
    HOST,
    RACK,
    keys,
    make_node,
    make_pod_set,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.cluster.state import ClusterState
from engine.model import Attached, Flavor, Pod, Policy, SliceLayer, TopologyRequest, volumes_of
from engine.reasons import Reason
from engine.reservation_key import ReservationKey, Role, part_of, role_of, whole_of
from engine.results import Refusal
from queueing.cycle import elastic
from queueing.cycle.cycle import cycle
from queueing.cycle.nominated import obstacle
from queueing.model import OutsidePod, Preemption, Rules, Within
from queueing.preemption.search import plan
from queueing.queues.entry import Phase
from queueing.queues.eviction_units import split, units_of
from queueing.queues.flavor_assigner import put

LOWER = Preemption(within=Within.LOWER)


def sliced(key, count, size, *, level=RACK, by_slices=True, gpu=8, **more):
    """A gang of slices, each within one domain of a level."""
    topology = TopologyRequest(policy=Policy.UNCONSTRAINED, level=None, slices=(SliceLayer(level=level, size=size),))
    pod_set = msgspec.structs.replace(make_pod_set(count, gpu=gpu, level=None), topology=topology)
    return make_workload(key, pod_sets=(pod_set,), by_slices=by_slices, **more)


def shown(decisions):
    return {one.key: {victim.key: victim.domains for victim in one.victims} for one in decisions.preempting}


def full_gang(*, by_slices=True, **more):
    """Three racks of two nodes, all held by one gang of three slices."""
    state, queues = make_state(3, 2), make_queues(make_queue("q", 48, preemption=LOWER))
    submit(queues, sliced("gang", 6, 2, by_slices=by_slices, **more))
    assert keys(run(state, queues)) == ["gang"]
    return state, queues


def test_a_gang_that_declared_it_loses_only_the_slices_whose_room_is_needed():
    state, queues = full_gang()
    submit(queues, make_workload("pair", count=2, priority=1, created=1.0))
    found = run(state, queues)
    ((victim, (domain,)),) = shown(found)["pair"].items()
    assert victim == "gang"
    assert f"gang (its slices in {domain[0]})" in found.preempting[0].message
    assert queues.holders.losing == {"gang": (domain,)}
    assert not queues.holders.evicting
    assert queues.entries["pair"].phase is Phase.NOMINATED
    # Nobody else takes more of it meanwhile, and it does not grow into the room.
    submit(queues, make_workload("more", count=2, priority=1, created=2.0))
    assert not run(state, queues, now=2.0).preempting
    queues.wish("gang", {"main": 6})
    assert not cycle(state, queues, 3.0).resized
    # Its admission is stored without them: the preemptor is admitted, and the gang wants the rest back.
    kept, lost = split(queues.entries["gang"].grant.assignments, [domain])
    assert sum(part.count for part in lost) == 2
    smaller = elastic.lose(state, queues, "gang").grant
    assert (smaller.counts, smaller.amounts["tas", GPU]) == ({"main": 4}, 32)
    assert [part.slices for part in smaller.assignments] == [part.slices for part in kept]
    assert not queues.holders.losing
    assert elastic.lose(state, queues, "gang") is None
    found = cycle(state, queues, 4.0)
    assert keys(found) == ["pair"]
    queues.wish("gang", {"main": 6})
    queues.remove_workload(state, "more")
    assert not cycle(state, queues, 5.0).resized
    queues.remove_workload(state, "pair")
    (grown,) = cycle(state, queues, 6.0).resized
    assert (grown.key, grown.counts) == ("gang", {"main": 6})


@pytest.mark.parametrize("at_least", [0, 5])
def test_all_of_it_goes_where_the_rest_is_of_no_use(at_least):
    state, queues = full_gang(at_least={"main": at_least} if at_least else {})
    pods = 2 if at_least else 6
    submit(queues, make_workload("large", count=pods, level=RACK if at_least else None, priority=1, created=1.0))
    assert shown(run(state, queues)) == {"large": {"gang": ()}}
    assert list(queues.holders.evicting) == ["gang"]


def test_a_gang_that_declared_nothing_goes_whole():
    state, queues = full_gang(by_slices=False)
    submit(queues, make_workload("pair", count=2, priority=1, created=1.0))
    assert shown(run(state, queues)) == {"pair": {"gang": ()}}


def test_a_preemptor_that_gives_up_leaves_the_slices_alone():
    state, queues = full_gang()
    submit(queues, make_workload("pair", count=2, priority=1, created=1.0))
    run(state, queues)
    queues.remove_workload(state, "pair")
    assert not queues.holders.losing


def test_after_a_restart_slices_that_are_gone_already_are_waited_for_by_nobody():
    state, queues = full_gang()
    submit(queues, make_workload("pair", count=2, priority=1, created=1.0))
    (planned,) = run(state, queues).preempting
    parts = {victim.key: victim.domains for victim in planned.victims}
    for gone in (False, True):
        again, others = full_gang()
        grant = queues.entries["gang"].grant
        if gone:
            kept = tuple(split(grant.assignments, parts["gang"])[0])
            grant = type(grant)(grant.queue, {"main": 4}, grant.flavors, {("tas", GPU): 32}, kept)
        others.remove_workload(again, "gang")
        others.restore_workload(again, queues.entries["gang"].workload, grant, 1.0)
        pair = queues.entries["pair"].workload
        others.restore_workload(again, pair, planned.grant, 1.0, nominated=list(parts), parts=parts, waits=True)
        assert others.holders.losing == ({} if gone else parts)
        assert keys(cycle(again, others, 2.0)) == (["pair"] if gone else [])


def outside(state, queues, name, node, *, gpu=4, priority=0, listed=True, **more):
    """A plain pod on a node."""
    key = f"ns/{name}"
    state.set_pod(Pod(key=key, node=node, requests={GPU: gpu}, **more))
    if listed:
        queues.holders.set_pod(OutsidePod(key=key, uid=name, node=node, priority=priority, requests={GPU: gpu}))
    return ReservationKey.for_pod(key)


def test_plain_pods_make_room_where_the_rules_say_so_and_ours_outrank_them():
    for allowed in (False, True):
        state = make_state(1, 2)
        queues = make_queues(make_queue("q", 16, preemption=LOWER), rules=Rules(pods=allowed))
        low = outside(state, queues, "low", "tas-0")
        outside(state, queues, "as-important", "tas-1", priority=5)
        outside(state, queues, "nobody-s", "tas-1", listed=False)
        submit(queues, make_workload("high", priority=5))
        found = run(state, queues)
        assert shown(found) == ({"high": {low: ()}} if allowed else {})
        if not allowed:
            continue
        (victim,) = found.preempting[0].victims
        assert (victim.reason, victim.uid, victim.is_pod) == (Reason.OUTSIDE_QUEUES, "low", True)
        assert "1 evicted pod is gone: pod " in found.preempting[0].message
        assert "no queue admitted" in found.preempting[0].message_to(victim)
        assert not keys(cycle(state, queues, 2.0))
        state.remove_pod("ns/low")
        queues.holders.remove_pod("ns/low")
        assert keys(cycle(state, queues, 3.0)) == ["high"]


def test_plain_pods_are_in_no_queue_and_so_in_none_that_shares_are_compared_of():
    state = make_state(1, 1)
    queues = make_queues(make_queue("q", 16, preemption=LOWER), rules=Rules(pods=True, fair=True))
    low = outside(state, queues, "low", "tas-0")
    submit(queues, make_workload("high", priority=5))
    assert shown(run(state, queues)) == {"high": {low: ()}}


@pytest.mark.parametrize(("priority", "stands"), [(0, True), (5, False)])
def test_plain_pods_that_come_into_the_room_meanwhile_take_volumes_that_kube_scheduler_takes_back(priority, stands):
    limit = volumes_of("ebs")
    state = ClusterState()
    state.set_flavor(Flavor(name="tas", levels=(RACK, HOST), node_labels={"group": "tas"}))
    state.set_node(make_node("tas-0", attachable={limit: 2}))
    queues = make_queues(make_queue("q", 16, preemption=LOWER), rules=Rules(pods=True))
    outside(state, queues, "low", "tas-0", gpu=8)
    wish = make_pod_set(gpu=8, attached=Attached(own={limit: 2}))
    submit(queues, make_workload("high", priority=5, pod_sets=(wish,)))
    assert run(state, queues).preempting
    state.remove_pod("ns/low")
    queues.holders.remove_pod("ns/low")
    outside(state, queues, "came", "tas-0", gpu=0, priority=priority, attached=Attached(shared=((limit, "v"),)))
    assert (obstacle(state, queues, "high") == "") is stands


@pytest.mark.parametrize(("pod_priority", "taken"), [(None, True), (3, True), (2, False)])
def test_a_plain_pod_that_kube_scheduler_ranks_no_lower_could_take_the_room_back(pod_priority, taken):
    state = make_state(1, 1)
    queues = make_queues(make_queue("q", 16, preemption=LOWER), rules=Rules(pods=True))
    outside(state, queues, "low", "tas-0", priority=2)
    submit(queues, make_workload("high", priority=9, pod_priority=pod_priority))
    assert bool(run(state, queues).preempting) is taken


def test_a_queue_that_preempts_nobody_takes_no_plain_pods():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 16), rules=Rules(pods=True))
    outside(state, queues, "low", "tas-0")
    submit(queues, make_workload("high", priority=9))
    assert not run(state, queues).preempting


class Mixed:
    """A small full cluster of gangs, some of which lose slices, and plain pods."""

    def __init__(self, seed):
        self.dice = dice = random.Random(seed)
        self.state = make_state(dice.randint(2, 3), 2, gpu=4)
        self.queues = make_queues(make_queue("q", 1000, preemption=LOWER), rules=Rules(pods=dice.random() < 0.7))
        for i, node in enumerate(sorted(self.state.nodes)):
            if dice.random() < 0.5:
                outside(self.state, self.queues, f"p{i}", node, gpu=dice.randint(1, 3), priority=dice.randint(0, 3))
        for i in range(6):
            size, more = dice.choice((1, 2)), {"priority": dice.randint(0, 2), "created": float(i)}
            if dice.random() < 0.5:
                level = dice.choice((RACK, HOST))
                one = sliced(f"w{i}", size * dice.randint(1, 3), size, level=level, gpu=dice.choice((1, 2)), **more)
            else:
                one = make_workload(f"w{i}", count=dice.randint(1, 2), gpu=dice.choice((1, 2, 4)), **more)
            submit(self.queues, one)
        run(self.state, self.queues)
        for key in [key for key, entry in self.queues.entries.items() if entry.phase is not Phase.ADMITTED]:
            self.queues.remove_workload(self.state, key)
        cycle(self.state, self.queues, 2.0)
        wanted = make_workload("x", count=dice.randint(1, 3), gpu=dice.choice((2, 4)), priority=2, created=50.0)
        submit(self.queues, wanted)
        self.entry = self.queues.entries["x"]
        (self.option,) = self.queues.options_of(self.state, self.entry.group).found

    def units(self):
        """Name and priority of everything that may be taken alone."""
        for key, entry in self.queues.entries.items():
            if entry.phase is Phase.ADMITTED and entry.workload.priority < 2:
                for unit in units_of(entry.workload, self.state.assignments(key).values()):
                    yield unit, entry.workload.priority
        for unit, entry in self.queues.holders.outside.items():
            if self.queues.rules.pods and entry.workload.priority < 2:
                yield unit, entry.workload.priority

    def fits(self, units):
        checkpoint = self.state.begin()
        for unit in units:
            if role_of(unit) is Role.POD:
                self.state.remove_pod(next(iter(self.queues.holders.outside[unit].pods)))
        for key in {whole_of(unit) for unit in units if role_of(unit) is not Role.POD}:
            domains = [part_of(unit) for unit in units if whole_of(unit) == key]
            self.state.reserve(key, split(self.state.assignments(key).values(), domains)[0])
        found = not isinstance(put(self.state, "x", self.option), Refusal)
        self.state.rollback(checkpoint)
        return found


def test_against_every_set_of_units():
    compared = partly = pods = 0
    for seed in range(150):
        one = Mixed(seed)
        if one.fits(()):
            continue
        of = dict(one.units())
        if len(of) > 9:
            continue
        version, held = one.state.version, dict(one.queues.quotas.held)
        found = plan(one.state, one.queues, one.entry, one.option)
        assert (one.state.version, one.queues.quotas.held) == (version, held)
        sets = [some for size in range(1, len(of) + 1) for some in combinations(of, size) if one.fits(some)]
        assert (found is None) == (not sets), seed
        if found is None:
            continue
        names = []
        for victim in found.victims:
            mine = [unit for unit in of if whole_of(unit) == victim.key]
            names += [u for u in mine if not victim.domains or part_of(u) in victim.domains]
        assert one.fits(names), seed
        assert not any(one.fits([name for name in names if name != left]) for left in names), seed
        assert max(of[name] for name in names) == min(max(of[name] for name in some) for some in sets), seed
        compared += 1
        partly += any(victim.domains for victim in found.victims)
        pods += any(victim.is_pod for victim in found.victims)
    assert compared > 40
    assert partly > 5
    assert pods > 10


def test_an_elastic_gang_may_shrink_while_it_loses_slices():
    state, queues = full_gang()
    submit(queues, make_workload("pair", count=2, priority=1, created=1.0))
    run(state, queues)
    elastic.resize(state, queues, "gang", {"main": 2})
    queues.remove_workload(state, "gang")
    assert not queues.holders.losing
    assert keys(cycle(state, queues, 3.0)) == ["pair"]
