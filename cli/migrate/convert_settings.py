"""Kueue's Configuration as settings of ours, and what of it has none."""

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Any, Final

import msgspec

from cli.cluster.dump import FoundObject
from cli.migrate.conversion import make_row
from cli.migrate.durations import seconds_of
from cli.migrate.feature_gates import NO_TIMEOUT, judge_gate
from cli.migrate.leaves import FieldTable, Leaf, Rule, list_leaves
from cli.migrate.rows import TAKEN, FieldVerdict, Json, Row, changed, left, refused
from crds.constants import SERVED
from crds.settings import Settings, SettingsError, from_mapping

KIND: Final = "Configuration"
_DAY: Final = 86_400
_DEFAULT_TIMEOUT: Final = 1800  # apis/config/v1beta2/defaults.go: DefaultWaitForPodsReadyTimeout
_OLD_TIMEOUT: Final = 300  # apis/config/v1beta1/defaults.go: defaultPodsReadyTimeout
_TIMEOUT, _RECOVERY = "waitForPodsReadyTimeoutSeconds", "waitForPodsReadyRecoveryTimeoutSeconds"
_ZERO: Final = ("0", "0s")
_PROCESS: Final = left("how Kueue's own process runs")
_HALF_LIFE, _SAMPLING, _WEIGHTS = "fairUseHalfLifeSeconds", "fairUseSamplingSeconds", "fairUseResourceWeights"
_RECLAIM, _BY_SHARE = "minimumRunTimeReclaimSeconds", "minimumRunTimeFairSharingSeconds"
_DEFAULT_SAMPLING: Final = 300  # apis/config/v1beta2/defaults.go: UsageSamplingInterval
_STRATEGIES: Final = {"LessThanOrEqualToFinalShare", "LessThanInitialShare"}
_TRAIN_JOB: Final = "trainer.kubeflow.org/trainjob"
_FRAMEWORKS: Final = frozenset(
    {
        *("batch/job", "jobset.x-k8s.io/jobset", "pod", "deployment", "statefulset"),
        *("leaderworkerset.x-k8s.io/leaderworkerset", "ray.io/rayjob", "ray.io/raycluster", "ray.io/rayservice"),
        *("kubeflow.org/mpijob", "kubeflow.org/paddlejob", "kubeflow.org/pytorchjob", "kubeflow.org/tfjob"),
        *("kubeflow.org/xgboostjob", "kubeflow.org/jaxjob", "workload.codeflare.dev/appwrapper"),
        *(_TRAIN_JOB, "sparkoperator.k8s.io/sparkapplication"),
    }
)


class ConfigScene:
    """One Configuration, and the settings that come of it."""

    def __init__(self, body: Json) -> None:
        self.body = body
        self.settings: Json = {}
        self.is_old = str(body.get("apiVersion", "")).endswith("/v1beta1")

    def part_of(self, name: str) -> Json:
        """A part of the Configuration; {} where it is none."""
        found = self.body.get(name)
        return found if isinstance(found, dict) else {}

    def add_setting(self, name: str, value: Any) -> FieldVerdict:
        """Take a value over as a setting, where it is one of ours and takes the value."""
        known = {field.alias for field in Settings.model_fields.values()}
        if name not in known:
            return refused("Topogate has no such setting", "leave it out: nothing else depends on it")
        try:
            from_mapping({name: value}, source="setting")
            # Numbers of any size are settings, and too large for a file.
            msgspec.json.encode(value)
        except (SettingsError, OverflowError) as error:
            return refused(str(error), "choose a value that Topogate takes, and set it in ConfigMap topogate-config")
        self.settings[name] = value
        return FieldVerdict("taken", ours=name)


ConfigRule = Rule[ConfigScene]


