"""Where each kind of owner keeps what its pods get: one object of each kind, as its documentation has it."""

import pytest
from support.owners import OWNER_OBJECTS, POINTERS

from crds.owner_templates import MANAGER, MOST_PLACES, OWNERS, Place, dotted_path, places_in


def found(kind, body):
    return [pointer for place in kind.places for pointer, _ in places_in(body, place)]


@pytest.mark.parametrize("kind", OWNERS, ids=lambda kind: f"{kind.kind}.{kind.version}")
def test_every_template_of_a_kind_is_found(kind):
    assert found(kind, OWNER_OBJECTS[kind.kind]) == list(POINTERS[kind.kind])


def test_every_kind_has_an_object_here():
    assert set(OWNER_OBJECTS) == set(POINTERS) == {kind.kind for kind in OWNERS}
    assert len({(kind.group, kind.version, kind.plural) for kind in OWNERS}) == len(OWNERS)


def test_the_entry_of_a_trainjob_is_the_one_of_our_manager():
    train = next(kind for kind in OWNERS if kind.kind == "TrainJob")
    entries = [{"manager": "kueue.x-k8s.io/manager"}, {"manager": MANAGER, "trainingRuntimeSpec": {"template": {}}}]
    assert found(train, {"spec": {"runtimePatches": entries}}) == ["/spec"]
    entries[1]["trainingRuntimeSpec"]["template"]["metadata"] = {}
    pointer = "/spec/runtimePatches/1/trainingRuntimeSpec/template/metadata"
    assert found(train, {"spec": {"runtimePatches": entries}}) == ["/spec", pointer]


@pytest.mark.parametrize("wrong", [None, 5, "x", [], {}, [[]], {"a": {"template": 5}}, [{"template": None}], [None, 7]])
@pytest.mark.parametrize("kind", OWNERS, ids=lambda kind: f"{kind.kind}.{kind.version}")
def test_what_is_no_map_is_passed_over(kind, wrong):
    for name in ("template", "leaderWorkerTemplate", "rayClusterSpec", "workerGroupSpecs", "components", "driver"):
        pointers = [*found(kind, {"spec": {name: wrong}}), *found(kind, {"spec": wrong}), *found(kind, {})]
        assert set(pointers) <= {"/spec", "/spec/template", "/spec/driver"}


def test_no_more_than_some_places_of_one_object_are_looked_at():
    groups = [{"template": {}} for _ in range(MOST_PLACES + 9)]
    place = Place(("spec", "workerGroupSpecs", "*", "template"))
    assert len(list(places_in({"spec": {"workerGroupSpecs": groups}}, place))) == MOST_PLACES


def test_pointers_are_escaped_and_messages_have_them_as_people_write_them():
    place = Place(("spec", "*ReplicaSpecs", "*", "template"))
    [(pointer, template)] = places_in({"spec": {"tfReplicaSpecs": {"a/b~": {"template": {"x": 1}}}}}, place)
    assert (pointer, template) == ("/spec/tfReplicaSpecs/a~1b~0/template", {"x": 1})
    assert dotted_path("/spec/workerGroupSpecs/0/template") == "spec.workerGroupSpecs[0].template"
    assert dotted_path(pointer) == "spec.tfReplicaSpecs.a/b~.template"
