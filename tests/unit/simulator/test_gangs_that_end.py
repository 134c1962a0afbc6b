"""Jobs whose pods end one by one: what they leave piece by piece, and who is evicted for it."""

import pytest
from sim_factories import GPU, RACK, ends, make_cluster, make_job, simulate

from queueing.model import ClusterQueue, FlavorQuotas, LocalQueue, Preemption, Quota, Reclaim, ResourceGroup
from simulator.model import SchedulingPolicy, SimulatorOptions

APART = SimulatorOptions(apart=5.0, grace=1.0)


def teams():
    """Two racks of two nodes; two teams own a rack's worth each, and borrow."""
    quotas = {GPU: Quota(nominal=16), "cpu": Quota(nominal=10**9), "memory": Quota(nominal=2**60)}
    group = ResourceGroup(resources=tuple(quotas), flavors=(FlavorQuotas(flavor="default", resources=quotas),))
    queues = tuple(
        ClusterQueue(name=name, groups=(group,), cohort="all", preemption=Preemption(reclaim=Reclaim.ANY))
        for name in "ab"
    )
    local = tuple(LocalQueue(namespace="default", name=name, cluster_queue=name) for name in "ab")
    return make_cluster(queues=queues, local=local)


def jobs():
    yield make_job("gang", 0, 100, pods=2, required=RACK, queue="b")
    for number in range(4):
        yield make_job(f"small-{number}", 1 + number, 1000, queue="a")
    yield make_job("large", 10, 100, pods=2, required=RACK, queue="b")


@pytest.mark.parametrize(("policy", "evicted", "started"), [("topology", 0, 105.0), ("no-leaving", 1, 106.0)])
def test_the_rack_of_a_gang_that_ends_pod_by_pod(policy, evicted, started):
    result = simulate(teams(), jobs(), SchedulingPolicy(policy, leaving=policy == "topology"), APART, until=500)
    found = {one.name: one for one in result.outcomes}
    assert sum(one.evictions for one in result.outcomes) == evicted
    assert found["large"].started == started


def test_a_job_has_ended_with_its_last_pod_and_nothing_is_held_then():
    cluster, gang = make_cluster(), make_job("gang", 0, 100, pods=3, required=None)
    result = simulate(cluster, [gang, make_job("next", 1, 10, pods=4)], SchedulingPolicy("topology"), APART)
    assert ends(result) == {"gang": 110.0, "next": 135.0}
