"""`topogate simulate run`: a small run as it was when somebody looked at it, what it writes, and its options."""

import csv
import json
import re
import sys

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.output import Failure

SMALL = ("--blocks", "1", "--racks", "2", "--hosts", "2")
TRACE = """name,arrival,duration,pods,requests,topology,priority
half,0,3600,1,cpu=40;memory=300Gi;nvidia.com/gpu=4,,0
other,0,3600,1,cpu=40;memory=300Gi;nvidia.com/gpu=4,,0
gang,60,1800,2,cpu=80;memory=600Gi;nvidia.com/gpu=8,required=rack,0
late,120,600,2,cpu=80;memory=600Gi;nvidia.com/gpu=8,required=rack,9
"""


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return str(path)


def run(*args):
    result = CliRunner().invoke(app, ["simulate", *args])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def summaries(*args):
    return {one["policy"]: one for one in json.loads(run("run", *args, "-o", "json"))}


def test_a_small_run_is_what_it_was(trace):
    """Ours keeps both halves on one node, so that a rack stays whole; the other spreads them over both racks or not."""
    found = summaries(*SMALL, "-j", trace, "-p", "topology,count-only,topology+preemption")
    ours, theirs, preempting = (found[name] for name in ("topology", "count-only", "topology+preemption"))
    assert (ours["jobs"], ours["finished"], ours["wishing"], ours["aligned"]) == (4, 4, 2, 2)
    # gang gets the whole rack at 60 and ends at 1860; late waits for it.
    assert ours["wait"] == pytest.approx(
        {"jobs": 4, "mean": 435.0, "median": 0.0, "p90": 1218.0, "p99": 1687.8, "longest": 1740.0}
    )
    assert (ours["evictions"], ours["makespan"], ours["refusals"]) == (0, 3600, 0)
    assert ours["utilisation"] == pytest.approx((8 * 60 + 24 * 60) / (32 * 120))
    assert (preempting["evictions"], preempting["wait"]["longest"]) == (1, 30)
    assert theirs["finished"] == 4
    assert [level["level"].rpartition("/")[2] for level in ours["levels"]] == [
        "topology-block",
        "topology-rack",
        "hostname",
    ]


