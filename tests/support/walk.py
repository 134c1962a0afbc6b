"""The walk of a pod event to its patch, as it is gone: a gated pod of an admitted workload comes, and is let go.

At each of its steps the functions are taken down that are entered and not left yet, outermost first; what the walk has
of a step before is not counted again. What answers a question and returns is no part of it. One task hands over to the
next where a key is queued, and where a patch is.
"""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

from support.history import history
from support.imports import PACKAGES, ROOT

CAME, QUEUED, PLACED, HANDED, PATCH, SENT = range(6)
STEPS = {  # by function
    ("ungater/cache/pods.py", "_pod_of"): CAME,
    ("ungater/workqueue.py", "add"): QUEUED,
    ("ungater/model/pod_slots.py", "assign"): PLACED,
    ("ungater/writers/pods.py", "ungate"): HANDED,
    ("ungater/model/ungate_patch.py", "body"): PATCH,
    ("tests/support/history/wire.py", "request"): SENT,
}
Walk = tuple[tuple[str, str], ...]  # (file, function)


class Step(NamedTuple):
    """``uid``: of the pod, where the function is about one; ``frames``: outermost first."""

    kind: int
    uid: str
    frames: tuple[FrameType, ...]


def walks(seed: int) -> Iterator[Walk]:
    """Those of all pods of a history that came gated, and went at a look that their coming asked for."""
    steps: list[Step] = []

    def see(frame: FrameType, event: str, _: Any) -> None:
        kind = STEPS.get((_file(frame), frame.f_code.co_name)) if event == "call" else None
        if kind is not None:
            pod = frame.f_locals.get("new" if kind == CAME else "pod")
            if kind != CAME or frame.f_locals["old"] is None:
                steps.append(Step(kind, pod.metadata.uid if pod is not None else "", tuple(_frames(frame))))

    sys.setprofile(see)
    try:
        history.run(seed)
    finally:
        sys.setprofile(None)
    for at, step in enumerate(steps):
        if step.kind == CAME and (walk := _walk(step, steps[at + 1 :])):
            frames = dict.fromkeys(frame for one in walk for frame in one.frames)
            yield tuple((_file(frame), frame.f_code.co_name) for frame in frames)


def _walk(came: Step, later: list[Step]) -> list[Step]:
    """Its steps; none where it was not let go."""

    def first(kind: int, after: int, within: FrameType | None = None) -> int:
        found = (
            at
            for at in range(after, len(later))
            if later[at].kind == kind and (within in later[at].frames if within else later[at].uid == came.uid)
        )
        return next(found, len(later))

    queued = first(QUEUED, 0, came.frames[-1])
    handed = first(HANDED, queued)
    patch = first(PATCH, handed)
    if patch == len(later):
        return []
    sent = first(SENT, patch, later[patch].frames[0])  # a worker sends one after another
    placed = max((at for at in range(queued, handed) if later[at].kind == PLACED), default=len(later))
    return (
        [came, *(later[at] for at in (queued, placed, handed, patch, sent))] if max(placed, sent) < len(later) else []
    )


def _frames(frame: FrameType) -> list[FrameType]:
    """Those of the product, outermost first."""
    found = []
    at: FrameType | None = frame
    while at is not None:
        if _file(at).partition("/")[0] in PACKAGES and not at.f_code.co_name.startswith("<"):
            found.append(at)
        at = at.f_back
    return found[::-1]


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(f"{ROOT}/")
