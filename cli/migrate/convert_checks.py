"""AdmissionChecks and what belongs to them. Topogate's own is part of admission here; others have nobody to answer."""

from typing import Any, Final

from cli.migrate.conversion import METADATA, Scene, name_of
from cli.migrate.leaves import FieldTable, Leaf
from cli.migrate.rows import FieldVerdict, Json, changed, left, refused
from ungater.model.kueue_objects import CONTROLLER, GROUP

CHECK: Final = "AdmissionCheck"
_PROVISIONING: Final = f"{GROUP}/provisioning-request"
_MULTI: Final = f"{GROUP}/multikueue"
_LEFT_OUT: Final = changed("left out, as --without-checks says: jobs start unchecked")
_DECIDED: Final = changed("left out: Topogate decides the place together with the admission")


def controller_of(scene: Scene, name: str) -> str:
    """The controller of a check; "" where the check is not known."""
    body = scene.known.find_body(CHECK, name)
    spec: Any = body.get("spec") if body is not None else None
    found = spec.get("controllerName") if isinstance(spec, dict) else None
    return found if isinstance(found, str) else ""


def judge_check_name(leaf: Leaf, scene: Scene) -> FieldVerdict:
    """A check of a ClusterQueue. One that nobody answers would have its jobs wait for ever; without it, more runs."""
    if not isinstance(leaf.value, str):
        return refused(f"expected the name of a check, found {str(leaf.value)[:60]!r}", "correct it", grave=True)
    name = leaf.value
    controller = controller_of(scene, name)
    if controller == CONTROLLER:
        return _DECIDED
    if name in scene.known.without_checks:
        return _LEFT_OUT
    whom = f"is answered by {controller} on Kueue's Workloads" if controller else "is not there, so nobody answers it"
    return refused(
        f"check {name[:253]} {whom}; without it jobs would start unchecked",
        f"leave the check out: --without-checks {name[:253]}",
        grave=True,
    )


def judge_check_rest(leaf: Leaf, scene: Scene) -> FieldVerdict:
    """Flavors of a check: as the check itself."""
    *_, number, _field, _at = leaf.path
    rules = scene.body["spec"]["admissionChecksStrategy"]["admissionChecks"]
    name = rules[number].get("name") if isinstance(number, int) else None
    return judge_check_name(Leaf(leaf.path, name), scene)


_OUT: Final = "leave the check out of its ClusterQueues: --without-checks"
_GROWTH: Final = (
    "an autoscaler that looks at pending pods adds nodes, and the quota of the flavor bounds them; leave the check out "
    "of its ClusterQueues (--without-checks)"
)
_CLUSTERS: Final = "install Topogate in each cluster with a part of the quota, and submit jobs there"
_CHECKS: Final = {_PROVISIONING: _GROWTH, _MULTI: _CLUSTERS}
_OURS: Final = left("Topogate decides the place together with the admission, without a check")


def judge_check(scene: Scene) -> FieldVerdict:
    """The whole of an AdmissionCheck."""
    spec: Any = scene.body.get("spec")
    controller = str(spec.get("controllerName", ""))[:253] if isinstance(spec, dict) else ""
    if controller == CONTROLLER:
        return _OURS
    if name_of(scene.body) in scene.known.without_checks:
        return _LEFT_OUT
    return refused(f"{controller or 'nobody'} answers the check on Kueue's Workloads", _CHECKS.get(controller, _OUT))


def judge_provisioning(scene: Scene) -> FieldVerdict:
    """The whole of a ProvisioningRequestConfig."""
    return _LEFT_OUT if _is_left_out(scene) else refused("Topogate makes no ProvisioningRequests", _GROWTH)


def judge_clusters(scene: Scene) -> FieldVerdict:
    """The whole of an object about other clusters. Secrets that it names are not read."""
    return _LEFT_OUT if _is_left_out(scene) else refused("Topogate places jobs in its own cluster only", _CLUSTERS)


def _is_left_out(scene: Scene) -> bool:
    """Whether it belongs only to checks that are left out, by their parameters, or by the config of a cluster."""
    kind, name = str(scene.body.get("kind")), name_of(scene.body)
    users = [found for found in scene.known.bodies.items() if refers_to(found[1], kind, name)]
    if kind == _CLUSTER and users:
        return all(_is_left_out(Scene(body, scene.known)) for _, body in users)
    return bool(users) and all(name in scene.known.without_checks for (_, name), _ in users)


def refers_to(body: Json, kind: str, name: str) -> bool:
    """Whether a check names this config, or a config this cluster."""
    spec: Any = body.get("spec")
    if not isinstance(spec, dict):
        return False
    if kind == _CLUSTER:
        clusters = spec.get("clusters")
        return body.get("kind") == "MultiKueueConfig" and isinstance(clusters, list) and name in clusters
    parameters = spec.get("parameters")
    named = (parameters.get("kind"), parameters.get("name")) if isinstance(parameters, dict) else None
    return body.get("kind") == CHECK and named == (kind, name)


_CLUSTER: Final = "MultiKueueCluster"


CHECKS: Final = FieldTable[Scene](
    METADATA,
    {name: lambda _, scene: judge_check(scene) for name in ("spec.controllerName", "spec.parameters.*")},
)
PROVISIONING: Final = FieldTable[Scene](METADATA, {"spec.**": lambda _, scene: judge_provisioning(scene)})
CLUSTERS: Final = FieldTable[Scene](METADATA, {"spec.**": lambda _, scene: judge_clusters(scene)})
