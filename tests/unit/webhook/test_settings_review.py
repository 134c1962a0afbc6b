"""The webhook judges the settings before they are stored, beside all other reviews."""

import json

import pytest
from support.reviews import RACK, REQUIRE, answer_of, make_job, make_review
from support.webhook_server import client_of, serving

from crds.constants import Keys
from crds.settings import Settings
from serving.live_settings import SettingsChange
from webhook.mutate import MutationRules
from webhook.review import Reply, Rulebook, for_settings
from webhook.server import SETTINGS_PATH

DOMAIN = "kueue.x-k8s.io"


def review(text, old=None, manager="kubectl-edit", **fields):
    def config_map(data):
        metadata = {"name": "topogate-config", "namespace": "topogate-system"}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    new = config_map(text if isinstance(text, dict) else {"config.yaml": text}) | fields
    old = None if old is None else config_map(old if isinstance(old, dict) else {"config.yaml": old})
    return json.dumps(make_review(new, old=old, options={"kind": "PatchOptions", "fieldManager": manager})).encode()


def answer(body):
    return answer_of(for_settings(DOMAIN).answer(body, Rulebook(MutationRules(Keys(DOMAIN), None))))


def judged(body):
    found = answer(body)
    return None if found["allowed"] else found["status"]["message"]


@pytest.mark.parametrize("text", ["", f"domain: {DOMAIN}\nrequireQueue: true\n", "# nothing\n"])
def test_right_settings_are_allowed(text):
    assert judged(review(text)) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("requireQeue: true\n", "data[config.yaml]: requireQeue: unknown setting; did you mean requireQueue?"),
        ("movesPerHour: many\n", "movesPerHour"),
        ("a: [", "data[config.yaml]: is not YAML: line 1, column 5: expected the node content, but found"),
        ("domain: topogate.dev\n", "domain: expected kueue.x-k8s.io, with which Topogate is installed"),
        ("namespace: other\n", "namespace: expected topogate-system, in which Topogate is installed, found other"),
        ("requireQueue: true\nrequireQueue: false\n", "data[config.yaml]: requireQueue: is given twice"),
        ({"config.yml": "requireQueue: true\n"}, "data[config.yml]: nothing reads this key: settings are data[config"),
    ],
)
def test_wrong_settings_are_refused_in_words(text, said):
    assert said in judged(review(text))


def test_who_changes_anything_else_is_not_held_up_by_wrong_settings():
    """As the ungater does, which keeps the last good ones beside them."""
    wrong = {"config.yaml": "requireQeue: true\n"}
    assert judged(review({**wrong, "last-good.yaml": "{}"}, old=wrong)) is None
    assert "did you mean" in judged(review(wrong, old={}))


BESIDE = "webhookUrl: https://127.0.0.1:9443\n"


@pytest.mark.parametrize(
    ("text", "found"), [("", "nothing"), ("webhookUrl: https://other:1\n", "https://other:1"), ({}, "nothing")]
)
def test_the_url_of_a_webhook_beside_the_cluster_stays(text, found):
    said = judged(review(text, old=BESIDE))
    assert (
        f"webhookUrl: expected https://127.0.0.1:9443, at which the API server calls the webhook, found {found}" in said
    )
    assert "`topogate install` moves the components" in said


@pytest.mark.parametrize("manager", ["topogate-install", "helm"])
def test_whoever_changes_the_rest_of_the_installation_too_may_move_the_components(manager):
    assert judged(review("", old=BESIDE, manager=manager)) is None


def test_the_url_may_be_given_again():
    assert judged(review(BESIDE, old="")) is None
    assert judged(review(BESIDE, old="a: [")) is None


def test_names_that_other_objects_go_by_are_changed_with_a_warning():
    found = answer(review("leaseName: other\nmovesPerHour: 2\n", old=""))
    assert found["allowed"] is True
    (warning,) = found["warnings"]
    assert warning.startswith(
        'data[config.yaml]: leaseName: objects of the installation go by "topogate-ungater": unless'
    )
    assert "warnings" not in answer(review("leaseName: other\n", old="", manager="helm"))


def test_keys_that_nothing_reads_hold_up_only_whoever_adds_them():
    stale = {"config.yml": "a: 1\n"}
    assert judged(review({**stale, "config.yaml": "requireQueue: true\n"}, old=stale)) is None
    assert "binaryData[config.yaml]" in judged(review("", binaryData={"config.yaml": "AA=="}))


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
