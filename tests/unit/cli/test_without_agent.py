"""Commands on clusters whose nodes no agent describes: they see what the controller sees."""

import json

import yaml
from support.published import nrt_body, nrt_zone
from support.snapshots import DOMAIN, FLAVOR, GPU, RACK, container, foreign, node
from typer.testing import CliRunner

from cli.main import app
from cli.simulate.cluster import recorded
from crds.constants import Keys
from engine.reasons import Reason
from simulator.model import Policy as How
from simulator.model import guaranteed
from simulator.site import Site


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
    cluster = recorded([dumped(tmp_path, node("r1h1", "r1"), *TWO_OF_THREE, report(1, 1))], Keys(), ())
    site = Site(cluster, How("topology"), 1)
    assert site.state.inside("r1h1").free == ((1,), (1,))
    assert site.kubelets.admit("r1h1", "pair", guaranteed({GPU: 2})) == "TopologyAffinityError"
    assert site.kubelets.admit("r1h1", "one", guaranteed({GPU: 1})) == ""


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
    assert "the largest of those that the node says are free has 2" in text
    assert place(tmp_path, job(2, **wish), host, foreign("a", "r1h1", 4))[0] == "Placed"
