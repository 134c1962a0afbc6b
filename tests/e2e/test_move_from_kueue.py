"""A live cluster moves from a real Kueue 0.19.2, built from its Go module, to Topogate and back: no running pod ends.

``TOPOGATE_MOVE=full`` adds what takes longer.
"""

import os

import pytest
from support.kueue_move import KUEUE_WORKLOADS, expected_order, in_waves, moving_cluster, out_of_order, stream

from benchmarks.harness import kueue
from cli.migrate.source_objects import list_resources
from crds.constants import HOSTNAME_LABEL
from crds.kueue.assignment import decode
from kube.resources import CUSTOM_RESOURCE_DEFINITIONS, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, WORKLOADS
from localcluster.errors import BinariesMissing

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


in_full = pytest.mark.skipif(os.environ.get("TOPOGATE_MOVE") != "full", reason="minutes: TOPOGATE_MOVE=full")


@pytest.fixture(scope="module")
def real():
    try:
        return kueue.Kueue.find(print)
    except BinariesMissing as error:
        pytest.skip(f"Kueue {kueue.VERSION} cannot be built: {str(error)[-200:]}")


def said(workload, type_):
    found = [one for one in workload.get("status", {}).get("conditions", ()) if one["type"] == type_]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


async def test_all_queues_move_and_go_back_and_no_running_pod_ends(real):
    running, waiting = stream("running"), stream("waiting")
    async with moving_cluster(real) as moving:
        witness = moving.witness
        await moving.fill(running, in_waves(waiting))
        before = witness.running()
        assert len(before) == 70
        assert sorted(witness.started) == sorted(job.key for job in running)
        await moving.install_topogate()
        told = await moving.move()
        assert told[-1] == "ClusterQueues ads, audio, mail, maps and 2 more are served by Topogate", told
        ours = {key: said(one, "Admitted") for key, one in (await moving.workloads_of(WORKLOADS)).items()}
        assert {key for key, found in ours.items() if found == ("True", "Adopted")} == {job.key for job in running}
        assert len(ours) == 80
        assert len(witness.started) == 40, "nothing is started before anything ends"
        assert witness.running() == before
        here, there = in_waves(running)[:4], in_waves(running)[4:]
        started = await moving.end_in_waves(here)
        assert out_of_order(started, expected_order(waiting, moving.created)) == []
        by_topogate = [job for job in waiting if job.key in witness.started]
        await moving.all_run(by_topogate)
        assert witness.wrong == []

        runs = [*(job for wave in there for job in wave), *by_topogate]
        before = witness.running()
        told = await moving.take_back()
        assert told[-1] == "ClusterQueues ads, audio, mail, maps and 2 more are served by Kueue again", told
        assert witness.running() == before
        assert len(witness.started) == 40 + len(by_topogate)
        theirs = await moving.workloads_of(KUEUE_WORKLOADS)
        assert {key for key, one in theirs.items() if said(one, "Admitted")[0] == "True"} >= {job.key for job in runs}
        assert await moving.workloads_of(WORKLOADS) == {}
        for job in (there[0][0], by_topogate[0]):
            pod = await moving.replace_pod(job)
            (part,) = theirs[job.key]["status"]["admission"]["podSetAssignments"]
            _, domains = decode(part["topologyAssignment"])
            assert pod["spec"]["nodeSelector"][HOSTNAME_LABEL] in {values[-1] for values, _ in domains}
        # Kueue lets a later one overtake whose room comes free while an earlier one waits to be looked at again
        # (0.19.2, pkg/cache/queue, requeueBatchPeriod): here only that all of them come.
        await moving.end_in_waves(there)
        await moving.all_run(waiting)
        assert witness.wrong == []


@in_full
async def test_what_waits_is_admitted_after_the_move_as_kueue_would_have_admitted_it(real):
    """One Job at a time, in each queue; the same stream for Kueue alone."""
    running, waiting = stream("running"), stream("waiting")
    orders = []
    for moves in (False, True):
        async with moving_cluster(real) as moving:
            await moving.fill(running, [[job] for job in waiting])
            if moves:
                await moving.install_topogate()
                await moving.move()
            orders.append(await moving.end_in_waves([[job] for job in running]))
            wanted = expected_order(waiting, moving.created)
            assert moving.witness.wrong == []
    # Between queues Topogate takes rounds (queueing/cycle/turns.py), so their Jobs come in another order.
    for key in wanted:
        by_kueue, by_topogate = ([name for one in order for name in one if name in wanted[key]] for order in orders)
        assert by_topogate == by_kueue == wanted[key]


@in_full
async def test_once_all_has_moved_kueue_is_deleted_and_what_it_started_runs_on(real):
    running, waiting = stream("running"), stream("waiting")
    async with moving_cluster(real) as moving:
        client, witness = moving.client, moving.witness
        await moving.fill(running, in_waves(waiting))
        await moving.install_topogate()
        await moving.move()
        before = witness.running()
        await moving.finish()
        assert await list_resources(client) == []
        crds = await client.list(CUSTOM_RESOURCE_DEFINITIONS)
        assert [one["metadata"]["name"] for one in crds if one["spec"]["group"] == "kueue.x-k8s.io"] == []
        for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            names = [one["metadata"]["name"] for one in await client.list(kind)]
            assert [name for name in names if name.startswith("kueue")] == []
        assert witness.running() == before
        started = await moving.end_in_waves(in_waves(running)[:2])
        assert out_of_order(started, expected_order(waiting, moving.created)) == []
        assert witness.wrong == []
