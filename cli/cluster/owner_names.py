"""Owners of pods as people name them: ``NAME``, or ``KIND/NAME`` as kubectl takes it."""

from typing import Final

from cli.output import Failure

WHOM: Final = (
    "Name of the Job, or KIND/NAME of another owner: jobset/train, lws/serve, deploy/web, raycluster/r, podgroup/g."
)
_SHORT = {"js": "jobset", "lws": "leaderworkerset", "sts": "statefulset", "deploy": "deployment", "rs": "replicaset"}
_SHORT |= {"po": "pod", "group": "podgroup", "ds": "daemonset", "wl": "workload"}
# What makes other objects, which own the pods: the kind of those, and what follows its own name in theirs.
MAKES = {
    "deployment": ("ReplicaSet", r"-[a-z0-9]+"),
    "rayjob": ("RayCluster", r"(-raycluster)?-[a-z0-9]+"),
    "rayservice": ("RayCluster", r"(-raycluster)?-[a-z0-9]+"),
}


def named(text: str) -> tuple[str, str]:
    """(kind, name): the kind in lower case and in the singular, "" where only a name was given. Raises Failure."""
    kind, slash, name = text.rpartition("/")
    if not name or "/" in kind or (slash and not kind):
        raise Failure(f'"{text}": expected NAME of a Job, or KIND/NAME such as jobset/train, lws/serve or deploy/web')
    kind = kind.lower().partition(".")[0]
    kind = _SHORT.get(kind, kind)
    return (kind.removesuffix("s")), name