def _take_seconds(name: str) -> Callable[[Leaf, ConfigScene], FieldVerdict]:
    def judge(leaf: Leaf, scene: ConfigScene) -> FieldVerdict:
        try:
            seconds = seconds_of(leaf.value)
        except ValueError as error:
            return refused(str(error), "correct the Configuration")
        # A day is the most that these settings take; Kueue has no such bound.
        if seconds > _DAY and name in {_TIMEOUT, _RECOVERY}:
            verdict = scene.add_setting(name, _DAY)
            return changed(f"{leaf.value} is more than a day, the longest here", name) if verdict.ours else verdict
        # Whole numbers read as they were written.
        return scene.add_setting(name, int(seconds) if seconds.is_integer() else seconds)

    return judge


def _take_value(name: str) -> ConfigRule:
    def judge(leaf: Leaf, scene: ConfigScene) -> FieldVerdict:
        return scene.add_setting(name, leaf.value)

    return judge


def _take_run_time(name: str) -> ConfigRule:
    """A time that a workload has before it is evicted for others: whole seconds, and no fewer."""

    def judge(leaf: Leaf, scene: ConfigScene) -> FieldVerdict:
        try:
            return scene.add_setting(name, ceil(seconds_of(leaf.value)))
        except ValueError as error:
            return refused(str(error), "correct the Configuration")

    return judge


def when_ready(rule: ConfigRule) -> ConfigRule:
    """A field of waitForPodsReady: in v1beta1 it counts only with ``enable: true``."""

    def judge(leaf: Leaf, scene: ConfigScene) -> FieldVerdict:
        if _no_timeouts(scene):
            return left("waitForPodsReady is off")
        return rule(leaf, scene) if callable(rule) else rule

    return judge


def _no_timeouts(scene: ConfigScene) -> bool:
    return scene.part_of("featureGates").get(NO_TIMEOUT) is True or (
        scene.is_old and scene.part_of("waitForPodsReady").get("enable") is not True
    )


def judge_timeout(leaf: Leaf, scene: ConfigScene) -> FieldVerdict:
    """The time until all pods are ready."""
    # As absent: `finish_timeouts` says what that means.
    if leaf.value in _ZERO:
        return left("0 is the default in Kueue")
    return _take_seconds(_TIMEOUT)(leaf, scene)


def judge_block(leaf: Leaf, _scene: ConfigScene) -> FieldVerdict:
    """Whether admission waits until the pods of the last job are ready."""
    if leaf.value is False:
        return left("so it is here, always")
    return refused(_NO_BLOCK, "queueingStrategy: StrictFIFO keeps the order within a queue")


_NO_BLOCK: Final = "pods of one job that are not ready keep no other queue waiting here"


def judge_timestamp(leaf: Leaf, _scene: ConfigScene) -> FieldVerdict:
    """By which time a workload that was put back has its place."""
    if leaf.value == "Eviction":
        return left("so it is here, always")
    return refused("a workload that was put back has its place by the time of the eviction", "set its priority higher")


def judge_unnamed(leaf: Leaf, _scene: ConfigScene) -> FieldVerdict:
    """Whether jobs that name no queue are managed."""
    if leaf.value is False:
        return left("so it is here")
    return refused(
        "jobs that name no queue run outside of quota",
        "make a LocalQueue named default in each namespace; requireQueue refuses jobs with a topology and no queue",
    )


def judge_selector(leaf: Leaf, scene: ConfigScene) -> FieldVerdict:
    """The namespaces in which jobs are managed."""
    namespace = scene.body.get("namespace") or "kueue-system"
    values = ["kube-system", namespace]
    default = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": values}
    others = [one for one in _required_of(scene.body) if one not in _NOT_SERVED]
    # Requirements are judged together: each of them alone says something else.
    if leaf.path[1:2] == ("matchExpressions",) and others in ([default], []):
        beside = leaves_served_out(scene.body)
        return left("it leaves out the namespaces that Topogate serves" if beside else "it is Kueue's default")
    return refused(
        "which namespaces may use a queue is said by the queue",
        "put the requirements into spec.namespaceSelector of each ClusterQueue",
    )


