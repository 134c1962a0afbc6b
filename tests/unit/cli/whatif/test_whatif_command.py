"""``topogate whatif place``: the forms it reads and writes, and what it says about input that is wrong."""

import gzip
import json

import pytest
import yaml
from typer.testing import CliRunner

from cli.output import Failure
from cli.whatif.cases import CaseSlice, decode_case
from cli.whatif.command import app
from cli.whatif.compare import CaseComparison

HOST = "kubernetes.io/hostname"
RACK = "example.com/rack"


def node(name, rack="r1", *, cpu=4000, **fields):
    labels = {RACK: rack, HOST: name} | fields.pop("labels", {})
    return {"name": name, "labels": labels, "allocatable": {"cpu": cpu, "pods": 10}, **fields}


def case(*nodes, request=None, **fields):
    wanted = {"mode": "required", "level": RACK, "count": 2, "perPod": {"cpu": 1000}} | (request or {})
    return {"id": "c", "levels": [RACK, HOST], "nodes": nodes or [node("n1")], "request": wanted} | fields


def run(*cases, args=("-",)):
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in cases)
    result = CliRunner().invoke(app, ["place", *args], input=text)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answers(*cases, args=("-",)):
    return [json.loads(line) for line in run(*cases, args=args).stdout.splitlines()]


def where(*nodes, **request):
    """Host -> pods, or the reason."""
    (given,) = answers(case(*nodes, request=request))
    return {part["values"][-1]: part["count"] for part in given["slices"]} if given["fits"] else given["reason"]


def test_an_answer_has_exactly_the_documented_fields():
    (given,) = answers(case())
    assert given == {"id": "c", "fits": True, "slices": [{"values": ["r1", "n1"], "count": 2}], "reason": ""}


def test_what_looks_like_a_colour_in_a_case_is_text():
    odd = [node("[red]n", rack="r[/]1")], "[bold]c"
    for request, shown in (({}, "2 in r[/]1/[red]n"), ({"level": "[dim]x"}, "[dim]x")):
        result = run(case(*odd[0], id=odd[1], request=request), args=("-", "-o", "table"))
        assert odd[1] in result.stdout
        assert shown in result.stdout


def test_a_refusal_says_why():
    result = run(case(request={"count": 5}))
    given = json.loads(result.stdout)
    assert (given["id"], given["fits"], given["slices"]) == ("c", False, [])
    assert given["reason"] == "NeverFits"
    assert given["message"]
    assert result.exit_code == 0


def test_room_that_is_taken_is_told_from_room_that_never_was():
    busy = node("n1", used={"cpu": 3000, "pods": 1})
    assert where(busy, count=2) == "DoesNotFit"
    assert where(busy, count=1) == {"n1": 1}
    assert where(busy, count=5) == "NeverFits"


def test_racks_are_left_whole_where_one_says_so():
    hosts = [node(f"n{number}", "r1", cpu=8000, used={"cpu": 5000, "pods": 1}) for number in range(2)]
    wanted = case(*hosts, node("n2", "r2", cpu=8000), request={"count": 5})
    assert [len(answers(wanted, args=("-", "--nodes-per-opened-domain", few))[0]["slices"]) for few in "01"] == [1, 2]
    assert answers(wanted)[0]["slices"] == [{"values": ["r2", "n2"], "count": 5}]


def test_used_pods_are_counted_as_given():
    assert where(node("n1", cpu=64000, used={"cpu": 100, "pods": 8}), count=2) == {"n1": 2}
    assert where(node("n1", cpu=64000, used={"cpu": 100, "pods": 9}), count=2) == "DoesNotFit"
    assert where(node("n1", cpu=64000, used={"pods": 8}), count=2) == {"n1": 2}
    assert where(node("n1", cpu=64000, used={"cpu": 100}), count=10) == {"n1": 10}


