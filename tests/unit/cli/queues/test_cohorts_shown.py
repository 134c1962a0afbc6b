"""Trees of cohorts as `topogate queues` shows them."""

import io

import msgspec
import pytest
from rich.console import Console
from support.queue_objects import GPU, cluster, cohort, local, quota, read, workload

from cli.queues import rendering
from cli.queues.report import report
from cli.web.questions import _queue, _unnamed
from queueing.model import Rules
from web.sight import Sight


def queue(name, amount, of, **limits):
    return cluster(name, quota(amount=amount, **limits), cohortName=of)


def made(*more, **rules):
    """Example A: org over research (vision, speech) and product (ads), and what their jobs hold."""
    return read(
        [
            queue("vision", 12, "research", lendingLimit="8"),
            queue("speech", 8, "research", borrowingLimit="4"),
            queue("ads", 16, "product"),
            queue("alone", 8, "flat"),
        ],
        [local(name, name) for name in ("vision", "speech", "ads")] + [local("x", "alone", "other")],
        [
            workload("job-v", "vision", 4, held="vision"),
            workload("job-s", "speech", 2, held="speech"),
            workload("job-a", "ads", 5, held="ads"),
        ],
        rules=Rules(**rules),
        cohorts=[
            cohort("org", "", quota(amount=8)),
            cohort("research", "org", quota(amount=4, borrowingLimit="6", lendingLimit="10")),
            cohort("product", "org", fairSharing={"weight": "2"}),
            *more,
        ],
    )


def lines(found, *arguments):
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(rendering.render(report(found, *arguments)))
    text = console.file.getvalue()
    return [line.rstrip() for line in text[text.index("Cohort ") :].splitlines() if line.strip()]


def test_a_tree_from_its_root_down_to_its_queues():
    assert lines(made()) == [
        "Cohort flat",
        "FLAVOR  RESOURCE        COHORT, QUEUE  USED  NOMINAL  BORROWED  MAY BORROW  LENDS",
        f"tas     {GPU}  flat              0        8         -           -      -",
        "                          alone           0        8         0",
        "Cohort org, and 2 cohorts below",
        "FLAVOR  RESOURCE        COHORT, QUEUE  USED         NOMINAL  BORROWED  MAY BORROW  LENDS",
        f"tas     {GPU}  org              44  48 (8 its own)         -           -      -",
        "                          product        20              16         4         any    all",
        "                            ads          20              16         4",
        "                          research       24  24 (4 its own)         0           6     10",
        "                            speech        8               8         0",
        "                            vision       16              12         4",
    ]


def test_shares_stand_beside_the_cohorts_that_have_them():
    shown = [" ".join(line.split()) for line in lines(made(fair=True))]
    # Of 34 that org may use, product borrows 4 at weight 2: 58.8 thousandths.
    assert "product (share 59) 20 16 4 any all" in shown
    assert f"tas {GPU} org 44 48 (8 its own) - - -" in shown


def test_what_a_program_reads_has_the_way_from_the_root():
    found = msgspec.json.decode(msgspec.json.encode(report(made())))
    assert [(one["name"], one["cohort"], one["path"]) for one in found["queues"]] == [
        ("ads", "product", ["org", "product"]),
        ("alone", "flat", ["flat"]),
        ("speech", "research", ["org", "research"]),
        ("vision", "research", ["org", "research"]),
    ]
    told = {one["name"]: one for one in found["cohorts"]}
    assert [*told] == ["flat", "org", "product", "research"]
    assert [(one["path"], one["exists"], one["weight"]) for one in told.values()] == [
        ([], False, "1"),
        ([], True, "1"),
        (["org"], True, "2"),
        (["org"], True, "1"),
    ]
    (use,) = told["research"]["quotas"]
    assert {name: use[name] for name in ("own", "nominal", "used", "borrowed", "borrowing_limit", "lending_limit")} == {
        "own": "4",
        "nominal": "24",
        "used": "24",
        "borrowed": "0",
        "borrowing_limit": "6",
        "lending_limit": "10",
    }
    assert [one["queue"] for one in use["members"]] == ["speech", "vision"]


