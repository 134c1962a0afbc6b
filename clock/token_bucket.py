"""How often something may be done, without a clock of its own."""


class TokenBucket:
    """``burst`` times at once, and ``per_second`` times a second from then on. Moments are monotonic seconds."""

    __slots__ = ("_at", "_burst", "_left", "_per_second")

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst, self._per_second = burst, per_second
        self._left, self._at = burst, now

    def take_token(self, now: float) -> bool:
        """Whether it may be done once more; if so, that counts."""
        # Turns that nobody used pile up to one burst at most, however long nothing came.
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
