"""Commands that say what waits say first that nobody acts on it: nothing is installed any more, or no ungater leads."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from cli.cluster import installed
from cli.cluster.leader import absence
from crds.settings import CONFIG_KEY
from kube.errors import Forbidden, NotFound
from kube.lease import Lease, LeaseSpec
from kube.resources import CONFIG_MAPS, LEASES, MUTATING_WEBHOOKS

NOW = datetime(2026, 11, 28, tzinfo=UTC)


def lease(age, holder="a", seconds=15):
    renewed = (NOW - timedelta(seconds=age)).isoformat()
    return Lease(spec=LeaseSpec(holder_identity=holder, lease_duration_seconds=seconds, renew_time=renewed))


class Server:
    """Has these objects, by resource; an error is raised, and what it has not is not found."""

    def __init__(self, **has):
        self.has = has

    def server_time(self):
        return NOW

    async def get(self, resource, name, _namespace=None, **_):
        found = self.has.get(resource.plural, NotFound(404, "NotFound", f"no {name}"))
        if isinstance(found, Exception):
            raise found
        return found


def told(capsys, **has):
    asyncio.run(installed.settings_with_warning(Server(**has)))
    return capsys.readouterr().err


THERE = {MUTATING_WEBHOOKS.plural: {}}
MAY_NOT = Forbidden(403, "Forbidden", "may not")


def test_nothing_is_said_while_a_controller_leads_or_where_one_may_not_look(capsys):
    assert not told(capsys, **{LEASES.plural: lease(20)})
    assert not told(capsys, **{LEASES.plural: MAY_NOT, MUTATING_WEBHOOKS.plural: MAY_NOT})


@pytest.mark.parametrize(
    ("has", "said"),
    [
        ({}, "of Topogate only the kinds are installed"),
        (THERE, "Warning: no ungater leads, so nothing new is placed: `topogate doctor` says more"),
        ({MUTATING_WEBHOOKS.plural: MAY_NOT}, "no ungater leads"),
        ({LEASES.plural: lease(20, holder=""), **THERE}, "no ungater leads"),
        ({LEASES.plural: lease(90), **THERE}, "a has not renewed its lease for 90 s, so nothing new is placed"),
    ],
)
def test_nobody_who_leads_is_one_line_on_stderr(capsys, has, said):
    (line,) = told(capsys, **has).splitlines()
    assert said in line


def test_a_controller_without_a_lease_is_not_missed(capsys):
    config = {"data": {CONFIG_KEY: "leaderElection: false\n"}}
    assert not told(capsys, **{CONFIG_MAPS.plural: config, **THERE})


def test_a_lease_counts_as_long_as_it_says_and_a_little_longer():
    assert not absence(lease(300, seconds=280), NOW)
    assert absence(lease(300, seconds=15), NOW)
