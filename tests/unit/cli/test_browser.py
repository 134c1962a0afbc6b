"""A page opens where a person sits, and its key is no argument of a process."""

import re
import stat
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from cli import browser


@pytest.mark.parametrize(
    ("asked", "environment", "terminal", "opens"),
    [
        (None, {"DISPLAY": ":0"}, True, True),
        (None, {"WAYLAND_DISPLAY": "wayland-0"}, True, True),
        (None, {"BROWSER": "firefox"}, True, True),
        (None, {"DISPLAY": ":0"}, False, False),  # piped, or continuous integration
        (None, {"DISPLAY": ""}, True, False),  # a server
        (False, {"DISPLAY": ":0"}, True, False),
        (True, {}, False, True),
    ],
)
def test_it_opens_where_a_person_sits_or_when_asked(monkeypatch, asked, environment, terminal, opens):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert browser.wanted(asked, environment) is opens


def test_a_link_with_a_key_is_read_from_a_file_that_only_its_owner_reads():
    seen = []
    forget = browser.show("http://localhost:1/#key=se&cret", lambda address: not seen.append(address))
    [address] = seen
    assert "cret" not in address
    file = Path(unquote(urlsplit(address).path))
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert re.search(r'url=http://localhost:1/#key=se&amp;cret"', file.read_text())
    forget()
    assert not file.parent.exists()


def test_a_file_is_opened_as_it_is():
    seen = []
    browser.show("file:///tmp/result.html", lambda address: bool(seen.append(address)))()
    assert seen == ["file:///tmp/result.html"]
