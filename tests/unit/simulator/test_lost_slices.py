"""Gangs that lose slices to a preemptor and get them back, in simulated time: schedules computed by hand."""

import msgspec
import pytest
from sim_factories import RACK, ends, make_cluster, make_job, simulate, waits

from engine.model import SliceLayer
from simulator.model import Placing, SchedulingPolicy, SimulatorOptions
from simulator.results import End
from simulator.run import Simulation

OURS = SchedulingPolicy("ours", preemption=True)
BLIND = SchedulingPolicy("blind", Placing.PACK, preemption=True)


def gang(name="gang", arrival=0, duration=100, *, pods=6, size=2, by_slices=True, **more):
    """Slices of two whole nodes, each within one rack."""
    job = make_job(name, arrival, duration, pods=pods, **more)
    (pod_set,) = job.pod_sets
    topology = msgspec.structs.replace(pod_set.topology, slices=(SliceLayer(level=RACK, size=size),))
    return msgspec.structs.replace(
        job, pod_sets=(msgspec.structs.replace(pod_set, topology=topology),), by_slices=by_slices
    )


def pair(name="pair", arrival=10, duration=20, **more):
    return make_job(name, arrival, duration, pods=2, required=RACK, priority=1, **more)


def pods_of(simulation, name):
    where = simulation.tracks[f"default/{name}"].where
    return 0 if where is None else len(where.pods)


def followed(jobs, policy=OURS, options=None, cluster=None):
    """The result, and by time how many pods the gang has."""
    simulation = Simulation(cluster or make_cluster(3, 2), jobs, policy, options)
    pods = {}
    return simulation.run(watch=lambda step: pods.update({step.now: pods_of(step, "gang")})), pods


def test_a_gang_loses_the_slices_of_one_rack_and_gets_them_back():
    """Four of six pods work from 10 on, until the pair has run in the room of the others from 40 to 60."""
    result, pods = followed([gang(), pair()])
    assert waits(result) == {"gang": 0, "pair": 30}
    assert ends(result) == {"pair": 60, "gang": pytest.approx(60 + 100 - 10 - 50 * 4 / 6)}
    assert (pods[0], pods[10], pods[40], pods[60]) == (6, 6, 4, 6)
    gang_one = result.outcomes[0]
    assert (gang_one.evictions, gang_one.lost, gang_one.starts) == (0, 0, 1)
    assert not result.series.used[-1].any()


@pytest.mark.parametrize(("policy", "by_slices"), [(OURS, False), (BLIND, True)])
def test_it_goes_whole_where_it_did_not_say_so_or_levels_count_for_nothing(policy, by_slices):
    result, pods = followed([gang(by_slices=by_slices), pair()], policy)
    assert pods[40] == 0
    assert result.outcomes[0].evictions == 1


def test_slices_that_are_lost_twice_come_back_all():
    """The second pair comes while the first has its room, and takes another rack. What is wanted back comes back when
    there is room for all of it, as for everybody whose pods are of no use one by one."""
    result, pods = followed([gang(), pair(), pair("second", 45)])
    assert (pods[40], pods[60], pods[75], pods[95]) == (4, 4, 2, 6)
    assert waits(result) == {"gang": 0, "pair": 30, "second": 30}
    assert {one.end for one in result.outcomes} == {End.FINISHED}


def test_slices_that_are_of_use_one_by_one_come_back_one_by_one():
    """As a Job's in a cluster do: what the first pair left is taken at once, while the second has its room."""
    job = msgspec.structs.replace(gang(), one_by_one=True)
    result, pods = followed([job, pair(), pair("second", 45)])
    assert (pods[40], pods[60], pods[75], pods[95]) == (4, 4, 4, 6)
    assert {one.end for one in result.outcomes} == {End.FINISHED}


def test_it_goes_whole_where_fewer_are_of_no_use():
    least = msgspec.structs.replace(gang(), at_least={"main": 5})
    result, _ = followed([least, pair()])
    assert result.outcomes[0].evictions == 1


def test_a_gang_that_ends_while_pods_go_leaves_all_its_room():
    result, _ = followed([gang(duration=20), pair()], options=SimulatorOptions(grace=300))
    assert ends(result)["gang"] == pytest.approx(10 + 10 * 6 / 4)
    assert waits(result)["pair"] == pytest.approx(15)
    assert {one.end for one in result.outcomes} == {End.FINISHED}


def test_a_gang_that_is_evicted_whole_while_it_has_fewer_pods_counts_its_work():
    """With checkpoints every second, what it did before and after it lost slices is kept."""
    jobs = [gang(duration=1000), pair(duration=500), make_job("all", 70, 10, pods=6, priority=5)]
    result, _ = followed(jobs, options=SimulatorOptions(checkpoint=1))
    worked = 10 + 60 * 4 / 6  # a whole number of checkpoints
    gang_one = result.outcomes[0]
    assert (gang_one.evictions, gang_one.lost) == (1, pytest.approx(0, abs=1e-9))
    all_of_it = result.outcomes[2].finished  # the pair is evicted too, and begins where it was
    assert ends(result)["gang"] > all_of_it + 1000 - worked


def test_for_what_comes_back_others_make_room():
    """The fourth rack is a more important job's when the pair takes slices, and a less important one's afterwards."""
    jobs = [
        gang(duration=300, priority=1),
        make_job("first", 0, 30, pods=2, required=RACK, priority=9),
        msgspec.structs.replace(pair(duration=400), priority=2),
        make_job("low", 31, 500, pods=2, required=RACK),
    ]
    result, pods = followed(jobs, cluster=make_cluster(4, 2))
    assert (pods[31], pods[40], pods[70]) == (6, 4, 6)
    assert [one.evictions for one in result.outcomes] == [0, 0, 0, 1]
    assert {one.end for one in result.outcomes} == {End.FINISHED}


def test_pods_for_whose_room_nobody_waits_any_more_are_made_again_where_they_were():
    simulation = Simulation(make_cluster(3, 2), [gang(), pair()], OURS)
    nodes = {}

    def watch(step):
        if step.now == 10:
            step.queues.remove_workload(step.site.state, "default/pair")
        if (where := step.tracks["default/gang"].where) is not None:
            nodes[step.now] = sorted(node for _, _, node in where.pods)

    result = simulation.run(watch=watch)
    assert nodes[40] == nodes[0]
    assert ends(result)["gang"] == pytest.approx(40 + 100 - 10 - 30 * 4 / 6)
    assert not simulation.site.state.workloads


def test_the_same_input_gives_the_same_result():
    jobs = [gang(), pair(), pair("second", 45), gang("gang-2", 5, 50, pods=2)]
    first, second = (simulate(make_cluster(3, 2), jobs, OURS) for _ in range(2))
    assert [msgspec.json.encode(one) for one in first.outcomes] == [msgspec.json.encode(one) for one in second.outcomes]
