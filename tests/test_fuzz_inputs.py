"""Whatever a person or a program hands in is taken, or refused in one line, and within a second.

Files of a project first; then what is sent to runs, lanes, topics and the gateway.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.contracts.models import escape_unprintable
from perdure.features.mailbox.activities.message import MessageError
from perdure.features.mailbox.activities.message import parse_message as read_message
from perdure.features.proof.case import read_cases
from perdure.settings import ProjectError, load_settings
from perdure.settings.problems import raise_all

MAX_CPU_SECONDS = 1.0  # a busy machine may let a test wait for longer
DEEP = 3000

TOML = """
[model]
default = ["claude-sonnet-5-5", "own/llama"]
window = 200_000
[model.providers.own]
kind = "messages"
base_url = "http://127.0.0.1:8080"
api_key_env = "OWN_KEY"
requests_per_minute = 30
[tools.charge]
kind = "http"
effect = "once"
approval = "always"
approval_timeout = "2h"
description = "Charge a card."
url = "http://127.0.0.1:9000/charge"
timeout = "30s"
input_schema = { type = "object", properties = { amount = { type = "number" } }, required = ["amount"] }
[tools.vote]
kind = "signal"
description = "Ask for a vote."
input_schema.type = "object"
[tools.far]
kind = "queue"
task_queue = "q"
activity = "a"
heartbeat = 1.5
description = "Far away."
input_schema = { type = "object" }
[limits]
max_steps = 20
soft_limit = "15m"
budget_usd = 1e0
[prices."own/llama"]
input = 1
output = 2.5
[outbox]
kind = "http"
url = "http://127.0.0.1:9000/out"
[gateway.webhooks.chat]
scheme = "slack"
secret_env = "CHAT_SECRET"
"""
AGENT = """---
name: scout
description: looks around
model: [claude-sonnet-5-5, claude-haiku-5-5]
tools: [fetch, write_file]
peers:
  - default
limits: {max_steps: 5, soft_limit: 15m, budget_usd: 0.5}
---
You look around.
"""
MCP = json.dumps(
    {
        "mcpServers": {
            "git": {"command": "uvx", "args": ["mcp-server-git"], "env": {"A": "${HOME:-x}"}, "cwd": "."},
            "web": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${T:-x}"}},
        }
    },
    indent=1,
)
CASES = """- goal: say hello
  agent: default
  context: &c {colour: red, n: [1, 2.5, null, 2026-01-01]}
  limits: {max_steps: 3}
  expect: {contains: [hello], max_steps: 2}
- goal: again
  context: *c
