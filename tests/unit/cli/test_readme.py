"""The README: short, its output is the command's own, its commands and links exist, and a test holds each promise."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from support.readme import BLOCKS, JOB, README
from support.snapshots import GPU, container
from typer.testing import CliRunner

from cli.main import app

ROOT = Path(__file__).parents[3]
EXPLAINED = next(text for _, text in BLOCKS if "explain train" in text)
LEVELS = {level: f"cloud-provider.com/topology-{level}" for level in ("block", "rack")}
HOST = "kubernetes.io/hostname"

OUTAGE = (
    "tests/integration/test_webhook_cluster.py::test_an_outage_touches_nothing_but_what_carries_a_request_or_a_queue"
)

# Begin of a promise -> the tests that hold it.
HELD_BY = {
    "A job that requires a level": (
        "tests/integration/test_ungater_jobs.py::test_required_lands_in_one_rack_and_the_workload_says_where",
        "tests/integration/test_ungater_jobs.py::test_what_cannot_fit_waits_says_why_and_starts_when_room_is_made",
        "tests/e2e/test_seen.py::test_why_one_waits_and_what_would_have_to_go",
    ),
    "A job that prefers a level": (
        "tests/integration/test_ungater_jobs.py::test_preferred_spills_over_as_few_racks_as_possible",
        "tests/unit/engine/placement/test_place.py::test_fragments_of_nodes_are_never_added_up",
    ),
    "If a node publishes": (
        "tests/e2e/test_numa_stream.py::test_with_topogate_no_kubelet_refuses",
        "tests/unit/engine/kubelet/test_admit_cases.py::test_from_full_state_zones_cpus_and_devices_are_the_kubelets",
        "tests/integration/test_ungater_numa.py::test_a_refused_pod_goes_elsewhere_and_people_are_told",
    ),
    "Quota and topology": (
        "tests/integration/test_preemption_cases.py::test_two_preemptors_at_once_take_one_victim_each",
        "tests/integration/test_evictions.py::test_a_budget_delays_and_says_so",
        "tests/unit/test_needless_victims.py::",
    ),
    "No pod is let go": (
        "tests/e2e/test_chaos_jobs.py::test_the_controller_the_api_server_etcd_and_nodes_die_while_jobs_are_placed",
        "tests/unit/test_witness.py::",
    ),
    "While the webhook is down": (
        OUTAGE,
        "tests/integration/test_policy.py::test_a_pod_with_a_request_and_no_gate_is_refused",
    ),
}


def flavor():
    names = dict(LEVELS)
    spec = {"topology": {"levels": [*LEVELS.values(), HOST], "names": names}}
    return {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "ResourceFlavor",
        "metadata": {"name": "local"},
        "spec": spec,
    }


def node(block, rack, host):
    name = f"b{block}-r{rack}-h{host}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {LEVELS["block"]: f"b{block}", LEVELS["rack"]: f"r{rack}", HOST: name},
        },
        "status": {
            "allocatable": {"cpu": "96", "memory": "768Gi", GPU: "8", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def bare(name, where):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": where, "containers": [container(8)]},
        "status": {"phase": "Running"},
    }


def cluster():
    """Block b1 is full; in each rack of b2 one of four hosts is in use."""
    nodes = [node(block, rack, host) for block in (1, 2) for rack in (1, 2) for host in (1, 2, 3, 4)]
    full = [one["metadata"]["name"] for one in nodes if one["metadata"]["name"].startswith("b1")]
    pods = [bare(f"llm-{at}", name) for at, name in enumerate(full)]
    return [flavor(), *nodes, *pods, bare("eval", "b2-r1-h2"), bare("notebook", "b2-r2-h1")]


def domains(text):
    """The table of domains, and what would have to be freed, without the names of holders."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [line for line in lines if re.match(r"b\d/r\d |DOMAIN|Closest|It would fit|Preemption|WOULD HAVE", line)]


def test_it_is_read_in_a_minute():
    assert len(README.splitlines()) <= 120


def test_what_explain_prints_is_what_the_engine_says_of_that_job_and_cluster(tmp_path):
    """`place` prints the same tables by the same code, from objects in a file."""
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all(cluster()))
    command = ["place", "-f", "-", "--dry-run", "--cluster", str(path)]
    done = CliRunner().invoke(app, command, input=JOB)
    assert done.exit_code == 3, done.output
    assert domains(done.stdout) == domains(EXPLAINED)
    sentence = re.search(r"^Waiting  (.*)$", EXPLAINED, re.MULTILINE)[1]
    assert sentence in " ".join(done.stdout.split())


def commands():
    for _, text in BLOCKS:
        for line in text.splitlines():
            words = shlex.split(line.removeprefix("$ ").removeprefix("kubectl "), comments=True)
            if words[:1] == ["topogate"]:
                yield words[1:]
    for words in re.findall(r"`topogate ([^`]+)`", README):
        yield words.split()


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_commands_and_their_options_exist(words):
    told = CliRunner().invoke(app, [words[0], "--help"], terminal_width=200)
    assert told.exit_code == 0, told.output
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", told.stdout))
    assert {word for word in words if word.startswith("-")} <= known


def anchor(heading):
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_links_lead_to_files_and_headings():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        path, _, heading = target.partition("#")
        if "://" not in target:
            text = (ROOT / path).read_text() if path.endswith(".md") else ""
            headings = {anchor(one) for one in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
            assert (ROOT / path).exists(), target
            assert not heading or heading in headings, target


def test_what_make_is_asked_for_is_there():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake (\w+)", README)) <= targets


def test_every_promise_is_held_by_tests_that_are_there():
    promises = re.findall(r"^- (.*)$", README.split("## What it promises")[1].split("\n## ")[0], re.MULTILINE)
    held = {promise: [one for one in HELD_BY if promise.startswith(one)] for promise in promises}
    assert all(len(found) == 1 for found in held.values()), held
    assert len(held) == len(HELD_BY)
    for file, _, name in (test.partition("::") for tests in HELD_BY.values() for test in tests):
        assert f"def {name}" in (ROOT / file).read_text(), f"{file}::{name}"
