"""The activities `plan` and `reflect`: one model call each, over the conversation that a cursor names."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter
from typing import Any

from pydantic import TypeAdapter, ValidationError
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.activities.effects.attempts import Attempt, counting_attempts, heartbeating, was_lost
from perdure.activities.effects.holding import HeldError
from perdure.activities.media.store import MediaReader
from perdure.activities.model.transcript_cache import TranscriptCache
from perdure.activities.policy import PolicyChecks, SharedCallsUnavailableError
from perdure.activities.project import Project
from perdure.activities.providers.port import Model, ModelCall, ModelReply
from perdure.activities.providers.prices import call_cost
from perdure.activities.providers.rate_limit import RateLimitedError
from perdure.activities.providers.replies.reply import fit_to_history
from perdure.activities.run.definition import must_be_unchanged, read_definition
from perdure.activities.security import Secrets, redact_model
from perdure.activities.storage.store import Store
from perdure.activities.storage.workspace import Workspace
from perdure.activities.telemetry.facts import record_facts
from perdure.activities.telemetry.trace import ignore_disk_errors, report_event, write_trace
from perdure.activities.temporal import own_run_id, own_workflow_id
from perdure.activities.tools.json_schema import SchemaNotApplicableError, SchemaValidator, check_in_loop
from perdure.contracts.agent import Definition
from perdure.contracts.bounds import Backoff
from perdure.contracts.failures import Stop
from perdure.contracts.run.state import Snapshot
from perdure.contracts.run.transcript import Part, PartKind
from perdure.contracts.run.turn import TURN_MARGIN, ContextFull, ModelTurn, TurnRequest
from perdure.decisions.ids import conversation_workflow_id, digest, run_id_of_workflow
from perdure.decisions.policy.facts import RequestedCalls
from perdure.decisions.run.compaction import complete_usage, estimate_content, estimate_request, is_over_threshold
from perdure.decisions.run.journal import parse_framing
from perdure.decisions.run.recovery import parse_window
from perdure.decisions.run.transcript import (
    THINKING_TYPES,
    add_message,
    cited_urls,
    is_thought,
    join_text_blocks,
    join_thinking,
    note_part,
    reply_part,
    server_calls,
)
from perdure.decisions.text.formatting import call_line, truncate
from perdure.decisions.tools import FINISH, unwrap_use

MAX_CONTINUATIONS = 3  # of one reply
SHOWN_END = 80  # characters of the piece's end that the note quotes
_STORED = TypeAdapter(ModelReply)

Json = dict[str, Any]


def can_continue(reply: ModelReply, tokens_left: int | None, usd_left: float | None) -> bool:
    """Return whether to ask for the rest: the reply was cut off in a text or in its only call, and budgets allow it.

    A reply with a whole call is not continued: the call needs its result first. Nor is one that is all thinking.
    """
    calls = {block["id"] for block in reply.content if block["type"] == "tool_use"}
    return (
        reply.stop_reason == "max_tokens"
        and not reply.is_too_large
        and reply.pieces <= MAX_CONTINUATIONS
        and calls <= {*reply.broken}
        and bool(calls or join_text_blocks(reply.content))
        and (tokens_left is None or reply.usage.total < tokens_left)
        and (usd_left is None or (reply.cost_usd or 0.0) < usd_left)
    )


def continuation_call(call: ModelCall, reply: ModelReply) -> ModelCall:
    """Return the call for the rest of the reply."""
    text = "".join(block["text"] for block in _whole_blocks(reply) if block["type"] == "text")
    messages = continuation_messages(call.messages, reply)
    return replace(call, messages=messages, on_text=lambda more: call.on_text(text + more))


def continuation_messages(messages: Sequence[Json], reply: ModelReply) -> list[Json]:
    """Return the messages that ask for the rest of the reply to `messages`."""
    kept = _whole_blocks(reply)
    longer = [*messages[:-1], {**messages[-1], "content": list(messages[-1]["content"])}]
    if kept:
        add_message(longer, Part(kind=PartKind.reply, content=kept))
    add_message(longer, note_part(_continuation_note(reply, kept)))
    return longer


def _whole_blocks(reply: ModelReply) -> list[Json]:
    """Return the content without calls that were cut off, and without what cannot end a reply."""
    kept = [block for block in reply.content if block["type"] != "tool_use"]
    while kept and (is_thought(kept[-1]) or kept[-1]["type"] == "server_tool_use"):
        kept.pop()
    return kept


def _continuation_note(reply: ModelReply, kept: Sequence[Json]) -> str:
    call = next((block["name"] for block in reply.content if block["type"] == "tool_use"), None)
    if call is not None:
        return (
            f"Your reply was cut off by the length limit in the arguments of `{call}`, so that call was not made. Make "
            "it again, with shorter arguments: divide what is long into several calls. Repeat no text."
        )
    return (
        f"Your reply was cut off by the length limit, after {join_text_blocks(kept)[-SHOWN_END:]!r}. Continue exactly "
        "there, even within a word. Repeat nothing and do not mention the limit: what you write is appended as it is."
    )


def join_replies(first: ModelReply, rest: ModelReply) -> ModelReply:
    """Return both as one reply. The thoughts of the rest are left out, so that its text continues the first text."""
    content = _whole_blocks(first)
    more = [block for block in rest.content if not content or not is_thought(block)]
    if content and more and content[-1]["type"] == more[0]["type"] == "text":
        content[-1] = _join_texts(content[-1], more.pop(0))
    costs = (first.cost_usd, rest.cost_usd)
    joined = replace(
        rest,
        content=[*content, *more],
        model=first.model,
        asked=first.asked,
        usage=first.usage + rest.usage,
        cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
        waited=first.waited + rest.waited,
        passed_over=first.passed_over,
        pieces=first.pieces + 1,
    )
    return fit_to_history(joined)


def _join_texts(first: Json, rest: Json) -> Json:
    citations = [*first.get("citations", ()), *rest.get("citations", ())]
    return {**first, "text": first["text"] + rest["text"], **({"citations": citations} if citations else {})}


def save_pieces(store: Store, request: TurnRequest, reply: ModelReply, secrets: Secrets) -> None:
    """Store the pieces so far. Raises OSError."""
    clean = replace(reply, content=secrets.redact_value(reply.content))
    store.write(_file_name(request), _STORED.dump_json(clean))


def read_pieces(store: Store, request: TurnRequest) -> ModelReply | None:
    """Return the pieces that an earlier attempt of the same request stored, if any."""
    with suppress(OSError, ValidationError):
        return _STORED.validate_json(store.read(_file_name(request)))
    return None


def _file_name(request: TurnRequest) -> str:
    same = (request.turn, request.length, request.head, request.definition, request.force, request.is_closing)
    return f"pieces-{digest(repr(same).encode(), 12)}.json"


PAUSES = Backoff(1.0, 60.0, factor=3.0, retries=5)  # rate limits and overload pass within minutes
SHOWN_TAIL = 2000  # characters of the partial answer that a heartbeat carries


@dataclass(frozen=True)
class PreparedTurn:
    """A model call that can be made. `full` counts its tokens; `used` are the ids that its tool uses must not have.

    `parts` are the conversation.
    """

    call: ModelCall
    full: ContextFull
    used: Collection[str]
    parts: Sequence[Part]


@dataclass(frozen=True)
class TurnOrigin:
    """The turn of a reply: its run, its number and phase, and what its request was made of."""

    workflow_id: str
    number: int
    phase: str
    definition: Definition
    used: Collection[str]


class Turns:
    def __init__(
        self, client: Client, model: Model, transcripts: TranscriptCache, project: Project, policies: PolicyChecks
    ) -> None:
        self._client = client
        self._model = model
        self._transcripts = transcripts
        self._project = project
        self.policies = policies
        self._definitions: dict[str, tuple[Definition, int]] = {}  # with its tokens

    @activity.defn
    async def plan(self, request: TurnRequest) -> ModelTurn | ContextFull:
        """Run the first turn: frame, plan, first actions. Returns ContextFull if the conversation is too long.

        Raises ApplicationError of a `RunFailure` type, or `DefinitionChanged` if an interrupted run's agent has
        another definition than at the run's start.
        """
        async with counting_attempts(self._client, 1 + PAUSES.retries) as attempt:
            return await self.run_turn(request, "plan", attempt)

    @activity.defn
    async def reflect(self, request: TurnRequest) -> ModelTurn | ContextFull:
        """Run a later turn: judge the results, adjust the plan, next actions or done. Returns and raises as `plan`."""
        async with counting_attempts(self._client, 1 + PAUSES.retries) as attempt:
            return await self.run_turn(request, "reflect", attempt)

    async def run_turn(self, request: TurnRequest, phase: str, attempt: Attempt) -> ModelTurn | ContextFull:
        workspace = self._project.workspace(own_run_id())
        coming = {"text": "", "held": ""}
        async with heartbeating(lambda: self._heartbeat_details(request.turn, coming, attempt)):
            prepared = await self.prepare_turn(request)
            if isinstance(prepared, ContextFull):
                return prepared
            policies = await self.policies.load(request.policy, prepared.call.definition.agent)
            call = replace(
                prepared.call,
                on_text=lambda text: coming.update(text=text),
                on_held=lambda reason: coming.update(held=reason),
                caller=f"{own_workflow_id()}/{activity.info().activity_id}",
                patience=request.turn_timeout.total_seconds(),
                limit=_time_left(attempt),
            )
            started = perf_counter()
            reply = await self._ask_until_whole(call, prepared.full, attempt, request)
            if isinstance(reply, ContextFull):
                return reply
            report_fallback(workspace, f"fallback:{request.turn}", reply)
            origin = TurnOrigin(own_workflow_id(), request.turn, phase, call.definition, prepared.used)
            turn = await self.finish_turn(origin, reply, perf_counter() - started)
            if policies is None or request.is_closing:
                return turn
            asked = RequestedCalls(turn.content, {*turn.broken, *turn.repeated, *turn.invalid_results})
            try:
                judged = await self.policies.judge_calls(policies, asked, prepared.parts, call.definition)
            except (SharedCallsUnavailableError, HeldError):
                if policies.context is None or not policies.context.policy:
                    raise
                return turn  # the run asks for the verdicts again, and the model is not paid twice
        return turn.evolve(verdicts=judged.verdicts, reviews=judged.reviews)

    async def prepare_turn(self, request: TurnRequest) -> PreparedTurn | ContextFull:
        """Read the conversation and build the call, if the context has room. Raises as `plan`."""
        write_trace(self._project.workspace(own_run_id()), *request.trace)
        definition, front = await self._load_definition(request.definition)
        if request.interrupted or await was_lost(self._client):
            must_be_unchanged(self._project, definition, request.refused)
        conversation = await self._transcripts.read_current(request.length, request.head)
        record_facts(model=definition.model)
        shown = conversation.model_view()
        is_typed_end = request.is_closing and definition.output_schema is not None
        call = ModelCall(
            definition=definition,
            messages=shown.messages,
            digest=shown.digest,
            brief=shown.brief,
            force=FINISH if is_typed_end else request.force,
            is_closing=request.is_closing and not is_typed_end,
            media=MediaReader(self._project.stores, own_run_id(), self._find_media_owners),
        )
        full = ContextFull(
            tokens=estimate_request(conversation.transcript.parts, call.messages, front),
            window=request.window or self._project.window_of(*definition.models),
            messages=len(call.messages),
        )
        if is_over_threshold(full, conversation.transcript.parts) and not request.unchecked:
            return full
        return PreparedTurn(call, full, shown.used, conversation.transcript.parts)

    async def finish_turn(self, origin: TurnOrigin, reply: ModelReply, seconds: float = 0.0) -> ModelTurn:
        """Return the reply as history keeps it, and write the plan and the trace."""
        workspace = self._project.workspace(run_id_of_workflow(origin.workflow_id))
        reply = rename_used_ids(reply, origin.used, origin.number)
        reply = await check_in_loop(partial(read_written_arguments, reply, origin.definition), reply.content)
        turn = redact_turn(_to_turn(reply, seconds), self._project.secrets)
        invalid = await check_in_loop(partial(find_invalid_results, turn, origin.definition), turn.content)
        turn = turn.evolve(invalid_results=invalid)
        self._transcripts.feed_reply(origin.workflow_id, reply_part(turn))
        line = _trace_line(origin.number, origin.phase, turn)
        if self._project.record_thinking and (text := join_thinking(turn.content)):
            line["thinks"] = text
        write_trace(workspace, line)
        if origin.phase == "plan" and (text := join_text_blocks(turn.content)):
            with ignore_disk_errors("plan.md"):
                await asyncio.to_thread(_write_plan, workspace, text)
        return turn

    async def _ask_until_whole(
        self, call: ModelCall, full: ContextFull, attempt: Attempt, request: TurnRequest
    ) -> ModelReply | ContextFull:
        """Return the reply, joined from its pieces if the length limit cuts it off.

        If the provider rejects the call for the rest, the reply stays cut off.
        """
        store, began, stored = self._project.stores.of(own_run_id()), monotonic(), None
        if activity.info().attempt > 1 or request.interrupted:
            stored = await asyncio.to_thread(read_pieces, store, request)
        reply = stored or await self._ask_model(call, full, attempt)
        while isinstance(reply, ModelReply) and can_continue(reply, request.tokens_left, request.usd_left):
            with ignore_disk_errors("the pieces of a reply"):
                await asyncio.to_thread(save_pieces, store, request, reply, self._project.secrets)
            limit = None if call.limit is None else max(call.limit - (monotonic() - began), 1.0)
            longer = full.evolve(tokens=full.tokens + estimate_content(reply.content))
            try:
                rest = await self._ask_model(replace(continuation_call(call, reply), limit=limit), longer, attempt)
            except ApplicationError as failure:
                if not failure.non_retryable:
                    raise
                activity.logger.warning("the rest of a reply could not be asked for: %s", failure)
                return reply
            if isinstance(rest, ContextFull):
                return reply
            reply = join_replies(reply, rest)
        return reply

    def with_cost(self, reply: ModelReply, definition: Definition, tokens: int, share: float = 1.0) -> ModelReply:
        """Return the reply with its whole usage and cost. `tokens` is the estimate of its request.

        `share` is as in `call_cost`.
        """
        usage = complete_usage(reply.usage, tokens, reply.content)
        price = self._project.price_of(reply.asked or definition.model)
        return replace(reply, usage=usage, cost_usd=call_cost(usage, price, share))

    async def _ask_model(self, call: ModelCall, full: ContextFull, attempt: Attempt) -> ModelReply | ContextFull:
        try:
            return self.with_cost(await self._model.reply(call), call.definition, full.tokens)
        except ApplicationError as failure:
            if isinstance(failure, RateLimitedError):
                record_facts(held=True)
            if failure.type == Stop.context_too_long:
                return refuse_context(full, failure)
            if failure.non_retryable or failure.next_retry_delay is not None:
                raise
            pause = PAUSES.pause(attempt.number)
            raise ApplicationError(failure.message, type=failure.type, next_retry_delay=pause) from None

    def _heartbeat_details(self, turn: int, coming: Mapping[str, str], attempt: Attempt) -> dict[str, Any]:
        held = {"held": coming["held"]} if coming["held"] else {}
        return {
            "turn": turn,
            "text": self._project.secrets.tail(coming["text"], SHOWN_TAIL),
            **held,
            **attempt.beat_details,
        }

    async def _find_media_owners(self) -> list[str]:
        """Return the stores that may have media of the run's conversation besides its own."""
        run = self._client.get_workflow_handle(own_workflow_id(), run_id=activity.info().workflow_run_id)
        state = (await run.query("snapshot", result_type=Snapshot)).state
        conversation = [conversation_workflow_id(state.conversation_id)] if state.conversation_id else []
        return [*conversation, *(origin.run_id for origin in state.inherited)]

    async def _load_definition(self, ref: str) -> tuple[Definition, int]:
        if ref not in self._definitions:
            definition = await read_definition(self._project.stores.of(own_run_id()), ref)
            self._definitions[ref] = definition, front_tokens(definition)
        return self._definitions[ref]


