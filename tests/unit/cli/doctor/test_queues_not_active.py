"""`topogate doctor` finds queues that admit nothing, each with its reason and what mends it."""

import pytest
from support.queue_objects import cluster, cohort, local, quota, read

from cli.doctor.queues import findings


def said(cluster_queues, local_queues=(), *, cohorts=(), defaults=True):
    reading = read(cluster_queues, local_queues, (), cohorts=cohorts)
    return [
        (str(one.weight), one.about, one.message, one.mend)
        for one in findings(reading.queues, {"tas"}, defaults=defaults)
    ]


def test_nothing_is_said_of_queues_that_admit():
    assert said([cluster("gpu")], [local("a", "gpu")]) == []


def test_a_flavor_that_is_not_there_is_told_once_of_its_cluster_queue():
    ((weight, about, message, mend),) = said([cluster("gpu", quota("tass"))], [local("a", "gpu")])
    assert (weight, about) == ("error", "ClusterQueue gpu")
    assert message.startswith("NoFlavor: there is no ResourceFlavor tass")
    assert mend == "kubectl edit clusterqueues.topogate.dev gpu: name a ResourceFlavor that exists; did you mean tas?"


def test_one_of_several_flavors_that_is_not_there_is_a_warning():
    ((weight, _, message, mend),) = said([cluster("gpu", quota(), quota("elsewhere"))])
    assert weight == "warning"
    assert message == "can admit workloads, but there is no ResourceFlavor elsewhere, which is skipped"
    assert mend.endswith("there are tas")


def test_a_local_queue_that_leads_nowhere():
    ((weight, about, message, mend),) = said([cluster("team-a")], [local("training", "teama")])
    assert (weight, about) == ("error", "LocalQueue team/training")
    assert message == "NoQueue: there is no ClusterQueue teama"
    assert mend.endswith("did you mean team-a?")


@pytest.mark.parametrize(
    ("queues", "about", "mend"),
    [
        (
            ([cluster("gpu", stopPolicy="Hold")], [local("a", "gpu")]),
            "ClusterQueue gpu",
            "clusterqueues.topogate.dev gpu",
        ),
        (
            ([cluster("gpu")], [local("a", "gpu", stopPolicy="Hold")]),
            "LocalQueue team/a",
            "localqueues.topogate.dev -n team a",
        ),
    ],
)
def test_one_that_is_stopped_is_a_warning_told_once(queues, about, mend):
    ((weight, of, message, how),) = said(*queues)
    assert (weight, of) == ("warning", about)
    assert "QueueStopped: it is stopped" in message
    assert how.startswith(f"kubectl patch {mend} ")
    assert '"stopPolicy":"None"' in how


def test_a_namespace_that_its_cluster_queue_does_not_select():
    selector = {"matchLabels": {"a": "b"}}
    ((weight, about, message, mend),) = said([cluster("gpu", namespaceSelector=selector)], [local("a", "gpu")])
    assert (weight, about) == ("error", "LocalQueue team/a")
    assert "does not select namespace team" in message
    assert mend == "kubectl edit clusterqueues.topogate.dev gpu: have spec.namespaceSelector select team"


def test_a_scope_that_the_settings_give_no_half_life_is_a_warning():
    scope = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    ((weight, about, message, mend),) = said([cluster("gpu", admissionScope=scope)], [local("a", "gpu")])
    assert (weight, about) == ("warning", "ClusterQueue gpu")
    assert message.endswith(
        "the admissionScope of the ClusterQueue has no effect: the setting fairUseHalfLifeSeconds is not set"
    )
    assert mend == "set fairUseHalfLifeSeconds in ConfigMap topogate-config, as 86400 (a day)"


def test_a_scope_of_a_cohort_that_the_settings_give_no_half_life_is_a_warning_too():
    scope = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    org = cohort("org", "", admissionScope=scope)
    found = said([cluster("gpu", cohortName="org")], [local("a", "gpu")], cohorts=[org])
    assert [(weight, about) for weight, about, *_ in found] == [("warning", "Cohort org")]
    assert found[0][2].endswith(
        "the admissionScope of the Cohort has no effect: the setting fairUseHalfLifeSeconds is not set"
    )


def test_a_queue_called_default_is_told_where_the_api_server_puts_nothing_into_it():
    queues = [cluster("gpu")], [local("default", "gpu"), local("a", "gpu")]
    assert said(*queues) == []
    ((weight, about, message, mend),) = said(*queues, defaults=False)
    assert (weight, about) == ("warning", "LocalQueue team/default")
    assert message == "what names no queue does not get it: this API server has no MutatingAdmissionPolicy v1"
    assert mend.startswith("Kubernetes 1.36 or newer, then topogate install")
