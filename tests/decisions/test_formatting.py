"""How durations are shown."""

from datetime import timedelta

import pytest

from perdure.contracts.people import NoticeKind
from perdure.decisions.text.formatting import format_duration
from perdure.features.batches.client import format_batch_wait
from perdure.features.batches.contract import BatchView, PoolView
from perdure.features.notices.contract import Notice
from perdure.features.notices.rules import overdue_notice


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0 s"), (0, "0 s"), (8, "8 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_a_duration_has_one_unit(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


def test_a_short_batch_is_shown_in_seconds() -> None:
    pool = PoolView(waiting=0, open=(BatchView(id="b", since=0, calls=2),), latest_seconds=8)
    assert format_batch_wait(pool) == "waiting for a batch of 2 · the last one took 8 s"


@pytest.mark.parametrize(
    ("patience", "shown"),
    [(timedelta(seconds=5), "5 s"), (timedelta(seconds=90), "90 s"), (timedelta(minutes=90), "90 min")],
)
def test_a_notice_says_for_how_long_a_question_is_open(patience: timedelta, shown: str) -> None:
    notice = Notice(kind=NoticeKind.waiting, run_id="r", agent="a", conversation_id=None, title="a asks", text="?")
    assert overdue_notice(notice, patience).title == f"a asks (still open after {shown})"