"""
MESSAGE = """---
type: task
message_id: m-1
plan_id: p
task_id: t
from: ann
to: scout
inputs: [{name: table, match: "*.csv"}]
pick_policy: latest
---
Sum it up.
"""

Read = Callable[[Path, bytes], Any]


def _put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def _project(name: str) -> Read:
    def read(folder: Path, data: bytes) -> None:
        path = _put(folder, name, data)
        try:
            raise_all([*load_settings({}, folder).roster.faults.values()])
        finally:
            path.unlink()

    return read


READERS: dict[str, tuple[Read, str]] = {
    "perdure.toml": (_project("perdure.toml"), TOML),
    "agents": (_project("agents/scout.md"), AGENT),
    "mcp": (_project(".mcp.json"), MCP),
    "cases": (lambda folder, data: read_cases(_put(folder, "c.yaml", data)), CASES),
    "cases.jsonl": (
        lambda folder, data: read_cases(_put(folder, "c.jsonl", data)),
        '{"goal": "say hello", "context": {"n": [1, {"a": null}]}, "expect": {"contains": ["x"]}}\n',
    ),
    "message": (lambda _, data: read_message(data, "p"), MESSAGE),
    "message.json": (
        lambda _, data: read_message(data, "p"),
        '{"type": "task", "message_id": "m", "plan_id": "p", "task_id": "t", "from": "a", "to": "b", "body": "do"}',
    ),
}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n\n  b\r\nc\u2028d", "a b c d"),
        ("two  spaces stay", "two  spaces stay"),
        ("no\u00a0break, \u3000wide, क्\u200dष", "no\u00a0break, \u3000wide, क्\u200dष"),
        ("\x1b[31m\0\u202e\ud800", r"\x1b[31m\x00\u202e\ud800"),
    ],
)
def test_escaped_text_is_one_copyable_line(text: str, line: str) -> None:
    assert escape_unprintable(text) == line


def must_be_taken_or_refused(kind: str, folder: Path, data: bytes) -> str | None:
    """Why it was refused; None where it was taken."""
    began, why = time.thread_time(), None
    try:
        READERS[kind][0](folder, data)
    except (ProjectError, MessageError) as refused:
        why = str(refused)
        assert why.strip()
        assert all(line == escape_unprintable(line) for line in why.split("\n"))  # one for each fault
        assert "integer string conversion" not in why
    assert time.thread_time() - began < MAX_CPU_SECONDS
    return why


@pytest.mark.parametrize("kind", READERS)
def test_the_unchanged_examples_are_accepted(kind: str, tmp_path: Path) -> None:
    assert must_be_taken_or_refused(kind, tmp_path, READERS[kind][1].encode()) is None


NUMBER = "9" * 5000  # Python reads no integer of more than 4,300 digits
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9)
)


@pytest.mark.parametrize("schema", ['{"type": "object", "type": "array"}', "[" * DEEP, NUMBER, "", "{"])
def test_a_wrong_schema_file_is_rejected_in_one_line(schema: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(schema)
    text = "[tools.x]\nkind = 'signal'\ndescription = 'd'\ninput_schema = 'schema.json'\n"
    why = must_be_taken_or_refused("perdure.toml", tmp_path, text.encode())
    assert why is not None
    assert "schema.json (input_schema of tool x)" in why
    assert "twice" in why or "array" not in schema


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("perdure.toml", f"x = {NUMBER}"),
        ("perdure.toml", "x = " + "[" * DEEP),
        ("perdure.toml", "x = " + "{a=" * DEEP),
        ("perdure.toml", '"a\\nb" = 1'),
        ("perdure.toml", "[tools.x]\nkind = 'signal'\ndescription = 'd'\ninput_schema." + "a." * DEEP + "b = 1"),
        (
            "perdure.toml",
            "[tools.x]\nkind = 'signal'\ndescription = 'd'\ninput_schema.type = 'object'\n"
            "input_schema." + "a." * 60 + "b = 1",
        ),
        ("agents", "---\nx: " + "[" * DEEP + "\n---\n"),
        ("agents", "---\nname: 2026-99-99\n---\n"),
        ("agents", f"---\nname: {NUMBER}\n---\n"),
        ("agents", "---\nname: !!int x\n---\n"),
        ("agents", "---\nname: !!timestamp x\n---\n"),
        ("agents", "---\nname: a\nname: b\n---\n"),
        ("agents", '---\n"a\\nb": 2\n---\n'),
        ("agents", f"---\n{BOMB}---\n"),
        ("agents", "---" + "\n" * 20_000),
        ("agents", "---\n" + " \n" * 20_000),
        ("mcp", "[" * 100_000),
        ("mcp", NUMBER),
        ("mcp", '{"mcpServers": {"a": {"command": "x", "env": ' + "[" * 900 + "]" * 900 + "}}}"),
        ("mcp", '{"mcpServers": {"a\\nb": {"command": "x"}}}'),
        ("cases", "- goal: x\n  context:\n" + "".join(f"    {line}\n" for line in BOMB.splitlines())),
        ("cases", "- goal: 2026-99-99"),
        ("cases", "[" * DEEP),
    ],
)
def test_known_hostile_files_are_rejected_in_one_line(kind: str, text: str, tmp_path: Path) -> None:
    assert must_be_taken_or_refused(kind, tmp_path, text.encode()) is not None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("mcp", json.dumps({"mcpServers": {f"a{n}": {"command": "x"} for n in range(5000)}})),
        ("cases", "- goal: x\n  context:\n" + "".join(f"    k{n}: 1\n" for n in range(5000))),
        ("agents", "---\nname: a\n---\n" + "---\n" * 20_000),
    ],
    ids=["servers", "keys", "lines"],
)
def test_long_files_are_accepted(kind: str, text: str, tmp_path: Path) -> None:
    assert must_be_taken_or_refused(kind, tmp_path, text.encode()) is None


ODD = (
    *("\x00", "\n", "\t", "---\n", "\ufeff", "\u2028", "\\ud800", "é", "[", "]", "{", "}", '"', "'", "#", ":"),
    *("&a ", "*a", "!!int ", "!x ", "~", "nan", ".inf", "-1", "0", "1e999", "2026-99-99", "9999999999999999", "<<: "),
    *("[[", '"""', "${", "${HOME}", "../", "true", "null", "'''", "\r\n", " " * 50, "[" * 200),
)  # fmt: skip


def mutated(text: str, seed: int) -> bytes:
    """A few pieces cut, said twice, swapped, or replaced by what is odd."""
    rng = Random(seed)
    for _ in range(rng.choice((1, 1, 2, 5))):
        first, last = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        last = min(last, first + rng.choice((0, 1, 4, 40)))
        piece = rng.choice((rng.choice(ODD), rng.choice(ODD), "", text[first:last] * 2))
        text = text[:first] + piece + text[last:]
        if rng.random() < 0.2:
            lines = text.split("\n")
            rng.shuffle(lines)
            text = "\n".join(lines)
    data = text.encode()
    return data if rng.random() < 0.9 else data[: rng.randrange(len(data) + 1)] + bytes([rng.randrange(256)])


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_no_change_of_a_file_that_is_right_breaks_its_reader(kind: str, seed: int, tmp_path: Path) -> None:
    must_be_taken_or_refused(kind, tmp_path, mutated(READERS[kind][1], seed))


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="ignore")))
def test_no_file_breaks_its_reader(kind: str, data: bytes, tmp_path: Path) -> None:
    must_be_taken_or_refused(kind, tmp_path, data)
