"""What others change while a move goes on: tenants create objects, administrators run two commands. Pure."""

from collections.abc import Collection, Iterable, Iterator

from cli.migrate.moves.backup import NAME
from cli.migrate.moves.kueue_spec import is_held
from cli.migrate.moves.sight import MoveSight
from cli.migrate.moves.steps import MoveStep, QueueLinks, choose_step
from cli.migrate.rows import Json
from cli.output import Failure, some


def require_queues(sight: MoveSight, step: MoveStep) -> None:
    """Raises Failure where a ClusterQueue of the step was deleted in Kueue since the command began."""
    if gone := [name for name in step.queues if name not in sight.live]:
        raise Failure(
            f"ClusterQueue {some(gone)} of Kueue was deleted meanwhile: what was done so far stays as it is; create it "
            "again from your file, and run the command again"
        )


def find_lost_backups(sight: MoveSight, step: MoveStep) -> Iterator[str]:
    """Queues that have moved, and whose backup somebody deleted, each in a sentence."""
    for name in step.queues:
        ours = sight.ours.get(name)
        if name in sight.view.moved or ours is None or sight.unserved_of(step.namespaces):
            continue
        # What Kueue's queue is now would be taken for what it was: on hold for ever, here as there.
        if is_held(sight.live[name].get("spec") or {}) and not is_held(ours.get("spec") or {}):
            yield (
                f"ClusterQueue {name} has moved, and ConfigMap {sight.backups.namespace}/{NAME} has no backup of it: "
                "put spec.stopPolicy, cohortName and resourceGroups of Kueue's object back to what they were, "
                "and run the command again"
            )


def require_unchanged(namespaces: Iterable[str], done: Collection[str], *, label: str) -> None:
    """Raises Failure where this run has labelled a namespace, or unlabelled it, and somebody has undone that."""
    # Between the two labels the other controller may have started jobs. To change it once more, past all that waits for
    # quiet, would end their pods.
    if undone := sorted(set(namespaces) & set(done)):
        raise Failure(
            f"namespace {some(undone)} was {label} by this command, and somebody has undone that: if another "
            "--move or --back runs, wait until it has ended; then run the one that you want again"
        )


def find_newcomers(view: QueueLinks, step: MoveStep) -> Iterator[str]:
    """What belongs to the step by now and did not when it began, each in a sentence."""
    # Told and not moved: a tenant who goes on creating LocalQueues could else keep the command from ending.
    now = choose_step(view, [name for name in step.queues if name in view.specs]) if step.queues else step
    again = f"run `topogate migrate kueue --move {' '.join(step.queues)}` again"
    for one in view.local_queues:
        # Its namespace is served, or its ClusterQueue is on hold: Kueue starts nothing of it.
        if one.namespace in set(now.namespaces) - set(step.namespaces) and one.cluster_queue in step.queues:
            yield f"LocalQueue {one.namespace}/{one.name} of Kueue came meanwhile, and waits on hold there: {again}"
        elif one.namespace in step.namespaces and one.cluster_queue in set(now.queues) - set(step.queues):
            yield (
                f"LocalQueue {one.namespace}/{one.name} of Kueue came meanwhile, and leads to ClusterQueue "
                f"{one.cluster_queue}, which has not moved: {again}, so that it moves too"
            )


def find_homeless(ours: Iterable[Json], view: QueueLinks, step: MoveStep) -> Iterator[str]:
    """LocalQueues of ours, in namespaces that go back, whose jobs Kueue would suspend or leave without a queue."""
    theirs = {(one.namespace, one.name) for one in view.local_queues}
    for one in ours:
        meta, queue = one["metadata"], str((one.get("spec") or {}).get("clusterQueue"))
        title = f"LocalQueue {meta['namespace']}/{meta['name']} of topogate.dev"
        if queue not in step.queues:
            # What is started after Kueue's Workloads were made has none there, and its pods would end.
            yield (
                f"{title} leads to ClusterQueue {queue}, which does not go back and is not put on hold; Kueue would "
                "suspend what it starts meanwhile: delete the LocalQueue when its jobs have ended"
            )
        elif (meta["namespace"], meta["name"]) not in theirs:
            yield (
                f"{title} has no counterpart in Kueue, where its jobs would have no queue: create it there, or delete "
                "it here when its jobs have ended"
            )
