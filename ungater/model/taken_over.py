"""A job that Kueue started and that is held here by now: what of Kueue's Workload is needed later."""

import msgspec


class TakenOver(msgspec.Struct, frozen=True):
    """``workload``: the name of Kueue's Workload; ``executed``: seconds that the job had run before ``admitted_at``.

    ``admitted_at``: since when Kueue had it admitted, in seconds since the epoch; None where that is not said.
    """

    workload: str
    executed: int = 0
    admitted_at: float | None = None

    def seconds_run(self, now: float) -> int:
        """For how many seconds it was admitted by Kueue. ``now``: seconds since the epoch."""
        return self.executed + (max(0, int(now - self.admitted_at)) if self.admitted_at is not None else 0)
