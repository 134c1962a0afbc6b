"""CPU time of decisions, with no garbage collected meanwhile."""

import gc

import pytest

from cli.timing import measured, undisturbed


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("collect", [True, False])
def test_garbage_is_collected_as_before_once_that_is_over_whatever_fails(collects, collect):
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()

        def failing():
            assert not gc.isenabled()
            raise ValueError("m")

        with pytest.raises(ValueError, match="m"), undisturbed(collect=collect):
            measured(failing)
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()


def test_what_is_measured_is_told_in_microseconds():
    clock = iter([1.0, 1.5])
    assert measured(lambda: "found", lambda: next(clock)) == ("found", 5e5)
