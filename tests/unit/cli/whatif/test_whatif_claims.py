"""``topogate whatif claims``: the forms it reads and writes, and the recorded answers of Kubernetes' own allocator."""

import gzip
import json
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from support.dra import ask, claim, device, device_class, resource_slice
from typer.testing import CliRunner

from cli.whatif.command import app
from engine.claims.quantities import NANO, parse

DATA = Path(__file__).parents[3] / "data"


def case(*claims, drop=(), **fields):
    made = {
        "id": "c",
        "node": {"name": "n"},
        "classes": [device_class()],
        "slices": [resource_slice(device("d0"), device("d1", allowMultipleAllocations=True, capacity={"a": "1Gi"}))],
        "claims": list(claims or [claim(ask())]),
    } | fields
    return {key: value for key, value in made.items() if key not in drop}


def run(*cases, args=("-",)):
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in cases)
    result = CliRunner().invoke(app, ["claims", *args], input=text)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answers(*cases, args=("-",)):
    return [json.loads(line) for line in run(*cases, args=args).stdout.splitlines()]


def shown(name, **fields):
    return {"request": "r", "driver": "d.example.com", "pool": "p", "device": name, **fields}


def recorded(name):
    return [json.loads(line) for line in gzip.decompress((DATA / name).read_bytes()).splitlines()]


def of_claims(claims):
    """What the claims were given: devices by request, with what they take of shared ones."""
    lists = [one["devices"].get("results", []) if isinstance(one, dict) else one for one in claims]
    return [
        sorted(
            (one["request"], one["driver"], one["pool"], one["device"], amounts(one.get("consumedCapacity") or {}))
            for one in found
        )
        for found in lists
    ]


def amounts(consumed):
    return sorted((name, Fraction(parse(text).nanos, NANO)) for name, text in consumed.items())


def test_an_answer_has_exactly_the_documented_fields():
    both = claim(ask(count=2))
    (given,) = answers(case(both))
    assert given == {
        "id": "c",
        "allocatable": True,
        "results": [[shown("d0"), shown("d1", consumedCapacity={"a": "1Gi"})]],
    }


def test_a_refusal_says_why():
    (given,) = answers(case(claim(ask(count=3))))
    assert given == {
        "id": "c",
        "allocatable": False,
        "results": [],
        "reason": "unallocatable",
        "message": "no devices are left that meet the claims",
    }
    (given,) = answers(case(claim(ask("r", 1, "device.x"))))
    assert (given["reason"], given["message"]) == (
        "error",
        "claim claim: selector #0: CEL compile error: 'device.x': undefined field 'x'",
    )


def test_pods_are_counted_up_to_a_limit():
    (given,) = answers(case(limit=5))
    assert (given["count"], len(given["results"]), given["reason"]) == (2, 2, "unallocatable")
    (given,) = answers(case(limit=1))
    assert given == {"id": "c", "count": 1, "results": [[[shown("d0")]]]}


def test_devices_in_use_are_left_out():
    used = {"driver": "d.example.com", "pool": "p", "device": "d0"}
    (given,) = answers(case(allocated=[used]))
    assert given["results"][0][0]["device"] == "d1"
    (given,) = answers(case(allocated=[{**used, "adminAccess": True}]))
    assert given["results"][0][0]["device"] == "d0"


def test_features_are_those_of_kubernetes_unless_they_are_named():
    wants = claim(ask(capacity={"requests": {"a": "1Mi"}}))
    (given,) = answers(case(wants))
    assert given["allocatable"] is True
    (given,) = answers(case(wants, features=[]))
    assert "DRAConsumableCapacity feature is disabled" in given["message"]


