"""The jobs of a simulation from files: traces (CSV, sacct) and manifests (YAML or JSON of batch/v1 Jobs)."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from cli.cluster.dump import FoundObject
from cli.output import Failure, stderr
from cli.simulate import sacct, trace
from cli.simulate.cluster import names_in
from cli.simulate.job_files import JobFile, JobFormat
from cli.simulate.known import SimulationInput
from cli.simulate.trace import MOST, seconds
from crds.constants import GROUP
from crds.levels import check_level
from crds.request import RequestError, resolve
from engine.claims.asks import OWN
from engine.cluster.natural_order import natural
from engine.model import Policy, TopologyRequest
from engine.reasons import Reason
from kube import objects
from queueing.model import AUTO
from simulator.model import NAMESPACE, QUEUE, SimulatedCluster, SimulatedJob
from ungater.jobs.job import owner_of
from ungater.model import kueue_objects
from ungater.model.class_rules import ClassRules
from ungater.model.job_view import MAIN, JobView
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.reconcile import not_to_be_had
from ungater.scheduling.relocation import stays

RUN_SECONDS: Final = f"{GROUP}/run-seconds"  # of the pod template, as simulated nodes read it too
ARRIVAL_SECONDS: Final = f"{GROUP}/arrival-seconds"  # of the Job


def jobs_in(
    files: Sequence[JobFile], cluster: SimulatedCluster, known: SimulationInput, *, duration: float
) -> tuple[SimulatedJob, ...]:
    """The jobs of all files, by arrival. ``known`` has read manifests; ``duration``: of those that say none.

    Raises:
        Failure: a file cannot be read, or holds no job, or one that makes no sense.
    """
    found: list[SimulatedJob] = []
    for file in files:
        if file.format is JobFormat.MANIFESTS:
            everything = known.manifests[file.name]
            rules = ClassRules()
            tables = {
                ("scheduling.k8s.io", "PriorityClass"): rules.of_pods,
                (GROUP, "WorkloadPriorityClass"): rules.of_workloads,
                (kueue_objects.GROUP, "WorkloadPriorityClass"): rules.of_kueue,
            }
            # The classes of the whole file first: a Job may stand before its PriorityClass.
            for one in everything:
                if (table := tables.get((one.api_group, one.kind))) is not None:
                    rules.set_rule(table, one.name, one.read(objects.PriorityClass))
            wanted = [one for one in everything if (one.api_group, one.kind) == ("batch", "Job")]
            found += [_job(one, cluster, known, rules, duration, number) for number, one in enumerate(wanted, 1)]
        else:
            levels = list(dict.fromkeys(level for flavor in cluster.flavors for level in flavor.levels))
            if file.format is JobFormat.SACCT:
                accounted = sacct.read(file.text, file.name, levels)
                _print_notes(file, accounted.notes)
                found += accounted.jobs
            else:
                traced, unknown = trace.read(io.StringIO(file.text, newline=""), file.name, levels, names_in(cluster))
                if unknown:
                    _print_notes(file, [f"columns that mean nothing here: {', '.join(unknown)}"])
                found += traced
    listed = ", ".join(file.name for file in files)
    if not found:
        expected = "a trace (CSV, or what sacct -P prints) or manifests of batch/v1 Jobs"
        raise Failure(f"{listed}: there is no Job; expected {expected}")
    names: dict[str, SimulatedJob] = {}
    for job in found:
        # Outcomes are kept by key: of two jobs with one key, one would vanish from the figures.
        if names.setdefault(job.key, job) is not job:
            raise Failure(f"{listed}: job {job.key} is there twice")
    return tuple(sorted(found, key=lambda job: (job.arrival, job.row, natural(job.name))))


def _print_notes(file: JobFile, notes: Iterable[str]) -> None:
    for note in notes:
        stderr().print(f"{file.name}: {note}", soft_wrap=True)


def _job(
    one: FoundObject, cluster: SimulatedCluster, known: SimulationInput, rules: ClassRules, duration: float, number: int
) -> SimulatedJob:
    wire, keys, cache = one.read(objects.Job), known.keys, known.cache
    # In its namespace before anything happened to it: a file may have it as it was recorded.
    meta = msgspec.structs.replace(wire.metadata, namespace=wire.metadata.namespace or NAMESPACE)
    wire = msgspec.structs.replace(wire, metadata=meta, status=objects.JobStatus())
    names = names_in(cluster)
    owner = owner_of(wire, keys).with_level_keys(names)
    if isinstance(owner.request, RequestError):
        raise one.fail("", str(owner.request))
    template, entry = owner.pod_sets[0].template, WorkloadEntry(owner)
    topology = TopologyRequest(policy=Policy.UNCONSTRAINED)
    if owner.request is not None:
        flavors = {flavor.name: flavor.levels for flavor in cluster.flavors}
        try:
            check_level(owner.request, flavors, names=names)
        except RequestError as error:
            raise one.fail("", str(error)) from None
        # `check_level` has made sure that there is one.
        levels = next(f.levels for f in cluster.flavors if resolve(owner.request, f.levels) is not None)
        topology = resolve(owner.request, levels) or topology
        if owner.request.auto:
            # Left open here, as the narrowest level is another one in each flavor.
            topology = TopologyRequest(policy=topology.policy, level=AUTO)
    try:
        pod_set = cache.pod_sets.pod_set(entry, owner.pod_sets[0], topology, owner.pod_sets[0].full)
    except ValueError as error:
        raise one.fail("spec.template.spec.containers", str(error)) from None
    if pod_set.count < 1:
        raise one.fail("spec.parallelism", "expected at least 1 pod")
    annotations = template.metadata.annotations or {}
    least = (meta.annotations or {}).get(keys.min_parallelism, "")
    why = not_to_be_had(entry, cache.rules)
    if why is None:
        # The controller would place it: nobody gives devices to a claim that pods name here.
        named = pod_set.devices.named if pod_set.devices is not None else ()
        claim = next((what.removeprefix(OWN) for _, what in named if what.startswith(OWN)), None)
        if claim is not None:
            text = (
                f'its pods have ResourceClaim "{claim}", which has no devices, and nobody gives it any in a simulation'
            )
            why = Reason.RESOURCE_CLAIMS_NOT_COUNTED, text
    return SimulatedJob(
        name=meta.name or f"{meta.generate_name}{number}",
        arrival=_seconds(one, "metadata.annotations", meta.annotations or {}, ARRIVAL_SECONDS, 0.0),
        duration=_seconds(one, "spec.template.metadata.annotations", annotations, RUN_SECONDS, duration),
        pod_sets=(pod_set,),
        priority=_priority(one, owner, rules),
        preempts=rules.preempts(owner),
        non_preemptible=rules.non_preemptible(owner),
        namespace=owner.namespace,
        queue=owner.queue or QUEUE,
        at_least={MAIN: int(least)} if least.isdigit() and 0 < int(least) < pod_set.count else {},
        by_slices=owner.by_slices,
        one_by_one=owner.one_by_one,
        stays=bool(stays(annotations, template.spec.termination_grace_period_seconds)),
        hindered=f"{why[0]}: {why[1]}" if why is not None else "",
    )


def _seconds(one: FoundObject, path: str, annotations: Mapping[str, str], key: str, default: float) -> float:
    if key not in annotations:
        return default
    try:
        return seconds(annotations[key])
    except ValueError as error:
        raise one.fail(f"{path}[{key}]", str(error)) from None


def _priority(one: FoundObject, owner: JobView, rules: ClassRules) -> int:
    template, classes = owner.pod_sets[0].template, rules.of_pods
    name = template.spec.priority_class_name
    # Kueue's order: the workload's class decides over the priority of its pods.
    if (named := rules.rule_of_job(owner)) is not None:
        return named.value
    if template.spec.priority is not None:
        # A manifest that was never admitted may hold any number.
        return max(min(template.spec.priority, MOST), -MOST)
    if name and name not in classes:
        known = f"; known are {', '.join(sorted(classes))}" if classes else "; put its PriorityClass into the same file"
        raise one.fail("spec.template.spec.priorityClassName", f"there is no PriorityClass {name!r}{known}")
    return rules.of_class(name).value
