"""Tables without lines, in which people read results."""

from typing import Any, Final

from rich.table import Column, Table

_MARKS: Final[dict[str, dict[str, Any]]] = {">": {"justify": "right"}, "~": {"overflow": "fold"}}


def plain_table(*heads: str, **options: Any) -> Table:
    """A table with these columns; ``options``: of a `rich.table.Table`.

    The head ``>PODS`` is of numbers, which stand at the right, ``~MESSAGE`` of texts that break anywhere.
    """
    columns = [Column(head[1:], **_MARKS[head[0]]) if head[:1] in _MARKS else head for head in heads]
    return Table(*columns, box=None, pad_edge=False, **options)
