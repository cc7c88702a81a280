"""The rehearsal model: a rule-based model behind the `anthropic` client, as its HTTP transport.

Its reply depends on the request only, so a retried call gets the same one. It never claims to be an LLM.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2

from perdure.testkit.rehearsal.page import open_page
from perdure.testkit.rehearsal.review import NUMBERS, count_nouns, join_words, number_word, weak_points, write_review
from perdure.testkit.rehearsal.sse import (
    DemoReply,
    Json,
    ToolUse,
    blocks_of,
    build_message,
    digest_of,
    encode_stream,
    error_body,
    request_error,
    tool_uses,
)

MODEL = "rehearsal"
_PIECES = 40  # maximum number of deltas in a reply, so that a long one takes a second or two
_NO_ADDRESS = (
    "Nothing was done: this is the rehearsal model, which works by rule. It can fetch pages whose http(s) address "
    "stands in the goal, write a critique or report of them, and ask a peer to do something. For anything else connect "
    "a real model: set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL for a server that speaks the Messages API, and "
    "start the run again."
)
_PARAGRAPHS = re.compile(
    rf"\b(\d{{1,2}}|single|a(?=\s+para)|{'|'.join(NUMBERS[1:11])})[\s-]+(?:[a-z]+\s+)?para(?:graph)?s?\b",
    re.IGNORECASE,
)
_PEER = re.compile(r"\bask ([\w-]+) to (\S.*)", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://[^\s<>\"'`\]}“”‘’]+", re.IGNORECASE)
_EMPTY: Json = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}, "null": None}


class RehearsalTransport(httpx2.AsyncBaseTransport):
    """Answers POST /v1/messages, streamed or not, with `pause` seconds between the pieces of a stream."""

    def __init__(self, pause: float = 0.03) -> None:
        self._pause = pause

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST" or not request.url.path.endswith("/v1/messages"):
            return _to_response(404, error_body("not_found_error", f"there is no {request.method} {request.url.path}"))
        try:
            body = json.loads(await request.aread())
            error = request_error(body)
        except (ValueError, RecursionError):
            error = "the body is not JSON"
        if error:
            return _to_response(400, error_body("invalid_request_error", error))
        message = answer_request(body)
        if not body.get("stream"):
            return _to_response(200, message)
        stream = _PacedStream(message, self._pause)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)


def _to_response(status: int, body: Json) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=json.dumps(body))


@dataclass
class _PacedStream(httpx2.AsyncByteStream):
    message: Json
    pause: float

    async def __aiter__(self) -> AsyncIterator[bytes]:
        piece = max(16, len(json.dumps(self.message["content"])) // _PIECES)
        for event in encode_stream(self.message, piece):
            yield event
            if event.startswith(b"event: content_block_delta"):
                await asyncio.sleep(self.pause)


@dataclass(frozen=True)
class DemoTask:
    """The goal, the tool uses since it was set, and the available tools."""

    goal: str
    uses: tuple[ToolUse, ...]
    tools: frozenset[str]

    def uses_of(self, tool: str) -> list[ToolUse]:
        return [use for use in self.uses if use.name == tool]

    @property
    def addresses(self) -> list[str]:
        """The addresses in the goal and in a person's answers, without repeats."""
        text = "\n".join([self.goal, *(use.result or "" for use in self.uses_of("ask_human"))])
        return list(dict.fromkeys(map(_trim_address, _ADDRESS.findall(text))))

    @property
    def kind(self) -> str:
        return "critique" if re.search(r"critique|critici[sz]|review", self.goal, re.IGNORECASE) else "report"

    @property
    def paragraphs(self) -> int | None:
        """The number of paragraphs that the goal asks for."""
        if not (match := _PARAGRAPHS.search(self.goal)):
            return None
        word = match[1].lower()
        return max(1, int(word)) if word.isdigit() else NUMBERS.index(word) if word in NUMBERS else 1

    def product(self, number: int | None) -> str:
        """Return the product with its number of paragraphs in words: "two paragraph critique"."""
        return f"{number_word(number)} paragraph {self.kind}" if number else self.kind


