"""Machines with an inside: what kubelets refuse, which policy finds out, and what is left inside afterwards."""

import pytest
from sim_factories import GIB, GPU, ends, make_job, simulate, waits

from cli.simulate.cluster import generated
from cli.simulate.options import Made, site_of
from engine.model import PodSet, Policy, TopologyRequest
from engine.numa.score import AlignmentOverPacking
from simulator.generate import DAY, generate
from simulator.model import Placing, SimulatedJob, SimulatorOptions, guaranteed
from simulator.model import SchedulingPolicy as How
from simulator.results import End

OURS, SPREAD = How("topology"), How("count-only", Placing.SPREAD)


def cluster(hosts=1, kubelet="single-numa-node"):
    machine = "2 sockets / 2 NUMA / 32 cores / 8 GPUs / 512Gi"
    return generated(
        Made(blocks=1, racks=1, hosts=hosts, gpus=8, cpu="1", memory="1Gi", machine=machine, kubelet=kubelet)
    )


def job(name, arrival, duration, gpus, pods=1, *, share=1):
    """``share`` 2: of CPU and memory so much that what needs GPUs of two zones needs two of these too."""
    requests = {"cpu": (4000, 7000)[share - 1] * gpus, "memory": (8, 36)[share - 1] * GIB * gpus, GPU: gpus}
    anywhere = TopologyRequest(policy=Policy.UNCONSTRAINED)
    pod_set = PodSet(name="main", count=pods, requests=requests, topology=anywhere, shape=guaranteed(requests))
    return SimulatedJob(name=name, arrival=float(arrival), duration=float(duration), pod_sets=(pod_set,))


def test_who_knows_the_inside_waits_and_who_counts_is_refused():
    """Three of four GPUs are taken in each zone: two are free, but no kubelet gives them to one pod."""
    jobs = [job("a", 0, 1000, 3), job("b", 0, 2000, 3), job("pair", 1, 100, 2)]
    ours, theirs = (simulate(cluster(), jobs, policy) for policy in (OURS, SPREAD))
    assert waits(ours) == {"a": 0, "b": 0, "pair": 999}
    assert {o.refusals for o in ours.outcomes} == {0}
    pair = theirs.outcomes[2]
    # Made again after 10, 20, 40, 80, 160 and 320 s, which is before the first one ends: six times, as a Job does.
    assert (pair.end, pair.refusals, pair.finished) == (End.REFUSED, 7, 1 + 630)
    assert "TopologyAffinityError" in pair.reason
    assert not theirs.series.used[-1].any()


def test_a_pod_that_is_made_again_starts_once_there_is_room():
    jobs = [job("a", 0, 100, 3), job("b", 0, 2000, 3), job("pair", 1, 100, 2)]
    pair = simulate(cluster(), jobs, SPREAD).outcomes[2]
    assert (pair.end, pair.refusals, pair.wait) == (End.FINISHED, 4, 150)  # looked at after 1, 11, 31, 71, 151 s
    never = simulate(cluster(), jobs, SPREAD, SimulatorOptions(retries=0)).outcomes[2]
    assert (never.end, never.refusals) == (End.REFUSED, 1)


@pytest.mark.parametrize("policy", [OURS, How("p", preemption=True)])
def test_what_the_engine_promised_no_kubelet_breaks(policy):
    jobs = [
        job(f"j{i:02}", i * 7 % 90, 20 + i * 13 % 50, (1, 2, 3, 4, 8)[i % 5], pods=1 + i % 2, share=2)
        for i in range(40)
    ]
    result = simulate(cluster(hosts=3, kubelet="restricted"), jobs, policy)
    assert {o.end for o in result.outcomes} == {End.FINISHED}
    assert sum(o.refusals for o in result.outcomes) == 0
    assert not result.series.used[-1].any()


def test_all_that_pods_held_inside_is_given_back():
    jobs = [job("a", 0, 10, 8, share=2), job("b", 20, 10, 8, share=2)]
    assert ends(simulate(cluster(kubelet="restricted"), jobs, OURS)) == {"a": 10, "b": 30}
    assert ends(simulate(cluster(kubelet="restricted"), jobs, SPREAD)) == {"a": 10, "b": 30}


def test_pods_without_a_shape_are_refused_by_nobody():
    result = simulate(cluster(), [make_job("plain", 0, 10, gpus=1)], SPREAD)
    assert result.outcomes[0].end is End.FINISHED


