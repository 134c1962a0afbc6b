"""What kube-scheduler was asked to keep for a pod that waits behind the gate. Plain data."""

from typing import Final

import msgspec

AT_ONCE: Final = 3  # writes for one pod that are not put off, where its slot moves
FIRST_PAUSE: Final = 10.0  # seconds
LONGEST_PAUSE: Final = 600.0


class NominatedNode(msgspec.Struct, frozen=True, gc=False):
    """The last nomination that was sent for a pod: of this node, "" for none.

    ``again``: when it may be sent once more, as it is not what the pod says; seconds of the monotonic clock.
    """

    node: str
    again: float
    attempts: int = 1

    @classmethod
    def after(cls, before: "NominatedNode | None", node: str, now: float) -> "NominatedNode":
        """One that is sent now; each is put off for longer than the one ``before``."""
        attempts = before.attempts + 1 if before is not None else 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempts - 1, 16))
        return cls(node, now + pause, attempts)
