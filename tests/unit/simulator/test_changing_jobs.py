"""Random months of jobs that lose slices, grow back, are moved and evicted: what is always so."""

import random
from collections import Counter

import msgspec
import pytest
from sim_factories import GPU, RACK, make_cluster, make_job

from cli.simulate.cluster import generated
from cli.simulate.options import Made
from engine.model import SliceLayer
from localcluster.nodes import RACK_LABEL
from simulator.model import SchedulingPolicy, SimulatorOptions
from simulator.results import End
from simulator.run import Simulation

PREEMPTING = SchedulingPolicy("all", preemption=True, moves=True)
MOVING = SchedulingPolicy("moving", moves=True, claims=False)


def random_jobs(dice, rack, *, shaped):
    jobs = []
    for number in range(50):
        kind = dice.choice(("sliced", "sliced", "preferred", "preferred", "required", "plain"))
        wish = {kind: rack} if kind in {"preferred", "required"} else {}
        job = make_job(
            f"{kind}-{number}",
            dice.randrange(0, 150_000),
            dice.choice((500, 8_000, 30_000)),
            pods=dice.choice((1, 2) if kind == "plain" else (2, 3)),
            priority=dice.randrange(3) if kind != "preferred" else 2,
            shaped=shaped,
            **wish,
        )
        if kind == "sliced":
            (pod_set,) = job.pod_sets
            topology = msgspec.structs.replace(pod_set.topology, slices=(SliceLayer(level=rack, size=2),))
            sized = msgspec.structs.replace(pod_set, topology=topology, count=dice.choice((4, 6)))
            job = msgspec.structs.replace(job, pod_sets=(sized,), by_slices=True, priority=dice.randrange(2))
        jobs.append(job)
    return jobs


def machines():
    machine = "2 sockets / 2 NUMA / 40 cores / 8 GPUs / 512Gi"
    return generated(Made(1, 3, 4, 8, cpu="1", memory="1Gi", machine=machine, kubelet="best-effort"))


def looked_at(step):
    """Each node has no more pods than GPUs for them, and the figures are those of the pods that there are."""
    pods = [pod for track in step.tracks.values() if track.where is not None for pod in track.where.pods]
    used = Counter({node: 0 for _, _, node in pods})
    for _, pod_set, node in pods:
        used[node] += pod_set.requests[GPU]
    assert max(used.values(), default=0) <= 8
    assert step.tally.used.sum() == sum(used.values())
    assert len({key for key, _, _ in pods}) == len(pods)
    for track in step.tracks.values():
        where = track.where
        if where is None or track.leaving or where.going:
            continue
        grant = step.queues.entries[track.job.key].grant
        assert len(where.pods) == sum(grant.counts.values())
        slots = Counter()
        for name, count in (on for part in grant.assignments for piece in part.slices for on in piece.nodes):
            slots[name] += count
        assert slots == Counter(node for _, _, node in where.pods)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("policy", "seed"), [(PREEMPTING, 2), (PREEMPTING, 3), (PREEMPTING, 7), (PREEMPTING, 9), (MOVING, 0), (MOVING, 3)]
)
def test_whatever_happens_to_jobs_they_end_and_leave_nothing(policy, seed, inside):
    cluster, rack = (machines(), RACK_LABEL) if inside else (make_cluster(3, 4), RACK)
    jobs = random_jobs(random.Random(seed), rack, shaped=inside)
    options = SimulatorOptions(
        checkpoint=300, slowdown=1.5, moves_per_hour=20, grace=random.Random(seed).choice((30, 900))
    )
    simulation = Simulation(cluster, jobs, policy, options)
    result = simulation.run(watch=looked_at)
    assert {one.end for one in result.outcomes} == {End.FINISHED}
    assert not simulation.site.state.workloads
    assert not simulation.site.state.pods
    assert not simulation.queues.entries
    assert policy is PREEMPTING or sum(one.moves for one in result.outcomes) > 2
    for one, job in zip(result.outcomes, jobs, strict=True):
        assert one.finished >= job.arrival + job.duration * (1 - 1e-9)
