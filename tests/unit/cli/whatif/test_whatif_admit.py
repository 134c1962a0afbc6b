"""``topogate whatif admit``: the forms it reads and writes, and what it says about input that is wrong."""

import gzip
import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cli.whatif.admit import Agreement, PredictionSource, answer, decode_admit
from cli.whatif.command import app

VECTORS = Path(__file__).parents[3] / "data" / "numa.jsonl.gz"
GIB = 1 << 30


def zone(at, **fields):
    cores = [[4 * at + cpu] for cpu in range(4)]
    return {"id": at, "socket": at, "cores": cores, "memory_bytes": 16 * GIB, "distances": [10, 20], **fields}


def pod(*containers, qos="Guaranteed", **fields):
    made = [{"name": f"c{at}", "requests": some, "limits": some} for at, some in enumerate(containers)]
    return {"name": "p", "qos": qos, "containers": made, **fields}


def case(wanted=None, *, policy="single-numa-node", drop=(), **fields):
    made = {
        "id": "c",
        "machine": {"numa": [zone(0), zone(1)], "sockets": 2, "threads_per_core": 1, "devices": {}},
        "kubelet": {"topology_manager_policy": policy, "cpu_manager_policy": "static"},
        "state": {"free_cpus": "0-2,4-7"},
        "pod": wanted or pod({"cpu": "4", "memory": "1Gi"}),
    } | fields
    return {key: value for key, value in made.items() if key not in drop}


def nrt(policy="single-numa-node", **amounts):
    cpu = {"capacity": 4, "allocatable": 4, "available": 4} | amounts
    zones = [{"name": f"node-{at}", "type": "Node", "resources": {"cpu": dict(cpu)}} for at in range(2)]
    return {"attributes": {"topologyManagerPolicy": policy, "topologyManagerScope": "container"}, "zones": zones}


def run(*cases, args=("-",)):
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in cases)
    result = CliRunner().invoke(app, ["admit", *args], input=text)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answers(*cases, args=("-",)):
    return [json.loads(line) for line in run(*cases, args=args).stdout.splitlines()]


def test_an_answer_has_exactly_the_documented_fields():
    (given,) = answers(case())
    step = {"container": "c0", "merged": [1], "preferred": True, "admit": True}
    assert given == {"id": "c", "admitted": True, "reason": "", "steps": [step], "numa_nodes": [1], "from": "state"}


def test_a_refusal_has_a_message_too():
    (given,) = answers(case(pod({"cpu": "5", "memory": "1Gi"})))
    step = {"container": "c0", "merged": None, "preferred": False, "admit": False}
    assert given == {
        "id": "c",
        "admitted": False,
        "reason": "TopologyAffinityError",
        "message": "Resources cannot be allocated with Topology locality",
        "steps": [step],
        "numa_nodes": [],
        "from": "state",
    }


def test_from_nrt_looks_at_nothing_but_nrt():
    (given,) = answers(case(nrt=nrt(available=1)), args=("-", "--from", "nrt"))
    assert (given["admitted"], given["from"]) == (False, "nrt")
    (given,) = answers(case(nrt=nrt(), drop=("machine", "kubelet", "state")), args=("-", "--from", "nrt"))
    assert (given["admitted"], given["numa_nodes"]) == (True, [0])


def test_from_nrt_knows_whole_cores_only_where_options_are_given():
    kubelet = {"cpu_manager_policy": "static", "cpu_manager_policy_options": {"full-pcpus-only": "true"}}
    machine = {"numa": [zone(0), zone(1)], "threads_per_core": 2}
    odd = case(pod({"cpu": "3", "memory": "1Gi"}), nrt=nrt(), kubelet=kubelet, machine=machine)
    (given,) = answers(odd, args=("-", "--from", "nrt"))
    assert given["admitted"] is True
    (given,) = answers(odd, args=("-", "--from", "nrt", "--with-options"))
    assert given["reason"] == "SMTAlignmentError"