_NOT_SERVED: Final = (
    {"key": SERVED, "operator": "DoesNotExist"},
    {"key": SERVED, "operator": "NotIn", "values": ["true"]},
)


def _required_of(configuration: Json) -> list[Any]:
    """What Kueue requires of the labels of a namespace."""
    selector = configuration.get("managedJobsNamespaceSelector")
    found = selector.get("matchExpressions") if isinstance(selector, dict) else None
    return found if isinstance(found, list) else []


def leaves_served_out(configuration: Json) -> bool:
    """Whether Kueue leaves out namespaces that Topogate serves beside it."""
    return any(one in _NOT_SERVED for one in _required_of(configuration))


def judge_strategy(leaf: Leaf, scene: ConfigScene) -> FieldVerdict:
    """How shares are compared when somebody is preempted."""
    found = scene.part_of("fairSharing").get("preemptionStrategies")
    if isinstance(found, list) and set(map(str, found)) == _STRATEGIES:
        return left("Topogate compares by both, in this order")
    return refused(
        f"Topogate compares by {' and '.join(sorted(_STRATEGIES, reverse=True))}, not by {str(leaf.value)[:60]} alone",
        "see docs/preemption.md for who is preempted then",
    )


def judge_half_life(leaf: Leaf, scene: ConfigScene) -> FieldVerdict:
    """After how long use counts half."""
    if leaf.value in _ZERO:
        return changed("left out: 0 is off in Kueue, and off is no setting here")
    return _take_seconds(_HALF_LIFE)(leaf, scene)


def judge_framework(leaf: Leaf, _scene: ConfigScene) -> FieldVerdict:
    """A kind of job that Kueue has switched on."""
    if leaf.value == _TRAIN_JOB:
        return changed("a TrainJob is placed, and cannot be queued (docs/owners.md)")
    if leaf.value in _FRAMEWORKS:
        return left("Topogate queues it (docs/owners.md)")
    return refused(
        f"Topogate does not know the framework {str(leaf.value)[:120]}",
        "put the queue's label on its pod templates: pods of any owner are queued",
    )


