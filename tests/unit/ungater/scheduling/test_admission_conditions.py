"""What is said of a Workload that is admitted."""

from msgspec.structs import replace
from support.owned import make_owner, slot_map
from support.world import stored_workload

from kube.objects import Condition
from ungater.model.conditions import WantedCondition
from ungater.model.workload_status import observed_of
from ungater.scheduling.admission_conditions import admitted_still

SAID = (
    Condition(type="QuotaReserved", status="True", reason="QuotaReserved", message="4 pods in b/r (rack)"),
    Condition(type="Admitted", status="False", reason="Pending", message="waits for admission check a"),
    Condition(type="PodsReady", status="True", reason="PodsReady", message="all 4 pods are ready"),
)


def observed():
    return replace(observed_of(stored_workload(make_owner(), slot_map(("b/r/n1", 4)))), conditions=SAID)


def test_one_that_was_scaled_down_says_how_many_pods_it_has_now():
    """`explain` and the Workload went on to say where four pods are, of which one was left."""
    wanted = admitted_still(observed(), "1 pod in b/r (rack)")
    assert wanted == (WantedCondition("QuotaReserved", True, "QuotaReserved", "1 pod in b/r (rack)"),)


def test_nothing_changes_where_no_place_is_told_or_nothing_was_said():
    assert admitted_still(observed(), "") == ()
    assert admitted_still(None, "1 pod") == ()
