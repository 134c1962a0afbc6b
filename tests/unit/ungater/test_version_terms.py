"""A term of the controller goes by the settings and the version of the API server that it began with, and ends when
either changes."""

import asyncio
from types import SimpleNamespace

import pytest

from clock import SYSTEM
from crds.settings import Settings
from kube.errors import ConnectionFailed
from kube.versions import NEWEST, scheduler_rules
from serving.live_settings import SettingsChange
from ungater import process


class Terms:
    """Stands in for the controller: notes by which rules each term goes."""

    def __init__(self):
        self.begun = []
        self.ended = 0
        self.again = asyncio.Event()

    def assemble(self, settings, *_, scheduler, restart):
        self.begun.append(scheduler)
        self.restart = restart
        self.settings = settings

    def __call__(self, *_):
        return SimpleNamespace(run=self.run, ready=True)

    async def run(self):
        if len(self.begun) > 1:
            self.again.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1


class Versions:
    """Stands in for the client: an API server that answers with one version after another, the last for ever."""

    transport = SimpleNamespace(subscribe=lambda _: None)

    def __init__(self, *answers):
        self.answers = list(answers)

    async def create(self, *_, **_options):
        """Takes every trial."""

    async def server_version(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def terms(monkeypatch):
    found = Terms()
    monkeypatch.setattr(process, "assemble", found.assemble)
    monkeypatch.setattr(process, "Controller", found)
    monkeypatch.setattr(process, "VERSION_SECONDS", 0.001)
    return found


async def led(terms, *answers):
    leading = asyncio.create_task(process.Process(Settings(leader_election=False), Versions(*answers), SYSTEM).run())
    await terms.again.wait()
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert terms.ended == len(terms.begun), "no term runs beside another, or on"


async def test_all_is_read_again_once_the_api_server_is_upgraded_from_1_36_to_1_37(terms):
    await led(terms, "v1.36.3", "v1.36.3", "v1.36.4", ConnectionFailed("restarts"), "v1.37.1")
    assert terms.begun == [scheduler_rules("v1.36.3"), scheduler_rules("v1.37.1")]


async def test_a_server_that_does_not_say_its_version_counts_as_the_newest(terms):
    await led(terms, ConnectionFailed("starts"), "v1.35.0")
    assert terms.begun == [NEWEST, scheduler_rules("v1.35.0")]


async def test_other_settings_begin_a_term_and_wrong_ones_do_not(terms, monkeypatch):
    monkeypatch.setattr(process, "VERSION_SECONDS", 3600.0)
    made = process.Process(Settings(leader_election=False), Versions("v1.36.3"), SYSTEM)
    leading = asyncio.create_task(made.run())
    while not terms.begun:
        await asyncio.sleep(0)
    made.settings_refused("requireQeue: unknown setting", "u")
    made.take_settings(SettingsChange(Settings(require_queue=True), (), ("leaseSeconds",)), "u")
    assert (len(terms.begun), made.metrics.settings_refused._value.get()) == (1, 0)
    made.take_settings(SettingsChange(Settings(require_queue=True), ("requireQueue",), ()), "u")
    await terms.again.wait()
    assert (len(terms.begun), terms.ended, terms.settings.require_queue) == (2, 1, True)
    made.settings_refused("requireQeue: unknown setting", "u")
    assert made.metrics.settings_refused._value.get() == 1
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_another_set_of_namespaces_begins_a_term(terms, monkeypatch):
    """Beside Kueue a namespace is served from a term on that has read what Kueue started there."""
    monkeypatch.setattr(process, "VERSION_SECONDS", 3600.0)
    leading = asyncio.create_task(process.Process(Settings(leader_election=False), Versions("v1.36.3"), SYSTEM).run())
    while not terms.begun:
        await asyncio.sleep(0)
    terms.restart()
    await terms.again.wait()
    assert len(terms.begun) == 2
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert terms.ended == 2