_NOT_BOOLEAN: Final = refused("expected true or false", "correct the Configuration")
_QUOTA_OF_ALL: Final = "name the resource in coveredResources of each queue, with a quota that is never short"
_READY: Final[Mapping[str, ConfigRule]] = {
    "timeout": judge_timeout,
    "recoveryTimeout": _take_seconds(_RECOVERY),
    "blockAdmission": judge_block,
    "requeuingStrategy.timestamp": judge_timestamp,
    "requeuingStrategy.backoffLimitCount": _take_value("requeuingBackoffLimitCount"),
    "requeuingStrategy.backoffBaseSeconds": _take_value("requeuingBackoffBaseSeconds"),
    "requeuingStrategy.backoffMaxSeconds": _take_value("requeuingBackoffMaxSeconds"),
}
_LEFT: Final = (
    *("namespace", "webhook.**", "leaderElection.**", "metrics.bindAddress", "health.**", "pprofBindAddress"),
    *("controller.**", "tls.**", "clientConnection.**", "internalCertManagement.**", "visibilityServer.**"),
    *("queueVisibility.**", "apiVersion", "kind", "metadata.**"),
)
CONFIGURATION: Final = FieldTable[ConfigScene](
    dict.fromkeys(_LEFT, _PROCESS),
    {f"waitForPodsReady.{name}": when_ready(rule) for name, rule in _READY.items()},
    {
        "waitForPodsReady.enable": lambda leaf, _: TAKEN if isinstance(leaf.value, bool) else _NOT_BOOLEAN,
        "manageJobsWithoutQueueName": judge_unnamed,
        "managedJobsNamespaceSelector.**": judge_selector,
        "fairSharing.enable": lambda leaf, _: TAKEN if isinstance(leaf.value, bool) else _NOT_BOOLEAN,
        "fairSharing.preemptionStrategies[]": judge_strategy,
        "admissionFairSharing.usageHalfLifeTime": judge_half_life,
        "admissionFairSharing.usageSamplingInterval": _take_seconds(_SAMPLING),
        "admissionFairSharing.resourceWeights.*": lambda _, scene: scene.add_setting(
            _WEIGHTS, scene.part_of("admissionFairSharing")["resourceWeights"]
        ),
        # Of Kueue's pull request 12996, which no release has.
        "preemptionProtection.reclaimWithinCohort.minAdmitDuration": _take_run_time(_RECLAIM),
        "preemptionProtection.fairSharing.minAdmitDuration": _take_run_time(_BY_SHARE),
        "resources.deviceClassMappings[].name": TAKEN,
        "resources.deviceClassMappings[].deviceClassNames[]": TAKEN,
        "resources.deviceClassMappings[].sources[].**": refused(
            "devices are counted, and not their counters or capacities", "give quota by number of devices"
        ),
        "resources.excludeResourcePrefixes[]": refused("each resource of a job needs quota", _QUOTA_OF_ALL),
        "resources.transformations[].**": refused(
            "a resource counts as itself", "give quota for the resource that pods ask for"
        ),
        "resources.quotaCheckStrategy": lambda leaf, _: (
            left("so it is here, always")
            if leaf.value == "BlockUndeclared"
            else refused("a resource without quota keeps its job waiting", _QUOTA_OF_ALL)
        ),
        "objectRetentionPolicies.workloads.afterFinished": _take_seconds("workloadRetentionSeconds"),
        "objectRetentionPolicies.workloads.afterDeactivatedByKueue": refused(
            "a deactivated Workload is kept as long as its job", "delete the job"
        ),
        "integrations.frameworks[]": judge_framework,
        "integrations.externalFrameworks[]": refused(
            "Topogate knows no controller outside of it that answers for a kind",
            "put the queue's label on its pod templates: pods of any owner are queued",
        ),
        "integrations.labelKeysToCopy[]": refused(
            "labels of jobs are not copied to their Workloads", "usageLabels counts by labels of pods"
        ),
        "integrations.podOptions.**": refused(
            "which namespaces may use a queue is said by the queue",
            "put the requirements into spec.namespaceSelector of each ClusterQueue",
        ),
        "metrics.enableClusterQueueResources": left("metrics of quota are always there (docs/metrics.md)"),
        "metrics.localQueueMetrics.**": left("metrics of LocalQueues are always there (docs/metrics.md)"),
        "metrics.customLabels[].**": refused(
            "metrics have no labels of objects", "usageLabels counts by labels of pods"
        ),
        "multiKueue.**": left("about several clusters; its objects have rows of their own"),
        "featureGates.*": lambda leaf, _: judge_gate(str(leaf.path[-1]), leaf.value),
    },
)


def convert_settings(found: FoundObject) -> tuple[Json, list[Row]]:
    """The settings of a Configuration, and its rows."""
    scene = ConfigScene(found.body)
    said = [(leaf.field, CONFIGURATION.judge_leaf(leaf, scene)) for leaf in list_leaves(found.body)]
    said.extend(finish_settings(scene))
    return scene.settings, [
        make_row(found, "", sum_up_settings(said, scene)),
        *(make_row(found, *each) for each in said),
    ]


def assumed_settings(why: str) -> tuple[Json, list[Row]]:
    """The same of a Configuration that is not known: Kueue's defaults, and a row that says so."""
    body = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": KIND}
    settings, rows = convert_settings(FoundObject("the cluster", b"", 0, None, body, KIND))
    return settings, [make_row(FoundObject("the cluster", b"", 0, None, body, KIND), "", changed(why)), *rows[1:]]


