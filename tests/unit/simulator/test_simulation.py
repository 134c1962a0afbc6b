"""The discrete-time core: schedules computed by hand, what is always so, and the same result for the same input."""

import random

import msgspec
import numpy as np
import pytest
from sim_factories import GPU, RACK, ends, make_cluster, make_job, simulate, waits

from crds.settings import Settings
from engine.model import Pod
from engine.preemption.model import Strategy
from queueing.model import (
    ClusterQueue,
    Cohort,
    FlavorQuotas,
    LocalQueue,
    NonPreemptible,
    Quota,
    ResourceGroup,
    Rules,
    RunTime,
)
from simulator.generate import DAY, MIXES, JobMix, JobSite, generate
from simulator.model import Placing, SchedulingPolicy, SimulatorOptions
from simulator.results import End
from simulator.run import Simulation

OURS = SchedulingPolicy("topology")
SPREAD = SchedulingPolicy("count-only", Placing.SPREAD)
PACK = SchedulingPolicy("pack", Placing.PACK)


def one_node(**fields):
    return make_cluster(1, 1, **fields)


@pytest.mark.parametrize("policy", [OURS, SPREAD, PACK])
def test_one_after_the_other_on_one_node(policy):
    jobs = [make_job("a", 0, 100), make_job("b", 10, 50), make_job("c", 20, 30)]
    result = simulate(one_node(), jobs, policy)
    assert waits(result) == {"a": 0, "b": 90, "c": 130}
    assert ends(result) == {"a": 100, "b": 150, "c": 180}
    assert result.window == 20


def test_a_small_one_passes_a_large_one_unless_strict():
    jobs = [make_job("half", 0, 100, gpus=4), make_job("whole", 1, 100), make_job("small", 2, 10, gpus=4)]
    assert waits(simulate(one_node(), jobs, OURS)) == {"half": 0, "whole": 99, "small": 0}
    assert waits(simulate(one_node(), jobs, SchedulingPolicy("s", strict=True))) == {
        "half": 0,
        "whole": 99,
        "small": 198,
    }


def test_by_use_a_local_queue_that_used_less_goes_before_one_that_came_first():
    """One node; the heavy team has ten jobs of an hour waiting when the light one comes with three."""
    resources = {GPU: Quota(nominal=8), "cpu": Quota(nominal=64_000), "memory": Quota(nominal=1 << 40)}
    quotas = FlavorQuotas(flavor="default", resources=resources)
    group = ResourceGroup(resources=tuple(resources), flavors=(quotas,))
    cluster = one_node(
        queues=(ClusterQueue(name="shared", groups=(group,)),),
        local=tuple(LocalQueue(namespace="default", name=one, cluster_queue="shared") for one in ("heavy", "light")),
    )
    jobs = [make_job(f"heavy{i}", i, 3600, queue="heavy", priority=1) for i in range(10)]
    jobs += [make_job(f"light{i}", 3600, 3600, queue="light") for i in range(3)]
    plain = waits(simulate(cluster, jobs, OURS))
    by_use = waits(simulate(cluster, jobs, SchedulingPolicy("by-use", by_use=True)))
    assert [plain[f"light{i}"] for i in range(3)] == [9 * 3600, 10 * 3600, 11 * 3600], "priority decides"
    # The light one has the node for as long as the heavy one had it; then they take turns.
    assert by_use["light0"] == 0
    assert by_use["light1"] <= 2 * 3600
    assert by_use["light2"] <= 4 * 3600
    assert sum(by_use.values()) == sum(plain.values()), "the node is never idle in either"


