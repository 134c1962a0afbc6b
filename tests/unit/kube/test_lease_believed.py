"""What a Lease says is somebody's word: nothing written into it once keeps every replica from leading for ever."""

from datetime import UTC, datetime

import msgspec
import pytest

from kube.lease import BELIEVED, LeaderElector, Lease, LeaseSpec
from kube.objects import ObjectMeta


class Time:
    """A clock that stands still until it is told to go on."""

    def __init__(self):
        self.seconds = 100.0

    def monotonic(self):
        return self.seconds

    def utc(self):
        return datetime.fromtimestamp(self.seconds, UTC)


class Server:
    """Has one Lease, and takes what the API server takes."""

    def __init__(self, **spec):
        self.lease = Lease(metadata=ObjectMeta(name="l", resource_version="1"), spec=LeaseSpec(**spec))

    async def get(self, *_names, **_options):
        return self.lease

    async def replace(self, _resource, body, _namespace, *, type, **_options):  # noqa: A002
        assert body["spec"]["leaseTransitions"] < 1 << 31, "an int32"
        made = msgspec.convert({**body, "metadata": {"name": "l", "resourceVersion": "2"}}, type)
        self.lease = made
        return made


@pytest.mark.parametrize("duration", [2**31 - 1, 15])
async def test_a_silent_holder_is_waited_for_a_bounded_time_whatever_it_says(duration):
    """The API server takes any leaseDurationSeconds from 1 to 2^31-1."""
    clock = Time()
    server = Server(holder_identity="somebody", lease_duration_seconds=duration)
    elector = LeaderElector(server, "ns", "l", "me", lease_seconds=15.0, clock=clock)
    assert not await elector._try(5.0)
    clock.seconds += min(duration, BELIEVED * 15) - 1
    assert not await elector._try(5.0), "it may be alive"
    clock.seconds += 2
    assert await elector._try(5.0)
    assert elector.is_leader


async def test_a_count_of_transitions_that_is_full_stops_nobody():
    server = Server(holder_identity="", lease_transitions=2**31 - 1)
    elector = LeaderElector(server, "ns", "l", "me", clock=Time())
    assert await elector._try(5.0)