def _to_turn(reply: ModelReply, seconds: float) -> ModelTurn:
    return ModelTurn(
        content=reply.content,
        stop_reason=reply.stop_reason,
        model=reply.model,
        usage=reply.usage,
        duration_ms=round((seconds - reply.waited) * 1000),
        cost_usd=reply.cost_usd,
        broken=reply.broken,
        repeated=reply.repeated,
        passed_over=reply.passed_over,
        pieces=reply.pieces,
    )


def _time_left(attempt: Attempt) -> float | None:
    """Return the seconds that the turn may still take, less the time of its failed attempts."""
    timeout = activity.info().start_to_close_timeout
    return max((timeout - TURN_MARGIN).total_seconds() - attempt.spent, 1.0) if timeout else None


def refuse_context(full: ContextFull, failure: ApplicationError) -> ContextFull:
    """Return the context as refused. If the provider does not name its window, the next guess shrinks."""
    window = parse_window(failure.message) or min(full.window, full.tokens)
    return full.evolve(window=window, was_refused=True)


def rename_used_ids(reply: ModelReply, used: Collection[str], turn: int) -> ModelReply:
    """Rename tool uses with a used id: some servers restart their ids when the conversation gets shorter."""
    taken = {*used, *(block.get("id") for block in reply.content)}
    names: dict[str, str] = {}
    for block in reply.content:
        if block.get("type") == "tool_use" and block["id"] in used:
            name = block["id"]
            while name in taken:  # a fork restarts its turn numbers
                name += f"_t{turn}"
            names[block["id"]] = name
    if not names:
        return reply
    content = [{**block, "id": names[block["id"]]} if block.get("id") in names else block for block in reply.content]
    broken, repeated = (tuple(names.get(name, name) for name in ids) for ids in (reply.broken, reply.repeated))
    return replace(reply, content=content, broken=broken, repeated=repeated)


