"""When to ask a server again: exponential backoff with jitter, and the server's own Retry-After."""

import math
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

FIRST_PAUSE = 0.5
"""Seconds before the first retry; each further pause is twice as long."""
LONGEST_PAUSE = 30.0


def pause(attempt: int, after: float | None, jitter: random.Random) -> float:
    """Seconds to wait after the failed attempt number `attempt` (from 0).

    At least what the server asked for (`after`), if it did; the jitter keeps the calls of a crowd
    that was turned away together from coming back together.
    """
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempt, 32))
    if after is None:
        return longest * jitter.uniform(0.5, 1.0)
    return after + longest * jitter.uniform(0.0, 0.5)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait (headers in lower case), None where it doesn't say.

    RFC 9110, 10.2.3: seconds or an HTTP date, which is read against the server's own clock if the
    answer tells it. `retry-after-ms` is OpenAI's finer form.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None:
        return seconds
    until, now = _date(value), _date(headers.get("date")) or datetime.now(UTC)
    return None if until is None else max(0.0, (until - now).total_seconds())


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _date(value: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def reason(error: BaseException) -> str:
    """The innermost cause, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
