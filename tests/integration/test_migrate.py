"""`topogate migrate kueue --apply` and `--check` on the real API server, from files and from Kueue's kinds."""

import pytest
import yaml
from support import kueue_kinds
from support.jobs import install_crds, job
from support.migrating import configuration, migrated, of_kueue

from cli.migrate.apply_objects import FIELD_MANAGER, apply_report
from cli.migrate.check import check_cluster
from cli.migrate.migration import migrate_objects
from cli.migrate.source_objects import read_cluster
from cli.output import Failure
from crds.constants import MIGRATED_FROM
from crds.settings import CONFIG_KEY, CONFIG_MAP
from kube.client import Client
from kube.errors import NotFound
from kube.resources import (
    CLUSTER_QUEUES,
    COHORTS,
    CONFIG_MAPS,
    JOBS,
    LOCAL_QUEUES,
    RESOURCE_FLAVORS,
    WORKLOAD_PRIORITY_CLASSES,
)

pytestmark = pytest.mark.cluster

CONFIG = "# ours\ndomain: kueue.x-k8s.io\n"


@pytest.fixture
async def home(client, namespace):
    """A namespace with our settings, as an installation has it, and objects of Kueue that are named after it."""
    await install_crds(client)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: CONFIG}}
    await client.create(CONFIG_MAPS, body, namespace)
    yield namespace
    for resource in (CLUSTER_QUEUES, RESOURCE_FLAVORS):
        for name in (namespace, f"{namespace}-f"):
            try:
                await client.delete(resource, name)
            except NotFound:
                continue


def objects_of(name, **spec):
    flavors = [{"name": f"{name}-f", "resources": [{"name": "cpu", "nominalQuota": "4"}]}]
    return [
        of_kueue("LocalQueue", "team", {"clusterQueue": name}, namespace=name),
        of_kueue(
            "ClusterQueue",
            name,
            {
                "namespaceSelector": {},
                "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}],
                **spec,
            },
        ),
        of_kueue("ResourceFlavor", f"{name}-f", {"nodeLabels": {"pool": name}, "topologyName": name}),
        of_kueue("Topology", name, {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]}),
    ]


async def applied(client: Client, namespace, *bodies, skip_refused=False, overwrite=False):
    done = await apply_report(client, migrated(*bodies), namespace, skip_refused=skip_refused, overwrite=overwrite)
    return {step.kind: step.outcome for step in done.steps}


async def test_what_is_applied_is_there_and_twice_changes_nothing(client, home):
    found = await applied(client, home, *objects_of(home), configuration(fairSharing={}))
    assert found == {
        "ResourceFlavor": "created",
        "ClusterQueue": "created",
        "LocalQueue": "created",
        "ConfigMap": "configured",
    }
    flavor = await client.get(RESOURCE_FLAVORS, f"{home}-f")
    assert flavor["spec"]["topology"]["levels"] == ["rack", "kubernetes.io/hostname"]
    assert flavor["metadata"]["annotations"][MIGRATED_FROM] == f"kueue.x-k8s.io/v1beta2/ResourceFlavor/{home}-f"
    assert flavor["metadata"]["managedFields"][0]["manager"] == FIELD_MANAGER
    text = (await client.get(CONFIG_MAPS, CONFIG_MAP, home))["data"][CONFIG_KEY]
    assert text.startswith(CONFIG)
    assert yaml.safe_load(text)["waitForPodsReadyTimeoutSeconds"] == 1800
    again = await applied(client, home, *objects_of(home), configuration(fairSharing={}))
    assert set(again.values()) == {"unchanged"}


async def test_a_tree_of_cohorts_a_class_and_fair_use_are_there(client, home):
    amount = {"name": "cpu", "nominalQuota": "4", "borrowingLimit": "6", "lendingLimit": "10"}
    quota = {"coveredResources": ["cpu"], "flavors": [{"name": f"{home}-f", "resources": [amount]}]}
    bodies = [
        of_kueue("Cohort", f"{home}-b", {"parentName": f"{home}-a", "resourceGroups": [quota]}),
        of_kueue("Cohort", f"{home}-a", {"fairSharing": {"weight": "2"}}),
        of_kueue("WorkloadPriorityClass", f"{home}-p", value=7, description="High."),
        *objects_of(home, cohortName=f"{home}-b", admissionScope={"admissionMode": "UsageBasedAdmissionFairSharing"}),
        configuration(admissionFairSharing={"usageHalfLifeTime": "168h"}),
    ]
    bodies[3]["spec"]["fairSharing"] = {"weight": "3"}
    try:
        found = await applied(client, home, *bodies)
        assert set(found.values()) == {"created", "configured"}
        assert (await client.get(COHORTS, f"{home}-b"))["spec"]["resourceGroups"] == [quota]
        assert (await client.get(WORKLOAD_PRIORITY_CLASSES, f"{home}-p"))["value"] == 7
        assert (await client.get(LOCAL_QUEUES, "team", home))["spec"]["fairSharing"] == {"weight": "3"}
        text = (await client.get(CONFIG_MAPS, CONFIG_MAP, home))["data"][CONFIG_KEY]
        assert yaml.safe_load(text)["fairUseHalfLifeSeconds"] == 604_800
        assert set((await applied(client, home, *bodies)).values()) == {"unchanged"}
    finally:
        for resource, name in ((COHORTS, "a"), (COHORTS, "b"), (WORKLOAD_PRIORITY_CLASSES, "p")):
            await client.delete(resource, f"{home}-{name}")


