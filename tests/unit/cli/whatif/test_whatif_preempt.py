"""``topogate whatif preempt``: decisions with known best answers, the form, and input that is wrong."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.whatif.command import app

VECTORS = Path(__file__).parents[3] / "data" / "preemption.json.gz"


def run(text="", args=("-",)):
    result = CliRunner().invoke(app, ["preempt", *args], input=text)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answers(document, *args):
    return [json.loads(line) for line in run(json.dumps(document), ["-", *args]).stdout.splitlines()]


def scenario(*instances, **fields):
    """Two servers of 2 zones, one a socket, 2 GPUs and 4 CPUs each; a pod of 2 GPUs wants in."""
    return {
        "node": {
            "count": 2,
            "numa_cores": [[0, 3], [4, 7]],
            "numa_to_socket": [0, 1],
            "gpu_to_numa": [0, 0, 1, 1],
            "allocatable": {"cpu": "8", "nvidia.com/gpu": 4, "pods": 10},
        },
        "classes": {
            "low": {"priority": 1, "gpus": 1, "cpu": 1, "preemptible": True},
            "high": {"priority": 9, "gpus": 2, "cpu": 2, "preemptible": False},
        },
        "preemptors": {"P": {"priority": 9, "gpus": 2, "cpu": 2, "qos": "guaranteed"}},
        "variants": {"v": [{"cycle": 0, "instances": list(instances)}]},
    } | fields


def full(node=0):
    return [[f"L{node}{gpu}", "low", node, "low", gpu, [gpu]] for gpu in range(4)]


def facts():
    with gzip.open(VECTORS) as stream:
        document = json.load(stream)
    for variant, found in document["variants"].items():
        for cluster in found:
            for name in document["preemptors"]:
                yield (variant, cluster["cycle"], name), cluster["facts"][name], cluster["instances"]


def test_every_decision_equals_the_best_of_brute_force():
    found = [json.loads(line) for line in run(args=[str(VECTORS)]).stdout.splitlines()]
    assert len(found) == 32
    for given, (key, known, instances) in zip(found, facts(), strict=True):
        assert (given["variant"], given["cycle"], given["preemptor"]) == key
        assert [given["max_priority"], given["priority_sum"], given["count"]] == known["best_lex_max_sum_count"]
        assert given["node"] in known["nodes_at_best_lex"]
        assert given["hit"]
        assert len({gpu // 4 for gpu in given["gpus"]}) == 1
        held = {
            gpu for one in instances if one[2] == given["node"] and one[0] not in given["victims"] for gpu in one[5]
        }
        assert not held.intersection(given["gpus"])


def test_by_the_paper_the_fewest_victims_everywhere():
    found = [
        json.loads(line) for line in run(args=[str(VECTORS), "--strategy", "IncrementalMinimal"]).stdout.splitlines()
    ]
    for given, (_, known, _) in zip(found, facts(), strict=True):
        assert given["count"] == known["cluster_min_victims"]
        assert given["hit"]


def test_the_comparison_counts():
    result = run(args=[str(VECTORS), "-o", "table", "--compare"])
    assert "32 │ 32" in result.stdout


def test_an_answer_has_exactly_the_documented_fields():
    (given,) = answers(scenario(*full(0), *full(1)))
    assert given.pop("micros") > 0
    assert given == {
        "variant": "v",
        "cycle": 0,
        "preemptor": "P",
        "node": 0,
        "victims": ["L00", "L01"],
        "gpus": [0, 1],
        "max_priority": 1,
        "priority_sum": 2,
        "count": 2,
        "hit": True,
    }


def test_a_node_that_needs_no_victim_wins():
    (given,) = answers(scenario(*full(0)))
    assert (given["node"], given["victims"], given["max_priority"]) == (1, [], None)


def test_where_nothing_may_be_taken_it_says_so():
    held = [[f"H{node}{at}", "high", node, "high", 0, [2 * at, 2 * at + 1]] for node in (0, 1) for at in (0, 1)]
    (given,) = answers(scenario(*held))
    assert given["node"] is None
    assert "no permitted set" in given["message"]
    assert "none" in run(json.dumps(scenario(*held)), ["-", "-o", "table"]).stdout


def test_the_answer_is_that_of_the_controllers_cycle():
    """Equal victims on both servers: the cycle takes those that started last, and the search inside nodes the first."""
    late = [[name, of, node, cls, start + 100, gpus] for name, of, node, cls, start, gpus in full(1)]
    for qos, node in (("guaranteed", 1), ("best-effort", 1), ("none", 0)):
        document = scenario(*full(0), *late)
        document["preemptors"]["P"]["qos"] = qos
        (given,) = answers(document)
        assert (given["node"], given["count"]) == (node, 2)


def test_what_is_not_preemptible_is_nobodys_victim_whatever_its_priority():
    classes = scenario()["classes"]
    document = scenario(*full(0), *full(1), classes=classes | {"low": classes["low"] | {"preemptible": False}})
    assert [given["node"] for given in answers(document)] == [None]


def test_one_preemptor_changes_nothing_for_the_next():
    document = scenario(*full(0), *full(1))
    document["preemptors"] = dict.fromkeys("PQR", document["preemptors"]["P"])
    found = answers(document)
    assert len({(given["node"], *given["victims"], *given["gpus"]) for given in found}) == 1


def test_best_effort_and_blind_preemptors():
    spread = [["L0", "low", 0, "low", 0, [0]], ["L2", "low", 0, "low", 0, [2]]]
    held = [["X1", "kept", 0, "kept", 0, [1]], ["X3", "kept", 0, "kept", 0, [3]]]
    classes = scenario()["classes"] | {"kept": {"priority": 99, "gpus": 1, "cpu": 1, "preemptible": False}}
    for qos, node in (("guaranteed", None), ("best-effort", 0), ("none", 0)):
        document = scenario(*spread, *held, classes=classes)
        document["node"]["count"] = 1
        document["preemptors"]["P"]["qos"] = qos
        (given,) = answers(document)
        assert given["node"] == node
        assert not given["hit"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instances": [["a", "a", 0, "low", 0, [9]]]}, "GPU 9 of node"),
        ({"instances": [["a", "a", 0, "low", 0, [1]], ["b", "b", 0, "low", 0, [1]]]}, "held by another one"),
        ({"instances": [["a", "a", 0, "low", 0, [0]], ["a", "a", 0, "low", 0, [1]]]}, "instance a is there twice"),
        ({"instances": [["a", "a", 7, "low", 0, [1]]]}, "node 7 is not one of the 2"),
        ({"instances": [["a", "a", 0, "odd", 0, [1]]]}, "class odd is none of high, low"),
    ],
)
def test_a_cluster_that_contradicts_itself_does_not_stop_the_next(change, message):
    document = scenario()
    document["variants"] = {"v": [{"cycle": 0, **change}, {"cycle": 1, "instances": []}]}
    result = run(json.dumps(document))
    first, second = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 1
    assert first["id"] == "v/0"
    assert message in first["error"]
    assert second["cycle"] == 1


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "not a preemption scenario"),
        (json.dumps(scenario(node={"count": 1})), "numa_cores"),
        (json.dumps(scenario(kubelet={"topology_manager_policy": "odd"})), "odd"),
        (json.dumps(scenario(preemptors={"P": {"priority": 1, "gpus": 1, "cpu": 1, "qos": "odd"}})), "odd"),
    ],
)
def test_what_is_no_scenario_is_told(document, message):
    result = CliRunner().invoke(app, ["preempt", "-"], input=document)
    assert result.exit_code == 1
    assert message in str(result.exception)
