"""Which Jobs may count pods that are evicted by how they end (Job controller of Kubernetes 1.37)."""

import msgspec
import pytest

from kube.objects import Job
from ungater.jobs.failures import counts_by_its_end

DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]
IGNORED = {"action": "Ignore", "onPodConditions": DISRUPTED}
CODES = {"containerName": "c", "operator": "In", "values": [143]}


def counts(status=None, **spec):
    body = {"spec": {"podReplacementPolicy": "Failed", "parallelism": 4, **spec}, "status": status or {}}
    return counts_by_its_end(msgspec.json.decode(msgspec.json.encode(body), type=Job))


@pytest.mark.parametrize("policy", ["TerminatingOrFailed", ""])
def test_a_pod_that_counts_as_failed_once_it_terminates_has_no_end_to_wait_for(policy):
    assert not counts(podReplacementPolicy=policy)


@pytest.mark.parametrize(
    ("spec", "status", "may"),
    [
        ({}, {}, True),  # a backoffLimit of 6, and 4 pods
        ({"backoffLimit": 3}, {}, False),
        ({"backoffLimit": 0, "parallelism": 1}, {}, False),
        ({"backoffLimit": 1, "parallelism": None}, {}, True),
        ({}, {"failed": 2}, True),
        ({}, {"failed": 3}, False),
        ({}, {"failed": 2, "uncountedTerminatedPods": {"failed": ["u"]}}, False),
        ({}, {"active": 4, "terminating": 3}, False),
        ({"backoffLimit": 2**31 - 1, "backoffLimitPerIndex": 1}, {}, False),
    ],
)
def test_it_may_where_all_its_pods_could_not_use_up_the_backoff_limit(spec, status, may):
    assert counts(status, **spec) is may


@pytest.mark.parametrize(
    ("rules", "may"),
    [
        ([IGNORED], True),
        ([{"action": "Ignore", "onExitCodes": CODES}, IGNORED], True),
        ([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}], True),  # True is the default
        ([{"action": "FailJob", "onExitCodes": CODES}, IGNORED], False),  # a pod that is told to end may exit so
        ([{"action": "Count", "onPodConditions": DISRUPTED}, IGNORED], False),
        ([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}], False),
        ([{"action": "Ignore", "onPodConditions": [{"type": "Other", "status": "True"}]}], False),
        ([], False),
    ],
)
def test_it_may_where_the_first_rule_about_it_ignores_disruptions(rules, may):
    assert counts(podFailurePolicy={"rules": rules}, backoffLimit=0) is may
    assert counts(podFailurePolicy={"rules": rules}, backoffLimit=100) is may