def test_the_pods_own_wish_is_read():
    floating = pod({"cpu": "5", "memory": "1Gi"}, wish="single-numa-node", wish_resources=["cpu"])
    (given,) = answers(case(floating, policy="best-effort"))
    assert given["reason"] == "NumaPolicy"
    assert "one NUMA zone" in given["message"]


def test_a_merge_that_takes_the_kubelet_minutes_is_warned_about():
    zones = [zone(at, distances=[]) for at in range(8)]
    devices = {
        name: [{"id": f"{name}{at}", "numa": [at]} for at in range(8)] for name in ("a.com/gpu", "b.com/nic", "c.com/x")
    }
    wanted = {"cpu": "1", "memory": "1Gi"} | dict.fromkeys(devices, "1")
    slow = case(
        pod(wanted), policy="best-effort", machine={"numa": zones, "devices": devices}, state={"free_cpus": "0-31"}
    )
    (given,) = answers(slow)
    assert "4228250625 combinations" in given["warning"]
    (given,) = answers(slow | {"kubelet": slow["kubelet"] | {"topology_manager_policy": "single-numa-node"}})
    assert "warning" not in given


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (case(drop=("state",)), "--from nrt"),
        (case(drop=("pod",)), "missing required field `pod`"),
        (case(pod({"cpu": "many", "memory": "1Gi"})), "cpu"),
        (case(state={"free_cpus": "0-"}), "expected CPUs such as 0-3,8"),
        (case(machine={"numa": [zone(0)], "devices": {"x.com/d": [{"id": "d", "numa": [7]}]}}), "no NUMA zone 7"),
        (case(machine={"numa": []}), "machine.numa"),
        (case(machine={"numa": [zone(0), zone(0)]}), "more than once"),
        (case(kubelet={"topology_manager_policy": "strict"}), "Invalid enum value 'strict'"),
        (case(kubelet={"version": "new"}), "version"),
        (case(extra=1), "unknown field `extra`"),
        ('{"id": "c", \n', "line 1, case 'c'"),
    ],
)
def test_a_wrong_line_is_answered_with_its_error_and_stops_no_other(line, error):
    result = run(line, case() | {"id": "good"})
    first, last = (json.loads(text) for text in result.stdout.splitlines())
    assert result.exit_code == 1
    assert first["id"] == "c"
    assert error in first["error"]
    assert last["admitted"] is True


def test_other_formats_have_the_same_fields():
    lines = answers(case(), case(pod({"cpu": "5", "memory": "1Gi"})))
    texts = [
        run(case(), case(pod({"cpu": "5", "memory": "1Gi"})), args=("-", "-o", form)).stdout
        for form in ("json", "yaml")
    ]
    assert json.loads(texts[0]) == lines
    assert yaml.safe_load(texts[1]) == lines
    table = run(case(), case(pod({"cpu": "5", "memory": "1Gi"})), "{}\n", args=("-", "-o", "table")).stdout
    assert "TopologyAffinityError" in table
    assert "error" in table


def test_a_file_may_be_gzip(tmp_path):
    path = tmp_path / "cases.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(case()).encode()))
    assert answers(args=(str(path),))[0]["admitted"] is True


def test_compare_shows_what_agrees_and_what_does_not():
    right = case(expected={"admitted": True, "numa_nodes": [1], "steps": answers(case())[0]["steps"]})
    wrong = case(expected={"admitted": False, "reason": "SMTAlignmentError"}, tags=["node-level-overcommit"])
    shown = run(right, wrong, args=("-", "-o", "table", "--compare")).stdout
    assert "verdict                          │     1 │  2 │  50.0" in shown
    assert "verdict, where the node has room │     1 │  1 │ 100.0" in shown
    assert "SMTAlignmentError" in shown
    assert "Nothing to compare" in run(case(), args=("-", "--compare")).stderr