def test_jobs_that_all_arrive_at_once_are_measured_while_they_run(tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("arrival,duration,pods,gpus\n0,2h,2,8\n")
    found = summaries(*SMALL, "-j", file, "-p", "topology")["topology"]
    assert (found["window"], found["utilisation"]) == (7200.0, 0.5)
    assert re.search(r"measured over the first +2\.00 h", run("run", *SMALL, "-j", file, "-p", "topology"))
    cut = summaries(*SMALL, "-j", file, "-p", "topology", "--until", "1h")["topology"]
    assert (cut["window"], cut["utilisation"]) == (3600.0, 0.5)


def test_where_no_job_ran_no_share_is_made_up(tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("arrival,duration,pods,gpus\n0,2h,2,800\n")
    shown = run("run", *SMALL, "-j", file, "-p", "topology")
    assert re.search(r"nvidia.com/gpu used +-\n +by work that counted +-\n", re.sub(" +\n", "\n", shown))


def test_the_same_call_prints_the_same(trace):
    args = ("run", *SMALL, "--jobs", "60", "--span", "2d", "--load", "1.2", "-o", "json")
    assert run(*args) == run(*args)
    assert run(*args, "--seed", "2") != run(*args)


def test_csv_of_jobs_and_series(trace, tmp_path):
    run("run", *SMALL, "-j", trace, "-p", "topology", "--out", str(tmp_path / "out"))
    with (tmp_path / "out" / "jobs-topology.csv").open() as stream:
        jobs = {row["name"]: row for row in csv.DictReader(stream)}
    assert jobs["late"] | {"queue": ""} == {
        "name": "late",
        "arrival": "120",
        "duration": "600",
        "pods": "2",
        "amount": "16",
        "priority": "9",
        "queue": "",
        "topology": "required=cloud-provider.com/topology-rack",
        "end": "Finished",
        "started": "1860",
        "finished": "2460",
        "wait": "1740",
        "starts": "1",
        "evictions": "0",
        "lost": "0",
        "refusals": "0",
        "crossing": "0",
        "avoidable": "0",
        "kept": "0",
        "aligned": "True",
        "domains:cloud-provider.com/topology-block": "1",
        "domains:cloud-provider.com/topology-rack": "1",
        "domains:kubernetes.io/hostname": "2",
        "reason": "",
    }
    with (tmp_path / "out" / "series-topology.csv").open() as stream:
        series = list(csv.DictReader(stream))
    assert [(row["time"], row["used"]) for row in series if row["time"] in {"0", "60", "1860", "3600"}] == [
        ("0", "8"),
        ("60", "24"),
        ("1860", "24"),
        ("3600", "0"),
    ]
    rack = "cloud-provider.com/topology-rack"
    assert [(row[f"whole:{rack}"], row[f"largest:{rack}"], row[f"stranded:{rack}"]) for row in series[:2]] == [
        ("1", "16", "0.3333"),
        ("0", "8", "1.0000"),
    ]


MOVED = """name,arrival,duration,pods,requests,topology
first,0,100,2,nvidia.com/gpu=8,required=rack
second,0,90000,2,nvidia.com/gpu=8,required=rack
gang,1,10000,2,nvidia.com/gpu=8,preferred=rack
"""


@pytest.mark.parametrize(("limit", "moves"), [((), 1), (("--moves-per-hour", "0"), 0)])
def test_moves_are_counted_where_the_policy_moves_anybody_and_nowhere_else(tmp_path, limit, moves):
    (tmp_path / "trace.csv").write_text(MOVED)
    cluster = ("--blocks", "1", "--racks", "2", "--hosts", "3", *limit)
    out = ("--checkpoint", "10m", "--out", str(tmp_path))
    found = summaries(*cluster, "-j", str(tmp_path / "trace.csv"), "-p", "topology,topology+moves", *out)
    assert "moves" not in found["topology"]
    assert found["topology+moves"]["moves"] == moves
    rows = {name: list(csv.DictReader((tmp_path / f"jobs-{name}.csv").read_text().splitlines())) for name in found}
    assert "moves" not in rows["topology"][0]
    assert [row["moves"] for row in rows["topology+moves"]] == ["0", "0", str(moves)]


def test_a_generated_trace_simulates_as_the_jobs_themselves(tmp_path):
    small = (*SMALL, "--span", "1d")
    path = tmp_path / "made.csv"
    run("generate", "--jobs", "30", *small, "-o", str(path))
    assert summaries(*small, "-j", str(path)) == summaries(*small, "--jobs", "30")


def test_queues_share_the_cluster(tmp_path):
    found = summaries(*SMALL, "--jobs", "40", "--span", "1d", "--queues", "3", "-p", "topology+fair,topology+strict")
    assert [one["finished"] for one in found.values()] == [40, 40]


def test_pictures_are_drawn_and_equal_input_draws_equal_ones(trace, tmp_path):
    args = ("run", *SMALL, "-j", trace, "-p", "topology")
    for folder in ("a", "b"):
        run(*args, "--pictures", str(tmp_path / folder), "--picture-format", "svg")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["compared.svg", "servers-topology.svg"]
    for name in names:
        text = (tmp_path / "a" / name).read_text()
        assert text.startswith("<?xml")
        assert text == (tmp_path / "b" / name).read_text()
    run(*args, "--pictures", str(tmp_path / "c"), "--picture-format", "png")
    assert (tmp_path / "c" / "compared.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_without_matplotlib(trace, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Failure, match=r"pip install 'topogate\[pictures\]'"):
        run("run", *SMALL, "-j", trace, "--pictures", str(tmp_path))
    assert "topology" in run("run", *SMALL, "-j", trace)


def test_the_table(trace):
    shown = run("run", *SMALL, "-j", trace)
    assert "in one domain of the level they wish" in shown
    assert "2 of 2 (100%)" in shown
    assert "most that is free in one topology-rack, on average" in shown


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--policy", "best"), "expected one of topology, count-only, count-only-pack"),
        (("--span", "soon"), "--span: 'soon'"),
        (("--until", "x"), "--until"),
        (("--machine", "2 elephants"), "--machine"),
        (("-f", "/nowhere.yaml"), "cannot read"),
        (("--cpu", "1", "--memory", "1Gi"), "too small"),
        (("--jobs", "0"), "--jobs"),
    ],
)
def test_options_that_make_no_sense(args, says):
    with pytest.raises(Failure) as failure:
        run("run", *SMALL, *(() if "--jobs" in args else ("--jobs", "5")), *args)
    assert says in str(failure.value)


QUEUES = """
apiVersion: topogate.dev/v1alpha1
kind: ResourceFlavor
metadata: {name: tas}
spec: {topology: {levels: [example.com/rack, kubernetes.io/hostname]}}
---
apiVersion: topogate.dev/v1alpha1
kind: ClusterQueue
metadata: {name: gpu}
spec:
  queueingStrategy: StrictFIFO
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory, nvidia.com/gpu]
    flavors:
    - name: tas
      resources:
      - {name: cpu, nominalQuota: "1000"}
      - {name: memory, nominalQuota: 10Ti}
      - {name: nvidia.com/gpu, nominalQuota: "8"}
---
apiVersion: topogate.dev/v1alpha1
kind: LocalQueue
metadata: {name: team-a, namespace: default}
spec: {clusterQueue: gpu}
"""
NODE = """
---
apiVersion: v1
kind: Node
metadata: {name: %(name)s, labels: {example.com/rack: %(rack)s, kubernetes.io/hostname: %(name)s}}
status:
  allocatable: {cpu: "96", memory: 768Gi, nvidia.com/gpu: "8", pods: "110"}
  conditions: [{type: Ready, status: "True"}]
"""


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "cluster.yaml"
    nodes = [NODE % {"name": f"r{rack}h{host}", "rack": f"r{rack}"} for rack in (1, 2) for host in (1, 2)]
    path.write_text(QUEUES + "".join(nodes))
    return str(path)


def test_queues_and_quota_of_a_recorded_cluster(recorded, tmp_path):
    """Four nodes, but quota for one: the second waits for the first, and who names no queue waits for ever."""
    path = tmp_path / "t.csv"
    path.write_text("arrival,duration,pods,gpu,queue\n0,60,1,8,team-a\n0,60,1,8,team-a\n0,60,1,8,\n")
    found = summaries("-f", recorded, "-j", str(path), "-p", "topology")["topology"]
    assert (found["finished"], found["stuck"], found["wait"]["longest"]) == (2, {"NoQueue": 1}, 60)
    assert "waiting: NoQueue" in run("run", "-f", recorded, "-j", str(path))


def test_generated_jobs_for_a_recorded_cluster(recorded):
    found = summaries("-f", recorded, "--jobs", "20", "--span", "1d", "--load", "0.2", "-p", "topology")["topology"]
    assert found["jobs"] == 20
    assert found["finished"] + sum(found["stuck"].values()) == 20
    with pytest.raises(Failure, match="--queues: a recorded cluster has its own"):
        run("run", "-f", recorded, "--queues", "2")
