"""What a person is told of quota is what the cycle decides by."""

import msgspec
import pytest
from support.queue_factories import GPU, make_pod_set, make_queue, make_queues, make_state, make_workload, run, submit

from engine.quantity import LARGEST, MOST
from engine.reasons import Reason
from engine.results import Refusal
from queueing.explain import QuotaFit, explain
from queueing.model import PlainFlavor


def test_each_option_says_what_is_wanted_and_what_is_there():
    state = make_state(flavors=("tas", "old"))
    queues = make_queues(
        make_queue("q", {"tas": 8, "old": 16}, cohort="x", borrowing=8),
        make_queue("b", {"tas": 16, "old": 0}, cohort="x"),
    )
    submit(queues, make_workload("other", "b"), make_workload("mine"))
    run(state, queues)
    tas, old = explain(state, queues, "q", make_workload("w", count=3))
    assert tas.flavors == ("tas",)
    assert tas.quotas == (QuotaFit("tas", GPU, wanted=24, nominal=8, used=8, left=8, most=16),)
    assert (tas.quotas[0].lacking, tas.quotas[0].never) == (16, True)
    assert old.quotas == (QuotaFit("old", GPU, wanted=24, nominal=16, used=0, left=16, most=16),)
    assert (tas.borrows, old.borrows, old.lacking) == (True, True, True)


def test_what_suffices_lacks_nothing():
    (found,) = explain(make_state(), make_queues(make_queue("q", 8)), "q", make_workload("w"))
    assert (found.lacking, found.borrows, found.quotas[0].never) == (False, False, False)


def test_a_resource_without_quota_is_a_refusal():
    workload = make_workload("w", level=None)
    found = explain(make_state(), make_queues(make_queue("q", flavors=("gone",))), "q", workload)
    assert isinstance(found, Refusal)
    assert (found.reason, found.message) == (Reason.NO_FLAVOR, "there is no ResourceFlavor gone")


@pytest.mark.parametrize("nominal", [2 * MOST, LARGEST], ids=["less than it asks for", "more than is counted"])
def test_what_is_told_is_what_pods_ask_for_also_where_that_is_more_than_is_counted(nominal):
    """Else one reads that it wants 128Ti, of which there are enough."""
    asks = 3 * MOST
    pod_set = msgspec.structs.replace(make_pod_set(gpu=MOST), cut={GPU: asks})
    workload = make_workload("w", pod_sets=(pod_set,))
    state, queues = make_state(), make_queues(make_queue("q", nominal))
    (found,) = explain(state, queues, "q", workload)
    assert found.quotas[0].wanted == asks
    submit(queues, workload)
    (told,) = run(state, queues).waiting
    assert told.reason is (Reason.EXCEEDS_QUOTA if nominal < asks else Reason.NEVER_FITS)
    if nominal < asks:
        assert f"{asks} {GPU} of flavor tas wanted, at most {nominal} possible" in told.message


def test_one_that_asks_for_more_than_is_counted_gets_no_quota_by_that_where_it_needs_no_room():
    pod_set = msgspec.structs.replace(make_pod_set(gpu=MOST, level=None), cut={GPU: 3 * MOST})
    state, queues = make_state(flavors=()), make_queues(make_queue("q", 2 * MOST, flavors=("plain",)))
    queues.set_flavor(PlainFlavor(name="plain"))
    submit(queues, make_workload("w", pod_sets=(pod_set,)))
    assert [one.reason for one in run(state, queues).waiting] == [Reason.EXCEEDS_QUOTA]
