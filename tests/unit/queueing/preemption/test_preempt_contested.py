"""What is contested: of which quotas others have to use more than their own, and who ends up within its own."""

import pytest
from support.queue_factories import make_queues, run, submit

from engine.cluster.state import ClusterState
from engine.model import PodSet, Policy, TopologyRequest
from engine.reasons import Reason
from queueing.model import (
    ClusterQueue,
    FlavorQuotas,
    PlainFlavor,
    Preemption,
    Quota,
    Reclaim,
    ResourceGroup,
    Rules,
    Within,
    Workload,
)

X, Y = "example.com/x", "example.com/y"
RECLAIM = Preemption(reclaim=Reclaim.ANY)
WITHIN = Preemption(within=Within.LOWER, reclaim=Reclaim.ANY)


def queue(name, x, y=0, **more):
    quotas = FlavorQuotas(flavor="plain", resources={X: Quota(nominal=x), Y: Quota(nominal=y)})
    return ClusterQueue(name=name, groups=(ResourceGroup(resources=(X, Y), flavors=(quotas,)),), cohort="c", **more)


def workload(name, x, y=0, *, priority=0):
    """``name``: that of its queue, a dash, and when it was made."""
    asks = {key: amount for key, amount in ((X, x), (Y, y)) if amount}
    topology = TopologyRequest(policy=Policy.UNCONSTRAINED, level=None)
    pod_sets = (PodSet(name="main", count=1, requests=asks, topology=topology, namespace="ns"),)
    of_queue, _, at = name.partition("-")
    return Workload(
        key=name,
        namespace="ns",
        queue=of_queue,
        pod_sets=pod_sets,
        priority=priority,
        created=float(at),
        uid=name,
    )


def shared(queues, running, *, rules=None):
    """A cohort in which these run; they are admitted one after the other."""
    made, state = make_queues(*queues, rules=rules), ClusterState()
    made.set_flavor(PlainFlavor(name="plain"))
    for one in running:
        submit(made, one)
        assert [each.key for each in run(state, made).admitted] == [one.key]
    return state, made


def victims_of(state, queues, one):
    submit(queues, one)
    found = run(state, queues, now=2.0)
    assert not found.admitted
    return {str(victim.key): victim.reason for each in found.preempting for victim in each.victims}


def test_nobody_loses_what_is_its_own_because_it_borrows_something_else():
    # b uses 4 of its 4 x, and 4 of its 2 y. x is all used; of y there is enough.
    policy = Preemption(reclaim=Reclaim.ANY, borrowing=True)
    state, queues = shared(
        [queue("a", 4, 4, preemption=policy), queue("b", 4, 2)],
        [workload("b-1", 4), workload("b-2", 0, 4), workload("a-3", 4, priority=9)],
    )
    # Kueue 0.19.2, hierarchical_preemption.go, collectCandidatesInSubtree: IsWithinNominalInResources of x alone.
    assert victims_of(state, queues, workload("a-4", 2, 1, priority=5)) == {}
    assert victims_of(state, queues, workload("a-5", 0, 3, priority=5)) == {"b-2": Reason.RECLAIMED}


@pytest.mark.parametrize("borrowed", [0, 2])
def test_within_nominal_of_what_is_contested_no_shares_are_compared(borrowed):
    # a wants its own x back, and with it y that nobody uses: its share with that is 500, that of b 4 / 4 by 10 is 100.
    state, queues = shared(
        [queue("a", 4, 0, preemption=RECLAIM), queue("b", 0, 4, weight=10_000)],
        [workload("b-1", 4)],
        rules=Rules(fair=True),
    )
    # Kueue 0.19.2, preemption.go, queueWithinNominalInResourcesNeedingPreemption; its reason is InCohortReclamation.
    assert victims_of(state, queues, workload("a-2", 2, borrowed)) == {"b-1": Reason.RECLAIMED}


def test_beyond_nominal_of_what_is_contested_shares_decide():
    state, queues = shared(
        [queue("a", 4, 0, preemption=RECLAIM), queue("b", 0, 4, weight=10_000)],
        [workload("b-1", 4)],
        rules=Rules(fair=True),
    )
    # x: 6 of its 4, a share of 2 / 4 = 500; b has 4 / 4 / 10 = 100.
    assert victims_of(state, queues, workload("a-2", 6)) == {}


def test_with_own_victims_it_takes_back_what_others_have_of_its_quota():
    # a: 6 of its 8, of which 4 may go; b: 6 of its 4. a wants 6: 4 of its own, and the 2 that b has of it.
    state, queues = shared(
        [queue("a", 8, preemption=WITHIN), queue("b", 4)],
        [workload("a-1", 4, priority=1), workload("a-2", 2, priority=9), *(workload(f"b-{at}", 2) for at in (3, 4, 5))],
    )
    # Kueue 0.19.2, preemption.go, classicalPreemptions: the attempt without borrowing.
    wanted = {"a-1": Reason.IN_CLUSTER_QUEUE, "b-5": Reason.RECLAIMED}
    assert victims_of(state, queues, workload("a-6", 6, priority=5)) == wanted


def test_it_takes_nothing_back_where_it_would_still_borrow():
    state, queues = shared(
        [queue("a", 8, preemption=WITHIN), queue("b", 4)],
        [workload("a-1", 2, priority=1), workload("a-2", 4, priority=9), *(workload(f"b-{at}", 2) for at in (3, 4, 5))],
    )
    # Without a-1 it would have 4 + 6 of its 8.
    assert victims_of(state, queues, workload("a-6", 6, priority=5)) == {}


def test_others_lose_nothing_where_its_own_suffice():
    state, queues = shared(
        [queue("a", 8, preemption=WITHIN), queue("b", 4)],
        [workload("a-1", 4, priority=1), workload("a-2", 2, priority=2), *(workload(f"b-{at}", 2) for at in (3, 4, 5))],
    )
    # Kueue takes b-5 and a-1, and puts b-5 back (0.19.2, preemption.go, fillBackWorkloads).
    assert victims_of(state, queues, workload("a-6", 4, priority=5)) == {"a-1": Reason.IN_CLUSTER_QUEUE}


def test_a_small_one_that_goes_first_spares_no_large_one():
    # b has 6 of its 4. Were b-2 gone first, b would be back within its own, and two units too few would be free. What
    # c has borrowed is out of reach.
    lower = Preemption(reclaim=Reclaim.LOWER)
    state, queues = shared(
        [queue("a", 8, preemption=lower), queue("b", 4), queue("c", 4)],
        [
            workload("a-1", 2, priority=9),
            workload("b-2", 2, priority=3),
            workload("b-3", 4, priority=2),
            workload("c-4", 8, priority=9),
        ],
    )
    assert victims_of(state, queues, workload("a-5", 4, priority=5)) == {"b-3": Reason.RECLAIMED}
