"""Cron lines: their time zone, and those that seem to mean something else than they do."""

import pytest

from perdure.features.schedules.rules import CronError, check_cron, split_zone


@pytest.mark.parametrize(
    "line",
    ["0 9 * * *", "0 9 13 * 5", "0 9 * * SUN,6", "*/40 9-17 * * *", "@daily", "0 9 * * *\t#look at a#1", "0 9 L * *"],
)
def test_a_line_of_five_fields_is_left_to_the_server(line: str) -> None:
    check_cron(line)


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
        ("0 9 * * 1#1", '"1#1" is no field: a # would begin a comment within it; the first Monday of a month is'),
        ("0 9 * * 5#2 # twice", '"5#2" is no field'),
        ("0 9 * * 1#", '"1#" is no field'),
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