def test_a_pod_s_extended_resources_become_a_claim():
    container = {"name": "main", "resources": {"requests": {"deviceclass.resource.kubernetes.io/c": "1"}}}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    (given,) = answers(case(claims=[], pod=pod))
    assert given["results"] == [[shown("d0", request="container-0-request-0")]]
    assert given["requestMappings"] == [
        {
            "containerName": "main",
            "requestName": "container-0-request-0",
            "resourceName": "deviceclass.resource.kubernetes.io/c",
        }
    ]
    container["resources"]["requests"]["example.com/nic"] = "1"
    (given,) = answers(case(claims=[], pod=pod, limit=3))
    assert (given["count"], given["message"]) == (0, "the node lacks example.com/nic, which no class stands for")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{\n", "truncated"),
        (case(drop=("slices",)), "missing required field `slices`"),
        (case(limits=3), "unknown field `limits`"),
        (case(limit=0), "$.limit"),
        (case(slices=[{"metadata": {"name": "s"}, "spec": {}}]), "case 'c': ResourceSlice s: spec.driver"),
        (case(claims=[{}]), "ResourceClaim: metadata.name: expected a name, got nothing"),
        (case(classes=[3]), "DeviceClass: expected an object, got 3"),
        (case(allocated=[{"driver": "d"}]), "allocated: results[0].pool: expected a text"),
        (case(pod={}), "Pod: metadata.name"),
        (
            '{"id": "deep", "node": {"name": "n"}, "slices": [' + '{"a":' * 5000 + "1" + "}" * 5000 + "]}\n",
            "case 'deep': objects are nested too deep",
        ),
    ],
    ids=range(10),
)
def test_a_line_that_is_no_case_is_answered_with_what_is_wrong(line, told):
    result = run(line, case())
    wrong, right = (json.loads(one) for one in result.stdout.splitlines())
    assert told in wrong["error"]
    assert right["allocatable"] is True
    assert result.exit_code == 1


def test_other_formats():
    result = run(case(), case(claim(ask(count=9)), id="no"), case(limit=4, id="count"), args=("-", "-o", "table"))
    assert "r: p/d0" in result.stdout
    assert "unallocatable: no devices" in result.stdout
    (given,) = yaml.safe_load(run(case(), args=("-", "-o", "yaml")).stdout)
    assert given["allocatable"] is True


def test_compare_says_where_there_is_nothing_to_compare():
    assert "nothing to compare" in run(case(), args=("-", "--compare", "-o", "table")).stdout


def test_compare_counts_what_differs():
    other = {"devices": {"results": [shown("d1")]}}
    cases = [
        case(expected={"allocatable": True, "results": [other]}),
        case(expected={"allocatable": False, "results": None}),
        case(limit=3, expected={"count": 2}),
    ]
    shown_rows = run(*cases, args=("-", "--compare", "-o", "table")).stdout
    rows = [line.split("│")[1:-1] for line in shown_rows.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["allocatable", "1", "2", "50.0"],
        ["devices, where as many fit", "0", "1", "0.0"],
        ["pods that fit", "1", "1", "100.0"],
    ]


def test_every_case_of_kubernetes_own_tests_is_answered_alike():
    cases = recorded("dra-upstream.jsonl.gz")
    found = answers(args=(str(DATA / "dra-upstream.jsonl.gz"),))
    assert [one["allocatable"] for one in found] == [one["expected"]["allocatable"] for one in cases]
    for one, given in zip(cases, found, strict=True):
        assert of_claims(given["results"]) == of_claims(one["expected"]["results"] or []), one["id"]
        outcome = one["expected"]["outcome"]
        assert given.get("reason", "allocated") == outcome, one["id"]


def test_every_count_is_that_of_the_allocator_with_the_same_devices():
    cases = recorded("dra-count.jsonl.gz")
    found = answers(args=(str(DATA / "dra-count.jsonl.gz"),))
    assert [one["count"] for one in found] == [one["expected"]["count"] for one in cases]
    for one, given in zip(cases, found, strict=True):
        expected = one["expected"]
        assert list(map(of_claims, given["results"])) == list(map(of_claims, expected["allocations"])), one["id"]
        assert given.get("reason", "limit") == expected["outcome"], one["id"]
        assert given.get("requestMappings", []) == (expected.get("requestMappings") or []), one["id"]
