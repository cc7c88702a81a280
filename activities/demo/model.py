"""The rehearsal model: a stand-in that works by rule, behind the `anthropic` client at its HTTP transport.

Its answer is a function of the request alone, so a retried call gets it again. It never passes for an LLM.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2

from activities.demo.page import open_page
from activities.demo.review import count, listed, weak_points, write_up
from activities.demo.sse import Json, ToolUse, blocks_of, encode_stream, error_body, estimate_tokens, refusal, tool_uses

MODEL = "rehearsal"
_PIECES = 40  # deltas in a reply at most, so that a long one takes no longer than a second or two
_NO_ADDRESS = (
    "Nothing was done: this is the rehearsal model, which works by rule. It can fetch pages whose http(s) address "
    "stands in the goal, write a critique or report of them, and ask a peer to do something. For anything else connect "
    "a real model: set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL for a server that speaks the Messages API, and "
    "start the run again."
)
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_PARAGRAPHS = re.compile(
    rf"\b(\d{{1,2}}|single|a(?=\s+para)|{'|'.join(_NUMBERS)})[\s-]+(?:[a-z]+\s+)?para(?:graph)?s?\b", re.IGNORECASE
)
_PEER = re.compile(r"\bask ([\w-]+) to (\S.*)", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://[^\s<>\"'`\]}“”‘’]+", re.IGNORECASE)


class RehearsalTransport(httpx2.AsyncBaseTransport):
    """Answers POST /v1/messages, streamed or not; `pause` seconds between the pieces of a stream."""

    def __init__(self, pause: float = 0.03) -> None:
        self._pause = pause

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST" or not request.url.path.endswith("/v1/messages"):
            return _json(404, error_body("not_found_error", f"there is no {request.method} {request.url.path}"))
        try:
            body = json.loads(await request.aread())
        except (ValueError, RecursionError):
            return _json(400, error_body("invalid_request_error", "the body is not JSON"))
        if fault := refusal(body):
            return _json(400, error_body("invalid_request_error", fault))
        message = answer(body)
        if not body.get("stream"):
            return _json(200, message)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=_Paced(message, self._pause))


class _Paced(httpx2.AsyncByteStream):
    def __init__(self, message: Json, pause: float) -> None:
        self._message = message
        self._pause = pause

    async def __aiter__(self) -> AsyncIterator[bytes]:
        piece = max(16, len(json.dumps(self._message["content"])) // _PIECES)
        for event in encode_stream(self._message, piece):
            yield event
            if event.startswith(b"event: content_block_delta"):
                await asyncio.sleep(self._pause)


def _json(status: int, body: Json) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=json.dumps(body))


@dataclass(frozen=True)
class Move:
    """What to say, and what to call: names and inputs."""

    text: str
    calls: tuple[tuple[str, Json], ...] = ()


@dataclass(frozen=True)
class Task:
    """The request as the rules see it: the goal, the tool uses since it was set, the tools there are."""

    goal: str
    uses: tuple[ToolUse, ...]
    tools: frozenset[str]

    def called(self, tool: str) -> list[ToolUse]:
        return [use for use in self.uses if use.name == tool]

    @property
    def addresses(self) -> list[str]:
        """Named in the goal or in a person's answer, each once."""
        text = "\n".join([self.goal, *(use.result or "" for use in self.called("ask_human"))])
        return list(dict.fromkeys(_trim(found) for found in _ADDRESS.findall(text)))

    @property
    def errand(self) -> tuple[str, str] | None:
        """A peer and what it is asked to do, if the goal says so: "ask scribe to write it down"."""
        asked = _PEER.search(self.goal) if "delegate" in self.tools else None
        return (asked[1], asked[2].strip()) if asked else None

    @property
    def kind(self) -> str:
        return "critique" if re.search(r"critique|critici[sz]|review", self.goal, re.IGNORECASE) else "report"

    @property
    def path(self) -> str:
        return f"artifacts/{self.kind}.md"

    @property
    def paragraphs(self) -> int | None:
        """How many are asked for, if the goal says so."""
        if not (asked := _PARAGRAPHS.search(self.goal)):
            return None
        word = asked[1].lower()
        return max(1, int(word)) if word.isdigit() else _NUMBERS.index(word) + 1 if word in _NUMBERS else 1

    def product(self, number: int | None) -> str:
        """So many paragraphs, in words: "two paragraph critique"."""
        word = "" if number is None else f"{_NUMBERS[number - 1] if number <= len(_NUMBERS) else number} paragraph "
        return word + self.kind


