"""Pods that were let go and have no node yet, and what kube-scheduler says of them. Plain data.

kube-scheduler (1.37) writes the condition PodScheduled=False of a pod that it finds no node for, with the reason
Unschedulable or, where it failed itself, SchedulerError. A pod that it has not looked at has none, or that of its
gates.
"""

import re
from typing import Final

import msgspec

from kube.objects import Pod, condition
from ungater.model.conditions import shorten

REFUSED: Final = frozenset({"Unschedulable", "SchedulerError"})
MOST_WORDS: Final = 300  # characters
SILENCE: Final = 60.0  # seconds after which a pod of which no scheduler said anything is worth a word
# What the nodes say that the pod's selector does not name: of a pod with a slot, all but one.
_ELSEWHERE: Final = re.compile(r"\d+ node\(s\) didn't match Pod's node affinity/selector")
_COUNTED: Final = re.compile(r"^\d+/\d+ nodes are available: ")


class Unscheduled(msgspec.Struct, frozen=True, gc=False):
    """One such pod. Times are seconds of the clock by which the controller saw it, whatever the pod says.

    ``since``: when it was seen to be let go. ``refused_at``: when kube-scheduler was seen to refuse it, with these
    ``words``; None: it did not. ``nominated``: kube-scheduler has pods of lower priority go for it; ``kept``: the node
    of the nomination that it had before, by which its room was kept while it was gated.
    ``counted_until``: when its node may be tried again, as it was counted; 0: it was not. ``ignored``: no scheduler has
    said anything of it for so long that people are told.
    """

    since: float
    refused_at: float | None = None
    words: str = ""
    nominated: bool = False
    counted_until: float = 0.0
    ignored: bool = False
    kept: str = ""

    def see_again(self, pod: Pod, now: float) -> "Unscheduled":
        """The pod was seen again."""
        words, nominee = words_about(pod), pod.status.nominated_node_name
        # With each refusal for which it has nobody go, kube-scheduler removes the nomination; not that of a pod of a
        # PodGroup, nor of one that never has others go (1.36.3 and 1.37.1: `applyPodGroupPostFilterResult`,
        # `PodEligibleToPreemptOthers`).
        keeps = bool(pod.spec.pod_group) or pod.spec.preemption_policy == "Never"
        nominated = bool(nominee) and not (keeps and nominee == self.kept)
        if words is None:
            return self if self.refused_at is None else msgspec.structs.replace(self, nominated=nominated)
        at = now if self.refused_at is None else self.refused_at
        return msgspec.structs.replace(self, refused_at=at, words=words, nominated=nominated, ignored=False)

    def ignore(self) -> "Unscheduled":
        """No scheduler looks at it."""
        return msgspec.structs.replace(self, ignored=True)

    def counted(self, until: float) -> "Unscheduled":
        """Its node is left out until then."""
        return msgspec.structs.replace(self, counted_until=until)


def words_about(pod: Pod) -> str | None:
    """What kube-scheduler says of a pod that it refuses, without the nodes that were not meant; None: it does not."""
    found = condition(pod.status.conditions, "PodScheduled")
    if found is None or found.status != "False" or found.reason not in REFUSED:
        return None
    # Behind this, kube-scheduler counts all nodes once more, by why evictions there would not help.
    text, _, _ = found.message.partition(" preemption: ")
    text = _COUNTED.sub("", text).rstrip(". ")
    parts = text.split(", ")
    # Where nothing else is said the words stay: the node that was meant does not match either.
    about = [part for part in parts if not _ELSEWHERE.fullmatch(part)] or parts
    return shorten(", ".join(about) or found.reason, MOST_WORDS)
