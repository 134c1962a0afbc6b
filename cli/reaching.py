"""What a person is told where the API server did not answer, or did not know who asks."""

import os

from cli.output import Failure
from kube.connection.config import described
from kube.errors import ConfigError, ConnectionFailed, Forbidden, KubeError, KubeTimeout, Unauthorized

CONNECTIONS = 4  # of a command that lists forty kinds once: each more costs it a TLS handshake, 3 ms of CPU
LOCAL = "topogate-local"  # the context of every local cluster
INSPECT = "ask for a ClusterRoleBinding to `topogate-inspect`"  # what a tenant does who is to read the whole cluster


class MayNotLook(Failure):
    """Whoever asks may not look at the whole cluster; `cli.stored` answers from what is stored in the namespace."""


def not_installed() -> Failure:
    """For a command that asked for one of our own kinds, which the API server does not know."""
    return Failure("Topogate is not installed in this cluster: `topogate install --topology auto` does that")


def takes_an_administrator(error: Forbidden, command: str) -> Failure:
    """For a command that reads or writes all objects of an installation."""
    return Failure(f"{error}. `{command}` takes the rights of a cluster administrator: ask one to run it")


def failure(error: KubeError, kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None) -> Failure:
    """The error in words; of one that is about the connection also which server and context it was, and what to do."""
    # Of any other error the API server itself has said what is wrong.
    if not isinstance(error, ConnectionFailed | KubeTimeout | Unauthorized):
        return Failure(str(error))
    try:
        found = described(kubeconfig, context)
    except ConfigError:  # it was there a moment ago
        return Failure(str(error))
    what = "does not know you" if isinstance(error, Unauthorized) else "cannot be reached"
    text = f"the API server {found.server} {what}: {error}".rstrip(".")
    # No context: the client took the service account of the pod that it runs in.
    if not found.context:
        return Failure(f"{text}. It is that of the cluster this pod is in")
    hint = "log in again" if isinstance(error, Unauthorized) else "start it, or connect to its network"
    if isinstance(error, Unauthorized) and found.account:
        # Whoever installs Topogate again makes another account of the same name, and tokens end with their account.
        namespace, _, name = found.account.partition("/")
        token = f'"$(kubectl -n {namespace} create token {name} --duration=24h)"'
        create = f"kubectl config set-credentials {found.user} --token={token}"
        hint = f"its token is too old, or of an account that was deleted: `{create}` as an administrator"
    if found.context == LOCAL and not isinstance(error, Unauthorized):
        hint = "start it (`topogate local status` and `up` take its --name)"
    return Failure(
        f"{text}.\nIt is that of context {found.context} in kubeconfig {found.files}: {hint}; "
        "or take another, with --context NAME or --kubeconfig FILE (`kubectl config get-contexts` lists contexts)"
    )
