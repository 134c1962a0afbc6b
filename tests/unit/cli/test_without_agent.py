"""Commands on clusters whose nodes no agent describes: they see what the controller sees."""

import json

import yaml
from support.published import nrt_body, nrt_zone
from support.snapshots import DOMAIN, FLAVOR, GPU, RACK, container, foreign, node
from typer.testing import CliRunner

from cli.main import app
from cli.simulate.cluster import recorded
from cli.simulate.known import known
from crds.constants import Keys
from crds.device_annotations import XPU_RESOURCE as XPU
from engine.reasons import Reason
from simulator.model import SchedulingPolicy as How
from simulator.model import guaranteed
from simulator.world.site import Site


def job(gpus, pods=1, **annotations):
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "team", "annotations": {f"{DOMAIN}/podset-required-topology": RACK}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "containers": [container(gpus)]},
            },
        },
    }


def dumped(tmp_path, *items):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [FLAVOR, *items]}))
    return str(path)


def place(tmp_path, manifest, *items):
    """(state, everything that is said) of a job in a cluster of these objects."""
    command = ["place", "-f", "-", "--dry-run", "--cluster", dumped(tmp_path, *items), "-o", "json"]
    result = CliRunner().invoke(app, command, input=yaml.safe_dump(manifest))
    (answer,) = json.loads(result.stdout)
    return answer["state"], json.dumps(answer)


def report(*available):
    zones = [nrt_zone(at, {GPU: (4, 4, left)}) for at, left in enumerate(available)]
    return nrt_body(zones, name="r1h1", policy="single-numa-node")


TWO_OF_THREE = (foreign("a", "r1h1", 3), foreign("b", "r1h1", 3))


def test_pods_without_a_record_count_as_the_report_says(tmp_path):
    items = [node("r1h1", "r1"), *TWO_OF_THREE]
    state, text = place(tmp_path, job(2), *items, report(1, 1))
    assert state == "Waits"
    assert Reason.NUMA_ALIGNMENT in text
    assert place(tmp_path, job(1, pods=2), *items, report(1, 1))[0] == "Placed"


def test_a_simulation_of_a_recorded_cluster_starts_with_what_they_hold(tmp_path):
    cluster = recorded(known([dumped(tmp_path, node("r1h1", "r1"), *TWO_OF_THREE, report(1, 1))], Keys()), ())
    site = Site(cluster, How("topology"), 1)
    assert site.state.state_inside("r1h1").free == ((1,), (1,))
    assert site.kubelets.admit_arrival("r1h1", "pair", guaranteed({GPU: 2})) == "TopologyAffinityError"
    assert site.kubelets.admit_arrival("r1h1", "one", guaranteed({GPU: 1})) == ""


def test_gpu_states_say_which_gpus_are_free(tmp_path):
    quads = [[int(one != other and one // 4 == other // 4) for other in range(8)] for one in range(8)]
    states = ["free" if gpu in {0, 1, 4, 5} else "allocated" for gpu in range(8)]
    host = node("r1h1", "r1")
    host["metadata"]["annotations"] = {
        "gpu-topology.acme.com/nvlink-matrix": json.dumps(quads),
        "gpu-topology.acme.com/gpu-states": json.dumps(states),
    }
    wish = {"topogate.dev/gpu-link": "require"}
    state, text = place(tmp_path, job(4, **wish), host, foreign("a", "r1h1", 4))
    assert state == "Waits"
    assert "the largest one that the node reports as free has 2" in text
    assert place(tmp_path, job(2, **wish), host, foreign("a", "r1h1", 4))[0] == "Placed"


def test_sizes_of_xpus_hold_on_nodes_that_report_nothing_else(tmp_path):
    host = node("r1h1", "r1")
    host["status"]["allocatable"][XPU] = "8"

    def asking(cards):
        manifest = job(0)
        manifest["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {XPU: str(cards)}}
        return place(tmp_path, manifest, host)

    state, text = asking(3)
    assert state == "Waits"
    assert f"XpuAllocation: asks for 3 of {XPU}, but only 1, 2, 4 or 8 can be given" in text
    assert asking(4)[0] == "Placed"


def test_so_they_do_in_a_described_cluster(tmp_path):
    def fits(cards):
        host = {"name": "n1", "labels": {RACK: "r1"}, "allocatable": {XPU: 8, "pods": 9}}
        case = {
            "id": "cards",
            "levels": [RACK],
            "nodes": [host],
            "request": {"mode": "required", "level": RACK, "count": 1, "perPod": {XPU: cards}},
        }
        (tmp_path / "case.jsonl").write_text(json.dumps(case))
        return json.loads(CliRunner().invoke(app, ["whatif", "place", str(tmp_path / "case.jsonl")]).stdout)

    assert fits(4)["fits"] is True
    assert (fits(6)["fits"], fits(6)["reason"]) == (False, Reason.NEVER_FITS)
