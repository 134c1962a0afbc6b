"""What was asked for latest is kept, and no more than there is room for."""

from engine.latest import Latest


def test_the_one_that_nobody_asked_for_longest_goes():
    latest = Latest(2)
    for key in ("a", "b", "a", "c"):
        latest.get_or_make(key, lambda key=key: [key])
    assert list(latest) == ["a", "c"]


def test_what_is_kept_is_not_made_again():
    latest = Latest(2)
    assert latest.get_or_make("a", list) is latest.get_or_make("a", list)


def test_room_is_by_weight_and_what_weighs_too_much_is_kept_alone():
    latest = Latest(5, len)
    for key in ("aa", "bb", "ccc"):
        latest.get_or_make(key, list)
    assert list(latest) == ["bb", "ccc"]
    latest.get_or_make("d" * 9, list)
    assert list(latest) == ["d" * 9]
