"""docs/reasons.md lists all reasons, each once, with its meaning, and no other."""

import re
from collections import Counter
from pathlib import Path

from engine.reasons import Reason

PAGE = (Path(__file__).parents[2] / "docs" / "reasons.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*)\|$", PAGE, re.MULTILINE)


def test_the_page_lists_every_reason_once_and_no_other():
    listed = Counter(name for name, _, _ in ROWS)
    assert {reason.value for reason in Reason} - listed.keys() == set()
    assert listed.keys() - {reason.value for reason in Reason} == set()
    assert [name for name, times in listed.items() if times > 1] == []


def test_each_reason_has_its_meaning():
    assert [name for name, meaning, _ in ROWS if len(meaning.split()) < 3] == []