def test_who_holds_which_devices_and_who_crosses_sockets_without_need():
    """Under best-effort nobody is refused: three and three leave one GPU in each socket, and a pair takes these."""
    jobs = [job("a", 0, 1000, 3), job("b", 0, 2000, 3), job("pair", 1, 100, 2), job("late", 3000, 10, 8)]
    crossing = simulate(cluster(kubelet="best-effort"), jobs, SPREAD, picture=50)
    assert {o.name: o.crossing for o in crossing.outcomes} == {"a": 0, "b": 0, "pair": 1, "late": 0}
    assert not any(o.avoidable for o in crossing.outcomes), "there is no other server"
    held = {one.devices: one.crosses for one in crossing.instances}
    assert sorted(held.values()) == [False, False, True]
    assert sorted(device for devices in held for device in devices) == list(range(8))
    assert simulate(cluster(kubelet="best-effort"), jobs, SPREAD, picture=2500).instances == ()


def test_a_policy_says_what_may_be_given_up_to_align_pods():
    """Three and three leave one GPU in each socket; a pair goes there, or to the idle server that aligns it."""
    jobs = [job("a", 0, 1000, 3), job("b", 0, 2000, 3), job("pair", 1, 100, 2)]
    site = cluster(hosts=2, kubelet="best-effort")
    for alignment, crossing in ((AlignmentOverPacking.NEVER, 1), (AlignmentOverPacking.ALWAYS, 0)):
        pair = simulate(site, jobs, How("topology", alignment=alignment)).outcomes[2]
        assert (pair.crossing, pair.avoidable, pair.split) == (crossing, crossing, crossing)


def test_nobody_crosses_sockets_whom_another_node_would_have_spared_it_where_nobody_keeps_room():
    jobs = [job(f"j{at}", at, 20 + 13 * (at % 7), 1 + at * 3 % 4) for at in range(120)]
    site = cluster(hosts=4, kubelet="best-effort")
    ours, blind = (simulate(site, jobs, how) for how in (How("topology", claims=False), SPREAD))
    assert sum(one.avoidable for one in blind.outcomes) > 0
    assert sum(one.crossing for one in ours.outcomes) > 0, "some have no other place"
    assert sum(one.avoidable for one in ours.outcomes) == 0


@pytest.mark.parametrize("how", [OURS, How("topology", claims=False)])
@pytest.mark.parametrize("seed", [2, 3])
def test_nor_under_a_load_as_things_are_set_by_default(how, seed):
    """Jobs of several servers wait for hours, and room is kept for them softly: for no more than a week."""
    machine = "2 sockets / 8 NUMA / 64 cores / 8 GPUs"
    made = Made(blocks=1, racks=1, hosts=8, gpus=8, cpu="1", memory="1Gi", machine=machine, kubelet="best-effort, pod")
    jobs = generate(site_of(generated(made)), 250, seed, span=3 * DAY, load=0.9)
    found = simulate(generated(made), jobs, how)
    assert sum(one.crossing for one in found.outcomes) > 0, "some have no other place"
    assert sum(one.avoidable for one in found.outcomes) == 0


def test_who_may_take_room_that_is_kept_softly_does_so_rather_than_cross_sockets():
    """Three and three leave one GPU in each socket; the other server is kept for a job that waits for all of it."""
    jobs = [job("a", 0, 9000, 3), job("b", 0, 9000, 3), job("four", 0, 9000, 4), job("all", 1, 100, 8)]
    site = cluster(hosts=2, kubelet="best-effort")
    for hold, crossing in ((SimulatorOptions().hold, 0), (0.0, 1)):
        found = simulate(site, [*jobs, job("pair", 600, 100, 2)], OURS, SimulatorOptions(hold=hold)).outcomes
        seen = [(one.crossing, one.avoidable, one.kept) for one in found]
        assert seen == [(0, 0, 0)] * 4 + [(crossing, crossing, crossing)], "closed after the hold, and it is said"
    never = simulate(site, [*jobs, job("pair", 600, 100, 2)], How("topology", alignment=AlignmentOverPacking.NEVER))
    last = never.outcomes[-1]
    assert (last.crossing, last.avoidable, last.kept) == (1, 1, 0), "nothing is given up for it, and nothing closed"