def _trim(address: str) -> str:
    address = address.rstrip(".,;:!?*_…")
    while address.endswith(")") and address.count(")") > address.count("("):
        address = address[:-1].rstrip(".,;:!?")
    return address


def answer(body: Json) -> Json:
    """The complete reply to a request that `refusal` lets pass."""
    move = _obeying(_next(_task(body)), body)
    digest = hashlib.sha256(json.dumps(body["messages"], sort_keys=True).encode()).hexdigest()
    calls = [
        {"type": "tool_use", "id": f"toolu_{digest[:20]}_{number}", "name": name, "input": arguments}
        for number, (name, arguments) in enumerate(move.calls)
    ]
    content = [{"type": "text", "text": move.text}, *calls]
    usage = {
        "input_tokens": estimate_tokens([body.get("system"), body.get("tools"), body["messages"]]),
        "output_tokens": estimate_tokens(content),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
    return {
        "id": f"msg_{digest[:24]}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": usage,
    }


def _task(body: Json) -> Task:
    """The latest goal: the first text after the last reply that ended a run."""
    messages = [message for message in body["messages"] if message["role"] != "system"]
    start = max((at + 1 for at in range(len(messages) - 1) if _ends(messages[at], messages[at + 1])), default=0)
    texts = (_text(message) for message in messages[start:] if message["role"] == "user")
    goal = next((text for text in texts if text), "")
    return Task(goal, tuple(tool_uses(messages[start:])), frozenset(tool["name"] for tool in body.get("tools") or []))


def _ends(message: Json, following: Json) -> bool:
    if message["role"] != "assistant":
        return False
    uses = tool_uses([message, following])
    return not uses or any(use.name in ("finish", "escalate") and not use.is_error for use in uses)


def _text(message: Json) -> str:
    return "\n".join(block["text"] for block in blocks_of(message) if block["type"] == "text")


def _next(task: Task) -> Move:
    if not task.tools:
        return Move(_account(task))
    if any(task.called(name) for name in ("finish", "escalate")):
        return Move("Finding: the run could not be ended in the way it was meant to; it stops here.")
    fetched = {str(use.arguments.get("url")): use for use in task.called("fetch")}
    missing = [address for address in task.addresses if address not in fetched]
    if task.errand or not task.addresses:
        return _delegating(task, *task.errand) if task.errand else _without_address(task)
    if missing:
        return _fetching(task, missing)
    written = task.called("write_file")
    return _after_writing(task, written[-1]) if written else _judging(task, [fetched[url] for url in task.addresses])


def _account(task: Task) -> str:
    """What a request without tools gets: what happened so far, as far as it can be seen."""
    done = [f"{use.name} {'failed' if use.is_error else 'done'}" for use in task.uses]
    so_far = f"So far: {', '.join(done)}." if done else "Nothing has been called so far."
    return f"This is the rehearsal model; without tools it can only say what it sees. Goal: {task.goal}\n{so_far}"


def _delegating(task: Task, peer: str, work: str) -> Move:
    if not (asked := task.called("delegate")):
        text = f"Frame: this is work for {peer}.\n\nPlan:\n1. Ask {peer}.\n2. Hand on what comes back."
        return Move(text, (("delegate", {"subtasks": [{"id": "part", "agent": peer, "instructions": work}]}),))
    if asked[-1].is_error:
        return _ending(task, "escalate", f"{peer} did not do it: {_line(asked[-1])}")
    told = json.loads(asked[-1].result or "{}").get("subtasks", [])
    return _ending(task, "finish", "\n\n".join(str(each.get("outcome", "")) for each in told))


def _without_address(task: Task) -> Move:
    if "ask_human" in task.tools and not task.called("ask_human"):
        question = {"question": "Which page should I fetch? Give an http(s) address."}
        return Move("Frame: the goal names no page, and a page is what I can work on.", (("ask_human", question),))
    return _ending(task, "finish", _NO_ADDRESS)


def _fetching(task: Task, missing: list[str]) -> Move:
    if "fetch" not in task.tools:
        return _ending(task, "escalate", f"There is no tool `fetch` to get {listed(missing)} with.")
    calls = tuple(("fetch", {"url": address}) for address in missing)
    if task.called("fetch"):
        return Move(f"Next: {count(len(missing), 'page')} still to be fetched.", calls)
    text = (
        f"Frame: a {task.product(task.paragraphs)} on {listed(missing)} is asked for. It is done when {task.path} "
        f"holds it, made from what the {'page' if len(missing) == 1 else 'pages'} really said.\n\n"
        f"Plan:\n1. Fetch {listed(missing)}.\n2. Measure what came back and write {task.path}.\n3. Finish."
    )
    return Move(text, calls)


def _judging(task: Task, fetched: list[ToolUse]) -> Move:
    lost = [f"{use.arguments['url']} could not be fetched ({_line(use)})" for use in fetched if use.is_error]
    if len(lost) == len(fetched):
        return _ending(task, "escalate", f"There is nothing to judge: {'; '.join(lost)}.")
    pages = [open_page(use.arguments["url"], use.result or "") for use in fetched if not use.is_error]
    content = write_up(pages, task.kind, task.paragraphs, lost, constructive="constructive" in task.goal.lower())
    if "write_file" not in task.tools:
        return _ending(task, "finish", content)
    weak = weak_points(pages) if task.kind == "critique" else []
    worst = f" What stands out: {weak[0].says[0].lower()}{weak[0].says[1:]}." if weak else ""
    came = f"{listed([page.name for page in pages])} came: {count(sum(page.words for page in pages), 'word')}.{worst}"
    text = "\n".join(f"Finding: {finding}" for finding in [came, *(f"{sentence}." for sentence in lost)])
    return Move(text, (("write_file", {"path": task.path, "content": content}),))


def _after_writing(task: Task, write: ToolUse) -> Move:
    path = str(write.arguments.get("path"))
    if write.is_error:
        return _ending(task, "escalate", f"The {task.kind} is ready, but {path} could not be written: {_line(write)}")
    # A page that says little may not fill the paragraphs asked for: report what there are, between title and signature.
    number = str(write.arguments.get("content")).count("\n\n") - 1
    outcome = f"{task.product(task.paragraphs and number).capitalize()} generated in {path}"
    if "finish" not in task.tools:
        return Move(outcome)
    return Move(f"Finding: {path} is written.", (("finish", {"outcome": outcome, "artifacts": [path]}),))


def _ending(task: Task, tool: str, text: str) -> Move:
    """`finish` or `escalate` where it is among the tools; a reply without a call ends the run too."""
    key, said = ("outcome", text) if tool == "finish" else ("reason", f"Finding: {text}")
    return Move(said, ((tool, {key: text}),) if tool in task.tools else ())


def _line(use: ToolUse) -> str:
    lines = (use.result or "").strip().splitlines()
    return lines[0][:200].rstrip(".") if lines else "no reason given"


def _obeying(move: Move, body: Json) -> Move:
    """The move as `tool_choice` allows it."""
    choice = body.get("tool_choice") or {}
    schemas = {tool["name"]: tool.get("input_schema") for tool in body.get("tools") or []}
    calls = move.calls
    match choice.get("type"):
        case "none":
            calls = ()
        case "tool":
            name = str(choice.get("name"))
            calls = tuple(call for call in calls if call[0] == name) or ((name, _minimal(schemas.get(name))),)
        case "any" if not calls and schemas:
            name = "finish" if "finish" in schemas else next(iter(schemas))
            calls = ((name, _minimal(schemas[name])),)
    return Move(move.text, calls[:1] if choice.get("disable_parallel_tool_use") else calls)


def _minimal(schema: Any) -> Json:
    """The plainest arguments that have every required field."""
    match schema:
        case {"properties": dict() as fields, "required": list() as required}:
            return {str(name): _plainest(fields.get(str(name))) for name in required}
        case _:
            return {}


def _plainest(field: Any) -> Any:
    match field:
        case {"enum": [first, *_]}:
            return first
        case {"type": str(kind)} if kind in _EMPTY:
            return _EMPTY[kind]
        case _:
            return MODEL


_EMPTY: Json = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}, "null": None}
