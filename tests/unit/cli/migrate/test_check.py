"""`--check` on a cluster: what it asks the API server for, and what it prints of what tenants wrote."""

from types import SimpleNamespace

import pytest

from cli.doctor.command import list_owners
from cli.migrate import check
from cli.migrate.check import find_differing, list_queued, render_findings
from cli.migrate.nobody import ServingView, find_unserved, read_queued
from cli.output import stdout
from crds.constants import MIGRATED_FROM, Keys
from kube.errors import NotFound
from kube.resources import Resource

KEYS = Keys()


class Served:
    """An API server that has these objects by resource, and notes what it is asked for."""

    def __init__(self, objects):
        self.objects, self.asked = objects, []

    async def list(self, resource, **_):
        self.asked.append(("list", resource.plural))
        if resource not in self.objects:
            raise NotFound(404, "NotFound", "no such path")
        return self.objects[resource]

    async def get(self, resource, name, *_, **__):
        raise AssertionError(f"one by one: {resource.plural} {name}")


def mpi(version):
    return Resource("kubeflow.org", version, "mpijobs", "MPIJob")


def mpi_job():
    return {"kind": "MPIJob", "metadata": {"name": "m", "namespace": "ns", "labels": {KEYS.queue_name: "q"}}}


@pytest.mark.parametrize("versions", [("v1",), ("v2beta1",), ("v1", "v2beta1")])
async def test_a_kind_that_is_served_in_two_versions_is_listed_once(versions):
    client = Served({mpi(version): [mpi_job()] for version in versions})
    assert [one["kind"] async for one in list_queued(client)] == ["MPIJob"]
    owners, unread = await list_owners(client, KEYS)
    assert ([kind.kind for kind, _ in owners], unread) == (["MPIJob"], [])


async def test_what_came_from_kueue_is_listed_kind_by_kind(monkeypatch):
    locals_ = Resource("topogate.dev", "v1alpha1", "localqueues", "LocalQueue")
    clusters = Resource("topogate.dev", "v1alpha1", "clusterqueues", "ClusterQueue", namespaced=False)

    def queue(number, stop, **meta):
        spec = {"clusterQueue": "q", "stopPolicy": stop}
        head = {"apiVersion": "topogate.dev/v1alpha1", "kind": "LocalQueue"}
        return head | {"metadata": {"name": f"q-{number}", "namespace": "ns", **meta}, "spec": spec}

    whole = {"apiVersion": "topogate.dev/v1alpha1", "kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": {"a": 1}}
    from_kueue = {"annotations": {MIGRATED_FROM: "kueue"}}
    wanted = [*(queue(number, "None") for number in range(1000)), whole]
    stored = [queue(1, "Hold", **from_kueue), queue(2, "Hold"), queue(3, "None", **from_kueue), queue(4000, "Hold")]
    client = Served({locals_: stored, clusters: []})

    async def some_resources(_):
        return [locals_]

    async def nothing(*_):
        return None

    monkeypatch.setattr(check, "list_resources", some_resources)
    monkeypatch.setattr(check, "read_as_before", nothing)
    monkeypatch.setattr(check, "migrate_objects", lambda _: SimpleNamespace(objects=wanted))
    (found,) = await find_differing(client, "topogate-system", "kueue-system")
    assert (found.about, found.message) == (
        "LocalQueue ns/q-1",
        "it differs from what Kueue's object says now, in spec.stopPolicy",
    )
    assert client.asked == [("list", "localqueues"), ("list", "clusterqueues")]


def test_keys_of_tenants_are_cut_and_do_nothing_to_a_terminal(capsys):
    """An AppWrapper holds whole objects, whose keys its CRD does not check."""
    odd = f"kueue.x-k8s.io/\x1b]0;owned\x07\n{'x' * 5000}\u202e"
    template = {"metadata": {"annotations": {odd: "1"}}}
    meta = {"name": "a", "namespace": "ns", "labels": {KEYS.queue_name: "q"}}
    body = {"kind": "AppWrapper", "metadata": meta, "spec": {"components": [{"template": template}]}}
    view = ServingView("kueue.x-k8s.io", {}, {}, {}, kueue_runs=False, kueue_queues=(), classes=())
    stdout().print(render_findings([*find_unserved(view, [read_queued(body)])]))
    said = capsys.readouterr().out
    assert "kueue.x-k8s.io/\\x1b]0;owned\\x07\\nxxx" in said
    assert not set("\x1b\x07\u202e") & set(said)
    assert len(said) < 1000