def sum_up_settings(said: list[tuple[str, FieldVerdict]], scene: ConfigScene) -> FieldVerdict:
    """What became of the Configuration as a whole."""
    ours = "ConfigMap topogate-config" if scene.settings else ""
    worst = {verdict.outcome for _, verdict in said}
    return FieldVerdict(
        "changed" if worst & {"refused", "changed"} else "taken" if scene.settings else "left", ours=ours
    )


def finish_settings(scene: ConfigScene) -> Iterator[tuple[str, FieldVerdict]]:
    """What Kueue does where nothing is said."""
    yield from finish_timeouts(scene)
    if _HALF_LIFE in scene.settings:
        yield from finish_fair_use(scene)
    if scene.settings.get(_RECLAIM) and _BY_SHARE not in scene.settings:
        scene.add_setting(_BY_SHARE, 0)
        why = "evictions by share are not named, and nobody is safe from them; without the setting all would be"
        yield "preemptionProtection.fairSharing", changed(why, _BY_SHARE)
    # In v1beta2 its presence switches it on, in v1beta1 the field enable does.
    fair = scene.body.get("fairSharing")
    if isinstance(fair, dict) and (not scene.is_old or fair.get("enable") is True):
        yield "fairSharing", scene.add_setting("fairSharing", True)
    mappings = scene.part_of("resources").get("deviceClassMappings")
    if isinstance(mappings, list) and mappings:
        plain = [
            {key: value for key, value in one.items() if key != "sources"} if isinstance(one, dict) else one
            for one in mappings
        ]
        yield "resources.deviceClassMappings", scene.add_setting("deviceClassMappings", plain)
    # apis/config/v1beta2/defaults.go: without a list only Jobs are switched on.
    frameworks = scene.part_of("integrations").get("frameworks") or ["batch/job"]
    if isinstance(frameworks, list) and (missing := _FRAMEWORKS - set(map(str, frameworks))):
        why = f"Kueue queues the kinds that are listed; Topogate all, also {len(missing)} that are not"
        yield "integrations.frameworks", changed(why)


def finish_fair_use(scene: ConfigScene) -> Iterator[tuple[str, FieldVerdict]]:
    """What Kueue does where admissionFairSharing says only some of it."""
    part = scene.part_of("admissionFairSharing")
    if part.get("usageSamplingInterval") is None:
        scene.add_setting(_SAMPLING, _DEFAULT_SAMPLING)
        why = "Kueue's default; without the setting, use is exact at every moment"
        yield "admissionFairSharing.usageSamplingInterval", changed(why, _SAMPLING)
    weights = part.get("resourceWeights")
    if not isinstance(weights, dict) or "memory" not in weights:
        why = "memory, ephemeral-storage and hugepages count 0 unless they are named; in Kueue each byte counts 1"
        yield "admissionFairSharing.resourceWeights", changed(why, _WEIGHTS)


def finish_timeouts(scene: ConfigScene) -> Iterator[tuple[str, FieldVerdict]]:
    """What Kueue does where waitForPodsReady says nothing."""
    if _no_timeouts(scene):
        return
    part = scene.part_of("waitForPodsReady")
    if _TIMEOUT not in scene.settings and part.get("timeout") in (None, *_ZERO):
        default = _OLD_TIMEOUT if scene.is_old else _DEFAULT_TIMEOUT
        scene.add_setting(_TIMEOUT, default)
        why = f"Kueue's default where nothing is said ({default // 60} minutes; v1beta2: not off)"
        yield "waitForPodsReady.timeout", changed(why, _TIMEOUT)
    if _TIMEOUT in scene.settings and part.get("recoveryTimeout") is None:
        scene.add_setting(_RECOVERY, scene.settings[_TIMEOUT])
        yield "waitForPodsReady.recoveryTimeout", changed("Kueue's default: the same as timeout", _RECOVERY)
    # apis/config/v1beta1/defaults.go: where it is enabled, it blocks unless it says otherwise.
    if scene.is_old and part.get("blockAdmission") is None:
        yield "waitForPodsReady.blockAdmission", judge_block(Leaf((), True), scene)