def _trim_address(address: str) -> str:
    address = address.rstrip(".,;:!?*_…")
    while address.endswith(")") and address.count(")") > address.count("("):
        address = address[:-1].rstrip(".,;:!?")
    return address


def answer_request(body: Json) -> Json:
    """Return the reply to a request that `request_error` accepts."""
    reply = _apply_choice(_next_reply(_read_task(body)), body)
    return build_message(reply, body, MODEL, f"toolu_{digest_of(body['messages'])}")


def _read_task(body: Json) -> DemoTask:
    """Read the latest goal, which is the first text after the last reply that ended a run, and its tool uses."""
    messages = [message for message in body["messages"] if message["role"] != "system"]
    ends = (at + 1 for at in range(len(messages) - 1) if _ends_run(messages[at], messages[at + 1]))
    messages = messages[max(ends, default=0) :]
    texts = (
        "\n".join(block["text"] for block in blocks_of(message) if block["type"] == "text")
        for message in messages
        if message["role"] == "user"
    )
    goal = next(filter(None, texts), "")
    return DemoTask(goal, tuple(tool_uses(messages)), frozenset(tool["name"] for tool in body.get("tools") or []))


def _ends_run(message: Json, following: Json) -> bool:
    if message["role"] != "assistant":
        return False
    uses = tool_uses([message, following])
    return not uses or any(use.name in ("finish", "escalate") and not use.is_error for use in uses)


def _next_reply(task: DemoTask) -> DemoReply:
    if not task.tools:
        done = ", ".join(f"{use.name} {'failed' if use.is_error else 'done'}" for use in task.uses)
        so_far = f"So far: {done}." if done else "Nothing has been called so far."
        sees = f"This is the rehearsal model; without tools it can only say what it sees. Goal: {task.goal}"
        return DemoReply(f"{sees}\n{so_far}")
    if task.uses_of("finish") or task.uses_of("escalate"):
        return DemoReply("Finding: the run could not be ended in the way it was meant to; it stops here.")
    if "delegate" in task.tools and (peer := _PEER.search(task.goal)):
        return _delegate_work(task, peer[1], peer[2].strip())
    return _work_on_pages(task) if task.addresses else _ask_for_address(task)


def _ask_for_address(task: DemoTask) -> DemoReply:
    if "ask_human" not in task.tools or task.uses_of("ask_human"):
        return _end_run(task, "finish", _NO_ADDRESS)
    question = {"question": "Which page should I fetch? Give an http(s) address."}
    return DemoReply("Frame: the goal names no page, and a page is what I can work on.", (("ask_human", question),))


def _work_on_pages(task: DemoTask) -> DemoReply:
    fetched = {str(use.arguments.get("url")): use for use in task.uses_of("fetch")}
    if missing := [address for address in task.addresses if address not in fetched]:
        return _fetch_pages(task, missing)
    if written := task.uses_of("write_file"):
        return _finish_run(task, written[-1])
    return _write_product(task, [fetched[address] for address in task.addresses])


def _delegate_work(task: DemoTask, peer: str, work: str) -> DemoReply:
    if not (uses := task.uses_of("delegate")):
        text = f"Frame: this is work for {peer}.\n\nPlan:\n1. Ask {peer}.\n2. Hand on what comes back."
        return DemoReply(text, (("delegate", {"subtasks": [{"id": "part", "agent": peer, "instructions": work}]}),))
    if uses[-1].is_error:
        return _end_run(task, "escalate", f"{peer} did not do it: {_first_line(uses[-1])}")
    subtasks = json.loads(uses[-1].result or "{}").get("subtasks", [])
    return _end_run(task, "finish", "\n\n".join(str(subtask.get("outcome", "")) for subtask in subtasks))