async def test_an_object_that_differs_stays_unless_it_is_to_be_overwritten(client, home):
    await applied(client, home, *objects_of(home))
    with pytest.raises(Failure, match=rf"ClusterQueue {home}: there is one already, which differs in spec.stopPolicy;"):
        await applied(client, home, *objects_of(home, stopPolicy="Hold"))
    assert (await client.get(CLUSTER_QUEUES, home))["spec"]["stopPolicy"] == "None"
    found = await applied(client, home, *objects_of(home, stopPolicy="Hold"), overwrite=True)
    assert found["ClusterQueue"] == "configured"
    assert (await client.get(CLUSTER_QUEUES, home))["spec"]["stopPolicy"] == "Hold"


async def test_nothing_is_written_where_anything_is_refused(client, home):
    refused = of_kueue("ClusterQueue", f"{home}-r", {"unheard": 1})
    with pytest.raises(Failure, match=rf"nothing was applied: 1 of 5 objects are refused \(ClusterQueue {home}-r\)"):
        await applied(client, home, *objects_of(home), refused)
    # The API server itself refuses one: a namespace that is not there, and a level twice.
    missing = of_kueue("LocalQueue", "team", {"clusterQueue": home}, namespace="not-there")
    with pytest.raises(Failure, match=r"LocalQueue not-there/team: .*not found"):
        await applied(client, home, *objects_of(home), missing)
    body = {"data": {CONFIG_KEY: f"{CONFIG}fairSharing: false\n"}}
    await client.patch(CONFIG_MAPS, CONFIG_MAP, home, body=body)
    with pytest.raises(Failure, match="setting fairSharing is False, and Kueue's is True; --overwrite"):
        await applied(client, home, *objects_of(home), configuration(fairSharing={}))
    for resource, name, where in ((CLUSTER_QUEUES, home, None), (LOCAL_QUEUES, "team", home)):
        with pytest.raises(NotFound):
            await client.get(resource, name, where)
    found = await applied(client, home, *objects_of(home), refused, skip_refused=True)
    assert found["ClusterQueue"] == "created"


async def test_without_an_installation_it_is_told(client, namespace):
    await install_crds(client)
    with pytest.raises(Failure, match="Topogate is not installed in namespace"):
        await applied(client, namespace, *objects_of(namespace))


@pytest.fixture
def kinds(cluster):
    with kueue_kinds.installed(cluster):
        yield


async def test_a_cluster_is_read_and_its_jobs_are_checked(kinds, client, home):
    assert (await read_cluster(client)).found == []
    flavors = [{"name": f"{home}-f", "resources": [{"name": "cpu", "nominalQuota": 4}]}]
    queue = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]}
    for kind, spec in (("ResourceFlavor", {"nodeLabels": {"pool": home}}), ("ClusterQueue", queue)):
        resource = kueue_kinds.resource(kind, "v1beta2")
        name = home if kind == "ClusterQueue" else f"{home}-f"
        await client.create(resource, of_kueue(kind, name, spec))
    report = migrate_objects(await read_cluster(client))
    assert [(one["kind"], one["metadata"]["name"]) for one in report.objects] == [
        ("ResourceFlavor", f"{home}-f"),
        ("ClusterQueue", home),
    ]
    assert not report.has_refusals()
    assert {row.where for row in report.rows} == {"the cluster"}
    await apply_report(client, report, home, skip_refused=False, overwrite=False)
    body = job("waits", 1)
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "nowhere"}
    await client.create(JOBS, body, home)
    (found,) = await check_cluster(client, home, "kueue-system")
    assert found.about == f"{home}: job/waits"
    assert found.message == "nobody queues it: Kueue does not, and Topogate is not installed"
    flavors[0]["resources"][0]["nominalQuota"] = 5
    changed = {"spec": {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]}}
    await client.patch(CLUSTER_QUEUES, home, body=changed)
    differing = {one.about: one.message for one in await check_cluster(client, home, "kueue-system")}
    field = "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"
    assert differing[f"ClusterQueue {home}"] == f"it differs from what Kueue's object says now, in {field}"
    assert len(differing) == 2
