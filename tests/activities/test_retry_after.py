"""`Retry-After` is read as seconds or as a date, whatever else a server writes there, and never beyond a minute."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.activities.http import retry_after
from perdure.contracts.bounds import MAX_RETRY_AFTER


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("5", 5.0),
        (" 0.5 ", 0.5),
        ("-5", 0.0),
        ("86400", MAX_RETRY_AFTER),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 -0000", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_AFTER),
        ("soon", None),
        ("", None),
        ("nan", None),
        ("inf", None),
        ("1e400", None),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", None),
        ("Mon, 99 Jan 99999 00:00:00 GMT", None),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999", None),
    ],
)
def test_a_delay_is_read_where_there_is_one(asked: str, seconds: float | None) -> None:
    assert retry_after(httpx.Headers({"retry-after": asked})) == seconds


def test_a_delay_may_be_a_date_with_or_without_a_zone() -> None:
    then = datetime.now(UTC) + timedelta(seconds=30)
    for asked in (format_datetime(then, usegmt=True), format_datetime(then.replace(tzinfo=None)), then.strftime("%c")):
        delay = retry_after(httpx.Headers({"retry-after": asked}))
        assert delay is not None
        assert 15 < delay <= 30
    assert retry_after(httpx.Headers()) is None


DATES = st.from_regex(r"[A-Z][a-z]{2}, \d{1,3} (Jan|Feb|Dec|\w+) \d{1,20} \d+[:.]\d+([:.]\d+)? ([+-]\d{1,20}|GMT|\w*)")


@given(st.text() | DATES)
@example("1" * 5000)
@example("Mon, " + "1" * 5000 + " Jan 2024 00:00:00 GMT")
def test_whatever_a_server_writes_there_the_delay_is_none_or_within_a_minute(asked: str) -> None:
    delay = retry_after({"retry-after": asked})
    assert delay is None or 0 <= delay <= MAX_RETRY_AFTER
