"""Pods that were let go while nobody sees it yet: what they take of a queue when their workload gives it back."""

import pytest
from support.owned import KEYS, make_admission, make_owner, make_pod, make_record, slot_map

from queueing.queues.queues import Queues
from ungater.cache.orphans import Orphans
from ungater.model.pod_slots import Intent

SLOTS = slot_map(("b/r/n1", 1))
SLOT = ("b", "r", "n1")


def given_back(intent):
    """Orphans and queues after the workload of a gated pod gave back what it held; and the pod."""
    pod = make_pod("p")
    record = make_record(
        make_owner(),
        slots=SLOTS,
        admission=make_admission(SLOTS, queue="q", flavors={"cpu": "gpu", "pods": "gpu"}),
        pods=[pod],
    )
    if intent is not None:
        record.intents[pod.metadata.uid] = intent
    queues = Queues()
    orphans = Orphans(queues, KEYS.gate, lambda _: False)
    orphans.remember(record)
    record.intents.clear()
    orphans.judge(pod, None)
    return orphans, queues, pod


def charged(queues):
    return sum(held.amounts["gpu", "pods"] for held in queues.quotas.held.values())


def test_one_whose_patch_was_sent_is_charged_until_it_is_seen_to_be_gone():
    orphans, queues, pod = given_back(Intent(SLOT, 9.0))
    assert charged(queues) == 1
    assert orphans.gone(pod)
    assert charged(queues) == 0


def test_one_that_is_seen_at_last_says_itself_what_it_takes():
    orphans, queues, _ = given_back(Intent(SLOT, 9.0))
    seen = make_pod("p", at=SLOT, node="n1", phase="Running")
    orphans.judge(seen, None)
    assert charged(queues) == 1
    assert not orphans.stayed(seen)


@pytest.mark.parametrize("intent", [None, Intent(SLOT, 9.0, gone=True), Intent(SLOT, 9.0, refused=True)])
def test_one_that_was_not_sent_takes_nothing(intent):
    _, queues, _ = given_back(intent)
    assert charged(queues) == 0


def test_one_whose_patch_came_to_nothing_takes_nothing_any_more():
    orphans, queues, pod = given_back(Intent(SLOT, 9.0))
    assert orphans.stayed(pod)
    assert charged(queues) == 0
    assert not orphans.stayed(pod)