def test_the_page_tells_who_may_not_look_at_queues_nothing_of_the_tree_above():
    made_up = msgspec.to_builtins(next(one for one in report(made()).queues if one.name == "vision"))
    tenant = Sight(namespaces=frozenset({"team"}))
    assert _queue(made_up, tenant)["path"] == ("research",)
    assert _queue(made_up, Sight(namespaces=frozenset({"team"}), queues=True))["path"] == ("org", "research")


def test_the_page_tells_them_no_lender_above_the_cohort_that_their_queue_names():
    def told(**sees):
        options = [{"lender": "org"}, {"lender": "research"}, {"lender": ""}]
        place = {"cohort": "research", "options": options, "victims": [], "history": []}
        sight = Sight(namespaces=frozenset({"team"}), **sees)
        return [one["lender"] for one in _unnamed({"queue": place}, sight)["queue"]["options"]]

    assert told() == ["", "research", ""]
    assert told(queues=True) == ["org", "research", ""]


def test_the_page_tells_them_of_minimum_run_times_without_the_cohorts_above():
    said = {"minimumRunTime": {"withinClusterQueueSeconds": 30, "reclaimSeconds": 60}}
    found = made(
        cohort("research", "org", quota(amount=4), **said), cohort("org", "", minimumRunTime={"reclaimSeconds": 9})
    )
    view = msgspec.to_builtins(next(one for one in report(found).queues if one.name == "vision"))
    assert [(one["cohort"], one["source"]) for one in view["minimum_run_time"]] == [
        ("", "Cohort research"),
        ("org", "Cohort research"),
    ]
    tenant = Sight(namespaces=frozenset({"team"}))
    assert _queue(view, tenant)["minimum_run_time"] == [{"cohort": "", "seconds": 30.0, "source": ""}]


def test_the_page_tells_sentences_that_name_others_to_those_alone_who_may_see_them():
    def told(sight):
        named = {"rivals": ["It waits behind x/y"], "tree": ["in cohort org"]}
        place = {"cohort": "", "options": [], "victims": [], "history": ["own"], **named}
        found = _unnamed({"queue": place}, sight)["queue"]
        assert not {"rivals", "tree"} & found.keys()
        return found["history"]

    assert told(Sight(namespaces=None, queues=True)) == ["own", "in cohort org", "It waits behind x/y"]
    assert told(Sight(namespaces=frozenset({"team"}), queues=True)) == ["own", "in cohort org"]
    assert told(Sight(namespaces=frozenset({"team"}))) == ["own"]


def test_of_one_queue_the_cohorts_above_it_are_shown_and_no_others():
    assert [one.name for one in report(made(), None, "vision").cohorts] == ["org", "research"]
    assert [one.name for one in report(made(), "other").cohorts] == ["flat"]


def test_a_cohort_without_queues_is_shown_with_all():
    found = made(cohort("idle", "", quota(amount=4)))
    assert "idle" in [one.name for one in report(found).cohorts]
    assert "no ClusterQueue and no Cohort names it" in "\n".join(lines(found))


def test_a_parent_that_is_missing_is_shown():
    shown = lines(made(cohort("product", "company")))
    at = shown.index("Cohort company, and 1 cohort below")
    text = "Cohort product  there is no Cohort company, its parent: it counts as one without quota or limits"
    assert shown[at + 1] == text


@pytest.mark.parametrize("arguments", [(), (None, "vision")])
def test_a_circle_is_shown_and_what_is_below_it(arguments):
    found = made(cohort("org", "research", quota(amount=8)))
    shown = lines(found, *arguments)
    assert "Cohort research" in shown
    assert any(line.startswith("Not active (CohortCycle)  cohorts org and research are") for line in shown)
    (view,) = [one for one in report(found, *arguments).queues if one.name == "vision"]
    assert (view.active, view.reason, view.path) == (False, "CohortCycle", ("research",))