def test_the_recorded_cases_all_agree():
    agreement = Agreement()
    with gzip.open(VECTORS, "rb") as lines:
        for _, line in zip(range(100), lines, strict=False):
            one = decode_admit(line, PredictionSource.STATE)
            agreement.add(one, answer(one, PredictionSource.STATE))
    assert {same == every for same, every in agreement.rows.values()} == {True}
    assert agreement.rows["verdict"] == [100, 100]


GPU, XPU = "nvidia.com/gpu", "kunlunxin.com/xpu"
PAIRS = [["X" if a == b else "NV12" if a // 2 == b // 2 else "SYS" for b in range(4)] for a in range(4)]


def with_devices(resource, count, wanted, *, free=None, link="", policy="none", **fields):
    devices = [{"id": f"d{at}", "numa": [at * 2 // count]} for at in range(count)]
    free = range(count) if free is None else free
    return case(
        pod({resource: wanted}, qos="Burstable", gpu_link=link),
        policy=policy,
        machine={"numa": [zone(0), zone(1)], "devices": {resource: devices}},
        state={"free_devices": {resource: [f"d{at}" for at in free]}},
        **fields,
    )


def test_linked_devices_are_chosen_and_named():
    (given,) = answers(with_devices(GPU, 4, 2, free=[1, 2, 3], links={GPU: PAIRS}))
    assert given["devices"] == {GPU: ["d2", "d3"]}
    (given,) = answers(with_devices(GPU, 4, 2, free=[1, 2], link="require", links={GPU: PAIRS}))
    assert (given["admitted"], given["reason"]) == (False, "GpuLink")
    assert given["message"] == "needs 2 of nvidia.com/gpu in one NVLink clique, and the largest free one has 1"
    (given,) = answers(with_devices(GPU, 4, 2, free=[1, 2]))
    assert "devices" not in given


def test_links_as_nvidia_smi_prints_them():
    rows = ["\t".join([f"GPU{a}", *PAIRS[a], "0-3", str(a // 2)]) for a in range(4)]
    text = "\n".join(["\t" + "\t".join(f"GPU{a}" for a in range(4)) + "\tCPU Affinity\tNUMA Affinity", *rows])
    (given,) = answers(with_devices(GPU, 4, 2, free=[0, 2, 3], link="prefer", links={GPU: text}))
    assert given["devices"] == {GPU: ["d2", "d3"]}
    zones = [
        {"name": f"node-{at}", "resources": {GPU: {"capacity": 2, "allocatable": 2, "available": 2}}} for at in (0, 1)
    ]
    for policy, admitted in (("single-numa-node", True), ("none", True)):
        by_nrt = {"attributes": {"topologyManagerPolicy": policy}, "zones": zones}
        line = {
            "id": "n",
            "pod": pod({GPU: 2}, qos="Burstable", gpu_link="require"),
            "nrt": by_nrt,
            "links": {GPU: text},
        }
        (given,) = answers(line, args=("-", "--from", "nrt"))
        assert given["admitted"] is admitted
    zones[1]["resources"][GPU]["available"] = 1
    (given,) = answers(line, args=("-", "--from", "nrt"))
    assert given["reason"] == "GpuLink"


def test_xpus_follow_their_rules():
    (given,) = answers(with_devices(XPU, 8, 2, free=[1, 2, 3, 5, 6, 7]))
    assert given["devices"] == {XPU: ["d1", "d2"]}
    (given,) = answers(with_devices(XPU, 8, 3))
    assert given["reason"] == "XpuAllocation"


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ({"rdma/nic": PAIRS}, "links: the machine has no rdma/nic"),
        ({GPU: [["X"]]}, "links: nvidia.com/gpu: a matrix of 1 devices, the machine has 4"),
        ({GPU: [["X", "FAST"], ["FAST", "X"]]}, "links: nvidia.com/gpu: devices 0 and 1: 'FAST' is not a link"),
    ],
)
def test_links_that_are_none_are_named(links, said):
    (given,) = answers(with_devices(GPU, 4, 2, links=links))
    assert said in given["error"]
