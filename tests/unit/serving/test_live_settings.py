"""Settings that change while a component runs: taken, left to a restart, or refused, with the last good ones kept."""

import pytest

from kube.errors import Conflict, NotFound
from serving.live_settings import LAST_GOOD, SettingsSource, SettingsWatch, changed

GOOD = "domain: topogate.dev\n"


class ConfigMap:
    """Stands in for the client: the ConfigMap, and how often it was written."""

    def __init__(self, text, last_good=None):
        self.data = {"config.yaml": text} | ({LAST_GOOD: last_good} if last_good is not None else {})
        self.version, self.writes = 1, 0

    async def get(self, *_):
        if self.data is None:
            raise NotFound("no such ConfigMap")
        return {"metadata": {"uid": "u", "resourceVersion": str(self.version)}, "data": dict(self.data)}

    async def patch(self, *_, body):
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("it changed")
        self.data |= body["data"]
        self.version += 1
        self.writes += 1


class User:
    def __init__(self, *, keeps=True):
        self.keeps, self.told = keeps, []

    def take_settings(self, change, uid):
        self.told.append(("taken", change.taken, change.at_start, uid))
        self.settings = change.settings

    def settings_refused(self, problem, uid):
        self.told.append(("refused", problem, uid))

    def keeps_settings(self):
        return self.keeps


def watch(stored, user, text=GOOD, **given):
    return SettingsWatch(stored, "topogate-system", SettingsSource(text, given), user)


async def test_the_leader_keeps_the_settings_that_it_goes_by_once():
    stored, user = ConfigMap(GOOD), User()
    looking = watch(stored, user)
    await looking.look_once()
    await looking.look_once()
    assert (stored.data[LAST_GOOD], stored.writes, user.told) == (GOOD, 1, [])


async def test_who_does_not_lead_writes_nothing():
    stored = ConfigMap(GOOD)
    await watch(stored, User(keeps=False)).look_once()
    assert stored.writes == 0


async def test_settings_are_taken_and_some_wait_for_a_restart():
    stored, user = ConfigMap(GOOD), User()
    looking = watch(stored, user)
    stored.data["config.yaml"] = GOOD + "requireQueue: true\nleaseSeconds: 30\nwebhookDrainSeconds: 1\n"
    await looking.look_once()
    assert user.told == [("taken", ("requireQueue",), ("webhookDrainSeconds", "leaseSeconds"), "u")]
    assert (user.settings.require_queue, user.settings.lease_seconds, user.settings.domain) == (
        True,
        15.0,
        "topogate.dev",
    )
    assert stored.data[LAST_GOOD] == stored.data["config.yaml"]


async def test_a_setting_that_counts_from_a_start_stays_at_every_later_edit():
    stored, user = ConfigMap(GOOD), User()
    looking = watch(stored, user)
    for text in ("domain: b.dev\n", "domain: b.dev\nrequireQueue: true\n", GOOD + "requireQueue: true\n"):
        stored.data["config.yaml"] = text
        await looking.look_once()
        assert user.settings.domain == "topogate.dev"
    assert user.told == [
        ("taken", (), ("domain",), "u"),
        ("taken", ("requireQueue",), (), "u"),
        ("taken", (), (), "u"),  # as at the start again: nothing waits for a restart
    ]


async def test_a_wrong_setting_is_told_once_and_the_last_good_ones_stay():
    stored, user = ConfigMap(GOOD), User()
    looking = watch(stored, user)
    stored.data["config.yaml"] = "requireQeue: true\n"
    for _ in range(3):
        await looking.look_once()
    ((verdict, problem, uid),) = user.told
    assert (verdict, uid, stored.data[LAST_GOOD]) == ("refused", "u", GOOD)
    assert "requireQeue: unknown setting; did you mean requireQueue?" in problem
    stored.data["config.yaml"] = GOOD
    await looking.look_once()
    assert user.told[1:] == [("taken", (), (), "u")], "all is well again, and nothing is other than before"


async def test_a_process_that_started_with_the_last_good_settings_tells_what_is_wrong():
    stored, user = ConfigMap("requireQeue: true\n", GOOD), User()
    await watch(stored, user).look_once()
    assert [one[0] for one in user.told] == ["refused"]
    assert stored.writes == 0


async def test_a_config_map_that_is_not_there_changes_nothing():
    stored, user = ConfigMap(GOOD), User()
    stored.data = None
    await watch(stored, user).look_once()
    assert user.told == []


async def test_last_good_settings_that_somebody_removed_come_back_beside_wrong_ones():
    stored = ConfigMap("requireQeue: true\n")
    await watch(stored, User()).look_once()
    assert stored.data[LAST_GOOD] == GOOD


@pytest.mark.parametrize("by", ["environment", "command line"])
def test_what_wins_over_the_file_at_the_start_wins_later_too(by):
    given, env = ({"log_level": "debug"}, {}) if by == "command line" else ({}, {"TOPOGATE_MOVES_PER_HOUR": "3"})
    found = changed("", "requireQueue: true\nmovesPerHour: 9\n", given, env, started="")
    assert found.settings.log_level == ("debug" if given else "info")
    assert found.taken == (("requireQueue",) if env else ("requireQueue", "movesPerHour"))
