"""What is made of Kueue's queues in a step, in the order in which it is applied. Pure, except for `find_conflicts`."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from cli.install.steps import read
from cli.migrate.apply_objects import try_object
from cli.migrate.convert_flavors import FLAVOR
from cli.migrate.convert_queues import CLUSTER_QUEUE, COHORT
from cli.migrate.migration import migrate_objects
from cli.migrate.moves.kueue_spec import HOLD, leave_cohort, stop_policy
from cli.migrate.moves.sight import LOCAL_QUEUE, MoveSight
from cli.migrate.moves.steps import MoveStep, QueueLinks, divided_trees, flavors_of, root_of, tree_of
from cli.migrate.rows import Json, Row
from cli.output import Failure, some
from kube.client import Client
from kube.resources import resource_of

_OVERWRITE: Final = "; --overwrite replaces it"
_CORRECT: Final = ": correct it, or delete it, and the move makes it"
CLASS: Final = "WorkloadPriorityClass"


class StepObjects:
    """Our objects of one step. ``here``: queues that are in Topogate, or come there with the step."""

    def __init__(self, sight: MoveSight, step: MoveStep, without_checks: Collection[str]) -> None:
        self._sight = sight
        self._step = step
        view = sight.view
        self._report = migrate_objects(sight.read, [*without_checks])
        self.here: frozenset[str] = frozenset([*view.moved, *step.queues])
        self._roots = {tree_of(name, view) for name in step.queues} - {""}
        self._flavors = {one["name"] for name in step.queues for one in flavors_of(view.specs[name])}

    def list_refused(self) -> list[Row]:
        """The objects of the step that are refused: without them its jobs would have no queue, or another one."""
        return [row for row in self._report.list_refused() if self._belongs(row.kind, row.namespace, row.name)]

    def list_early(self) -> list[Json]:
        """What is there before the namespaces are served: queues on hold, and outside of their cohorts.

        In its cohort a queue would lend what its jobs use, which are taken over a moment later only. A queue that is
        there and serves its namespaces already stays as it is.
        """
        unserved, found = self._sight.unserved_of(self._step.namespaces), []
        for obj in self._wanted():
            if obj["kind"] == CLUSTER_QUEUE:
                if obj["metadata"]["name"] in self._sight.ours and not unserved:
                    continue
                found.append({**obj, "spec": {**leave_cohort(obj["spec"]), "stopPolicy": HOLD}})
            elif obj["kind"] != COHORT:
                found.append(obj)
        return found

    def list_final(self) -> list[Json]:
        """Cohorts and ClusterQueues as they are to be once the jobs of the step are taken over, in their order.

        All queues come into their cohorts before the first of them admits, and before what the cohorts themselves lend:
        it would else be lent what the jobs of the others use.
        """
        objects = [obj for obj in self._wanted() if obj["kind"] in {COHORT, CLUSTER_QUEUE}]
        queues = [obj for obj in objects if obj["kind"] == CLUSTER_QUEUE]
        joining = [{**obj, "spec": {**obj["spec"], "stopPolicy": HOLD}} for obj in queues if not self._has_joined(obj)]
        return [*joining, *(obj for obj in objects if obj["kind"] == COHORT), *queues]

    def _has_joined(self, obj: Json) -> bool:
        """Whether a ClusterQueue is in its cohort already."""
        there = self._sight.ours.get(obj["metadata"]["name"])
        return there is not None and (there["spec"].get("cohortName") or "") == (obj["spec"].get("cohortName") or "")

    def find_stopped(self) -> list[str]:
        """ClusterQueues of ours that are not yet what they are to be."""
        found = []
        for obj in self._wanted():
            if obj["kind"] != CLUSTER_QUEUE:
                continue
            name, spec = obj["metadata"]["name"], obj["spec"]
            there = self._sight.ours.get(name, {}).get("spec") or {}
            wanted = (stop_policy(spec), spec.get("cohortName") or "")
            if name not in self._sight.ours or wanted != (stop_policy(there), there.get("cohortName") or ""):
                found.append(name)
        return found

    def find_lent_twice(self) -> list[str]:
        """Queues of Kueue that have a counterpart in a cohort here already, beside the queues that move."""
        view, ours = self._sight.view, self._sight.ours
        return [
            name
            for name in sorted(view.specs.keys() - self.here)
            if tree_of(name, view) in self._roots and (ours.get(name, {}).get("spec") or {}).get("cohortName")
        ]

    async def find_conflicts(self, client: Client) -> list[str]:
        """Why objects of the step cannot be applied: the API server refuses one, or it is there and differs."""
        problems = []
        for obj in self._wanted():
            resource, meta = resource_of(obj), obj["metadata"]
            there = await read(client, resource, meta["name"], meta.get("namespace", "") if resource.namespaced else "")
            # Any form in which a move may have left it is no difference.
            for trial in _forms(obj, there):
                if not (problem := await try_object(client, trial, overwrite=False)):
                    break
            if problem:
                # A queue that differs was made by hand: only its author knows which of the two is right.
                problems.append(problem.replace(_OVERWRITE, _CORRECT))
        return problems

    def _wanted(self) -> list[Json]:
        # By what is here after the step: its own queues make the tree whole.
        divided = divided_trees(self._sight.view, self.here)
        found = []
        for obj in self._report.objects:
            meta = obj["metadata"]
            if self._belongs(obj["kind"], meta.get("namespace", ""), meta["name"]):
                found.append(trim_cohort(obj, self._sight.view, divided))
        return found

    def _belongs(self, kind: str, namespace: str, name: str) -> bool:
        if kind == COHORT:
            return root_of(name, self._sight.view.parents) in self._roots
        if kind == LOCAL_QUEUE:
            return namespace in self._step.namespaces
        # Any job of the step may name any class, so classes come with each step.
        of_kind: Mapping[str, Collection[str]] = {CLUSTER_QUEUE: self._step.queues, FLAVOR: self._flavors}
        return kind == CLASS or name in of_kind.get(kind, ())


def trim_cohort(obj: Json, view: QueueLinks, divided: Collection[str]) -> Json:
    """A Cohort of a tree that is divided has no quota of its own here: Kueue still lends it."""
    if obj["kind"] != COHORT or root_of(obj["metadata"]["name"], view.parents) not in divided:
        return obj
    return {**obj, "spec": {key: value for key, value in (obj.get("spec") or {}).items() if key != "resourceGroups"}}


def _forms(obj: Json, there: Json | None) -> Iterator[Json]:
    """The forms in which an object of a step may be there, the last one as it is to be."""
    spec: dict[str, Any] = obj.get("spec") or {}
    before: dict[str, Any] = (there or {}).get("spec") or {}
    if obj["kind"] == CLUSTER_QUEUE and there is not None:
        stopped = {"stopPolicy": stop_policy(before)}
        # A move that was interrupted leaves it outside of its cohort, and an administrator may have stopped it since.
        yield {**obj, "spec": {**leave_cohort(spec), **stopped}}
        yield {**obj, "spec": {**spec, **stopped}}
    elif obj["kind"] == COHORT and there is not None:
        # Its quota comes and goes with the queues of its tree.
        kept = {key: value for key, value in spec.items() if key != "resourceGroups"}
        groups = {"resourceGroups": before["resourceGroups"]} if "resourceGroups" in before else {}
        yield {**obj, "spec": {**kept, **groups}}
    else:
        yield obj


def require_taken(refused: list[Row]) -> None:
    """Raises Failure where objects of a step are refused."""
    if refused:
        told = "\n".join(f"{row.title}: {row.why}\n  -> {row.instead}" for row in refused[:8])
        raise Failure(f"nothing was moved: {some([row.title for row in refused])} cannot be taken over:\n{told}")
