"""Who holds how much where: rows, promises, problems, numbers that stay, and nothing left of who is gone."""

import json

import pytest

from engine.model import Flavor, Node
from web import inside, picture
from web.board import CROSSES, LOST, OVER, Board
from web.deltas import Log
from web.facts import BoundPod, HolderFacts, Host, HostState
from web.history import History, measure
from web.sight import EVERYTHING, Sight

RACK, NAME = "rack", "kubernetes.io/hostname"


def host(board, name, rack="r1", *, amount=8, state=HostState.READY, label=""):
    labels = {RACK: rack, NAME: label or name, "group": "tas"}
    board.set_host(Node(name=name, labels=labels, allocatable={}), Host(name, amount, state), label)


def pod(name, node, amount=4, holder="team/work", **more):
    more = {"owner": ("Job", "train"), "rank": 0, "phase": "Running", "gated": False, **more}
    return BoundPod(key=f"team/{name}", holder=holder, node=node, amount=amount, **more)


def holder(*slots, **more):
    return HolderFacts("team", "Job", "train", **{"workload": "work", "count": 2, "wants": 8, "slots": slots, **more})


@pytest.fixture
def board():
    made = Board("nvidia.com/gpu")
    made.show_flavor(Flavor(name="tas", levels=(RACK, NAME), node_labels={"group": "tas"}))
    for name in ("n1", "n2"):
        host(made, name)
    host(made, "n3", "r2")
    return made


def held(board, name):
    return [(board.keys[one.holder], one.used, one.promised) for one in board.row(name).held]


def test_what_is_kept_for_pods_that_are_not_there_is_promised(board):
    board.set_holder(holder(("n1", 8)))
    assert held(board, "n1") == [("team/work", 0, 8)]
    board.set_pod(pod("a", "n1"))
    assert held(board, "n1") == [("team/work", 4, 4)]
    board.set_pod(pod("b", "n1", 8))
    assert held(board, "n1") == [("team/work", 12, 0)]
    assert board.row("n1").problems == OVER


def ungated(board):
    return [step for step in inside.workload(board, "team/work")["steps"] if step[0] == "Ungated"]


def test_the_way_of_a_workload_tells_when_its_pods_were_let_go(board):
    board.set_holder(holder(admitted=100.0))
    board.set_pod(pod("a", "", gated=True))
    assert ungated(board) == []
    board.set_pod(pod("b", "n1"))
    assert ungated(board) == [["Ungated", True, 100.0, "", "1 of 2 pods wait behind their gate"]], "not bound yet"
    board.set_pod(pod("b", "n1", bound=130.0))
    board.set_pod(pod("a", "n2", bound=120.0))
    assert ungated(board) == [["Ungated", True, 130.0, "", ""]]
    board.set_holder(holder())
    assert ungated(board) == [], "pods that were never asked to wait"


def test_a_fact_that_is_told_twice_changes_nothing(board):
    board.set_holder(holder(("n1", 8)))
    board.set_pod(pod("a", "n1"))
    host(board, "n1")
    board.take_changes()
    layout = board.layout
    board.set_holder(holder(("n1", 8)))
    board.set_pod(pod("a", "n1"))
    host(board, "n1")
    assert board.take_changes() == (set(), set(), {})
    assert board.layout == layout


def test_nothing_is_left_of_who_is_gone_and_a_number_is_given_once(board):
    board.set_holder(holder(("n1", 8)))
    board.set_pod(pod("a", "n1"))
    number = board.numbers["team/work"]
    board.remove_holder("team/work")
    assert held(board, "n1") == [("team/work", 4, 0)]  # its pod is there still
    assert board.find_holder("team/work").workload == ""
    board.hide_pod("team/a")
    assert held(board, "n1") == []
    assert board.take_changes()[2] == {number: "team"}
    assert [len(one) for one in (board.numbers, board.keys, board.pods, board.holders)] == [0, 0, 0, 0]
    assert not any(board._here.values())
    assert not any(board._of.values())
    assert not any(board._slots.values())
    board.set_holder(holder())
    assert board.numbers["team/work"] > number


def test_a_pod_that_moves_is_told_of_on_both_hosts(board):
    board.set_pod(pod("a", "n1"))
    board.take_changes()
    board.set_pod(pod("a", "n2"))
    assert board.take_changes()[0] == {"n1", "n2"}
    assert held(board, "n1") == []


def test_a_host_that_is_not_ready_and_holds_something_is_lost(board):
    board.set_pod(pod("a", "n1"))
    host(board, "n1", state=HostState.NOT_READY)
    host(board, "n2", state=HostState.NOT_READY)
    assert (board.row("n1").problems, board.row("n2").problems) == (LOST, 0)


@pytest.mark.parametrize(("amount", "zones", "crosses"), [(2, (0, 1), True), (2, (0,), False), (8, (0, 1), False)])
def test_a_pod_crosses_where_one_socket_would_do(board, amount, zones, crosses):
    from engine.kubelet.machine import NumaPlacement, ZoneUse

    placement = NumaPlacement(zones=tuple(ZoneUse(zone=zone, amounts={"nvidia.com/gpu": 1}) for zone in zones))
    board.set_sockets("n1", {0: 0, 1: 1})
    board.set_pod(pod("a", "n1", amount, placement=placement))
    assert bool(board.row("n1").problems & CROSSES) is crosses


