"""Durations: accepted texts, their normal forms, and the agreement of both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._core.config.duration import format_duration, parse_duration

SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "nanoseconds", "normal"),
    [
        ("90s", 90 * SECOND, "1m 30s"),
        ("300s", 300 * SECOND, "5m"),
        ("1w", 7 * 86400 * SECOND, "7days"),
        ("500ms", SECOND // 2, "500ms"),
        ("1h 30m", 5400 * SECOND, "1h 30m"),
        ("1h30m", 5400 * SECOND, "1h 30m"),
        ("1 h 30 m", 5400 * SECOND, "1h 30m"),
        ("  1s\t", SECOND, "1s"),
        ("1s 1s", 2 * SECOND, "2s"),
        ("1m0s", 60 * SECOND, "1m"),
        ("60m", 3600 * SECOND, "1h"),
        ("0", 0, "0s"),
        ("0s", 0, "0s"),
        ("00ms", 0, "0s"),
        ("1ns", 1, "1ns"),
        ("1us", 1000, "1us"),
        ("1µs", 1000, "1us"),
        ("1ms 1us 1ns", 1_001_001, "1ms 1us 1ns"),
        ("1day", 86400 * SECOND, "1day"),
        ("1d 24h", 2 * 86400 * SECOND, "2days"),
        ("1.5s", 1500 * SECOND // 1000, "1s 500ms"),
        ("0.5d", 43200 * SECOND, "12h"),
        ("0.333us", 333, "333ns"),
        ("90061.001s", 90_061_001 * 10**6, "1day 1h 1m 1s 1ms"),
        ("1 000s", 1000 * SECOND, "16m 40s"),
        ("400d", 400 * 86400 * SECOND, "1year 1month 4days 7h 26m 24s"),
        ("1M", 2_630_016 * SECOND, "1month"),
        ("2y", 2 * 31_557_600 * SECOND, "2years"),
        ("18446744073709551615s", 18446744073709551615 * SECOND, "584542046090years 7months 15days 17h 5m 3s"),
    ],
)
def test_accepted(text: str, nanoseconds: int, normal: str) -> None:
    assert parse_duration(text) == nanoseconds
    assert format_duration(nanoseconds) == normal
    assert parse_duration(normal) == nanoseconds


@pytest.mark.parametrize(
    ("names", "nanoseconds"),
    [
        ("ns nsec nanos", 1),
        ("us µs usec", 1000),
        ("ms msec millis", 10**6),
        ("s sec secs second seconds", SECOND),
        ("m min mins minute minutes", 60 * SECOND),
        ("h hr hrs hour hours", 3600 * SECOND),
        ("d day days", 86400 * SECOND),
        ("w wk wks week weeks", 604800 * SECOND),
        ("M month months", 2_630_016 * SECOND),
        ("y yr yrs year years", 31_557_600 * SECOND),
    ],
)
def test_spellings_of_units(names: str, nanoseconds: int) -> None:
    assert {parse_duration(f"3{name}") for name in names.split()} == {3 * nanoseconds}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "value was empty"),
        ("   ", "value was empty"),
        ("abc", "expected number at 0"),
        ("-1s", "expected number at 0"),
        ("+1s", "expected number at 0"),
        (".5s", "expected number at 0"),
        ("1 s s", "expected number at 4"),
        ("٣s", "expected number at 0"),
        ("10", "time unit needed, for example 10sec or 10ms"),
        ("1s 500", "time unit needed, for example 500sec or 500ms"),
        ("0.0", "time unit needed, for example 0.0sec or 0.0ms"),
        ("1_0s", "invalid character at 1"),
        ("1s,2s", "expected number at 2"),
        ("1.s", "invalid character at 1"),
        ("1..5s", "invalid character at 1"),
        ("30S", 'unknown time unit "S"'),
        ("1e3s", 'unknown time unit "e"'),
        ("1 fortnight", 'unknown time unit "fortnight"'),
        ("0.1ns", "values below 1ns are not supported"),
        ("1.0000000001s", "values below 1ns are not supported"),
        ("18446744073709551616s", "number is too large"),
        ("9" * 5000 + "s", "number is too large"),
    ],
)
def test_malformed_duration_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert str(caught.value).startswith(f"Invalid duration format {text!r}: {reason}")


def test_negative_has_no_form() -> None:
    with pytest.raises(ValueError, match="negative duration"):
        format_duration(-1)


@given(st.integers(0, (1 << 64) * SECOND - 1))
def test_normal_form_round_trips(nanoseconds: int) -> None:
    normal = format_duration(nanoseconds)
    assert parse_duration(normal) == nanoseconds
    assert format_duration(parse_duration(normal)) == normal


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(["ns", "us", "ms", "s", "m", "h", "day", "w"])), min_size=1))
def test_pairs_add_up(pairs: list[tuple[int, str]]) -> None:
    assert parse_duration(" ".join(f"{n}{unit}" for n, unit in pairs)) == sum(parse_duration(f"{n}{unit}") for n, unit in pairs)


@given(st.text(alphabet="0123456789. nusmhdwyMé-", max_size=12))
def test_anything_else_is_a_value_error(text: str) -> None:
    try:
        assert parse_duration(text) >= 0
    except ValueError as error:
        assert str(error).startswith("Invalid duration format ")
