"""What is made of Kueue's queues while they move: on hold and alone first, and in their cohorts in the end."""

from support.migrating import found, of_kueue

from cli.migrate.moves.backup import Backups
from cli.migrate.moves.our_objects import StepObjects
from cli.migrate.moves.sight import MoveSight, make_view
from cli.migrate.moves.steps import choose_step
from cli.migrate.source_objects import KueueObjectsRead

KIND = "ClusterQueue"
AMOUNT = {"name": "cpu", "nominalQuota": "4", "lendingLimit": "1"}
GROUPS = [{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [AMOUNT]}]}]
OWN = [{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": "9"}]}]}]


def queue(name, **spec):
    body = of_kueue("ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": GROUPS, **spec})
    return body | {"metadata": {"name": name, "uid": f"uid-{name}"}}


BODIES = [
    queue("a", cohortName="left", stopPolicy="None"),
    queue("b", cohortName="right"),
    queue("c"),
    of_kueue("Cohort", "left", {"parentName": "root", "resourceGroups": OWN}),
    of_kueue("Cohort", "root", {"fairSharing": {"weight": "2"}}),
    of_kueue("Cohort", "else", {}),
    of_kueue("ResourceFlavor", "f", {"nodeLabels": {"x": "y"}}),
    of_kueue("ResourceFlavor", "g", {"nodeLabels": {"x": "z"}}),
    of_kueue("LocalQueue", "l", {"clusterQueue": "a"}, namespace="x"),
    of_kueue("LocalQueue", "l", {"clusterQueue": "b"}, namespace="y"),
    of_kueue("WorkloadPriorityClass", "high", value=7),
]


def sight(*, moved=(), served=(), ours=(), bodies=BODIES):
    every = found(*bodies)
    live = {one.name: one.body for one in every if one.kind == "ClusterQueue"}
    view = make_view(every, {name: live[name]["spec"] for name in moved})
    labels = {name: ({"topogate.dev/served": "true"} if name in served else {}) for name in "xy"}
    read = KueueObjectsRead(every, [])
    return MoveSight({}, read, live, view, Backups("t"), labels, {one["metadata"]["name"]: one for one in ours})


def objects(seen, *wanted):
    return StepObjects(seen, choose_step(seen.view, wanted), ())


def named(bodies):
    return [f"{one['kind']} {one['metadata']['name']}" for one in bodies]


def of(bodies, kind):
    return {one["metadata"]["name"]: one.get("spec") or {} for one in bodies if one["kind"] == kind}


def test_before_the_namespaces_are_served_queues_are_on_hold_and_outside_of_cohorts():
    early = objects(sight(), "a").list_early()
    assert named(early) == ["WorkloadPriorityClass high", "ResourceFlavor f", "ClusterQueue a", "LocalQueue l"]
    spec = of(early, "ClusterQueue")["a"]
    assert spec["stopPolicy"] == "Hold"
    assert "cohortName" not in spec
    assert spec["resourceGroups"][0]["flavors"][0]["resources"] == [{"name": "cpu", "nominalQuota": "4"}]


def test_a_queue_that_serves_its_namespaces_is_not_put_on_hold_again():
    mine = objects(sight(moved="a"), "a").list_final()[-1]
    assert of(objects(sight(moved="a", served="x", ours=[mine]), "a").list_early(), "ClusterQueue") == {}
    assert "a" in of(objects(sight(moved="a", ours=[mine]), "a").list_early(), "ClusterQueue")


def test_the_quota_of_a_tree_comes_with_its_last_queue():
    bodies = [*BODIES, of_kueue("Cohort", "right", {"parentName": "root"})]
    divided = objects(sight(bodies=bodies), "a").list_final()
    assert named(divided) == ["ClusterQueue a", "Cohort root", "Cohort left", "Cohort right", "ClusterQueue a"]
    assert of(divided, "Cohort")["left"] == {"parentName": "root"}
    last = objects(sight(bodies=bodies, moved="a"), "b")
    assert of(last.list_final(), "Cohort")["left"]["resourceGroups"] == OWN


def test_no_queue_admits_before_all_are_in_their_cohorts():
    """The first to admit would else be lent what jobs of the others use: seen on a cluster with a full tree."""
    bodies = [*BODIES, of_kueue("Cohort", "right", {"parentName": "root"})]
    final = objects(sight(bodies=bodies), "a", "b").list_final()
    policies = [
        (one["metadata"]["name"], one["spec"].get("stopPolicy", "None")) for one in final if one["kind"] == KIND
    ]
    assert policies == [("a", "Hold"), ("b", "Hold"), ("a", "None"), ("b", "None")]
    assert all(one["spec"]["cohortName"] for one in final if one["kind"] == KIND)
    first = [one["kind"] for one in final].index("Cohort")
    assert policies[:first] == [("a", "Hold"), ("b", "Hold")], "what the cohorts lend comes once all use is known"


def test_a_queue_that_is_in_its_cohort_already_is_not_put_on_hold_again():
    mine = objects(sight(moved="a"), "a").list_final()[-1]
    final = objects(sight(moved="a", served="x", ours=[mine]), "a").list_final()
    assert of(final, "ClusterQueue")["a"]["stopPolicy"] == "None"
    assert named(final).count("ClusterQueue a") == 1


def test_a_queue_is_released_until_it_is_as_it_is_to_be():
    whole = objects(sight(), "a").list_final()[-1]
    on_hold = objects(sight(), "a").list_early()[2]
    assert objects(sight(ours=[on_hold]), "a").find_stopped() == ["a"]
    assert objects(sight(ours=[whole]), "a").find_stopped() == []
    assert objects(sight(), "a").find_stopped() == ["a"]


def test_a_counterpart_of_a_queue_that_stays_would_lend_its_quota_twice():
    bodies = [*BODIES, of_kueue("Cohort", "right", {"parentName": "root"})]
    counterpart = {"metadata": {"name": "b"}, "spec": {"cohortName": "right"}}
    assert objects(sight(bodies=bodies, ours=[counterpart]), "a").find_lent_twice() == ["b"]
    assert objects(sight(bodies=bodies, ours=[counterpart]), "a", "b").find_lent_twice() == []
    assert objects(sight(bodies=bodies, ours=[{"metadata": {"name": "b"}, "spec": {}}]), "a").find_lent_twice() == []


def test_only_refusals_of_the_step_keep_it():
    bodies = [*BODIES, queue("bad", unheard=1), of_kueue("LocalQueue", "l", {"clusterQueue": "bad"}, namespace="z")]
    assert objects(sight(bodies=bodies), "a").list_refused() == []
    assert [row.title for row in objects(sight(bodies=bodies), "bad").list_refused()] == ["ClusterQueue bad"]
