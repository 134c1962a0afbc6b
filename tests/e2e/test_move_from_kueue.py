"""A live cluster moves from a real Kueue 0.19.2, built from its Go module, to Topogate and back: no running pod ends.

``TOPOGATE_MOVE=full`` adds what takes longer.
"""

import pytest
from support.jobs import until
from support.kueue_move import QUEUES, expected_order, moving_cluster, namespace_of, out_of_order, stream

from benchmarks.harness import kueue
from cli.migrate.apply_objects import apply_report
from cli.migrate.migration import migrate_objects
from cli.migrate.source_objects import read_cluster
from crds.constants import NAMESPACE, SERVED
from kube.resources import NAMESPACES, WORKLOADS
from localcluster.errors import BinariesMissing

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def real():
    try:
        return kueue.Kueue.find(print)
    except BinariesMissing as error:
        pytest.skip(f"Kueue {kueue.VERSION} cannot be built: {str(error)[-200:]}")


def said(workload, type_):
    found = [one for one in workload.get("status", {}).get("conditions", ()) if one["type"] == type_]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


async def test_all_queues_move_at_once_and_no_running_pod_ends(real):
    running, waiting = stream("running"), stream("waiting")
    async with moving_cluster(real) as moving:
        client, witness = moving.client, moving.witness
        await moving.fill(running, waiting)
        before = witness.running()
        assert len(before) == 70
        assert sorted(witness.started) == sorted(job.key for job in running)
        await moving.install_topogate()
        report = migrate_objects(await read_cluster(client))
        assert [row for row in report.rows if row.outcome == "refused"] == []
        await apply_report(client, report, NAMESPACE, skip_refused=False, overwrite=False)
        for name in QUEUES:
            await client.patch(NAMESPACES, namespace_of(name), body={"metadata": {"labels": {SERVED: "true"}}})

        async def adopted():
            found = await client.list(WORKLOADS)
            return found if sum(said(one, "Admitted") == ("True", "Adopted") for one in found) == 40 else None

        await until(adopted, "40 Jobs to be taken over")
        assert witness.running() == before
        assert witness.wrong == []
        started = await moving.end_in_waves(running)
        assert out_of_order(started, expected_order(waiting, moving.created)) == []
        await moving.all_run(waiting)
        assert witness.wrong == []
