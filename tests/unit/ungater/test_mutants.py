"""Mutated objects of every kind into the load, the events and the cycles of the controller: one's error is one's own.

``TOPOGATE_FUZZ_OBJECTS=200000`` (with ``pytest -s``) is the full number, of which one line is printed;
``TOPOGATE_FUZZ_SEED`` and ``TOPOGATE_FUZZ_FIRST`` choose others, so that it can be split. What fails names its seed and
numbers.
"""

import os

import pytest
from support import mutant_world, mutants
from support.mutant_world import A_ROUND, Found, Round, memory

from kube.objects import key
from ungater.cache.cache import Cache
from ungater.cache.pods import PodEvents
from ungater.cache.workloads import WorkloadEvents

SOME = 4 * A_ROUND
COUNT = int(os.environ.get("TOPOGATE_FUZZ_OBJECTS", SOME))
SEED = os.environ.get("TOPOGATE_FUZZ_SEED", "1")
FIRST = int(os.environ.get("TOPOGATE_FUZZ_FIRST", "0"))
LONGEST = 0.5  # seconds of CPU of one step, in a long run
MORE_IN_USE = 16  # MiB that a warm process may still have in use, whatever the number of objects
MORE_MEBIBYTES = 48  # MiB that the process itself may still grow in the second half: gaps among what is in use


def test_the_same_seed_makes_the_same_objects():
    assert [mutants.make("a", number) for number in range(50)] == [mutants.make("a", number) for number in range(50)]
    assert mutants.make("a", 1) != mutants.make("b", 1)
    assert mutants.make("a", 1) != mutants.make("a", 1, 1)


def test_objects_of_all_kinds_are_made_and_some_by_tenants_alone():
    kinds = {mutants.kind_of("a", number) for number in range(2 * A_ROUND)}
    assert kinds == set(mutants.KINDS)
    assert {mutants.kind_of("a", number) for number in range(A_ROUND, 2 * A_ROUND)} <= set(mutants.TENANTS)


def test_every_kind_that_is_watched_is_made():
    """But for Kueue's own, which nobody serves here: its classes, and what is watched beside it."""
    world = Round("", range(0), Found())
    world.live()
    assert world.watched.count(None) == len(world.term.controller.parts.bridge.informers()) + 1
    assert set(world.watched) - {None} == set(mutants.KINDS)


@pytest.mark.timeout(7200)
def test_no_object_costs_another_one_anything_and_nothing_is_kept_of_those_that_are_gone():
    found = Found()
    warm = mutant_world.run(SEED, FIRST, min(COUNT, 2 * A_ROUND), found)
    before, at_first = memory()
    half = warm + mutant_world.run(SEED, FIRST + warm, (COUNT - warm) // 2, found)
    _, had = memory()
    mutant_world.run(SEED, FIRST + half, COUNT - half, found)
    after, has = memory()
    print(
        f"seed {SEED}, from number {FIRST}: {found}; {before:.0f} MiB in use after {warm}, {after:.0f} MiB at the end "
        f"(of {at_first:.0f}, {had:.0f} after {half}, and {has:.0f} that the process has)"
    )
    assert found.wrong == [], "\n".join(found.wrong[:20])
    if COUNT > SOME:
        assert found.longest < LONGEST
        assert after - before < MORE_IN_USE
        assert has - had < MORE_MEBIBYTES


def test_a_mutant_that_is_not_guarded_is_seen(monkeypatch):
    """The same rounds see an error that no guard caught, and an honest object that it cost something."""
    real = PodEvents.load

    def load(pods, pod):
        if not key(pod).startswith("honest/"):
            raise ZeroDivisionError
        real(pods, pod)

    monkeypatch.setattr(PodEvents, "load", load)
    guarded, found = Found(), Found()
    Round(SEED, range(40), guarded, mutant_world.tables()).live()
    assert {place.partition(" ")[0] for place in guarded.poisoned} == {"pod:"}
    assert not [wrong for wrong in guarded.wrong if "honest" in wrong or "the controller ended" in wrong]
    monkeypatch.setattr(Cache, "_each", lambda _, __, objects, take, *___: [take(one) for one in objects])
    Round(SEED, range(40), found, mutant_world.tables()).live()
    assert [wrong for wrong in found.wrong if "the controller ended" in wrong]
    assert [wrong for wrong in found.wrong if "honest pod queued-a-0 was not placed" in wrong]


def test_what_fails_while_a_failure_is_told_ends_nothing(monkeypatch):
    """The answer to a write is taken in wherever that is; here none of a tenant's can be."""
    real = WorkloadEvents.written

    def written(workloads, record, known):
        real(workloads, record, known)
        if not record.key.startswith("honest/"):
            raise ZeroDivisionError

    monkeypatch.setattr(WorkloadEvents, "written", written)
    found = Found()
    Round(SEED, range(40), found, mutant_world.tables()).live()
    assert any(place.startswith("workload:") for place in found.poisoned)
    assert not [wrong for wrong in found.wrong if "honest" in wrong or "the controller ended" in wrong]