@pytest.mark.parametrize("cohorts", [(), (Cohort(name="all"),)])
def test_by_use_a_queue_that_used_less_of_its_cohort_goes_before_one_that_came_first(cohorts):
    """One node that the lender's quota is for; as above, between two ClusterQueues. The cohort needs no object."""
    amounts = {GPU: 8, "cpu": 64_000, "memory": 1 << 40}

    def group(part):
        quotas = {resource: Quota(nominal=amount * part) for resource, amount in amounts.items()}
        return ResourceGroup(resources=tuple(amounts), flavors=(FlavorQuotas(flavor="default", resources=quotas),))

    queues = [ClusterQueue(name=one, groups=(group(0),), cohort="all") for one in ("heavy", "light")]
    queues.append(ClusterQueue(name="lender", groups=(group(1),), cohort="all"))
    local = tuple(LocalQueue(namespace="default", name=one.name, cluster_queue=one.name) for one in queues)
    cluster = one_node(queues=tuple(queues), local=local, cohorts=cohorts)
    jobs = [make_job(f"heavy{i}", i, 3600, queue="heavy", priority=1) for i in range(10)]
    jobs += [make_job(f"light{i}", 3600, 3600, queue="light") for i in range(3)]
    by_use = waits(simulate(cluster, jobs, SchedulingPolicy("by-use", by_use=True)))
    plain = waits(simulate(cluster, jobs, OURS))
    assert (by_use["light0"], by_use["light1"] <= 2 * 3600, by_use["light2"] <= 4 * 3600) == (0, True, True)
    assert plain["light1"] > 2 * 3600, "rounds and priority decide"
    assert sum(by_use.values()) == sum(plain.values()), "the node is never idle in either"


def test_a_patient_one_is_passed_for_ever_and_a_claim_ends_that():
    """Two halves take turns on the node, so that it is never empty until they stop."""
    stream = [make_job(f"half{i}", i * 60, 100, gpus=4) for i in range(20)]
    jobs = [*stream, make_job("whole", 10, 100)]
    passed = simulate(one_node(), jobs, SchedulingPolicy("no claims", claims=False))
    claimed = simulate(one_node(), jobs, OURS, SimulatorOptions(patience=300, hold=300))
    assert waits(passed)["whole"] == 19 * 60 + 100 - 10
    # Its claim is on from 310 on; what runs then are those of 240 and 300, the last of which ends at 400.
    assert waits(claimed)["whole"] == 390


def test_room_is_closed_after_a_week_and_no_earlier_unless_told_otherwise():
    """A job that runs for ten days has one of two nodes, so for ten days a gang of two needs the other in vain."""
    jobs = [
        make_job("long", 0, 10 * DAY),
        make_job("gang", 1, 100, pods=2, required=RACK),
        make_job("after four days", 4 * DAY, 3600),
        make_job("after eight days", 8 * DAY, 3600),
    ]
    found = waits(simulate(make_cluster(1, 2), jobs, OURS))
    assert found == {
        "long": 0,
        "gang": 10 * DAY - 1,
        "after four days": 0,
        "after eight days": 2 * DAY + 100,
    }
    sooner = waits(simulate(make_cluster(1, 2), jobs, OURS, SimulatorOptions(hold=3 * DAY)))
    assert sooner["after four days"] == 6 * DAY + 100
    assert sooner["gang"] == found["gang"], "the week costs it nothing"
    assert SimulatorOptions().hold == Rules().hold == Settings().queue_hold_seconds == 7 * DAY


def test_required_waits_for_one_rack_and_count_only_lands_anywhere():
    """One node in each of two racks is taken until 100: two whole nodes are free, but not in one rack."""
    jobs = [
        make_job("a", 0, 100, pods=1, required=RACK),
        make_job("b", 0, 100, pods=3),  # leaves nobody a rack
        make_job("a2", 1, 100, pods=1),
        make_job("gang", 2, 50, pods=2, required=RACK),
    ]
    full = simulate(make_cluster(), jobs, OURS)
    assert waits(full)["gang"] == 98
    assert next(o for o in full.outcomes if o.name == "gang").aligned is True
    busy = make_cluster(
        pods=tuple(Pod(key=f"p{i}", node=node, requests={GPU: 1}) for i, node in enumerate(("r0h0", "r1h1")))
    )
    gang = [make_job("gang", 0, 50, pods=2, required=RACK)]
    ours, theirs = simulate(busy, gang, OURS), simulate(busy, gang, SPREAD)
    assert ours.outcomes[0].end is End.WAITING
    assert "DoesNotFit" in ours.outcomes[0].reason
    assert (theirs.outcomes[0].end, theirs.outcomes[0].aligned) == (End.FINISHED, False)
    assert theirs.outcomes[0].domains == {RACK: 2, "kubernetes.io/hostname": 2}


