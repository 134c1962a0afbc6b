"""Whether what Kueue started is taken over here: by our Workloads of the same jobs. Pure."""

from collections.abc import Iterator, Mapping

import msgspec

from engine.reasons import Reason
from kube.objects import Condition, controller_of, is_true
from kube.workloads import WorkloadObject
from ungater.model.conditions import ADMITTED


class AdoptionView(msgspec.Struct, frozen=True):
    """Jobs that run, by title. ``unanswered``: not looked at yet; ``refused``: not taken over, and why."""

    unanswered: tuple[str, ...]
    refused: Mapping[str, str]

    @property
    def is_complete(self) -> bool:
        """Whether all are taken over."""
        return not self.unanswered and not self.refused


def judge_adoption(running: Mapping[str, str], ours: Mapping[str, WorkloadObject]) -> AdoptionView:
    """``running``: titles by uid of jobs that run by Kueue's admission; ``ours``: our Workloads by uid of the job."""
    unanswered, refused = list[str](), dict[str, str]()
    for uid, title in sorted(running.items(), key=lambda one: one[1]):
        mine = ours.get(uid)
        if mine is not None and is_true(mine.status.conditions, ADMITTED):
            continue
        # Of the condition alone: one that was suspended by its user has no admission either.
        if mine is not None and (why := find_refusal(mine)) is not None:
            refused[title] = why.message
        else:
            unanswered.append(title)
    return AdoptionView(tuple(unanswered), refused)


def find_refusal(ours: WorkloadObject) -> Condition | None:
    """The condition that says why what Kueue started is left running; None where none does."""
    return next((one for one in ours.status.conditions or () if is_refusal(one)), None)


def is_refusal(one: Condition) -> bool:
    """Whether a condition says that something is not taken over."""
    return one.status == "False" and one.reason == Reason.NOT_ADOPTED


def list_left_running(ours: Mapping[str, WorkloadObject]) -> Iterator[tuple[str, str]]:
    """(title, why) of all that Kueue started and that is not taken over, whatever its owner."""
    for one in ours.values():
        if (why := find_refusal(one)) is not None and not is_true(one.status.conditions, ADMITTED):
            owner = controller_of(one.metadata)
            kind, name = (owner.kind, owner.name) if owner is not None else ("pod group", one.metadata.name)
            yield f"{kind} {one.metadata.namespace}/{name}", why.message
