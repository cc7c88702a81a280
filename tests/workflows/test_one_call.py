"""docs/one-call.md against a call: it names exactly the modules that the call enters, and its functions in order.

And its handlers are those of the table.
"""

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from perdure import cli
from perdure.contracts.run.state import Call
from perdure.contracts.tool import Effect, ToolKind
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from perdure.workflows.agent_run.tool_calls import HANDLERS
from tests.workflows.conftest import MakeWorld

ROOT = Path(cli.__file__).parents[1]
PAGE, _, MORE = (ROOT / "docs" / "one-call.md").read_text(encoding="utf-8").partition("\n## ")
ROWS = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \| `(\w+)` \|", PAGE, re.MULTILINE)
PRODUCT = ("perdure/", "workflows/", "activities/")
TEST_KIT = "perdure/testkit/"  # a model on this machine

Entry = tuple[str, str]  # a module's path and the name of its function


def _is_product(path: str) -> bool:
    return path.startswith(PRODUCT) and not path.startswith(TEST_KIT)


# A worker looks for pauses twice a second: a quick call may come between two times.
BESIDE = {"perdure/features/pauses/client.py", "perdure/features/pauses/rules.py"}


@contextmanager
def entered(first: Entry, last: Entry) -> Iterator[list[Entry]]:
    """Record each function that is entered from the begin of `first` to the end of `last`."""
    found: list[Entry] = []
    is_over = False

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal is_over
        path = Path(frame.f_code.co_filename)
        if is_over or event not in ("call", "return") or not path.is_relative_to(ROOT):
            return
        name = path.relative_to(ROOT).as_posix()
        entry = (re.sub(r"^perdure/(?=workflows/|activities/)", "", name), frame.f_code.co_name)  # they are links
        if event == "return":
            is_over = entry == last
        elif _is_product(entry[0]) and entry[1] != "<module>" and (found or entry == first):
            found.append(entry)

    threading.setprofile(profile)  # for threads that start now: those of workflow tasks and of blocking calls
    sys.setprofile(profile)
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor()
    loop.set_default_executor(threads)
    try:
        yield found
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
        loop.set_default_executor(ThreadPoolExecutor())
        threads.shutdown()


async def test_the_page_follows_a_call_through_the_code(world: MakeWorld) -> None:
    """The tool is declared `once`, so its call takes the longest way."""
    pay = ScriptedTool("pay", effect=Effect.once)
    script = [calls(("pay", {"cents": 250})), calls(("finish", {"outcome": "paid"}))]
    with entered(ROWS[0], ROWS[-1]) as found:
        async with world(script, pay, caches=True, fuses=False) as it:  # as on the page
            await (await it.start()).result()
    assert len(pay.calls) == 1
    modules = set(re.findall(r"`((?:perdure|workflows|activities)/[\w/]+\.py)`", PAGE))
    crossed = {module for module, _ in found} | BESIDE
    assert (crossed - modules, modules - crossed) == (set(), set())  # not on the page, and not on the way
    assert [row for row in ROWS if row not in found] == []
    assert sorted(ROWS, key=found.index) == ROWS
    assert f"{len(crossed)} files" in PAGE


@pytest.mark.parametrize(
    ("tool", "kind", "handler"),
    [
        *((name, ToolKind.builtin, "run_state_tool") for name in ("finish", "reframe", "get_run_journal")),
        ("ask_human", ToolKind.builtin, "run_ask_human"),
        ("delegate", ToolKind.builtin, "run_feature_tool"),
        ("vote", ToolKind.signal, "run_signal_call"),
        ("vote", ToolKind.queue, "run_queue_call"),
        ("look", ToolKind.http, "run_tool_call"),
        ("search_tools", ToolKind.native, "run_tool_call"),
        ("delegate", ToolKind.native, "run_tool_call"),  # in a replay
    ],
)
def test_a_call_is_made_by_the_first_row_that_holds(tool: str, kind: ToolKind, handler: str) -> None:
    call = Call(tool_use_id="u1", tool=tool, kind=kind, effect=Effect.read, step=1, arguments={})
    assert next(make.__name__ for _, is_about, make in HANDLERS if is_about(call)) == handler


def test_the_page_has_the_table_of_handlers() -> None:
    rows = [f"| {what} | `{make.__name__}` | {(make.__doc__ or '').removesuffix('.')} |" for what, _, make in HANDLERS]
    assert "\n".join(rows) in MORE
