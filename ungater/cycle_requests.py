"""When an admission cycle runs: soon after anybody asks for one, and not before every job was looked at once."""

import asyncio
from collections.abc import Iterable


class CycleRequests:
    """Requests for admission cycles. ``request_cycle`` may be called anywhere on the loop, as often as one likes."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._unseen: set[str] = set()  # ids known at the start, not looked at yet; keys of Workloads to be removed
        self._all_seen = asyncio.Event()

    def request_cycle(self) -> None:
        """Have a cycle run soon."""
        self._requested.set()

    def await_looks(self, ids: Iterable[str]) -> None:
        """No cycle runs before all of these were looked at: some may come before others in their queues."""
        self._unseen |= {*ids}
        # Sets the event where there is nothing to wait for.
        self.saw("")

    def saw(self, uid: str) -> None:
        """One of them was looked at, well or not."""
        self._unseen.discard(uid)
        if not self._unseen:
            self._all_seen.set()

    async def wait_for_looks(self, seconds: float) -> None:
        """Wait until all were looked at, for so long at most."""
        try:
            async with asyncio.timeout(seconds):
                await self._all_seen.wait()
        except TimeoutError:
            pass

    async def wait_for_request(self, seconds: float) -> None:
        """Wait until a cycle is asked for, for so long at most."""
        try:
            async with asyncio.timeout(seconds):
                await self._requested.wait()
        except TimeoutError:
            pass
        # Cleared before the cycle: whatever comes while it runs asks for another one.
        self._requested.clear()
