"""What ``topogate demo`` shows while Kubernetes is built: the README's Job, placed by the controller's own code.

It is placed on the machines that the demo creates later. Nothing runs yet: the page shows what a cluster would store.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.console import RenderableType

from cli import place
from cli.cluster import cluster_snapshot, dump
from cli.cluster.dry_run import DryRunOutcome, rehearse
from cli.cluster.dump import FoundObject
from cli.cluster.manifests import Maker
from cli.demo.stage import LEVEL, NAMESPACE, make_job
from cli.output import Failure
from crds.constants import Keys
from crds.settings import Settings
from kube.objects import Job
from kube.pods.convert import INDEX_LABELS
from ungater.cache.cache import Cache
from ungater.model import conditions, workload_status
from ungater.model.job_view import MAIN
from ungater.model.workload_spec import new_workload
from ungater.scheduling.admission_conditions import admitted_as

Json = dict[str, Any]
TRAIN = make_job("train", 4, 8, (Keys().required[0], LEVEL), completionMode="Indexed")


def preview(cluster: Sequence[Json], job: Json, now: float) -> tuple[RenderableType, list[Json]]:
    """What ``topogate place`` says of a Job on this cluster, and the cluster once its pods run there.

    ``cluster``: its nodes and flavors; ``now``: seconds since the epoch. Raises Failure where the Job would wait.
    """
    written = FoundObject("", b"", 0, None, job, job["kind"])
    answer = place.render(place.report(_cache_of(cluster), [written], NAMESPACE, now))
    # Another cache: the report has placed the Job in the first one, and it would be there twice.
    cache = _cache_of(cluster)
    made = Maker(cache, cache.keys, NAMESPACE, conditions.timestamp(now)).make_manifest(written)
    for outcome in rehearse(cache, made.jobs, made.pods, now):
        if outcome.placed and outcome.entry.observed is not None:
            stored = {"apiVersion": job["apiVersion"], "kind": job["kind"], **_as_json(made.jobs[0])}
            observed = outcome.entry.observed
            told = admitted_as(observed, outcome.message, ())
            # By the controller's own writers, so that the page reads what it would read in a cluster.
            merged = conditions.merge((), told, generation=1, now=now) or ()
            patch = workload_status.status_patch(observed, merged, admission=outcome.admission)
            body = new_workload(outcome.entry.job, 0)
            body["metadata"] |= {"uid": observed.uid, "creationTimestamp": conditions.timestamp(now)}
            return answer, [
                *cluster,
                stored,
                _as_json({**body, "status": patch["status"]}),
                *_preview_pods(outcome, job, now),
            ]
    raise Failure(f"Job {job['metadata']['name']} finds no place: {made.denied}")


def _cache_of(cluster: Sequence[Json]) -> Cache:
    return cluster_snapshot.cache_of(dump.taken(dump.live_objects(cluster)), Settings())


def _as_json(body: Job | Json) -> Json:
    plain: Json = msgspec.json.decode(msgspec.json.encode(body))
    return plain


def _preview_pods(outcome: DryRunOutcome, job: Json, now: float) -> Iterator[Json]:
    """Its pods, which run in the order of their ranks where the Workload has their slots."""
    owner, keys = outcome.entry.job, Keys()
    told = {keys.workload: owner.workload, keys.pod_set: MAIN}
    taken = (piece.nodes for part in outcome.assignments for piece in part.slices)
    nodes = [name for counts in taken for name, count in counts for _ in range(count)]
    for rank, node in enumerate(nodes):
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{owner.name}-{rank}",
                "namespace": NAMESPACE,
                "uid": f"{owner.uid}-{rank}",
                "creationTimestamp": conditions.timestamp(now),
                "labels": dict.fromkeys(INDEX_LABELS, str(rank)) | {"job-name": owner.name},
                "annotations": {**job["metadata"]["annotations"], **told},
                "ownerReferences": [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": owner.name, "uid": owner.uid, "controller": True}
                ],
            },
            # No gate and no selector: the pod is past both.
            "spec": {**job["spec"]["template"]["spec"], "nodeName": node},
            "status": {"phase": "Running"},
        }
