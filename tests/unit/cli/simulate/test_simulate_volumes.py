"""Jobs of manifests with volumes, in simulated time: their pods go where the controller lets pods with such go."""

import json

import pytest
import yaml
from support.snapshots import DOMAIN, FLAVOR, GPU, RACK, node

from cli.simulate.cluster import recorded
from cli.simulate.job_files import read_job_files
from cli.simulate.jobs import jobs_in
from cli.simulate.known import known
from crds.constants import Keys
from simulator.model import Placing, SchedulingPolicy
from simulator.results import End
from simulator.run import Simulation

OURS = SchedulingPolicy("topology")
NODES = [node(f"r{rack}h{host}", f"r{rack}") for rack in (1, 2) for host in (1, 2)]
BOUND = {"pv.kubernetes.io/bind-completed": "yes"}


def made(kind, name, spec, api="v1", **meta):
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **meta}, "spec": spec}


def claim(name, volume="", storage_class="zonal"):
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    spec |= {"volumeName": volume} if volume else {}
    return made("PersistentVolumeClaim", name, spec, annotations=BOUND if volume else {})


def volume(name, rack):
    terms = [{"matchExpressions": [{"key": RACK, "operator": "In", "values": [rack]}]}]
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}, "csi": {"driver": "ebs", "volumeHandle": name}}
    return made("PersistentVolume", name, spec)


def storage_class(rack, mode="WaitForFirstConsumer"):
    allowed = [{"matchLabelExpressions": [{"key": RACK, "values": [rack]}]}]
    body = {"provisioner": "ebs", "volumeBindingMode": mode, "allowedTopologies": allowed}
    return made("StorageClass", "zonal", {}, "storage.k8s.io/v1") | body


def csi_node(name, count):
    spec = {"drivers": [{"name": "ebs", "nodeID": name, "allocatable": {"count": count}}]}
    return made("CSINode", name, spec, "storage.k8s.io/v1")


def job(name, *claims, arrival=0, pods=1, level=None, gpus=8):
    volumes = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims]
    container = {"name": "main", "resources": {"limits": {"cpu": "8", GPU: str(gpus)}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes}}
    asked = {f"{DOMAIN}/podset-required-topology": level} if level else {}
    meta = {"name": name, "annotations": {"topogate.dev/arrival-seconds": str(arrival), **asked}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {"parallelism": pods} | {"template": template},
    }


def simulated(tmp_path, *objects, policy=OURS, more=()):
    """What became of the jobs, and on which nodes each ran. ``more``: what the cluster has beside its nodes."""
    items = [FLAVOR, *NODES, *more]
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    jobs = str(tmp_path / "jobs.yaml")
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump_all(objects))
    read = known([str(tmp_path / "cluster.json")], Keys(), read_job_files([jobs]))
    place = recorded(read, ())
    ran = {}

    def watch(step):
        for track in step.tracks.values():
            if track.where is not None:
                ran.setdefault(track.job.name, sorted(node for _, _, node in track.where.pods))

    outcomes = (
        Simulation(place, jobs_in(read_job_files([jobs]), place, read, duration=100), policy).run(watch=watch).outcomes
    )
    return {one.name: one for one in outcomes}, ran


@pytest.mark.parametrize("policy", [OURS, SchedulingPolicy("count", Placing.SPREAD)])
def test_pods_go_where_their_bound_volume_is(tmp_path, policy):
    facts = [storage_class("r1"), volume("disk", "r2"), claim("data", "disk")]
    jobs = [job("three", "data", pods=3), job("two", "data", pods=2), job("more", "data", arrival=1)]
    found, ran = simulated(tmp_path, *facts, *jobs, policy=policy)
    assert (found["three"].end, found["three"].reason.partition(":")[0]) == (End.WAITING, "NeverFits")
    assert ran["two"] == ["r2h1", "r2h2"]
    assert ran["more"][0] in ran["two"]
    assert (found["two"].wait, found["more"].wait) == (0, 99)


def test_pods_go_where_the_class_of_an_unbound_claim_lets_volumes_be_made(tmp_path):
    found, ran = simulated(
        tmp_path, storage_class("r2"), claim("data"), job("two", "data", pods=2), job("free", pods=2)
    )
    assert ran == {"two": ["r2h1", "r2h2"], "free": ["r1h1", "r1h2"]}
    assert {one.wait for one in found.values()} == {0}


def test_who_has_a_claim_that_is_not_ready_waits_with_its_reason(tmp_path):
    jobs = [job("none", "nowhere"), job("unbound", "data"), job("plain")]
    found, _ = simulated(tmp_path, storage_class("r1", "Immediate"), claim("data"), *jobs)
    assert {name: one.end for name, one in found.items()} == {
        "none": End.WAITING,
        "unbound": End.WAITING,
        "plain": End.FINISHED,
    }
    assert found["none"].reason.startswith('VolumeNotReady: it waits for its volumes: persistentvolumeclaim "nowhere"')
    assert found["unbound"].reason.startswith('VolumeNotReady: it waits for its volumes: persistentvolumeclaim "data"')


def test_nodes_attach_no_more_volumes_than_they_say(tmp_path):
    """One each, of two nodes that their volumes reach: the third job waits for the first to end."""
    names = [f"data-{number}" for number in range(3)]
    facts = [storage_class("r1"), *(volume(name, "r1") for name in names), *(claim(name, name) for name in names)]
    jobs = [job(f"job-{at}", name, arrival=at, gpus=1) for at, name in enumerate(names)]
    limits = [csi_node("r1h1", 1), csi_node("r1h2", 1)]
    found, ran = simulated(tmp_path, *facts, *jobs, more=limits)
    assert {name: one.wait for name, one in found.items()} == {"job-0": 0, "job-1": 0, "job-2": 98}
    assert sorted(ran["job-0"] + ran["job-1"]) == ["r1h1", "r1h2"]
