"""Settings that 0.1.0 wrote or took (tests/data/upgrade-0.1.0)."""

import yaml
from support.earlier import DATA, documents

from crds.settings import CONFIG_KEY, CONFIG_MAP, Settings, parse

WRITTEN = (DATA / "settings.yaml").read_text()


def test_every_setting_of_0_1_0_still_exists_and_one_default_differs():
    assert parse(WRITTEN, source="0.1.0", env={})
    now = Settings().model_dump(mode="json", by_alias=True)
    then = yaml.safe_load(WRITTEN)
    assert len(then) > 60
    assert {name: (value, now[name]) for name, value in then.items() if now[name] != value} == {
        "kueueNeverFits": ("Retry", "Reject")
    }


def test_the_file_that_0_1_0_installed_is_read():
    (config,) = [obj for obj in documents("install.yaml") if obj["metadata"]["name"] == CONFIG_MAP]
    settings = parse(config["data"][CONFIG_KEY], source="0.1.0", env={})
    assert (settings.domain, settings.webhook_url) == ("kueue.x-k8s.io", "https://127.0.0.1:19443")