def test_order_is_kept_and_a_wrong_line_stops_nothing():
    result = run(case(id="a"), "{\n", "\n", case(id="b"))
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["a", None, "b"]
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": "x", "levels"\n', ["line 1, case 'x'", "truncated", "jq -c"]),
        ("[]\n", ["line 1:", "expected an object"]),
        ('{"id": 5}\n', ["line 1:", "expected text, found a whole number", "$.id"]),
        ({"id": "x", "levels": [HOST], "nodes": []}, ["case 'x'", "`request`"]),
        (case(surprise=1), ["unknown field `surprise`"]),
        (case(levels=[]), ["$.levels"]),
        (case(levels=[RACK, RACK]), ["levels", "more than once"]),
        (case(levels=[HOST, RACK]), ["levels", "only be the last"]),
        (case(levels=[f"l{i}" for i in range(9)]), ["$.levels"]),
        (case(node("n1"), node("n1")), ["nodes", "'n1'", "more than once"]),
        (case({"name": "n1", "labels": {}}), ["$.nodes[0]", "`allocatable`"]),
        (case(node("n0"), node("n1", cpu="4x")), ["nodes[1].allocatable['cpu']", "4x"]),
        (case(node("n1", cpu=-1)), ["nodes[0].allocatable['cpu']", "-1"]),
        (case(node("n1", cpu=1.5)), ["nodes[0].allocatable['cpu']", "1.5"]),
        (case(node("n1", cpu=1 << 63)), ["nodes[0].allocatable['cpu']"]),
        (case(node("n1", used={"cpu": "?"})), ["nodes[0].used['cpu']"]),
        (case(request=None) | {"request": 7}, ["expected an object", "$.request"]),
        (case(request={"mode": "rquired"}), ["$.request.mode", "rquired", "required, preferred, unconstrained"]),
        (case(request={"count": 0}), ["$.request.count", ">= 1"]),
        (case(request={"level": "rack"}), ["request.level", "'rack'", RACK]),
        (case(request={"level": None}), ["request.level", "missing", RACK]),
        (case(request={"level": "auto"}), ["request.level", "'auto'"]),
        (case(request={"mode": "unconstrained"}), ["request.level", "unconstrained has no level"]),
        (case(request={"nodeselector": {}}), ["$.request", "unknown field `nodeselector`"]),
        (case(request={"perPod": {"pods": 1}}), ["request.perPod", "pods"]),
        (case() | {"request": {"podSets": []}}, ["$.request.podSets"]),
        (case(slices=[{"values": [], "count": 1}]), ["$.slices[0].values"]),
    ],
)
def test_what_is_wrong_is_told_by_line_case_and_field(line, says):
    result = run(line)
    given = json.loads(result.stdout)
    assert set(given) == {"id", "error"}
    assert [text for text in says if text not in given["error"]] == []
    assert result.exit_code == 1


def test_quantities_are_numbers_or_texts():
    texts = case(node("n1", cpu="4", used={"cpu": "1500m"}), request={"perPod": {"cpu": "1.25"}})
    assert answers(texts)[0]["slices"] == [{"values": ["r1", "n1"], "count": 2}]


def test_gzip_is_unpacked_from_a_file_and_from_stdin(tmp_path):
    packed = gzip.compress(json.dumps(case()).encode())
    (tmp_path / "cases").write_bytes(packed)
    from_file = CliRunner().invoke(app, ["place", str(tmp_path / "cases")])
    from_stdin = CliRunner().invoke(app, ["place", "-"], input=packed)
    assert from_file.stdout == from_stdin.stdout == run(case()).stdout


def test_a_file_that_is_missing_or_damaged_is_a_failure(tmp_path):
    with pytest.raises(Failure, match="cannot read"):
        run(args=[str(tmp_path / "nothing")])
    (tmp_path / "cut.gz").write_bytes(gzip.compress(json.dumps(case()).encode())[:-12])
    with pytest.raises(Failure, match="breaks off after line 0"):
        run(args=[str(tmp_path / "cut.gz")])


def test_the_same_answers_as_json_yaml_and_table():
    cases = [case(id="a"), case(id="b", request={"count": 9}), "[]\n"]
    lines = [json.loads(line) for line in run(*cases).stdout.splitlines()]
    as_json, as_yaml = run(*cases, args=("-", "-o", "json")), run(*cases, args=("-", "-o", "yaml"))
    assert json.loads(as_json.stdout) == yaml.safe_load(as_yaml.stdout) == lines
    table = run(*cases, args=("-", "-o", "table"))
    assert "2 in r1/n1" in table.stdout
    assert "NeverFits" in table.stdout
    assert {as_json.exit_code, as_yaml.exit_code, table.exit_code} == {1}


