"""How many pods of a pod set that holds something there were, and for how long some were missing. Plain data.

Rules
- Time counts only while something is held for pods that are missing, and goes on where it stopped: what a job asks for
  may go up and down as often as its user likes.
- It begins anew where more pods are there than at any time since some were missing, and so gives the others time; a pod
  that goes and comes again gives none. For pods that never were there it does so, too, where more are to be there than
  at any time since then.
- It ends where as many are there as were to be there at any time since then, or where the job lacked none for an hour.
"""

from typing import Self

import msgspec
from msgspec.structs import replace

CALM = 3600.0  # seconds without a missing pod after which those that were missing before are forgotten


class PodsSeen(msgspec.Struct, frozen=True):
    """See the module's rules; times in seconds of the clock (`ungater.reconcile.missing_pods`).

    ``most``: how many there were at once since the admission; ``need``: how many are to be there. ``seen_at``: when
    they were counted last; ``changed_at``: when ``there`` changed last. ``goal``: how many were to be there at most
    since some were missing, 0 where none are; ``best``: how many were there at most since then. ``lacked``: seconds
    with pods missing since ``best`` rose; ``grown``: those since ``goal`` rose, too. ``whole_since``: since when the
    job has all pods that it asks for.
    """

    most: int
    there: int
    need: int
    seen_at: float
    changed_at: float
    goal: int = 0
    best: int = 0
    lacked: float = 0.0
    grown: float = 0.0
    whole_since: float | None = None

    @property
    def never(self) -> bool:
        """Whether some that are to be there never were."""
        return self.need > self.most

    def missed(self, now: float) -> float:
        """For how many seconds since they were counted some were missing."""
        return now - self.seen_at if self.there < self.need else 0.0

    def counted(self, there: int, need: int, asked: int, now: float) -> Self:
        """They were counted again; ``asked``: how many the job asks for, whether they are admitted or not."""
        missed, goal, best = self.missed(now), self.goal, self.best
        lacked, grown = self.lacked + missed, self.grown + missed
        calm = self.whole_since is not None and now - self.whole_since >= CALM
        # The end comes before the beginning: pods that are missing now begin a new time at this very look.
        if there >= goal or calm:
            goal = 0
        if there < need and not goal:
            goal, best, lacked, grown = need, there, 0.0, 0.0
        if need > goal > 0:
            goal, grown = need, 0.0
        if there > best:
            best, lacked, grown = there, 0.0, 0.0
        return replace(
            self,
            most=max(self.most, there),
            there=there,
            need=need,
            seen_at=now,
            changed_at=now if there != self.there else self.changed_at,
            goal=goal,
            best=best,
            lacked=lacked,
            grown=grown,
            whole_since=None if there < asked else self.whole_since if self.whole_since is not None else now,
        )

    def awaiting(self, goal: int) -> Self:
        """So many are to come before those that are missing are forgotten."""
        return replace(self, goal=max(self.goal, goal), best=max(self.best, self.there))

    def given_up(self) -> Self:
        """Nothing is held for those that are missing any more; those that are there have their time again."""
        return replace(self, lacked=0.0, grown=0.0)
