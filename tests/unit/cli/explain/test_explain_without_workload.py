"""`topogate explain` of a job that has no Workload says why it has none: as the controller decides, or as it told."""

import io
from datetime import UTC, datetime

import pytest
import yaml
from rich.console import Console
from support.snapshots import DOMAIN, FLAVOR, RACK, container, node

from cli.cluster import cluster_snapshot
from cli.cluster import dump as dumps
from cli.explain import report as reports
from cli.explain.last_warning import newest
from cli.explain.rendering import render
from cli.queues.report import NOT_SEEN
from crds.constants import Keys
from crds.settings import Settings
from kube.events import ObjectReference
from kube.told_events import Regarding, Stamp, ToldEvent
from ungater.reconcile.reconcile import not_ours

GATE = {"schedulingGates": [{"name": Keys().gate}]}


def job(*, request=True, gated=False, queue="", ended=False):
    annotations = {f"{DOMAIN}/require-topology": RACK} if request else {}
    labels = {Keys().queue_name: queue} if queue else {}
    conditions = [{"type": "Complete", "status": "True", "message": "all done"}] if ended else []
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "team", "uid": "u", "annotations": annotations, "labels": labels},
        "spec": {"template": {"spec": {"containers": [container(8)], **(GATE if gated else {})}}},
        "status": {"conditions": conditions},
    }


def explained(tmp_path, made, told=None):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump_all([FLAVOR, node("r1h1", "r1"), made]))
    dump, keys = dumps.read([str(path)]), Keys()
    cache = cluster_snapshot.cache_of(dump, Settings())
    (entry,) = cache.entries.values()
    found = reports._report(dump, cache, keys, None, entry.job, 1_800_000_000.0, told)
    console = Console(file=io.StringIO(), width=300, color_system=None)
    console.print(render(found))
    return entry, found, console.file.getvalue()


@pytest.mark.parametrize(("made", "reason"), [(job(), "NotGated"), (job(request=False, gated=True), "InvalidRequest")])
def test_one_that_is_not_ours_to_place_says_what_the_event_says(tmp_path, made, reason):
    entry, found, text = explained(tmp_path, made)
    assert (found.state, found.reason) == ("NotManaged", reason)
    assert found.message == not_ours(entry, Keys()).message
    assert f"NotManaged  {reason}: " in text
    assert "is it running" not in text
    assert "without a slot" not in text


def event(note="refused", uid="u", at=1, reporter="topogate.dev/topogate-ungater", **more):
    stamp = Stamp(creation_timestamp=datetime.fromtimestamp(at, UTC))
    about = Regarding(kind="Job", name="train", uid=uid)
    told = {"reason": "WriteFailed", "type": "Warning", **more}
    return ToldEvent(metadata=stamp, regarding=about, note=note, reporting_controller=reporter, **told)


@pytest.mark.parametrize("made", [job(gated=True), job(request=False, queue="a")])
def test_one_whose_workload_cannot_be_made_says_what_the_controller_told_last(tmp_path, made):
    _, found, text = explained(tmp_path, made, event("its Workload cannot be created: 403 Forbidden"))
    assert (found.state, found.reason) == ("Waiting", "WriteFailed")
    assert "Waiting  WriteFailed: its Workload cannot be created: 403 Forbidden" in text


def test_one_of_which_nothing_was_told_is_not_said_to_be_unseen(tmp_path):
    _, found, _ = explained(tmp_path, job(gated=True))
    assert found.message == reports.NO_WORKLOAD
    assert NOT_SEEN not in found.message


def test_one_that_has_ended_waits_for_nothing(tmp_path):
    _, found, _ = explained(tmp_path, job(gated=True, ended=True))
    assert (found.state, found.message) == ("Finished", "all done")


def test_only_warnings_of_topogate_about_this_very_object_count():
    about = ObjectReference(api_version="batch/v1", kind="Job", namespace="team", name="train", uid="u")
    others = (
        event("of one before", uid="other", at=9),
        event("of another controller", reporter="job-controller", at=9),
        event("fine", type="Normal", at=9),
    )
    assert newest([*others, event("first", at=1), event("last", at=2)], about).note == "last"
    assert newest(others, about) is None