def test_hosts_are_in_tree_order_and_those_of_no_flavor_at_the_end(board):
    board.set_host(Node(name="x", labels={}, allocatable={}), Host("x", 8, HostState.READY))
    board.set_host(Node(name="cpu", labels={}, allocatable={}), Host("cpu", 0, HostState.READY))
    tas, rest = board.groves()
    assert (tas.hosts, rest.flavor, rest.hosts) == (("n1", "n2", "n3"), "", ("x",))
    assert picture.nested(tas) == [["r1", 2], ["r2", 1]]
    assert picture.nested(rest) == [["", 1]]


def test_slots_are_found_by_the_host_name_label(board):
    host(board, "n4", label="four")
    board.set_holder(holder(("four", 8)))
    assert held(board, "n4") == [("team/work", 0, 8)]
    assert "n4" in board.take_changes()[0]


def rows(text):
    return json.loads(text)


def test_others_count_without_a_name(board):
    board.set_holder(holder(("n1", 8)))
    board.set_pod(pod("a", "n1"))
    other = BoundPod("secret/b", "secret/job", ("Job", "codename"), "n1", 2, 0, "Running", gated=False)
    board.set_pod(other)
    mine = Sight(hosts=True, queues=False, namespaces=frozenset({"team"}))
    seen = picture.whole_picture(board, mine, version=1, epoch="e", now=0.0, cluster="c")
    assert b"secret" not in seen
    assert b"codename" not in seen
    assert rows(seen)["hosts"][0] == ["n1", 8, 0, OVER, board.numbers["team/work"], 4, 4, 0, 2, 0]
    log = Log()
    log.record_changes(*board.take_changes())
    board.hide_pod("secret/b")
    log.record_changes(*board.take_changes())
    changes = picture.changed(board, mine, log.changes_since(0), version=2, now=0.0)
    assert b"secret" not in changes
    assert rows(changes)["gone"] == []
    assert rows(picture.changed(board, EVERYTHING, log.changes_since(0), version=2, now=0.0))["gone"] != []


def test_who_may_not_list_nodes_sees_no_host(board):
    board.set_pod(pod("a", "n1"))
    seen = rows(
        picture.whole_picture(board, Sight(namespaces=frozenset({"team"})), version=1, epoch="e", now=0, cluster="c")
    )
    assert (seen["hosts"], seen["groves"]) == ([], [])
    assert len(seen["holders"]) == 1


def test_changes_put_upon_a_picture_give_the_next_picture(board):
    """The rows of changes, put in place as the page does it, are those of a picture made anew."""
    log = Log()
    log.record_changes(*board.take_changes(), layout=True)

    def taken():
        return rows(picture.whole_picture(board, EVERYTHING, version=log.version, epoch="e", now=0, cluster="c"))

    before, version = taken(), log.version
    for step in (
        lambda: board.set_holder(holder(("n1", 8), ("n2", 4))),
        lambda: board.set_pod(pod("a", "n1")),
        lambda: host(board, "n2", state=HostState.CORDONED),
        lambda: board.remove_holder("team/work"),
        lambda: board.hide_pod("team/a"),
    ):
        step()
        log.record_changes(*board.take_changes())
    found = rows(picture.changed(board, EVERYTHING, log.changes_since(version), version=log.version, now=0))
    for index, *rest in found["hosts"]:
        before["hosts"][index][2:] = rest
    holders = {row[0]: row for row in [*before["holders"], *found["holders"]] if row[0] not in found["gone"]}
    after = taken()
    assert before["hosts"] == after["hosts"]
    assert list(holders.values()) == after["holders"]


def test_who_is_too_far_behind_or_saw_another_layout_takes_a_whole_picture():
    log = Log(kept=3)
    for number in range(5):
        log.record_changes({f"n{number}"}, set(), {})
    assert log.changes_since(1) is None
    assert log.changes_since(2).hosts == {"n2", "n3", "n4"}
    assert log.changes_since(9) is None
    log.record_changes(set(), set(), {}, layout=True)
    assert log.changes_since(4) is None
    assert log.changes_since(6).hosts == set()
    assert not log.record_changes(set(), set(), {})


def test_what_is_free_in_no_whole_domain_is_stranded(board):
    board.set_pod(pod("a", "n1", 2))
    board.set_holder(holder(reason="DoesNotFit"))
    levels, sample = measure(board, 1.0)
    assert levels == (RACK, NAME)
    assert (sample.amount, sample.used, sample.free, sample.out) == (24, 2, 22, 0)
    assert sample.stranded == (14, 6)
    assert (sample.waiting, sample.wanted) == (1, 8)


def test_samples_are_kept_for_a_day_and_no_longer(board):
    history = History(step=30.0, span=90.0)
    for moment in range(0, 300, 10):
        history.take_sample(board, float(moment))
    assert history.columns()["at"] == [210.0, 240.0, 270.0]
    assert history.columns()["stranded"] == [[0, 0, 0], [0, 0, 0]]