def read_written_arguments(reply: ModelReply, definition: Definition, seconds: float | None = None) -> ModelReply:
    """Return the reply with objects and lists that came as JSON text parsed, if the tool's schema expects them.

    Approvers, the record and the tool then see the same arguments. `seconds` are as in `SchemaValidator`.
    """
    schemas = {tool.name: tool.input_schema for tool in (*definition.tools, *definition.searched)}
    content = [
        _read_written_use(block, schemas, seconds) if block.get("type") == "tool_use" else block
        for block in reply.content
    ]
    return replace(reply, content=content)


def _read_written_use(
    block: dict[str, Any], schemas: Mapping[str, dict[str, Any]], seconds: float | None
) -> dict[str, Any]:
    """Read the arguments of a tool use; those of `call_tool` hold the arguments of another tool."""
    if block["name"] not in schemas:
        return block
    block = {**block, "input": _read_written_values(block["input"], schemas[block["name"]], seconds)}
    inner = unwrap_use(block)
    if inner is block or inner["name"] not in schemas:
        return block
    arguments = _read_written_values(inner["input"], schemas[inner["name"]], seconds)
    return {**block, "input": {**block["input"], "arguments": arguments}}


def _read_written_values(arguments: dict[str, Any], schema: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
    try:
        return SchemaValidator(schema).read_written_values(arguments, seconds)
    except SchemaNotApplicableError:
        return arguments  # which the check before the call reports


def find_invalid_results(turn: ModelTurn, definition: Definition, seconds: float | None = None) -> dict[str, str]:
    """Return the errors of each `finish` whose result does not match the output schema, by the id of its tool use.

    `seconds` are as in `SchemaValidator`.
    """
    if definition.output_schema is None:
        return {}
    validator = SchemaValidator(definition.output_schema)
    uses = (unwrap_use(block) for block in turn.content if block.get("type") == "tool_use")
    finishes = (use for use in uses if use["name"] == FINISH)
    errors = {
        block["id"]: _result_errors(block["input"], validator, seconds)
        for block in finishes
        if block["id"] not in turn.broken
    }
    return {tool_use_id: text for tool_use_id, text in errors.items() if text}


def _result_errors(arguments: Any, validator: SchemaValidator, seconds: float | None) -> str:
    if not isinstance(arguments, dict) or "result" not in arguments:
        return "`result` is required"
    try:
        return "; ".join(validator.find_errors(arguments["result"], seconds))
    except SchemaNotApplicableError as error:
        return f"the schema cannot be applied: {error}"


def front_tokens(definition: Definition) -> int:
    """Estimate the tokens of the system prompt and the tools."""
    return estimate_content(
        [{"type": "text", "text": definition.system}, *(tool.model_dump() for tool in definition.tools)]
    )


def redact_turn(turn: ModelTurn, secrets: Secrets) -> ModelTurn:
    """Return the turn without secrets, and without thinking that holds one: its signature is for the whole text."""
    clean = redact_model(turn, secrets)
    pairs = zip(turn.content, clean.content, strict=True)
    content = [new for old, new in pairs if new == old or old.get("type") not in THINKING_TYPES]
    return clean if len(content) == len(clean.content) else clean.evolve(content=content)


def report_fallback(workspace: Workspace, key: str, reply: ModelReply) -> None:
    """Report the event `agent.model.fallback` if the first of the agent's models was skipped."""
    if not reply.passed_over:
        return
    record_facts(model=reply.asked)
    reasons = "; ".join(f"{skipped.model}: {skipped.why}" for skipped in reply.passed_over)
    report_event(workspace, "agent.model.fallback", key, run_id=own_run_id(), model=reply.asked, why=reasons)


def _write_plan(workspace: Workspace, text: str) -> None:
    parsed = parse_framing(text)
    workspace.write_own("plan.md", f"# Plan\n\n{parsed.plan}\n".encode())
    if parsed.frame:
        context = workspace.read_own("context.md").decode().partition("\n# Frame\n")[0]
        workspace.write_own("context.md", f"{context}\n# Frame\n\n{parsed.frame}\n".encode())


def _trace_line(number: int, phase: str, turn: ModelTurn) -> dict[str, Any]:
    uses = (unwrap_use(block) for block in turn.content if block.get("type") == "tool_use")
    return {
        "key": f"turn:{number}",
        "event": phase,
        "turn": number,
        "says": truncate(join_text_blocks(turn.content), 2000),
        "calls": [call_line(use["name"], use["input"]) for use in uses],
        "stop_reason": turn.stop_reason,
        "model": turn.model,
        "usage": turn.usage.model_dump(),
        "ms": turn.duration_ms,
        **({"pieces": turn.pieces} if turn.pieces > 1 else {}),
        **_server_tool_facts(turn),
    }


def _server_tool_facts(turn: ModelTurn) -> dict[str, Any]:
    uses = [call_line(block["name"], block["input"]) for block in server_calls(turn.content)]
    return {"server_tools": uses, "cites": cited_urls(turn.content)} if uses else {}
