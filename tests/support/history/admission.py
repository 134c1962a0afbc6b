"""What the API server and webhooks make of pods in the simulated cluster, and how that changes while it lives.

Facts of Kubernetes 1.37: a pod that names a RuntimeClass gets its node selector (plugin RuntimeClass); a container that
says no limit gets the default of its namespace (LimitRanger); webhooks come after that and change what they like. None
of it keeps pods off nodes here, or has them ask for more: who fits whom is judged by templates. Only pods of Jobs are
changed: others that are one workload have to be alike, which has nothing to do with this.

In a third of the histories it is there, and changes a few times, until users rest.
"""

import random
from collections.abc import Callable
from typing import Any

from support.history.server import HOSTILE, NAMESPACE, Json, Server

from kube import resources

ANY_NODE = {"pool": "gpu"}
SANDBOX = "sandbox"
CHANGES = 6
LASTS = 40.0  # seconds in which these happen


class AdmissionPlugins:
    """See the module's rules. Its chances are its own, so that histories without it stay what they are."""

    def __init__(self, server: Server, seed: int, note: Callable[..., None]) -> None:
        self.server = server
        self.rng = random.Random(f"admission {seed}")
        self.note = note
        self.webhook = False  # whether one adds a node selector to pods
        self.there = self.rng.random() < 1 / 3

    def begin(self) -> None:
        """From now on pods are made so, and that changes now and then."""
        if not self.there:
            return
        runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": SANDBOX}}
        self.server.create(resources.RUNTIME_CLASSES.plural, {**runtime, "handler": "runsc"}, "admin")
        self.server.admit = self.admit
        for _ in range(CHANGES):
            self.server.loop.call_later(self.rng.random() * LASTS, self._change)

    def rest(self) -> None:
        """Pods are made alike from now on."""
        if not self.there:
            return
        self.there, self.webhook = False, False

    def _change(self) -> None:
        if not self.there:
            return
        what = self.rng.choice((self._toggle_webhook, self._toggle_webhook, self._toggle_range, self._toggle_class))
        what()

    def _toggle_webhook(self) -> None:
        self.webhook = not self.webhook
        self.note("admin: a webhook", "adds a node selector" if self.webhook else "adds nothing")

    def _toggle_range(self) -> None:
        found = self.server.get(resources.LIMIT_RANGES.plural, "d", NAMESPACE)
        if found is not None:
            self.server.delete(found, "admin")
            return
        limit = {"type": "Container", "default": {"cpu": "9"}, "defaultRequest": {"cpu": "9"}}
        body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "d", "namespace": NAMESPACE}}
        self.server.create(resources.LIMIT_RANGES.plural, {**body, "spec": {"limits": [limit]}}, "admin")

    def _toggle_class(self) -> None:
        found = self.server.get(resources.RUNTIME_CLASSES.plural, SANDBOX)
        scheduling = {} if found.get("scheduling") else {"nodeSelector": ANY_NODE}
        self.server.change(found, lambda new: new.update(scheduling=scheduling), "admin")

    def admit(self, plural: str, obj: Json, who: str) -> Json:
        """An object as it is stored that somebody makes."""
        if plural == "jobs" and who == "user" and self.rng.random() < 0.4:
            template = obj["spec"]["template"]
            spec = {**template["spec"], "runtimeClassName": SANDBOX}
            return {**obj, "spec": {**obj["spec"], "template": {**template, "spec": spec}}}
        return self._pod(obj) if plural == "pods" and who == "job controller" else obj

    def _pod(self, pod: Json) -> Json:
        spec: dict[str, Any] = dict(pod["spec"])
        if self.server.get(resources.LIMIT_RANGES.plural, "d", pod["metadata"]["namespace"]) is not None:
            spec["containers"] = [_limited(one) for one in spec["containers"]]
        runtime = self.server.get(resources.RUNTIME_CLASSES.plural, SANDBOX) if _names(pod, SANDBOX) else None
        adds = (runtime or {}).get("scheduling", {}).get("nodeSelector", {})
        if self.webhook and pod["metadata"]["namespace"] != HOSTILE:
            adds = {**adds, **ANY_NODE}
        if adds:
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **adds}
        return {**pod, "spec": spec}


def _limited(container: Json) -> Json:
    resources_ = container.get("resources", {})
    return {**container, "resources": {**resources_, "limits": {"cpu": "9", **resources_.get("limits", {})}}}


def _names(pod: Json, runtime_class: str) -> bool:
    return pod["spec"].get("runtimeClassName") == runtime_class
