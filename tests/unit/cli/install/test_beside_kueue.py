"""``topogate install --beside-kueue``: what is asked first, and what is refused before anything is applied."""

import msgspec
import pytest
import yaml

from cli.install import installation, left_objects
from cli.install.installation import Requested
from cli.output import Failure
from crds.constants import DEFAULT_DOMAIN, SERVED, Keys
from kube import resources
from kube.errors import NotFound

GATE = Keys().gate
CONFIG = "domain: kueue.x-k8s.io\nnamespace: topogate-system\nlogFormat: json\n"


class Cluster:
    """What `plan` reads: the settings of an installation, Kueue's CRDs, namespaces and Workloads of ours."""

    def __init__(self, config="", *, kueue=True, namespaces=(), workloads=(), pods=()):
        self.config, self.kueue = config, kueue
        self.found = {resources.NAMESPACES: namespaces, resources.WORKLOADS: workloads, resources.PODS: pods}

    async def get(self, resource, name, namespace=None, **_):
        if resource is resources.CONFIG_MAPS and self.config:
            return {"metadata": {"name": name}, "data": {"config.yaml": self.config}}
        if resource is resources.CUSTOM_RESOURCE_DEFINITIONS and self.kueue:
            return {}
        raise NotFound(404, "NotFound", name)

    async def raw(self, method, path, **_):
        return b'{"resources": [{"name": "mutatingadmissionpolicies"}]}'

    async def list(self, resource, namespace=None, *, label_selector="", type=dict, **_):  # noqa: A002
        found = self.found.get(resource, ())
        if label_selector:
            key, _, value = label_selector.partition("=")
            found = [one for one in found if one["metadata"].get("labels", {}).get(key) == value]
        return msgspec.convert(list(found), list[type])


def named(name, namespace="", **labels):
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}}


async def test_beside_kueue_its_domain_is_taken_if_that_is_asked_for():
    options = await installation.plan(Cluster(), Requested(beside=True))
    assert (options.domain, options.beside, options.kueue) == (DEFAULT_DOMAIN, True, True)
    assert yaml.safe_load(options.config)["besideKueue"] is True


async def test_without_it_the_refusal_names_both_ways():
    with pytest.raises(Failure, match=r"--domain topogate\.dev.*--beside-kueue"):
        await installation.plan(Cluster(), Requested())


async def test_an_upgrade_keeps_it():
    cluster = Cluster(f"{CONFIG}besideKueue: true\n")
    options = await installation.plan(cluster, Requested())
    assert options.beside
    assert options.config == f"{CONFIG}besideKueue: true\n"


async def test_it_ends_only_once_kueue_is_gone():
    """Else the controller would look at Kueue's jobs, and suspend those that run."""
    told = f"{CONFIG}besideKueue: true\n"
    with pytest.raises(Failure, match="this cluster runs Kueue"):
        await installation.plan(Cluster(told), Requested(beside=False))
    options = await installation.plan(Cluster(told, kueue=False), Requested(beside=False))
    assert not options.beside
    assert "besideKueue" not in yaml.safe_load(options.config)


@pytest.mark.parametrize(
    ("wish", "text"),
    [({"domain": "topogate.dev"}, "--domain topogate.dev"), ({"kueue": False}, "does not go with --no-kueue")],
)
async def test_what_does_not_go_with_it_is_refused(wish, text):
    with pytest.raises(Failure, match=text):
        await installation.plan(Cluster(), Requested(beside=True, **wish))


async def test_workloads_in_a_namespace_without_the_label_would_wait_for_ever():
    served = named("a", **{SERVED: "true"})
    cluster = Cluster(
        CONFIG, kueue=False, namespaces=[served, named("b")], workloads=[named("w", "a"), named("w", "b")]
    )
    with pytest.raises(
        Failure, match=r"namespace b has Workloads .* kubectl label namespace b topogate.dev/served=true"
    ):
        await installation.plan(cluster, Requested(beside=True))
    cluster.found[resources.NAMESPACES] = [served, named("b", **{SERVED: "true"})]
    assert (await installation.plan(cluster, Requested(beside=True))).beside


@pytest.mark.parametrize(
    ("cluster", "beside"),
    [
        (Cluster(f"{CONFIG}besideKueue: true\n"), True),
        (Cluster(CONFIG), False),
        (Cluster(), True),  # nothing says whose the gate is
        (Cluster(kueue=False), False),
    ],
)
async def test_an_uninstall_knows_whose_gated_pods_are(cluster, beside):
    assert (await installation.installed(cluster, "topogate-system")).beside is beside


async def test_pods_behind_kueues_gate_are_none_of_an_uninstalls():
    pods = [named(name, name) | {"spec": {"schedulingGates": [{"name": GATE}]}} for name in ("ours", "kueues")]
    cluster = Cluster(namespaces=[named("ours", **{SERVED: "true"}), named("kueues")], pods=pods)
    assert (await left_objects.left_behind(cluster, DEFAULT_DOMAIN, beside=True)).gated_pods == ["ours/ours"]
    assert len((await left_objects.left_behind(cluster, DEFAULT_DOMAIN)).gated_pods) == 2
