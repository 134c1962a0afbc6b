"""Jobs that come together while they run, in simulated time: when, how many in an hour, and what it costs them."""

import pytest
from sim_factories import RACK, ends, make_cluster, make_job, waits

from cli.simulate.cluster import generated
from cli.simulate.options import Made
from localcluster.nodes import RACK_LABEL
from simulator.model import Placing, SchedulingPolicy, SimulatorOptions
from simulator.results import End
from simulator.run import Simulation

OURS = SchedulingPolicy("topology", moves=True)
HOUR = 3600.0


def taken(level=RACK, **more):
    """Two nodes of three in each of two racks, those of the first until 100; what comes then is spread."""
    return [
        make_job("first", 0, 100, pods=2, required=level, **more),
        make_job("second", 0, 100_000, pods=2, required=level, **more),
    ]


def spread(name="gang", arrival=1, duration=10_000, level=RACK, **more):
    return make_job(name, arrival, duration, pods=2, preferred=level, **more)


def racks_of(simulation, name):
    where = simulation.tracks[f"default/{name}"].where
    labels = [simulation.site.state.nodes[node].labels for _, _, node in (where.pods if where is not None else ())]
    return tuple(sorted(one.get(RACK) or one[RACK_LABEL] for one in labels))


def followed(jobs, options=None, *, policy=OURS, cluster=None, names=("gang",)):
    """The simulation, its result, and in which racks some jobs were by time, where that changed."""
    simulation = Simulation(cluster or make_cluster(2, 3), jobs, policy, options)
    seen = {name: {} for name in names}

    def watch(step):
        for name, by_time in seen.items():
            now = racks_of(step, name)
            if now != next(reversed(by_time.values()), None):
                by_time[step.now] = now

    result = simulation.run(watch=watch)
    state = simulation.site.state
    assert not state.workloads
    assert not state.pods
    assert not simulation.queues.entries
    assert not result.series.used[-1].any()
    return result, *(seen[name] for name in names)


@pytest.mark.parametrize(("checkpoint", "kept"), [(0, 0), (600, 3600)])
def test_who_was_spread_comes_together_once_there_is_room_and_it_has_rested(checkpoint, kept):
    """It is left alone for an hour; then the pod that goes has 30 s, and the job stands still until it is there."""
    result, racks = followed([*taken(), spread()], SimulatorOptions(checkpoint=checkpoint))
    begins = 1 + HOUR
    assert racks[1] == ("r0", "r1")
    assert racks[begins + 30] in {("r0", "r0"), ("r1", "r1")}
    gang = result.outcomes[2]
    assert (gang.moves, gang.evictions, gang.starts, gang.aligned) == (1, 0, 1, True)
    assert gang.lost == HOUR - kept
    assert ends(result)["gang"] == begins + 30 + 10_000 - kept


def test_it_is_as_fast_then_as_one_that_lay_together():
    result, _ = followed([*taken(), spread()], SimulatorOptions(checkpoint=1, slowdown=2.0))
    assert ends(result)["gang"] == 1 + HOUR + 30 + 10_000 - HOUR / 2


def test_small_jobs_of_a_higher_priority_go_elsewhere_where_a_setting_allows_it():
    options = SimulatorOptions(checkpoint=600, make_room_max_priority=0)
    result, _ = followed(broken(gang=-1), options, cluster=make_cluster(2, 4))
    assert sorted(one.moves for one in result.outcomes if one.name in {"one", "two"}) == [0, 1]
    assert waits(result)["gang"] == HOUR + 30


@pytest.mark.parametrize(
    ("policy", "options", "more"),
    [
        (SchedulingPolicy("still"), SimulatorOptions(), {}),
        (SchedulingPolicy("blind", Placing.PACK, moves=True), SimulatorOptions(), {}),
        (OURS, SimulatorOptions(moves_per_hour=0), {}),
        (OURS, SimulatorOptions(), {"stays": True}),
        (OURS, SimulatorOptions(), {"duration": HOUR - 1}),
    ],
)
def test_nobody_is_moved_where_that_is_not_allowed_or_it_is_too_early(policy, options, more):
    result, _ = followed([*taken(), spread(**more)], options, policy=policy)
    assert {one.moves for one in result.outcomes} == {0}


