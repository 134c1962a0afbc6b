"""The webhook judges the settings before they are stored, beside all other reviews."""

import json

import pytest
from support.reviews import RACK, REQUIRE, answer_of, make_job, make_review
from support.webhook_server import client_of, serving

from crds.constants import Keys
from crds.settings import Settings
from serving.live_settings import SettingsChange
from webhook.mutate import Rules
from webhook.review import Reply, Rulebook, for_settings
from webhook.server import SETTINGS_PATH

DOMAIN = "kueue.x-k8s.io"


def review(text, old=None):
    def config_map(data):
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "topogate-config"}, "data": data}

    new = config_map(text if isinstance(text, dict) else {"config.yaml": text})
    return json.dumps(make_review(new, old=None if old is None else config_map(old))).encode()


def judged(body):
    answer = answer_of(for_settings(DOMAIN).answer(body, Rulebook(Rules(Keys(DOMAIN), None))))
    return None if answer["allowed"] else answer["status"]["message"]


@pytest.mark.parametrize("text", ["", f"domain: {DOMAIN}\nrequireQueue: true\n", "# nothing\n"])
def test_right_settings_are_allowed(text):
    assert judged(review(text)) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("requireQeue: true\n", "data[config.yaml]: requireQeue: unknown setting; did you mean requireQueue?"),
        ("movesPerHour: many\n", "movesPerHour"),
        ("a: [", "no YAML"),
        ("domain: topogate.dev\n", "domain: expected kueue.x-k8s.io, with which Topogate is installed"),
    ],
)
def test_wrong_settings_are_refused_in_words(text, said):
    assert said in judged(review(text))


def test_who_changes_anything_else_is_not_held_up_by_wrong_settings():
    """As the ungater does, which keeps the last good ones beside them."""
    wrong = {"config.yaml": "requireQeue: true\n"}
    assert judged(review({**wrong, "last-good.yaml": "{}"}, old=wrong)) is None
    assert "did you mean" in judged(review(wrong, old={}))


async def test_settings_are_reviewed_and_taken_by_the_server():
    async def ask(session, path, body):
        async with session.post(path, data=body) as response:
            return answer_of(Reply(response.status, await response.read(), ""))

    job = json.dumps(make_review(make_job({REQUIRE: RACK}))).encode()
    async with serving() as running, client_of(running) as session:
        refused = await ask(session, SETTINGS_PATH, review("requireQeue: true\n"))
        assert (refused["allowed"], refused["status"]["code"]) == (False, 422)
        assert (await ask(session, "/mutate-job", job))["allowed"] is True
        running.take_settings(SettingsChange(Settings(require_queue=True), ("requireQueue",), ()), "u")
        assert (await ask(session, "/mutate-job", job))["allowed"] is False
