"""Kueue's own samples and pages (0.19.2) through `topogate migrate kueue`, and onto a real control plane."""

import asyncio
from collections import Counter

import pytest
from support.house import NAMESPACE, house
from support.jobs import until
from support.kueue_sources import module, of_pages, samples, site

from cli.migrate.convert import is_of_kueue
from cli.migrate.leaves import list_leaves
from cli.migrate.migration import migrate_objects
from cli.migrate.older_versions import raise_version
from cli.migrate.source_objects import KueueObjectsRead, drop_copies
from cli.output import Failure
from crds.constants import Keys
from kube.errors import Invalid
from kube.resources import NAMESPACES, PODS, WORKLOADS, resource_of
from localcluster import Fleet

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
KEYS = Keys()
MOST_ON_PAGES = 60
UNREAD = 107  # blocks of YAML that are parts of objects
RUN = frozenset({"Job", "Deployment", "StatefulSet", "Pod"})
FLEET = Fleet(blocks=1, racks=2, hosts=4, gpus=8)


def judged(objects):
    """The report of the objects of a file, each of which has its rows, and a row for each of its values."""
    report = migrate_objects(KueueObjectsRead(list(objects), []))
    for one in filter(is_of_kueue, objects):
        rows = [row for row in report.rows if (row.kind, row.name) == (one.kind, one.name)]
        fields = {row.field for row in rows}
        assert {leaf.field for leaf in list_leaves(raise_version(one.body)[0])} <= fields, one
        assert [row.outcome for row in rows if not row.field] != [], one
    assert all(row.why and row.instead for row in report.rows if row.outcome == "refused")
    return report


def test_each_object_of_the_samples_is_taken_over_or_refused_in_words():
    files = samples(site() / "static" / "examples")
    kinds = Counter(one.kind for objects in files.values() for one in objects if is_of_kueue(one))
    assert kinds == {
        "ResourceFlavor": 22,
        "ClusterQueue": 16,
        "LocalQueue": 16,
        "Topology": 4,
        "AdmissionCheck": 4,
        "MultiKueueCluster": 3,
        "MultiKueueConfig": 2,
        "ProvisioningRequestConfig": 2,
    }
    refused = Counter()
    for objects in files.values():
        refused.update(row.kind for row in judged(objects).list_refused())
    # Checks of other controllers, and the queues that name them; other clusters.
    assert refused == {
        "ClusterQueue": 4,
        "AdmissionCheck": 4,
        "MultiKueueCluster": 3,
        "MultiKueueConfig": 2,
        "ProvisioningRequestConfig": 2,
    }


def test_each_object_of_the_pages_is_taken_over_or_refused_in_words():
    pages, unread = of_pages(site())
    assert sum(is_of_kueue(one) for objects in pages.values() for one in objects) >= MOST_ON_PAGES
    assert unread <= UNREAD
    for objects in pages.values():
        for one in objects:
            judged([one])


def test_each_object_of_kueueviz_is_taken_over_or_refused_in_words():
    files = samples(module() / "cmd" / "kueueviz" / "examples")
    objects = [one for found in files.values() for one in found]
    assert sum(map(is_of_kueue, objects)) == 18
    judged(objects)


async def test_what_is_made_is_accepted_and_every_workload_is_placed_or_says_why():
    files = samples(site() / "static" / "examples")
    async with house(FLEET) as here:
        for name in {meta.get("namespace", NAMESPACE) for meta in map(metadata, everything(files))} - {NAMESPACE}:
            await here.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        made = [obj for objects in files.values() for obj in judged(objects).objects]
        assert len(made) > 40
        # Several files have another object of one name: each as if it were alone, then the first of each.
        for dry_run in (True, False):
            first = {(obj["kind"], obj["metadata"]["name"]): obj for obj in reversed(made)}
            for obj in made if dry_run else first.values():
                where = obj["metadata"].get("namespace", NAMESPACE)
                await here.client.apply(resource_of(obj), obj, where, field_manager="test", dry_run=dry_run)
        # Kinds that this control plane runs itself; files have the same name now and then.
        users = {
            one.kind + one.name: one for one in everything(files) if one.kind in RUN and KEYS.queue_name in labels(one)
        }
        assert Counter(one.kind for one in users.values()) >= Counter({"Job": 10, "Deployment": 1, "Pod": 2})
        created, denied = [], []
        for one in users.values():
            body = one.body | {"metadata": metadata(one) | {"namespace": NAMESPACE}}
            try:
                created.append(await here.client.create(resource_of(one.body), body, NAMESPACE))
            except Invalid as error:
                denied.append(str(error))
        assert len(created) > 10
        assert all("admission webhook" in text and "denied the request: " in text for text in denied)

        async def told():
            owners = by_owner(one for one in await here.client.list(WORKLOADS, NAMESPACE) if said(one))
            jobs = {one["metadata"]["uid"] for one in created if one["kind"] == "Job"}
            pods = await here.client.list(PODS, NAMESPACE)
            return jobs <= owners.keys() and len(pods) > 10 and {owner_of(pod) for pod in pods} <= owners.keys()

        await until(told, "each job and pod to be admitted, or to say why not")
        await asyncio.sleep(1)
        # Pods first: one that comes later waits behind the gate, and may have no Workload yet.
        pods = await here.client.list(PODS, NAMESPACE)
        owners = by_owner(await here.client.list(WORKLOADS, NAMESPACE))
        for pod in pods:
            is_running = pod["spec"].get("nodeName") or not pod["spec"].get("schedulingGates")
            assert not is_running or "Admitted" in true(owners[owner_of(pod)]), pod["metadata"]["name"]


def by_owner(workloads):
    return {ref["uid"]: one for one in workloads for ref in one["metadata"].get("ownerReferences", ())}


def owner_of(pod):
    """Its controller, else itself."""
    (owner, *_) = pod["metadata"].get("ownerReferences", [pod["metadata"]])
    return owner["uid"]


def everything(files):
    return [one for objects in files.values() for one in objects]


def metadata(one):
    return one.body.get("metadata") or {}


def labels(one):
    return metadata(one).get("labels") or {}


def true(workload):
    return {one["type"] for one in workload["status"]["conditions"] if one["status"] == "True"}


def said(workload):
    """Whether a Workload is admitted, or says in words why it is not."""
    conditions = (workload or {}).get("status", {}).get("conditions", [])
    return any(one["status"] == "True" or one["message"] for one in conditions)


def test_two_files_with_one_name_are_not_mixed():
    objects = everything(samples(site() / "static" / "examples" / "dra"))
    with pytest.raises(Failure, match="is there twice and differs"):
        drop_copies(objects)
