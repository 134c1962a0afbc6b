"""`topogate place --dry-run` of pods with volumes, on snapshots: by the controller's own code."""

import json

import pytest
import yaml
from support.snapshots import DOMAIN, FLAVOR, HOST, RACK, container, node
from typer.testing import CliRunner

from cli.main import app
from cli.output import Failure

NODES = [node(f"r{rack}h{host}", f"r{rack}") for rack in (1, 2) for host in (1, 2)]
BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
REQUIRED = {f"{DOMAIN}/podset-required-topology": RACK}
ANYWHERE = {f"{DOMAIN}/podset-unconstrained-topology": "true"}


def ask(tmp_path, *manifests, cluster=(), status=0):
    items = [FLAVOR, *NODES, *cluster]
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    command = ["place", "-f", "-", "--dry-run", "--cluster", str(tmp_path / "cluster.json"), "-o", "json"]
    result = CliRunner().invoke(app, command, input=yaml.safe_dump_all(manifests))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def nodes_of(answer):
    parts = [domain for part in answer["podSets"] for domain in part["domains"]]
    return {on["node"]: on["pods"] for domain in parts for on in domain["nodes"]}


def made(kind, name, spec=None, api="v1", namespace="team", **body):
    meta = {"name": name, **({"namespace": namespace} if namespace else {}), **body.pop("metadata", {})}
    return {"apiVersion": api, "kind": kind, "metadata": meta, **({"spec": spec} if spec is not None else {}), **body}


def claim(name, volume="", storage_class="zonal"):
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    spec |= {"volumeName": volume} if volume else {}
    return made("PersistentVolumeClaim", name, spec, metadata={"annotations": BOUND if volume else {}})


def volume(name, key, value):
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}]
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}, "csi": {"driver": "ebs", "volumeHandle": name}}
    return made("PersistentVolume", name, spec, namespace="")


def storage_class(name="zonal", rack="r2", mode="WaitForFirstConsumer"):
    allowed = [{"matchLabelExpressions": [{"key": RACK, "values": [rack]}]}]
    body = {"provisioner": "ebs", "volumeBindingMode": mode, "allowedTopologies": allowed}
    return made("StorageClass", name, api="storage.k8s.io/v1", namespace="", **body)


def csi_node(name, count):
    spec = {"drivers": [{"name": "ebs", "nodeID": name, "allocatable": {"count": count}}]}
    return made("CSINode", name, spec, "storage.k8s.io/v1", "")


def having(*names):
    return [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]


def job(name, pods, volumes, request=REQUIRED):
    template = {"spec": {"restartPolicy": "Never", "containers": [container(1)], "volumes": volumes}}
    spec = {"parallelism": pods, "completions": pods, "template": template}
    return made("Job", name, spec, "batch/v1", metadata={"annotations": request})


def stateful(count, *, request=ANYWHERE, template=None):
    pod = {"metadata": {"annotations": request}, "spec": {"containers": [container(1)]}}
    claims = [template or {"metadata": {"name": "data"}, "spec": {"storageClassName": "zonal"}}]
    return made("StatefulSet", "db", {"replicas": count, "template": pod, "volumeClaimTemplates": claims}, "apps/v1")


def test_a_job_goes_where_its_volume_is(tmp_path):
    cluster = [claim("data", "pv"), volume("pv", RACK, "r2")]
    (answer,) = ask(tmp_path, job("train", 4, having("data")), cluster=cluster)
    assert {name[:2] for name in nodes_of(answer)} == {"r2"}


def test_a_claim_that_is_not_there_is_named(tmp_path):
    (answer,) = ask(tmp_path, job("train", 1, having("data")), status=3)
    assert (answer["state"], answer["reason"]) == ("Waits", "VolumeNotReady")
    assert answer["message"].endswith('persistentvolumeclaim "data" not found')


def test_a_claim_may_come_with_the_job(tmp_path):
    cluster = [storage_class()]
    (answer,) = ask(tmp_path, claim("data"), job("train", 2, having("data")), cluster=cluster)
    assert {name[:2] for name in nodes_of(answer)} == {"r2"}
    with pytest.raises(Failure, match="nothing to place"):
        ask(tmp_path, claim("data"), cluster=cluster)


def test_a_claim_that_is_there_counts_as_it_is(tmp_path):
    cluster = [storage_class(), claim("data", "pv"), volume("pv", RACK, "r1")]
    (answer,) = ask(tmp_path, claim("data"), job("train", 2, having("data")), cluster=cluster)
    assert {name[:2] for name in nodes_of(answer)} == {"r1"}


@pytest.mark.parametrize("mode", ["WaitForFirstConsumer", "Immediate"])
def test_ephemeral_volumes_of_pods_are_made_with_them(tmp_path, mode):
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "zonal"}}
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    pod = made("Pod", "p", {"containers": [container(1)], "volumes": volumes}, metadata={"annotations": REQUIRED})
    (answer,) = ask(tmp_path, pod, cluster=[storage_class(mode=mode)])
    assert {name[:2] for name in nodes_of(answer)} == {"r2" if mode == "WaitForFirstConsumer" else "r1"}


def test_the_pods_of_a_stateful_set_go_where_their_claims_are(tmp_path):
    cluster = [storage_class()]
    for number, host in enumerate(("r1h2", "r2h1")):
        cluster += [claim(f"data-db-{number}", f"pv-{number}"), volume(f"pv-{number}", HOST, host)]
    (answer,) = ask(tmp_path, stateful(2), cluster=cluster)
    assert nodes_of(answer) == {"r1h2": 1, "r2h1": 1}
    (answer,) = ask(tmp_path, stateful(2, request=REQUIRED), cluster=cluster, status=3)
    assert "no node is reached by all volumes of the pods" in answer["message"]


def test_the_claims_of_a_new_stateful_set_are_made_with_it(tmp_path):
    cluster = [storage_class(), *(csi_node(f"r2h{host}", 2) for host in (1, 2))]
    (answer,) = ask(tmp_path, stateful(4), cluster=cluster)
    assert nodes_of(answer) == {"r2h1": 2, "r2h2": 2}
    (answer,) = ask(tmp_path, stateful(5), cluster=cluster, status=3)
    assert "volumes of ebs" in answer["message"]


def test_a_claim_template_that_is_none_is_told(tmp_path):
    bad = stateful(1)
    bad["spec"]["volumeClaimTemplates"] = ["x"]
    with pytest.raises(Failure, match=r"volumeClaimTemplates\[0\]"):
        ask(tmp_path, bad)
