"""How numbers and names are written wherever people read them: three significant digits, the unit that suits, no line too long."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

# Nothing of advisor is imported here: the recorder takes this file into the user's process, where `advisor` may be a module of the user's.

UNKNOWN = "–"
_TIMES = ((1.0, "µs"), (1e3, "ms"), (1e6, "s"))
_SIZES = ((1.0, "bytes"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))


def three(value: float) -> str:
    """Three significant digits, and thousands grouped: 1.23, 12.3, 123, 1,234."""
    size = abs(value)
    return f"{value:,.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"


def cut(text: str, most: int) -> str:
    """The text, its end left out if it is longer than so many characters: `sm90_xmma_gemm…`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def whole_clauses(text: str, most: int) -> str:
    """The text; if it is longer than so many characters, the clauses that fit, or the words that fit of a long first clause."""
    if len(text) <= most:
        return text
    end = max(text.rfind(mark, 0, most) for mark in (". ", "; "))
    head = text[: most - 1]
    return f"{text[:end]}." if end > most / 2 else f"{head.rpartition(' ')[0] or head}…"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    # 999.5 would be written 1000: the next unit takes over where the rounding does.
    scale, unit = next((pair for pair in units if abs(value) / pair[0] < 999.5), units[-1])
    return f"{three(value / scale)} {unit}"


def duration(us: float) -> str:
    """A time given in µs: `850 µs`, `12.4 ms`, `1.02 s`."""
    if not isfinite(us):
        return UNKNOWN
    if us == 0:
        return "0 µs"
    return "<0.01 µs" if 0 < us < 0.005 else _scaled(us, _TIMES)


def duration_of(part_us: float, whole_us: float) -> str:
    """A time as a part of a longer time: `1.24 ms of 12.4 ms`. Work on several streams may take longer in all than the step that holds it."""
    part, whole = duration(part_us), duration(whole_us)
    return f"{part} side by side in {whole}" if part_us > whole_us and part != whole else f"{part} of {whole}"


def _two(value: float) -> str:
    """Two significant digits, thousands grouped: 1.2, 12, 120, 1,200."""
    size = abs(value)
    if size >= 99.5:
        unit = 10.0 ** (len(str(int(size + 0.5))) - 2)
        return f"{round(value / unit) * unit:,.0f}"
    return f"{value:.{1 if size < 9.95 else 0}f}"


def _rough(value: float, units: tuple[tuple[float, str], ...]) -> str:
    scale, unit = next((pair for pair in units if abs(value) / pair[0] < 995), units[-1])
    return f"{_two(value / scale)} {unit}"


def rough_duration(us: float) -> str:
    """A time known to two digits: `850 µs`, `12 ms`, `1.0 s`."""
    if not isfinite(us):
        return UNKNOWN
    return duration(us) if us < 0.05 else _rough(us, _TIMES)


def as_precise_as(shown_us: float, digits: int) -> Callable[[float], str]:
    """Writes times in the unit and to the last digit of a given time with so many digits: `14.2 ms` next to `16.0 ms`. A time shorter than that digit has two
    digits of its own, as has a time that rounding would change by a tenth."""
    scale, unit = next((pair for pair in _TIMES if shown_us / pair[0] < 1000 - 10 ** (3 - digits) / 2), _TIMES[-1])
    decimals = digits - 1
    while round(shown_us / scale, decimals) >= 10 ** (digits - decimals):
        decimals -= 1

    def write(us: float) -> str:
        value = round(us / scale, decimals)
        return f"{value:,.{max(decimals, 0)}f} {unit}" if isfinite(us) and abs(value * scale - us) < us / 10 else rough_duration(us)

    return write


def rough_size(count: float) -> str:
    """Bytes known to two digits: `540 MB`, `1.2 GB`."""
    if not isfinite(count):
        return UNKNOWN
    return size(count) if count < 999.5 else _rough(count, _SIZES)


def rough_percent(fraction: float) -> str:
    """A share known to two digits: `38%`, `4.2%`; whatever is not all is 99% at most."""
    return "99%" if 0.985 <= fraction < 1 else percent(fraction)


def moment(us: float) -> str:
    """A place in the trace, in ms to the µs, so that it can be found in a viewer."""
    return f"{us / 1e3:,.3f} ms" if isfinite(us) else UNKNOWN


def interval(lowest: float, highest: float, write: Callable[[float], str] = duration) -> str:
    """`6.50 to 8.20 ms`, a shared unit only once; `write` writes a number."""
    low, high = write(lowest), write(highest)
    number, _, unit = low.partition(" ")
    return low if low == high else f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def span(lowest: float, highest: float, write: Callable[[float], str] = rough_duration) -> str:
    """`1.2 to 2.5 ms`: an interval in no more digits than its width leaves."""
    return interval(lowest, highest, write)


def size(count: float) -> str:
    """Bytes, in powers of ten: `512 bytes`, `1.20 GB`."""
    if not isfinite(count):
        return UNKNOWN
    return f"{count:,.0f} bytes" if count < 999.5 else _scaled(count, _SIZES)


