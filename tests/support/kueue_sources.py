"""Kueue's own samples and pages, taken at the time of a test: from its Go modules, or a folder of its repository.

Nothing of it is kept outside of Go's module cache. ``site/`` is a module of its own; a proxy may not have it, and then
``TOPOGATE_KUEUE_SITE`` names a folder: ``git archive v0.19.2 site | tar x -C FOLDER``.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks.harness import kueue
from cli.cluster.dump import FoundObject, objects_in, objects_in_text
from cli.output import Failure
from localcluster.errors import BinariesMissing
from localcluster.programs import build, golang

SITE = "sigs.k8s.io/kueue/site@v0.0.0-20260820143319-8eab68778fc1"  # the commit of v0.19.2
FOLDER = "TOPOGATE_KUEUE_SITE"


def site() -> Path:
    """The folder ``site``; skips the test where it cannot be had."""
    if folder := os.environ.get(FOLDER):
        return Path(folder) / "site"
    return _downloaded(SITE)


def module() -> Path:
    """The folder of Kueue's main module, with the examples of kueueviz; skips the test where it cannot be had."""
    return _downloaded(f"{kueue.MODULE}@v{kueue.VERSION}")


def _downloaded(name: str) -> Path:
    try:
        go = golang.find(build.cache_directory(), progress=print)
        return kueue.download(go, name)
    except BinariesMissing as error:
        pytest.skip(f"{name} cannot be had; {FOLDER} may name a folder with Kueue's site/ ({str(error)[-200:]})")


def samples(folder: Path) -> dict[str, list[FoundObject]]:
    """The objects of each file below a folder."""
    return {str(path.relative_to(folder)): [*objects_in(str(path))] for path in sorted(folder.rglob("*.yaml"))}


def of_pages(folder: Path) -> tuple[dict[str, list[FoundObject]], int]:
    """The objects of each page of the documentation in English, and how many blocks of YAML have none.

    Those are parts of objects, or have ``...`` in them.
    """
    found: dict[str, list[FoundObject]] = {}
    unread = 0
    for path in sorted((folder / "content" / "en" / "docs").rglob("*.md")):
        name = str(path.relative_to(folder))
        for text in _blocks(path.read_text(encoding="utf-8")):
            try:
                found.setdefault(name, []).extend(objects_in_text(name, text.encode()))
            except (Failure, yaml.YAMLError):
                unread += 1
    return found, unread


def _blocks(text: str) -> Iterator[str]:
    """The fenced blocks of YAML, without their indentation. What they include from files is among the samples."""
    for indent, inner in re.findall(r"^([ \t]*)```ya?ml[^\n]*\n(.*?)^[ \t]*```", text, re.MULTILINE | re.DOTALL):
        yield "\n".join(line.removeprefix(indent) for line in inner.splitlines())
