"""A term of the controller goes by the settings and the version of the API server that it began with, and ends when
either changes."""

import asyncio
import itertools
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


def test_a_label_that_changes_in_a_loop_ends_fewer_and_fewer_terms():
    """A tenant who may label a namespace must not keep all others waiting while everything is read again and again."""
    served, now, ends = process.ServedChanges(), 1000.0, []
    while now < 1000.0 + 6 * 3600.0:
        now += served.put_off(now)
        ends.append(now)
        now += 1.0
    pauses = [later - one for one, later in itertools.pairwise(ends)]
    assert ends[0] == 1000.0, "the first one counts at once"
    assert pauses[:7] == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0]
    assert set(pauses[6:]) == {600.0}
    assert served.put_off(ends[-1] + 1201.0) == 0.0, "after a calm time too"
    for _ in range(10_000):
        now += 600.0 + served.put_off(now)


def test_a_namespace_that_kueue_serves_again_is_left_soon_however_many_labels_changed_before():
    served, now = process.ServedChanges(), 1000.0
    for _ in range(6):
        now += served.put_off(now)
    assert served.put_off(now) > 300.0, "one more that comes waits for long"
    assert served.put_off(now + 1.0, leaving=True) == process.SHORTEST_PAUSE
    assert process.ServedChanges().put_off(now, leaving=True) == 0.0


async def test_one_that_leaves_ends_a_term_that_was_to_go_on_for_one_that_comes(terms, monkeypatch):
    monkeypatch.setattr(process, "VERSION_SECONDS", 3600.0)
    made = process.Process(Settings(leader_election=False), Versions("v1.36.3"), SYSTEM)
    leading = asyncio.create_task(made.run())
    while not terms.begun:
        await asyncio.sleep(0)
    terms.restart()
    await terms.again.wait()
    terms.restart()
    later = made._ending.when()
    monkeypatch.setattr(process, "SHORTEST_PAUSE", 0.02)
    terms.restart("team-a")
    assert made._ending.when() < later
    while len(terms.begun) < 3:
        await asyncio.sleep(0.001)
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_changes_that_follow_one_another_end_one_term_together(terms, monkeypatch):
    monkeypatch.setattr(process, "VERSION_SECONDS", 3600.0)
    monkeypatch.setattr(process, "SHORTEST_PAUSE", 0.02)
    made = process.Process(Settings(leader_election=False), Versions("v1.36.3"), SYSTEM)
    leading = asyncio.create_task(made.run())
    while not terms.begun:
        await asyncio.sleep(0)
    terms.restart()
    await terms.again.wait()
    for _ in range(50):
        terms.restart()
        await asyncio.sleep(0)
    assert len(terms.begun) == 2, "it goes on for a while"
    while len(terms.begun) < 3:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert (len(terms.begun), terms.ended) == (3, 2)
    terms.restart()
    made.take_settings(SettingsChange(Settings(require_queue=True), ("requireQueue",), ()), "u")
    while len(terms.begun) < 4:
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    assert len(terms.begun) == 4, "the term that began for the settings has read the labels too"
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
