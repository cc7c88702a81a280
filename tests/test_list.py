"""What `list` looks like: what waits for a person first, ids whole, lines that fit."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from perdure.activities.telemetry.attributes import AGENT_NAME, AGENT_STATUS, WAITING_FOR
from perdure.client.run_list import RunInfo
from perdure.terminal.report import print_list

LONG = "human: asks: Which of the two pages do you mean, the one about the tide mill or 潮汐磨坊 about its keeper? " * 2


def found(run_id: str, status: str, agent: str = "default", about: str = "") -> RunInfo:
    said = [SearchAttributePair(AGENT_STATUS, status), SearchAttributePair(AGENT_NAME, agent)]
    said += [SearchAttributePair(WAITING_FOR, about)] if about else []
    is_open = status in ("running", "waiting_on_human", "waiting_on_tool")
    execution: Any = SimpleNamespace(
        status=WorkflowExecutionStatus.RUNNING if is_open else WorkflowExecutionStatus.COMPLETED,
        start_time=datetime.now(UTC) - timedelta(minutes=5),
        history_length=0,
        parent_id=None,
        close_time=None,
        typed_search_attributes=TypedSearchAttributes(said),
        raw_info=WorkflowExecutionInfo(),
    )
    return RunInfo(run_id, execution)


def listed(waiting: list[RunInfo], others: list[RunInfo], width: int = 80, *, at_terminal: bool = True) -> list[str]:
    out = StringIO()
    print_list(Console(file=out, width=width, force_terminal=at_terminal, no_color=True), waiting, others)
    return [
        line.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
        for line in out.getvalue().splitlines()
    ]


WAITING = [
    found("261122-ab12cd34", "waiting_on_human", about=LONG),
    found("wf:lunch", "waiting_on_human", "", "human: asks: Book it?"),
]
OTHERS = [
    found(
        "261122-00000001",
        "waiting_on_tool",
        "an-agent-with-a-long-name",
        "outside: the reply of the shop in the harbour",
    ),
    found("c-0123456789abcdef0123", "completed", "clerk"),
]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_waiting_runs_come_first_with_whole_ids_and_fitting_lines(width: int) -> None:
    lines = listed(WAITING, OTHERS, width)
    text = "\n".join(lines)
    at = [text.index(each.run_id) for each in (*WAITING, *OTHERS)]
    assert at == sorted(at)
    assert [line for line in lines if cell_len(line) > width] == []
    assert 'perdure answer wf:lunch "…"' in text


def test_each_that_waits_has_its_question_and_how_to_answer() -> None:
    assert listed([found("r1", "waiting_on_human", "clerk", "human: asks: Which shop?")], []) == [
        "waits for a person",
        "r1  clerk  5 min",
        "  asks: Which shop?",
        '  perdure answer r1 "…"',
    ]


def test_a_call_is_shown_before_it_is_approved() -> None:
    assert listed([found("r1", "waiting_on_human", "clerk", "human: approve charge")], [])[-1] == "  perdure show r1"
    asks = found("r1", "waiting_on_human", "clerk", "human: asks: approve charge")
    assert listed([asks], [])[-1] == '  perdure answer r1 "…"'


def test_an_id_with_a_space_is_quoted_where_it_is_typed() -> None:
    assert "perdure answer 'my run'" in listed([found("my run", "waiting_on_human", "", "human: asks: Yes?")], [])[-1]


def test_a_pipe_has_one_line_for_each_run_however_long_its_id() -> None:
    long = "r" * 300
    lines = listed([], [found(long, "running"), found("short", "running")], 120, at_terminal=False)
    assert [line.split()[0] for line in lines] == ["run", long, "short"]


def test_control_characters_in_a_list_are_neutralized() -> None:
    evil = found("r\x1b[2J", "waiting_on_human", "a\x9bb", "human: \x1b]0;owned\x07 yes\u202eon\r\nx")
    text = "\n".join(listed([evil], [evil]))
    assert not {"\x1b", "\x9b", "\x07", "\u202e", "\r"} & set(text)
    assert "yes[U+202E]on x" in text
