"""`topogate migrate kueue` on a control plane with a real Kueue 0.19.2, built from its Go module."""

import asyncio
import re
from pathlib import Path

import pytest
import yaml
from support.jobs import install_crds

from benchmarks.harness import kueue
from cli.migrate.apply_objects import apply_report
from cli.migrate.check import check_cluster, differing_fields
from cli.migrate.migration import migrate_objects
from cli.migrate.source_objects import list_resources, read_cluster, read_files
from crds.settings import CONFIG_MAP
from kube.client import Client
from kube.resources import CLUSTER_QUEUES, CONFIG_MAPS, NAMESPACES, RESOURCE_FLAVORS
from localcluster import LocalCluster
from localcluster.errors import BinariesMissing

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HOME = "team-a"
PAGE = Path(__file__).parents[2] / "docs" / "move-from-kueue.md"


@pytest.fixture(scope="module")
def real():
    try:
        return kueue.Kueue.find(print)
    except BinariesMissing as error:
        pytest.skip(f"Kueue {kueue.VERSION} cannot be built: {str(error)[-200:]}")


async def test_what_a_real_kueue_stores_is_taken_over_with_its_defaults(real, tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    objects = [body for body in yaml.safe_load_all(example) if body["kind"] not in {"Configuration", "AdmissionCheck"}]
    (queue,) = [body for body in objects if body["kind"] == "ClusterQueue"]
    del queue["spec"]["admissionChecksStrategy"]
    file = tmp_path / "kueue.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    wanted = {(one["kind"], one["metadata"]["name"]): one for one in migrate_objects(read_files([str(file)])).objects}
    with LocalCluster() as cluster:
        async with (
            await Client.connect(str(cluster.kubeconfig)) as client,
            kueue.installed(real, cluster, client, {}) as process,
        ):
            await install_crds(client)
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
            settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}}
            await client.create(CONFIG_MAPS, settings, HOME)
            await kueue.start(process, client)
            for resource, body in kueue.one_queue(1):
                await kueue.create_object(process, client, resource, body)
            resources = {one.kind: one for one in await list_resources(client)}
            for body in objects:
                await client.create(resources[body["kind"]], body)
            # Its controllers add their finalizers.
            await asyncio.sleep(3)
            report = migrate_objects(await read_cluster(client))
            assert [row for row in report.rows if row.outcome == "refused"] == []
            found = {(one["kind"], one["metadata"]["name"]): one for one in report.objects}
            assert found.keys() == wanted.keys() | {
                ("ClusterQueue", "queue-0"),
                ("LocalQueue", "queue-0"),
                ("ResourceFlavor", "tas"),
            }
            # Kueue's client writes 64 as "64", and adds defaults.
            assert [field for key, one in wanted.items() for field in differing_fields(one, found[key])] == []
            assert found["ClusterQueue", "research"]["spec"]["stopPolicy"] == "None"
            assert "not found in kueue-system" in {row.why.partition(";")[0] for row in report.rows}
            done = await apply_report(client, report, HOME, skip_refused=False, overwrite=False)
            assert {step.outcome for step in done.steps} == {"created", "configured"}
            again = await apply_report(client, report, HOME, skip_refused=False, overwrite=False)
            assert {step.outcome for step in again.steps} == {"unchanged"}
            flavor = await client.get(RESOURCE_FLAVORS, "gpu")
            assert flavor["spec"]["topology"]["levels"][-1] == "kubernetes.io/hostname"
            assert (await client.get(CLUSTER_QUEUES, "research"))["spec"]["preemption"][
                "reclaimWithinCohort"
            ] == "Never"
            assert await check_cluster(client, HOME, "kueue-system") == []
            process.stop(5.0)
