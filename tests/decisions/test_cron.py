"""Cron lines: what they mean to Temporal, in words, and those that seem to mean something else."""

import pytest

from decisions.cron import CronError, check_cron, describe_cron, split_zone


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 9 * * *", "at 09:00 in UTC"),
        ("0 9,17 * * 1-5", "at 09:00 and 17:00 on Monday to Friday in UTC"),
        ("0 9 13 * 5", "at 09:00 on day 13 of the month, only if that is Friday, in UTC"),
        ("0 9 * * SUN,6", "at 09:00 on Sunday and Saturday in UTC"),
        ("0 9 * * 7", "at 09:00 on Sunday in UTC"),
        ("0 9 1 JAN,jul *", "at 09:00 on day 1 of the month in January and July in UTC"),
        ("*/15 * * * *", "every 15 minutes in UTC"),
        ("*/40 9-17 * * *", "at the minutes 0 and 40 of each hour, in the hours 9 to 17 in UTC"),
        ("5 * * * *", "at minute 5 of each hour in UTC"),
        ("* * * * *", "every minute in UTC"),
        ("@daily", "at 00:00 in UTC"),
        ("0 9 * * * # look", "at 09:00 in UTC"),
        ("0 9 L * *", "0 9 L * * in UTC"),  # left to the server
    ],
)
def test_a_cron_line_is_described_in_words(line: str, words: str) -> None:
    check_cron(line)
    assert describe_cron(line, None) == words


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("0 9", "2 fields"),
        ("0 0 9 * * *", "6 fields"),
        ("0 0 9 * * * 2027", "7 fields"),
        ("*/90 * * * *", "for every 90 minutes give --every"),
        ("0 */48 * * *", "for every 48 hours give --every"),
        ("0 9 */40 * *", "only at the first day of the month of its range"),
        ("0/0 * * * *", "never"),
        ("@every 90m", "--every 90m"),
    ],
)
def test_a_line_that_seems_to_mean_something_else_is_refused(line: str, says: str) -> None:
    with pytest.raises(CronError, match=says):
        check_cron(line)


def test_the_zone_that_holds_is_the_one_that_is_named() -> None:
    assert split_zone("CRON_TZ=Asia/Tokyo 0 9 * * *", None) == ("0 9 * * *", "Asia/Tokyo")
    assert split_zone(" TZ=Asia/Tokyo  0 9 * * *", "Asia/Tokyo") == ("0 9 * * *", "Asia/Tokyo")
    assert split_zone("0 9 * * *", "Europe/Berlin") == ("0 9 * * *", "Europe/Berlin")
    with pytest.raises(CronError, match="give one of them"):
        split_zone("TZ=Asia/Tokyo 0 9 * * *", "Europe/Berlin")