@pytest.mark.parametrize(("per_hour", "waits"), [(1, HOUR), (2, HOUR), (4, 0)])
def test_no_more_are_moved_in_an_hour_than_the_limit_says(per_hour, waits):
    """Half of them are kept for those that an administrator asks for: of two an hour one is left, of four two."""
    until = (100, 100, 100_000, 100_000)
    blocks = [make_job(f"block-{rack}", 0, until[rack], pods=2, required=RACK) for rack in range(4)]
    jobs = [*blocks, spread(duration=50_000), spread("other", duration=50_000)]
    options = SimulatorOptions(moves_per_hour=per_hour)
    result, one, other = followed(jobs, options, cluster=make_cluster(4, 3), names=("gang", "other"))
    assert [outcome.moves for outcome in result.outcomes] == [0, 0, 0, 0, 1, 1]
    assert [list(by_time)[:3] for by_time in (one, other)] == [[0, 1, HOUR + 31], [0, 1, HOUR + waits + 31]]


def test_who_is_evicted_while_it_is_moved_leaves_nothing_behind():
    urgent = make_job("urgent", HOUR + 10, 50, pods=6, priority=9)
    result, _ = followed([*taken(), spread(), urgent], policy=SchedulingPolicy("p", moves=True, preemption=True))
    gang = result.outcomes[2]
    assert (gang.moves, gang.evictions) == (1, 1)
    assert {one.end for one in result.outcomes} == {End.FINISHED}


def test_jobs_on_machines_with_an_inside_are_moved_too():
    """Each pod has a whole machine, which knows what it holds as long as the pod is there."""
    machine = "2 sockets / 2 NUMA / 40 cores / 8 GPUs / 512Gi"
    place = generated(Made(1, 2, 3, 8, cpu="1", memory="1Gi", machine=machine, kubelet="best-effort"))
    whole = {"shaped": True, "level": RACK_LABEL}
    result, racks = followed([*taken(**whole), spread(**whole)], SimulatorOptions(checkpoint=60), cluster=place)
    assert [one.moves for one in result.outcomes] == [0, 0, 1]
    assert list(racks)[:3] == [0, 1, HOUR + 31]
    assert result.instances


def broken(*, small=1, other_small=1, gang=0, **more):
    """Two racks of four nodes in each of which small jobs run on, beside one that ends at 100; a job wants a rack."""
    return [
        make_job("first", 0, 100, pods=4 - small, required=RACK),
        make_job("one", 0, 100_000, pods=small, **more),
        make_job("second", 0, 100, pods=4 - other_small, required=RACK),
        make_job("two", 0, 100_000, pods=other_small, **more),
        make_job("gang", 1, 1000, pods=4, required=RACK, priority=gang),
    ]


def test_small_jobs_go_elsewhere_for_one_that_waits_long_for_their_domain():
    """Not before it has waited for as long as they are left alone, and no more of them than need be."""
    result, _ = followed(broken(), SimulatorOptions(checkpoint=600), cluster=make_cluster(2, 4))
    small = [one for one in result.outcomes if one.name in {"one", "two"}]
    assert sorted(one.moves for one in small) == [0, 1]
    assert {one.evictions for one in result.outcomes} == {0}
    assert waits(result)["gang"] == HOUR + 30


@pytest.mark.parametrize(
    ("policy", "options", "more"),
    [
        (SchedulingPolicy("still"), SimulatorOptions(), {}),
        (OURS, SimulatorOptions(moves_per_hour=0), {}),
        (OURS, SimulatorOptions(), {"stays": True}),
        (OURS, SimulatorOptions(), {"gang": -1}),
        (OURS, SimulatorOptions(make_room_max_priority=-1), {"gang": -1}),
        (OURS, SimulatorOptions(), {"small": 3, "other_small": 3}),
        (OURS, SimulatorOptions(), {"small": 1, "other_small": 4}),
    ],
    ids=[
        "not allowed",
        "none an hour",
        "it stays",
        "higher priority",
        "higher than allowed",
        "too large",
        "no room elsewhere",
    ],
)
def test_nobody_makes_room_where_that_is_not_allowed_or_does_not_pay(policy, options, more):
    jobs = broken(**more)
    if more.get("other_small") == 4:
        jobs = [one for one in jobs if one.name != "second"]
    result, _ = followed([one for one in jobs if one.pods], options, policy=policy, cluster=make_cluster(2, 4))
    assert {one.moves for one in result.outcomes} == {0}
    assert waits(result)["gang"] >= 99_000