def test_nodes_that_take_no_pods_are_passed_over():
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    free = node("n9", "r9")
    assert where(node("n1", taints=[taint]), free) == {"n9": 2}
    assert where(node("n1", unschedulable=True), free) == {"n9": 2}
    assert where(node("n1", ready=False), free) == {"n9": 2}
    assert where(node("n1"), node("n2", labels={"disk": "ssd"}), nodeSelector={"disk": "ssd"}) == {"n2": 2}
    tolerant = {"tolerations": [{"key": "k", "operator": "Exists"}]}
    assert where(node("n1", taints=[taint]), **tolerant) == {"n1": 2}


def test_preferred_auto_is_the_narrowest_level():
    assert where(node("n1", cpu=1000), node("n2", "r2", cpu=2000), mode="preferred", level="auto") == {"n2": 2}


def test_several_pod_sets_are_placed_together_or_not_at_all():
    def pod_set(name, count):
        return {"name": name, "mode": "required", "level": RACK, "count": count, "perPod": {"cpu": 1000}}

    nodes = [node("n1", "r1"), node("n2", "r2")]
    both = case(*nodes) | {"request": {"podSets": [pod_set("driver", 3), pod_set("worker", 4)]}}
    (given,) = answers(both)
    assert given["slices"] == []
    assert [(part["name"], sum(piece["count"] for piece in part["slices"])) for part in given["podSets"]] == [
        ("driver", 3),
        ("worker", 4),
    ]
    too_many = case(*nodes) | {"request": {"podSets": [pod_set("driver", 3), pod_set("worker", 5)]}}
    (given,) = answers(too_many)
    assert not given["fits"]
    assert "podSets" not in given


def test_pod_sets_need_names_of_their_own():
    pod_set = {"mode": "unconstrained", "count": 1, "perPod": {}}
    (given,) = answers(case() | {"request": {"podSets": [pod_set, pod_set]}})
    assert "request.podSets: 'main' is there more than once" in given["error"]


def test_compare_counts_better_equal_and_worse():
    nodes = [node("n1", cpu=3000), node("n2", cpu=2000), node("n3", cpu=2000), node("n4", "r2", cpu=4000)]
    greedy = [{"values": ["n1"], "count": 3}, {"values": ["n2"], "count": 1}]
    spread = [{"values": ["r1", name], "count": 1} for name in ("n1", "n2", "n3")]
    overfull = [{"values": ["n1"], "count": 4}]
    result = run(
        case(*nodes, id="greedy", request={"count": 4}, fits=True, slices=greedy),
        case(*nodes, id="spread", request={"count": 3}, fits=True, slices=spread),
        case(
            *nodes, id="equal", request={"count": 4, "level": HOST}, fits=True, slices=[{"values": ["n4"], "count": 4}]
        ),
        case(*nodes, id="overfull", request={"count": 4}, fits=True, slices=overfull),
        case(*nodes, id="disagree", fits=False),
        case(*nodes, id="silent"),
        args=("-", "--compare"),
    )
    assert len(result.stdout.splitlines()) == 6
    assert "4 agree, 1 fit only here, 0 only there" in result.stderr
    assert "Not compared: 1 answers there that overfill" in result.stderr
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stderr.splitlines() if "│" in line]
    assert {row[0]: row[1:] for row in cells} == {
        "requested level": ["0", "3", "0"],
        "1 level narrower": ["2", "0", "0"],
        "nodes": ["2", "1", "0"],
        "in this order": ["2", "1", "0"],
        "unconstrained: nodes": ["0", "0", "0"],
    }


def test_compare_tells_when_ours_is_worse():
    hosts = [node("n1"), node("n2")]
    judged = decode_case(json.dumps(case(*hosts, fits=True, slices=[{"values": ["n1"], "count": 2}])).encode())
    ours = [CaseSlice(values=("r1", name), count=1) for name in ("n1", "n2")]
    comparison = CaseComparison()
    comparison.add(judged, fits=True, slices=ours)
    assert [(tally.better, tally.equal, tally.worse) for tally in comparison.narrower] == [(0, 1, 0), (0, 0, 1)]
    assert comparison.nodes.worse == comparison.overall.worse == 1


def test_compare_in_a_table_takes_the_answers_place():
    given = case(fits=True, slices=[{"values": ["n1"], "count": 2}])
    result = run(given, "[]\n", args=("-", "--compare", "-o", "table"))
    assert "requested level" in result.stdout
    assert "2 in r1/n1" not in result.stdout
    assert "line 2" in result.stderr
    assert result.exit_code == 1


def test_compare_says_where_there_is_nothing_to_compare():
    assert "Nothing to compare" in run(case(), args=("-", "--compare")).stderr
