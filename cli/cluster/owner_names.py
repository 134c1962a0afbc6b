"""Owners of pods as people name them: ``NAME``, or ``KIND/NAME`` as kubectl takes it."""

from collections.abc import Sequence
from typing import Final

from cli.output import Failure

WHOM: Final = (
    "Name of the Job or of its Workload, or KIND/NAME of another owner: jobset/train, lws/serve, deploy/web, "
    "raycluster/r, podgroup/g."
)
_SHORT = {"js": "jobset", "lws": "leaderworkerset", "sts": "statefulset", "deploy": "deployment", "rs": "replicaset"}
_SHORT |= {"po": "pod", "group": "podgroup", "ds": "daemonset", "wl": "workload"}
# What makes other objects, which own the pods: the kind of those, and what follows its own name in theirs.
MAKES = {
    "deployment": ("ReplicaSet", r"-[a-z0-9]+"),
    "rayjob": ("RayCluster", r"(-raycluster)?-[a-z0-9]+"),
    "rayservice": ("RayCluster", r"(-raycluster)?-[a-z0-9]+"),
}


def one_owner(words: Sequence[str]) -> str:
    """An owner from the words of a command, where KIND NAME means KIND/NAME as for kubectl. Raises Failure."""
    if len(words) == 1:
        return words[0]
    if len(words) == 2 and not any("/" in word for word in words):
        return "/".join(words)
    raise Failure(f"{' '.join(words)}: expected one owner: NAME, KIND/NAME or KIND NAME")


def parse_owner(text: str) -> tuple[str, str]:
    """(kind, name): the kind in lower case and in the singular, "" where only a name was given. Raises Failure."""
    kind, slash, name = text.rpartition("/")
    if not name or "/" in kind or (slash and not kind):
        raise Failure(f'"{text}": expected NAME of a Job, or KIND/NAME such as jobset/train, lws/serve or deploy/web')
    # kubectl also takes the group: jobset.jobset.x-k8s.io/train.
    kind = kind.lower().partition(".")[0]
    kind = _SHORT.get(kind, kind)
    return (kind.removesuffix("s")), name
