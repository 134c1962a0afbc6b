"""Whether the API server takes this process for the ungater: its policies go by the name of the caller.

Without the ungater's own token it runs as an administrator, who may do all that its roles say and is refused
each Workload. A dry run of one asks the policies themselves, whatever they are called and whoever they expect; where
none are installed, they refuse nobody.
"""

from typing import Any, Final

import structlog

from kube.client import Client
from kube.errors import ConfigError, Forbidden, KubeError
from kube.resources import SELF_SUBJECT_REVIEWS, WORKLOADS

_BY_POLICY: Final = "ValidatingAdmissionPolicy '"  # what the API server (1.37) says of one; rights may come later
UNKNOWN: Final = "another user"

log = structlog.get_logger()


async def check_identity(client: Client, namespace: str) -> None:
    """Find out before anything is done. ``namespace``: that of the installation.

    Raises:
        ConfigError: the policies refuse the Workloads of this caller.
    """
    try:
        await client.create(WORKLOADS, trial(namespace), namespace, dry_run=True)
    except Forbidden as error:
        # By its words: RBAC and webhooks refuse with 403 too, and a role that was just bound is seen late.
        if _BY_POLICY in error.message:
            raise ConfigError(not_the_ungater(await _caller(client), namespace)) from error
        log.warning("whether this is the ungater's user is not known", error=str(error))
    except KubeError as error:  # what cannot be asked now shows itself
        log.warning("whether this is the ungater's user is not known", error=str(error))


async def _caller(client: Client) -> str:
    """Who the API server says that we are."""
    body = {"apiVersion": SELF_SUBJECT_REVIEWS.api_version, "kind": SELF_SUBJECT_REVIEWS.kind}
    try:
        found = await client.create(SELF_SUBJECT_REVIEWS, body)
    except KubeError:
        return UNKNOWN
    return str(found.get("status", {}).get("userInfo", {}).get("username") or UNKNOWN)


def not_the_ungater(caller: str, namespace: str) -> str:
    """What a person is told who runs it as somebody else."""
    account = f"system:serviceaccount:{namespace}:topogate-ungater"
    return (
        f"the controller runs as {caller}, but the admission policies let only {account} write Workloads: in a pod, "
        "set serviceAccountName; beside the cluster, kubectl config set-credentials ungater "
        f'--token="$(kubectl -n {namespace} create token topogate-ungater)", and start it with --context ungater'
    )


def trial(namespace: str) -> dict[str, Any]:
    """A Workload that is valid, and never stored."""
    container = {"name": "trial", "image": "trial"}
    pods = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": {"name": "topogate-ungater-trial", "namespace": namespace},
        "spec": {"podSets": [pods], "active": False},
    }