def percent(fraction: float, limit: float | None = None) -> str:
    """A share: `38%`, `4.2%`, `<0.1%`. Only all is 100%, and only nothing is 0%.

    limit: a share that it is compared with. The text is that of the limit only if they are equal: `50.4%` next to `50%`.
    """
    if not isfinite(fraction):
        return UNKNOWN
    text = _percent(fraction)
    for digits in (1, 2, 3):
        if limit is None or fraction == limit or text[0] == "<" or float(text.strip("%")) != round(100 * limit, 6):
            break
        text = f"{fraction:.{digits}%}"
    return text


def _percent(fraction: float) -> str:
    if fraction in (0, 1):
        return f"{fraction:.0%}"
    if 0 < fraction < 0.001:
        return "<0.1%"
    if 0.995 <= fraction < 1:
        return f"{min(fraction, 0.999):.1%}"
    return f"{fraction:.1%}" if abs(fraction) < 0.0995 else f"{fraction:.0%}"


def threshold(share: float) -> str:
    """A limit in all its digits: `5%`, `2.5%`."""
    return f"{100 * share:g}%"


def changed_by(fraction: float) -> str:
    """A change as a share of the former value: `+4.2%`, `−83%`."""
    return f"{'+' if fraction > 0 else '−' if fraction < 0 else ''}{percent(abs(fraction))}"


def points(fraction: float) -> str:
    """The difference of two shares: `79 percentage points`, no share of either."""
    return f"{percent(fraction).removesuffix('%')} percentage points"


def count(number: int) -> str:
    """A count, thousands grouped."""
    return f"{number:,}"


NAMED = 4
"""Things that a sentence names before it counts the rest."""


def counted(number: float, noun: str, plural: str = "") -> str:
    """`1 check`, `3 checks`; a mean count to the next whole number."""
    number = round(number)
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def large_count(number: float) -> str:
    """A count without the digits that nobody reads: `131,072`, `35.7 million`."""
    scale, word = next((pair for pair in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")) if number >= 0.9995 * pair[0]), (1.0, ""))
    return f"{three(number / scale)} {word}" if word else f"{number:,.0f}"


def mean(number: float) -> str:
    """A mean count: `12`, `1,234`, and `1.50` if it is small and not whole."""
    return f"{number:,.0f}" if number >= 99.5 or round(number, 2) == round(number) else three(number)


def times(number: float) -> str:
    """How often, in the mean: `once`, `3 times`, `1.50 times`."""
    return "once" if mean(number) == "1" else f"{mean(number)} times"


def rate(value: float) -> str:
    """A rate that is 0 if it is not known."""
    return three(value) if isfinite(value) and value > 0 else UNKNOWN


def share(part: float, whole: float) -> float:
    """The part of the whole, from 0 to 1; 0 of a whole that is nothing or not a number."""
    return min(max(part / whole, 0.0), 1.0) if whole > 0 and isfinite(part / whole) else 0.0


MOST_TIMES = 100
"""If a fix makes a step a hundred times shorter, the rest is known too badly for a number."""


def speedup(before: float, after: float) -> str:
    """`1.75×`, of two times, up to `over 100×`; empty if there is none to speak of."""
    ratio = before / after if after > 0 else 0.0
    if not isfinite(ratio) or ratio < 1.005:
        return ""
    return f"{three(ratio)}×" if ratio <= MOST_TIMES else f"over {MOST_TIMES}×"


_WHOLE_TIMES = 1.75
"""From here on, the speedup of a wide range is a whole number."""


def speedups(before: float, after_low: float, after_high: float) -> str:
    """`about 2× to 25×`, of a time and the range of the remaining time, in no more digits than that range allows; "" if it may be no faster at all."""
    least, most = (before / after if after > 0 else MOST_TIMES + 1.0 for after in (after_high, after_low))
    if not (isfinite(most) and most >= 1.05):
        return ""
    high = f"over {MOST_TIMES}×" if most > MOST_TIMES else f"{_times(most, least)}×"
    if least < 1.05:
        return f"up to {high}" if most <= MOST_TIMES else high
    low = f"{_times(least, most)}×"
    return f"about {low}" if low == high else f"about {low} to {high}"


def _times(value: float, other: float) -> str:
    wide = max(value, other) > 2 * min(value, other)
    return f"{value:.0f}" if value >= 9.95 or (wide and value >= _WHOLE_TIMES) else f"{value:.1f}"


def at_rate(nbytes: float, us: float) -> str:
    """Of bytes in a time: " at 12.3 GB/s", or nothing if there are so few bytes that latency takes the time."""
    gigabytes_per_s = nbytes / max(us, 1e-9) / 1e3
    return f" at {gigabytes_per_s:.1f} GB/s" if gigabytes_per_s >= 0.05 else ""


def mostly(largest: float, whole: float) -> str:
    """How a largest part is spoken of: "mostly" from half of the whole."""
    return "mostly" if 2 * largest >= whole else "most of all"
