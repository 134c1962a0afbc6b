"""`benchmarks.ungating` with 10,000 pods of one Job."""

from collections.abc import Sequence

from benchmarks import ungating


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write ``benchmarks/results/ungating-large.json``."""
    ungating.main(["--pods", str(ungating.LARGE), "--rounds", "5", *(arguments or ())], "ungating-large")
