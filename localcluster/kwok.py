"""What KWOK needs from the API server: rights of its own, and no leases of a dead predecessor."""

import http.client
from contextlib import closing

from localcluster.api import Endpoint
from localcluster.pki import USERS

ROLE = "topogate-local:kwok"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def prepare(api: Endpoint) -> None:
    """Give KWOK's user, which the simulated kubelets share, the rights of a fleet of kubelets, and nothing more."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": ROLE},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},
            {"apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["patch", "update"]},
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
            {
                "apiGroups": ["topology.node.k8s.io"],
                "resources": ["noderesourcetopologies"],
                "verbs": ["create", "patch"],
            },
            {
                "apiGroups": ["topogate.dev"],
                "resources": ["flextopos", "flextopos/status"],
                "verbs": ["create", "patch"],
            },
            {
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "verbs": ["get", "list", "watch", "create", "patch", "update"],
            },
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ROLE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USERS["kwok"][0]}],
    }
    api.apply(f"{_RBAC}/clusterroles/{ROLE}", role)
    api.apply(f"{_RBAC}/clusterrolebindings/{ROLE}", binding)
    # Leases of an earlier start of the same folder are of a KWOK that is gone.
    forget_leases(api)


def forget_leases(api: Endpoint) -> None:
    """Delete all node leases: every KWOK has an identity of its own and waits until its predecessor's expire."""
    api.request("DELETE", _LEASES)


def is_healthy(port: int) -> bool:
    """Whether KWOK's controllers run."""
    # KWOK serves its health on plain HTTP, on the loopback interface only.
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