def test_crossing_costs_time_only_where_that_is_assumed():
    busy = make_cluster(
        pods=tuple(Pod(key=f"p{i}", node=node, requests={GPU: 1}) for i, node in enumerate(("r0h0", "r1h1")))
    )
    gang = [make_job("gang", 0, 50, pods=2, preferred=RACK)]
    assert ends(simulate(busy, gang, OURS)) == {"gang": 50}
    assert ends(simulate(busy, gang, OURS, SimulatorOptions(slowdown=1.5))) == {"gang": 75}
    assert ends(simulate(make_cluster(), gang, OURS, SimulatorOptions(slowdown=1.5))) == {"gang": 50}


@pytest.mark.parametrize("policy", [OURS, SPREAD])
def test_preemption_takes_grace_and_the_victim_begins_anew(policy):
    jobs = [make_job("low", 0, 1000), make_job("high", 100, 50, priority=9)]
    preempting = SchedulingPolicy(policy.name, policy.placing, preemption=True)
    result = simulate(one_node(), jobs, preempting)
    assert waits(result) == {"low": 0, "high": 30}
    assert ends(result) == {"high": 180, "low": 1180}
    low = next(o for o in result.outcomes if o.name == "low")
    assert (low.evictions, low.lost, low.starts) == (1, 100, 2)
    kept = simulate(one_node(), jobs, preempting, SimulatorOptions(checkpoint=40, grace=0))
    assert ends(kept) == {"high": 150, "low": 150 + 1000 - 80}
    assert next(o for o in kept.outcomes if o.name == "low").lost == 20
    assert waits(simulate(one_node(), jobs, policy)) == {"low": 0, "high": 900}


def test_nobodys_victim_stays_and_who_preempts_nobody_waits():
    preempting = SchedulingPolicy("p", preemption=True)
    low, high = make_job("low", 0, 1000), make_job("high", 100, 50, priority=9)
    kept = msgspec.structs.replace(low, non_preemptible=NonPreemptible.BY_CLASS)
    meek = msgspec.structs.replace(high, preempts=False)
    for jobs in ([kept, high], [low, meek]):
        assert waits(simulate(one_node(), jobs, preempting)) == {"low": 0, "high": 900}


def test_who_has_not_run_for_its_minimum_stays_until_then():
    queue = ClusterQueue(name="default", unlimited=True, minimum=RunTime(within=400.0))
    jobs = [make_job("low", 0, 1000), make_job("high", 100, 50, priority=9)]
    result = simulate(make_cluster(1, 1, queues=(queue,)), jobs, SchedulingPolicy("p", preemption=True))
    # From 400 s on it may be evicted, and has 30 s to stop.
    assert waits(result) == {"low": 0, "high": 330}
    assert ends(result)["high"] == 480


def test_the_strategy_of_preemption_says_who_has_to_go():
    """Room is made by two jobs of priority 1, or by one of priority 5."""
    jobs = [
        make_job("one", 0, 1000, priority=5),
        make_job("two-a", 1, 1000, gpus=4, priority=1),
        make_job("two-b", 2, 1000, gpus=4, priority=1),
        make_job("high", 100, 10, priority=9),
    ]
    victims = {}
    for strategy in Strategy:
        policy = SchedulingPolicy(strategy, preemption=True, strategy=strategy)
        result = simulate(make_cluster(1, 2), jobs, policy, until=110)  # before they come back and take turns
        victims[strategy] = [o.name for o in result.outcomes if o.evictions]
    assert victims == {Strategy.LEAST_PRIORITY: ["two-a", "two-b"], Strategy.INCREMENTAL_MINIMAL: ["one"]}


def test_fewer_pods_run_longer():
    job = make_job("elastic", 0, 100, pods=4, at_least={"main": 2})
    result = simulate(make_cluster(1, 2), [job], OURS)
    assert ends(result) == {"elastic": 200}


def test_what_never_fits_is_told_and_holds_up_nobody():
    result = simulate(
        one_node(), [make_job("huge", 0, 10, pods=2), make_job("fine", 1, 10)], SchedulingPolicy("s", strict=True)
    )
    huge, fine = result.outcomes
    assert (huge.end, huge.started, fine.finished) == (End.WAITING, None, 11)
    assert huge.reason.startswith("NeverFits")


