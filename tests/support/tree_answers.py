"""What a real Kueue made of streams of `support.tree_streams`, kept in a file: a line of JSON for each.

``tests/data/kueue-trees.jsonl.gz`` has those of Kueue 0.19.2 that tests/e2e/test_tree_differential.py was given.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path

import msgspec
from support.kueue_trees import digest_of
from support.tree_streams import Answer, Move, Seen, Stream, Submit

RECORDED = Path(__file__).parents[1] / "data" / "kueue-trees.jsonl.gz"


class KeptAnswer(msgspec.Struct, frozen=True):
    """Who ended ("": a workload came, or nobody ran) and what moved, step by step; ``digest`` is of the stream."""

    name: str
    digest: str
    steps: list[tuple[str, list[Move]]]

    @classmethod
    def of_answer(cls, stream: Stream, answer: Answer) -> "KeptAnswer":
        """The form in which an answer is kept. ValueError where it is not all that was seen."""
        steps = [("" if isinstance(event, Submit) else event, list(seen.moves)) for event, seen in answer]
        made = cls(stream.name, digest_of(stream), steps)
        if made.answer_to(stream) != answer:
            raise ValueError(f"{stream.name}: who runs does not follow from what moved")
        return made

    def answer_to(self, stream: Stream) -> Answer:
        """The answer as it was seen."""
        return list(self._steps(stream))

    def _steps(self, stream: Stream) -> Iterator[tuple[Submit | str, Seen]]:
        running: dict[str, str] = {}
        for event, (ended, moves) in zip(stream.steps, self.steps, strict=False):
            running.pop(ended, None)
            for move in moves:
                if move.taker:
                    running.pop(move.name, None)
                else:
                    running[move.name] = move.what
            yield event if isinstance(event, Submit) else ended, Seen(frozenset(running.items()), tuple(moves))


def read_answers(file: Path) -> dict[str, KeptAnswer]:
    """By name; {} where there is no file."""
    if not file.exists():
        return {}
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return {one.name: one for one in msgspec.json.Decoder(KeptAnswer).decode_lines(text)}


def append_answers(file: Path, answers: list[KeptAnswer]) -> None:
    """Add some at the end."""
    with file.open("ab") as out:
        out.write(msgspec.json.Encoder().encode_lines(answers))
