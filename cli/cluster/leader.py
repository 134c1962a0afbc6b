"""Whether a controller leads, by the Lease that it renews: where none does, nothing new is placed or released."""

from datetime import UTC, datetime, timedelta

from kube.lease import Lease

SLACK = timedelta(seconds=45)  # beyond the duration that the lease names: clocks differ, and leaders change
FOLLOWS = "so nothing new is placed"


def absence(lease: Lease | None, now: datetime) -> str:
    """Why nobody leads, in words; "" where somebody does."""
    spec = lease.spec if lease is not None else None
    # A Lease without a holder has been given back.
    if spec is None or not spec.holder_identity or not spec.renew_time:
        return f"no ungater leads, {FOLLOWS}"
    age = now - datetime.fromisoformat(spec.renew_time).astimezone(UTC)
    if age <= timedelta(seconds=spec.lease_duration_seconds or 0) + SLACK:
        return ""
    return f"{spec.holder_identity} has not renewed its lease for {age.total_seconds():.0f} s, {FOLLOWS}"