def test_quota_of_queues_and_what_is_cut_off():
    group = ResourceGroup(
        resources=("cpu", "memory", GPU),
        flavors=(
            FlavorQuotas(
                flavor="default",
                resources={
                    "cpu": Quota(nominal=10**6),
                    "memory": Quota(nominal=1 << 50),
                    GPU: Quota(nominal=8),
                },
            ),
        ),
    )
    cluster = make_cluster(
        queues=(ClusterQueue(name="a", groups=(group,)), ClusterQueue(name="b", groups=(group,))),
        local=tuple(LocalQueue(namespace="default", name=name, cluster_queue=name) for name in "ab"),
    )
    jobs = [make_job(f"{queue}{i}", i, 100, queue=queue) for i in range(2) for queue in "ab"]
    assert waits(simulate(cluster, jobs, OURS)) == {"a0": 0, "b0": 0, "a1": 99, "b1": 99}
    cut = simulate(cluster, jobs, OURS, until=50)
    assert {o.name: o.end for o in cut.outcomes} == {
        "a0": End.RUNNING,
        "b0": End.RUNNING,
        "a1": End.WAITING,
        "b1": End.WAITING,
    }


def random_jobs(seed, count=60):
    dice = random.Random(seed)
    jobs = []
    for i in range(count):
        pods = dice.choice((1, 1, 2, 3, 4))
        wish = dice.choice(({}, {"required": RACK}, {"preferred": RACK}))
        if pods > 3:
            wish.pop("required", None)
        jobs.append(
            make_job(
                f"j{i:02}",
                dice.randrange(4000),
                dice.randrange(1, 900),
                pods=pods,
                gpus=dice.choice((1, 2, 4, 8)),
                priority=dice.choice((0, 5, 9)),
                **wish,
            )
        )
    return jobs


class Checker:
    """What is so at every moment: nothing over-full, nothing held by who does not run, nobody lost."""

    def __init__(self):
        self.rows = 0

    def __call__(self, sim: Simulation):
        self.rows += 1
        state, site = sim.site.state, sim.site
        has = {name: node.allocatable for name, node in state.nodes.items()}
        used = {name: dict.fromkeys(amounts, 0) for name, amounts in has.items()}
        arrived = [t for t in sim.tracks.values() if t.job.arrival <= sim.now]
        for track in arrived:
            phases = [track.end is not None, track.where is not None, track.job.key in waiting(sim)]
            assert sum(phases) == 1, (track.job.name, phases)
            if track.where is None:
                assert not state.assignments(track.job.key) or track.job.key in sim.queues.holders.nominated
                continue
            assert len(track.where.pods) == sum(sim.queues.entries[track.job.key].grant.counts.values())
            for _, pod_set, node in track.where.pods:
                for resource, amount in {"pods": 1, **pod_set.requests}.items():
                    used[node][resource] += amount
        for name, amounts in used.items():
            assert all(amount <= has[name][resource] for resource, amount in amounts.items()), (sim.now, name, amounts)
            if not sim.queues.holders.nominated and not sim.queues.claims:  # what a claim closes counts as held
                assert {r: has[name][r] - a for r, a in amounts.items()} == {
                    r: state.free_on_node(name)[r] for r in amounts
                }
        assert sum(site.state.nodes[n].allocatable[GPU] for n in used) == int(sim.tally.capacity.sum())
        assert [used[name][GPU] for name in sim.tally._tree.names] == sim.tally.used.tolist()
        assert sim.tally._running == sum(t.running for t in arrived)
        assert sim.tally._waiting == sum(t.where is None and t.end is None for t in arrived)


def waiting(sim):
    return {key for key, entry in sim.queues.entries.items() if sim.tracks[key].where is None}


