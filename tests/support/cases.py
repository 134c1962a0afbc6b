"""The inputs of reported cases: `tests/data/cases`, a folder each, as they were seen to fail."""

from pathlib import Path

import msgspec

CASES = Path(__file__).parents[1] / "data" / "cases"


def objects(case: str, file: str) -> list[dict]:
    """The objects of a List, or the only object, in a file of a case."""
    body = msgspec.json.decode((CASES / case / file).read_bytes())
    return body["items"] if body["kind"] == "List" else [body]


def of_kind(case: str, file: str, kind: str) -> list[dict]:
    """Those of one kind."""
    return [one for one in objects(case, file) if one["kind"] == kind]
