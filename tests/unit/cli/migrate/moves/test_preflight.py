"""Whether Kueue runs by the Configuration that is there, and what of ours is taken over."""

import msgspec
import pytest

from cli.migrate.apply_objects import tell_unset
from cli.migrate.moves.adoption import judge_adoption, list_left_running
from cli.migrate.moves.backup import QueueBackup, decode_backups
from cli.migrate.moves.preflight import find_stale
from cli.output import Failure
from kube.workloads import WorkloadObject


def deployment(generation=2, observed=2):
    meta = {"namespace": "kueue-system", "name": "kueue-controller-manager", "generation": generation}
    return {"metadata": meta, "status": {"observedGeneration": observed}}


def config(*times):
    fields = [{"manager": "kubectl", "time": one} for one in times]
    return {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": fields}}


def pod(started, phase="Running"):
    return {"metadata": {"name": "kueue-1"}, "status": {"phase": phase, "startTime": started}}


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([], ""),
        ([pod("2026-01-02T00:00:01Z")], ""),
        ([pod("2026-01-02T00:00:00Z")], ""),
        ([pod("2026-01-01T23:59:59Z")], "pod kueue-1 of Kueue is older than its Configuration"),
        ([pod(None, "Pending")], "pod kueue-1 of Kueue is older than its Configuration"),
        ([pod("2026-01-01T00:00:00Z", "Failed")], ""),
    ],
)
def test_kueue_reads_its_configuration_when_it_starts(pods, said):
    assert find_stale(deployment(), [config("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z")], pods).startswith(said)
    assert bool(find_stale(deployment(), [config("2026-01-02T00:00:00Z")], pods)) == bool(said)


def test_a_deployment_that_is_being_changed_is_waited_for():
    assert "is being changed" in find_stale(deployment(3, 2), [], [])


def ours(*conditions, uid="u"):
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
    said = [
        {"type": kind, "status": status, "reason": reason, "message": why} for kind, status, reason, why in conditions
    ]
    meta = {"name": "w", "namespace": "team", "ownerReferences": [owner]}
    return msgspec.convert({"metadata": meta, "status": {"conditions": said}}, WorkloadObject)


REFUSED = ("QuotaReserved", "False", "NotAdopted", "there is no ClusterQueue q of topogate.dev")
RUNNING = {"u": "Job team/train"}


def test_a_job_is_taken_over_when_its_workload_is_admitted():
    assert judge_adoption(RUNNING, {}).unanswered == ("Job team/train",)
    assert judge_adoption(RUNNING, {"u": ours(("Admitted", "True", "Adopted", ""))}).is_complete
    assert judge_adoption(RUNNING, {"other": ours(("Admitted", "True", "Adopted", ""))}).unanswered
    assert judge_adoption({}, {}).is_complete
    refused = judge_adoption(RUNNING, {"u": ours(REFUSED)})
    assert refused.refused == {"Job team/train": "there is no ClusterQueue q of topogate.dev"}
    assert not refused.unanswered


def test_settings_that_nobody_took_over_are_told_and_those_that_were_decided_are_not():
    kueues = {"fairSharing": True, "waitForPodsReadyTimeoutSeconds": 1800}
    assert tell_unset("fairSharing: false\nwaitForPodsReadyTimeoutSeconds: 60\n", kueues, "t") == ""
    text = tell_unset("fairSharing: false\n", kueues, "t")
    assert text.startswith("ConfigMap t/topogate-config does not say waitForPodsReadyTimeoutSeconds, and Kueue's")
    assert "fairSharing, waitForPodsReadyTimeoutSeconds" in tell_unset("", kueues, "t")


def test_what_is_left_running_is_named_by_its_owner():
    every = {"a": ours(REFUSED), "b": ours(("Admitted", "True", "Adopted", ""))}
    assert [*list_left_running(every)] == [("Job team/train", "there is no ClusterQueue q of topogate.dev")]


def test_a_backup_that_cannot_be_read_is_told_with_its_key():
    text = msgspec.json.encode(QueueBackup("u", {"stopPolicy": "None"})).decode()
    assert decode_backups({"q": text}, "ConfigMap t/m")["q"].spec == {"stopPolicy": "None"}
    for broken in ("", "{}", '{"uid": "u", "spec": []}', "null", text[:-3]):
        with pytest.raises(Failure, match="ConfigMap t/m, key r: expected a backup that --move wrote"):
            decode_backups({"q": text, "r": broken}, "ConfigMap t/m")