POLICIES = [
    OURS,
    SPREAD,
    PACK,
    SchedulingPolicy("strict", strict=True),
    SchedulingPolicy("preempting", preemption=True),
    SchedulingPolicy("spread preempting", Placing.SPREAD, preemption=True),
    SchedulingPolicy("spread claims", Placing.SPREAD, claims=True),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_over_full_and_every_job_ends(policy, seed):
    checker = Checker()
    result = simulate(make_cluster(2, 3), random_jobs(seed), policy, SimulatorOptions(grace=7), watch=checker)
    assert checker.rows == len(result.series.times) > 60
    assert {outcome.end for outcome in result.outcomes} == {End.FINISHED}
    assert not result.series.used[-1].any()
    assert (result.series.running[-1], result.series.waiting[-1], result.series.wanted[-1]) == (0, 0, 0)
    for one in result.outcomes:
        assert one.finished - one.started >= one.duration
        if one.topology.startswith("required") and policy.placing is Placing.TOPOLOGY:
            assert one.aligned
    busy = sum((o.duration + o.lost) * o.amount for o in result.outcomes)
    steps = np.diff(result.series.times)
    taken = sum(int(used.sum()) * step for used, step in zip(result.series.used, steps, strict=False))
    grace = 7 * sum(o.evictions * o.amount for o in result.outcomes)
    assert taken == pytest.approx(busy + grace)


def plain(result):
    return list(result.outcomes), result.series.times, [u.tolist() for u in result.series.used], result.cycles


@pytest.mark.parametrize(
    "policy", [OURS, SPREAD, SchedulingPolicy("p", preemption=True)], ids=lambda policy: policy.name
)
def test_the_same_input_gives_the_same_result_whatever_the_order_of_jobs(policy):
    jobs = random_jobs(7)
    first, again = (simulate(make_cluster(2, 3), jobs, policy) for _ in range(2))
    assert plain(first) == plain(again)
    turned = simulate(make_cluster(2, 3), jobs[::-1], policy)
    assert sorted(turned.outcomes, key=lambda o: o.name) == sorted(first.outcomes, key=lambda o: o.name)


def test_another_seed_draws_other_nodes():
    jobs = random_jobs(7)
    one, other = (simulate(make_cluster(2, 3), jobs, SPREAD, SimulatorOptions(seed=seed)) for seed in (1, 2))
    assert plain(one) != plain(other)


def test_spread_takes_the_emptiest_and_pack_the_fullest_node():
    jobs = [make_job("a", 0, 100, gpus=2), make_job("b", 1, 100, gpus=2)]
    spread, pack = (simulate(make_cluster(1, 3), jobs, policy) for policy in (SPREAD, PACK))
    assert sorted(spread.series.used[1].tolist()) == [0, 2, 2]
    assert sorted(pack.series.used[1].tolist()) == [0, 0, 4]


@pytest.mark.parametrize("name", MIXES)
def test_generated_jobs_have_the_sizes_of_their_mix(name):
    site = JobSite(unit={"cpu": 8000, GPU: 1}, units=8, levels=((RACK, 8), ("block", 64)), nodes=512)
    mix, jobs = MIXES[name], generate(site, 4000, 1, load=0.5, mix=MIXES[name])
    whole = sum(share for _, share, _ in mix.sizes)
    for units, share, _ in mix.sizes:
        found = [one for one in jobs if one.pods * one.pod_sets[0].requests[GPU] == units]
        assert len(found) / 4000 == pytest.approx(share / whole, abs=0.03)
        assert {one.pods for one in found} == {units if mix.single else max(1, units // 8)}
        wished = {one.pod_sets[0].topology.level for one in found} - {None}
        assert wished <= {RACK if units <= 64 else "block"}
        assert bool(wished) == (found[0].pods > 1)


def test_the_command_has_every_mix_there_is():
    assert {*JobMix} == {*MIXES}


def test_generated_jobs_offer_the_load_that_was_asked_for():
    site = JobSite(unit={"cpu": 8000, "memory": 2**33, GPU: 1}, units=8, levels=((RACK, 8),), nodes=64)
    jobs = generate(site, 500, 3, span=86400.0 * 7, load=0.7)
    assert jobs == generate(site, 500, 3, span=86400.0 * 7, load=0.7)
    assert jobs != generate(site, 500, 4, span=86400.0 * 7, load=0.7)
    work = sum(j.duration * j.pods * j.pod_sets[0].requests[GPU] for j in jobs)
    assert work == pytest.approx(0.7 * 64 * 8 * 86400 * 7, rel=0.01)
    assert [j.arrival for j in jobs] == sorted(j.arrival for j in jobs)
    assert max(j.duration for j in jobs) <= 86400 * 7 / 3
    assert all(j.pods <= 8 or j.pod_sets[0].topology.policy != "Required" for j in jobs)
