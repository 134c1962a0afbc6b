"""The documentation as a site: every page has its place, and every command is one of ours."""

import re
from pathlib import Path

import yaml
from support.typed_pages import scripts

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def pages(nav):
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from pages(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation_once():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    found = list(pages(site["nav"]))
    assert sorted(found) == sorted(str(path.relative_to(DOCS)) for path in PAGES)
    assert [next(iter(part)) for part in site["nav"]] == ["Start", "Tasks", "Concepts", "Reference"]


def test_no_page_links_to_what_the_site_does_not_have():
    for path in PAGES:
        for link in re.findall(r"\]\(([^)#]+)", path.read_text()):
            there = (path.parent / link).resolve()
            assert "://" in link or (there.exists() and there.is_relative_to(DOCS)), f"{path.name}: {link}"


def test_pages_show_what_a_reader_types_and_not_how_a_test_checks_it():
    for path in PAGES:
        assert re.findall(r"^! |test \$\?|\|\| true$", path.read_text(), re.MULTILINE) == [], path.name


def test_a_step_of_a_page_may_end_with_a_status_that_a_comment_names():
    typed = scripts("tutorial-ml.md")["3. A word that does not exist"]
    assert "kubectl create -f -" in typed
    assert typed.endswith("then false; else test $? = 1; fi\n")


def test_the_site_is_searched_without_a_server_and_loads_nothing_from_elsewhere():
    """The plugin `offline` would load a frame's worker from another server, unless the site names one of its own."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert site["plugins"] == ["search", "offline"]
    assert site["theme"]["font"] is False
    (polyfill,) = site["extra"]["polyfills"]
    assert "iframe-worker" in polyfill
    assert "://" not in (ROOT / "docs" / polyfill).read_text()