def _fetch_pages(task: DemoTask, missing: list[str]) -> DemoReply:
    pages = join_words(missing)
    if "fetch" not in task.tools:
        return _end_run(task, "escalate", f"There is no tool `fetch` to get {pages} with.")
    calls = tuple(("fetch", {"url": address}) for address in missing)
    if task.uses_of("fetch"):
        return DemoReply(f"Next: {count_nouns(len(missing), 'page')} still to be fetched.", calls)
    text = (
        f"Frame: a {task.product(task.paragraphs)} on {pages} is asked for. It is done when artifacts/{task.kind}.md "
        f"holds it, made from what the {'page' if len(missing) == 1 else 'pages'} really said.\n\n"
        f"Plan:\n1. Fetch {pages}.\n2. Measure what came back and write artifacts/{task.kind}.md.\n3. Finish."
    )
    return DemoReply(text, calls)


def _write_product(task: DemoTask, fetched: list[ToolUse]) -> DemoReply:
    lost = [f"{use.arguments['url']} could not be fetched ({_first_line(use)})" for use in fetched if use.is_error]
    if len(lost) == len(fetched):
        return _end_run(task, "escalate", f"There is nothing to judge: {'; '.join(lost)}.")
    pages = [open_page(use.arguments["url"], use.result or "") for use in fetched if not use.is_error]
    content = write_review(pages, task.kind, task.paragraphs, lost, constructive="constructive" in task.goal.lower())
    if "write_file" not in task.tools:
        return _end_run(task, "finish", content)
    weak = weak_points(pages) if task.kind == "critique" else []
    worst = f" What stands out: {weak[0].text[0].lower()}{weak[0].text[1:]}." if weak else ""
    words = count_nouns(sum(page.words for page in pages), "word")
    findings = [f"{join_words([page.name for page in pages])} came: {words}.{worst}", *(f"{text}." for text in lost)]
    text = "\n".join(f"Finding: {finding}" for finding in findings)
    return DemoReply(text, (("write_file", {"path": f"artifacts/{task.kind}.md", "content": content}),))


def _finish_run(task: DemoTask, write: ToolUse) -> DemoReply:
    path = str(write.arguments.get("path"))
    if write.is_error:
        reason = f"The {task.kind} is ready, but {path} could not be written: {_first_line(write)}"
        return _end_run(task, "escalate", reason)
    # Count the paragraphs between title and signature: a short page may not fill the number asked for.
    number = str(write.arguments.get("content")).count("\n\n") - 1
    outcome = f"{task.product(task.paragraphs and number).capitalize()} generated in {path}"
    if "finish" not in task.tools:
        return DemoReply(outcome)
    return DemoReply(f"Finding: {path} is written.", (("finish", {"outcome": outcome, "artifacts": [path]}),))


def _end_run(task: DemoTask, tool: str, text: str) -> DemoReply:
    """Call `finish` or `escalate` if it is available. A reply without a call ends the run too."""
    key, reply = ("outcome", text) if tool == "finish" else ("reason", f"Finding: {text}")
    return DemoReply(reply, ((tool, {key: text}),) if tool in task.tools else ())


def _first_line(use: ToolUse) -> str:
    lines = (use.result or "").strip().splitlines()
    return lines[0][:200].rstrip(".") if lines else "no reason given"


def _apply_choice(reply: DemoReply, body: Json) -> DemoReply:
    """Change the calls as `tool_choice` requires. Perdure sends the types `none` and `tool`."""
    match body.get("tool_choice"):
        case {"type": "none"}:
            return DemoReply(reply.text)
        case {"type": "tool", "name": str(forced)}:
            schema = next(tool.get("input_schema") for tool in body["tools"] if tool["name"] == forced)
            calls = tuple(call for call in reply.calls if call[0] == forced)
            return DemoReply(reply.text, calls or ((forced, _placeholder_arguments(schema)),))
        case _:
            return reply


def _placeholder_arguments(schema: object) -> Json:
    """Return simple arguments with every required field."""
    match schema:
        case {"properties": dict() as fields, "required": list() as required}:
            return {str(name): _placeholder_value(fields.get(str(name))) for name in required}
        case _:
            return {}


def _placeholder_value(field: object) -> object:
    match field:
        case {"enum": [first, *_]}:
            return first
        case {"type": str(kind)}:
            return _EMPTY.get(kind, MODEL)
        case _:
            return MODEL
