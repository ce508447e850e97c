import pytest

from advisor.reports._bars import WIDTH, Bar, drawn, fenced


def test_bars_are_as_long_as_their_shares_and_stand_where_they_begin():
    half, rest, long = drawn([Bar("half", 0.0, 0.5, "5 ms"), Bar("the rest", 0.5, 0.5, "−5 ms"), Bar("x" * 40, 0.0, 1.0, "")])
    assert half == "half" + " " * 30 + "█" * 16 + " " * 16 + "   5 ms"
    assert rest.index("█") == 34 + WIDTH // 2 and rest.count("█") == 16
    assert long.startswith("x" * 31 + "…") and long.count("█") == WIDTH


@pytest.mark.parametrize(("share", "line"), [(1 / 256, "▏"), (1 / 32 + 1 / 64, "█▌"), (0.0, "▏"), (2.0, "█" * WIDTH)])
def test_a_short_bar_is_drawn_to_the_eighth(share, line):
    assert drawn([Bar("", 0.0, share, "")])[0].strip() == line


def test_a_fence_is_longer_than_any_in_its_lines():
    assert fenced(["a ```` b"], "text") == ["`````text", "a ```` b", "`````"]
