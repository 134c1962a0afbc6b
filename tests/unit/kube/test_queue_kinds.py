"""The queue kinds as queueing takes them."""

import msgspec
import pytest

from engine.model import Taint, Toleration
from engine.preemption.model import Strategy
from kube import queues
from kube.objects import ResourceFlavor
from queueing.model import Cohort, NonPreemptible, Preemption, Quota, Reclaim, Stop, Within


def read(body, kind):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def cluster_queue(**spec):
    return read({"metadata": {"name": "cq"}, "spec": spec}, queues.ClusterQueue)


def test_quotas_are_read_in_the_units_of_the_engine():
    cpu = {"name": "cpu", "nominalQuota": "1500m", "lendingLimit": 1}
    memory = {"name": "memory", "nominalQuota": "1Gi", "borrowingLimit": "512Mi"}
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "f", "resources": [cpu, memory]}]}
    found = queues.cluster_queue(cluster_queue(resourceGroups=[group], cohortName="all"))
    (made,) = found.groups
    assert made.resources == ("cpu", "memory")
    assert made.flavors[0].resources == {
        "cpu": Quota(nominal=1500, lending=1000),
        "memory": Quota(nominal=1 << 30, borrowing=1 << 29),
    }
    assert (found.name, found.cohort, found.weight) == ("cq", "all", 1000)


def test_absent_rules_are_those_that_the_api_server_would_fill_in():
    found = queues.cluster_queue(cluster_queue())
    assert (found.strict, found.borrow_first, found.preempt_first, found.stop) == (False, True, False, Stop.NONE)
    assert not found.preempt_before_borrow  # as in Kueue 0.19.2, where absent is BorrowingOverPreemption
    assert found.preemption == Preemption()
    assert found.namespaces is None, "no selector selects no namespace"
    assert queues.cluster_queue(cluster_queue(namespaceSelector={})).namespaces == ()


def test_every_rule_is_taken_over():
    found = queues.cluster_queue(
        cluster_queue(
            queueingStrategy="StrictFIFO",
            flavorFungibility={
                "whenCanBorrow": "TryNextFlavor",
                "whenCanPreempt": "MayStopSearch",
                "preference": "PreemptionOverBorrowing",
            },
            preemption={
                "reclaimWithinCohort": "LowerPriority",
                "withinClusterQueue": "LowerOrNewerEqualPriority",
                "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 7},
                "nonPreemptible": "ByWorkload",
                "strategy": "IncrementalMinimal",
                "alpha": 0.25,
            },
            stopPolicy="HoldAndDrain",
            fairSharing={"weight": "500m"},
            admissionScope={"admissionMode": "UsageBasedAdmissionFairSharing"},
        )
    )
    assert (found.strict, found.borrow_first, found.preempt_first) == (True, False, True)
    assert found.preempt_before_borrow
    assert found.preemption == Preemption(
        within=Within.LOWER_OR_NEWER,
        reclaim=Reclaim.LOWER,
        borrowing=True,
        threshold=7,
        non_preemptible=NonPreemptible.BY_WORKLOAD,
        strategy=Strategy.INCREMENTAL_MINIMAL,
        alpha=0.25,
    )
    assert (found.stop, found.weight, found.by_use) == (Stop.DRAIN, 500, True)


@pytest.mark.parametrize("mode", ["NoAdmissionFairSharing", "", "Unknown"])
def test_only_one_mode_of_an_admission_scope_has_local_queues_take_turns_by_use(mode):
    assert not queues.cluster_queue(cluster_queue(admissionScope={"admissionMode": mode})).by_use
    assert not queues.cluster_queue(cluster_queue(admissionScope=None)).by_use


@pytest.mark.parametrize(
    ("scope", "by_use"),
    [
        ({"admissionMode": "UsageBasedAdmissionFairSharing"}, True),
        ({"admissionMode": "NoAdmissionFairSharing"}, False),
        (None, False),
    ],
)
def test_the_scope_of_a_cohort_says_whether_its_children_take_turns_by_use(scope, by_use):
    wire = {"metadata": {"name": "org"}, "spec": {"admissionScope": scope}}
    assert queues.cohort(read(wire, queues.Cohort)).by_use == by_use


def test_a_quantity_that_is_none_is_named():
    group = {
        "coveredResources": ["cpu"],
        "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": "x"}]}],
    }
    with pytest.raises(ValueError, match="cpu: 'x' is not a quantity"):
        queues.cluster_queue(cluster_queue(resourceGroups=[group]))


def test_a_local_queue_knows_its_namespace_and_whether_it_is_stopped():
    wire = {"metadata": {"namespace": "ns", "name": "lq"}, "spec": {"clusterQueue": "cq", "stopPolicy": "Hold"}}
    found = queues.local_queue(read(wire, queues.LocalQueue))
    assert (found.namespace, found.name, found.cluster_queue, found.stop) == ("ns", "lq", "cq", Stop.HOLD)
    assert (found.weight, found.part) == (1000, "ns/lq")


def test_the_weight_of_a_local_queue_is_in_thousandths():
    wire = {"metadata": {"namespace": "ns", "name": "lq"}, "spec": {"fairSharing": {"weight": "1500m"}}}
    assert queues.local_queue(read(wire, queues.LocalQueue)).weight == 1500
    wire["spec"]["fairSharing"]["weight"] = "much"
    with pytest.raises(ValueError, match=r"^spec.fairSharing.weight: 'much' is not a quantity"):
        queues.local_queue(read(wire, queues.LocalQueue))


def test_a_flavor_with_a_topology_is_the_engines():
    plain = read({"metadata": {"name": "f"}, "spec": {"nodeLabels": {"a": "b"}}}, ResourceFlavor)
    assert queues.plain_flavor(plain).node_labels == {"a": "b"}
    spec = {"nodeTaints": [{"key": "t", "effect": "NoSchedule"}], "tolerations": [{"key": "t", "operator": "Exists"}]}
    tainted = queues.plain_flavor(read({"metadata": {"name": "f"}, "spec": spec}, ResourceFlavor))
    assert tainted.taints == (Taint(key="t", effect="NoSchedule"),)
    assert tainted.tolerations == (Toleration(key="t", operator="Exists"),)
    placed = read({"metadata": {"name": "f"}, "spec": {"topology": {"levels": ["rack"]}}}, ResourceFlavor)
    assert queues.plain_flavor(placed) is None


def test_checks_are_needed_by_the_flavors_they_name():
    rules = {"admissionChecks": [{"name": "all"}, {"name": "spot", "onFlavors": ["s"]}]}
    wire = cluster_queue(admissionChecksStrategy=rules)
    assert queues.checks(wire, {"f"}) == ("all",)
    assert queues.checks(wire, {"f", "s"}) == ("all", "spot")
    assert queues.checks(cluster_queue(), {"f"}) == ()


def test_a_cohort_is_taken_over_with_its_place_quota_and_weight():
    quota = {"name": "cpu", "nominalQuota": "4", "borrowingLimit": 6, "lendingLimit": "10"}
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [quota]}]}
    spec = {"parentName": "org", "resourceGroups": [group], "fairSharing": {"weight": "2500m"}}
    found = queues.cohort(read({"metadata": {"name": "research"}, "spec": spec}, queues.Cohort))
    assert (found.name, found.parent, found.weight) == ("research", "org", 2500)
    assert found.groups[0].flavors[0].resources == {"cpu": Quota(nominal=4000, borrowing=6000, lending=10_000)}


def test_a_cohort_that_says_nothing_is_a_root_of_weight_one():
    assert queues.cohort(read({"metadata": {"name": "org"}}, queues.Cohort)) == Cohort(name="org")
