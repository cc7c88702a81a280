"""The activity `summarize`: a summary replaces old messages when the context is full (B4)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from time import perf_counter
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.effects.attempts import Attempt, counting_holds, heartbeating, this_attempt
from perdure.activities.model.transcript_cache import TranscriptCache
from perdure.activities.model.turn import front_tokens, report_fallback
from perdure.activities.project import Project
from perdure.activities.providers.options import short_options
from perdure.activities.providers.port import Model, ModelCall
from perdure.activities.providers.prices import call_cost
from perdure.activities.providers.rate_limit import RateLimitedError
from perdure.activities.run.definition import read_definition
from perdure.activities.security import redact_model
from perdure.activities.telemetry.facts import record_facts
from perdure.activities.telemetry.trace import write_trace
from perdure.activities.temporal import own_run_id, own_workflow_id
from perdure.contracts.agent import Definition
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.transcript import Part
from perdure.contracts.run.turn import Summary, SummaryRequest
from perdure.decisions.run import compaction
from perdure.decisions.run.resume import journal_of
from perdure.decisions.run.transcript import join_text_blocks

READ_SHARE = 0.5  # of the summarizing model's window, for its input
MAX_SUMMARY_ATTEMPTS = 3  # of the model, before the messages are truncated without it


class Summaries:
    def __init__(self, model: Model, transcripts: TranscriptCache, project: Project) -> None:
        self._model = model
        self._transcripts = transcripts
        self._project = project

    @activity.defn
    async def summarize(self, request: SummaryRequest) -> Summary:
        """Summarize all but the last messages with the cheap model. If that fails, truncate them."""
        with counting_holds(attempt := this_attempt()):
            return await self._summarize_parts(request, attempt)

    async def _summarize_parts(self, request: SummaryRequest, attempt: Attempt) -> Summary:
        workspace, store = self._project.workspace(own_run_id()), self._project.stores.of(own_run_id())
        write_trace(workspace, *request.trace)
        held: dict[str, str] = {}
        async with heartbeating(lambda: {"messages kept": request.keep, **held, **attempt.beat_details}):
            definition = await read_definition(store, request.definition)
            conversation = await self._transcripts.read_current(request.length, request.head)
            parts = conversation.transcript.parts
            window = request.window or self._project.window_of(*definition.models)
            cut = compaction.divide_parts(parts, request.keep, window, is_deep=request.is_deep)
            front, messages = front_tokens(definition), conversation.model_view().messages
            before = compaction.estimate_request(parts, messages, front)
            summary = Summary(
                text="",
                tail=0,
                before_tokens=before,
                after_tokens=before,
                before_messages=len(messages),
                after_messages=len(messages),
            )
            if cut.messages == 0 and cut.cut is None:
                return summary
            started = perf_counter()
            if cut.messages:
                call = self._build_call(definition, parts, cut.tail, lambda reason: held.update(held=reason))
                summary = await self._ask_model(call, request, attempt, summary)
            text = (
                summary.text
                or compaction.narrate_truncated(parts, cut.tail, window)
                or "Nothing else came before what follows."
            )
        took = round((perf_counter() - started) * 1000)
        summary = summary.evolve(
            text=text,
            tail=cut.tail,
            pins=cut.pins,
            pin_bytes=cut.pin_bytes,
            cut=cut.cut,
            is_deep=request.is_deep,
            duration_ms=took,
        )
        summary = _with_final_figures(redact_model(summary, self._project.secrets), parts, front)
        write_trace(workspace, _trace_line(request, summary))
        return summary

    def _build_call(
        self, definition: Definition, parts: Sequence[Part], tail: int, on_held: Callable[[str], object]
    ) -> ModelCall:
        name = self._project.summary_model_of(definition.model)
        summarizer = Definition(
            agent=definition.agent,
            model=name,
            fallbacks=tuple(other for other in definition.fallbacks if other != name),
            options=short_options(definition, name),
            system=files("perdure.activities").joinpath("prompts/summarize.md").read_text(encoding="utf-8"),
            tools=(),
        )
        limit = round(READ_SHARE * self._project.window_of(*summarizer.models) * compaction.BYTES_PER_TOKEN)
        entries = compaction.narrate_parts(parts, tail, limit)
        goal, heading = compaction.goal_excerpt(parts), f"# Messages ({compaction.DATA})"
        text = f"# Goal\n\n{goal}\n\n{heading}\n\n{compaction.ENTRIES}\n\n{entries}"
        message = {"role": "user", "content": [{"type": "text", "text": text}]}
        caller = f"{own_workflow_id()}/{activity.info().activity_id}"
        return ModelCall(definition=summarizer, messages=[message], on_held=on_held, caller=caller)

    async def _ask_model(self, call: ModelCall, request: SummaryRequest, attempt: Attempt, summary: Summary) -> Summary:
        """Call the model, and return the summary with its text and cost, unchanged if the model fails."""
        record_facts(model=call.definition.model)
        patience, limit = request.timeout.total_seconds(), request.limit.total_seconds()
        try:
            reply = await self._model.reply(replace(call, patience=patience, limit=limit))
        except RateLimitedError:
            record_facts(held=True)
            raise
        except Exception as error:
            # A missing summary must not stop the run, whatever the error.
            is_retryable = not (isinstance(error, ApplicationError) and error.non_retryable)
            if is_retryable and attempt.number < MAX_SUMMARY_ATTEMPTS:
                raise
            activity.logger.warning("no model summarized the conversation, so it is truncated: %s", error)
            return summary
        report_fallback(self._project.workspace(own_run_id()), f"fallback:summary:{request.length}", reply)
        text, name = join_text_blocks(reply.content), reply.asked or call.definition.model
        prompt = front_tokens(call.definition) + sum(
            compaction.estimate_content(message["content"]) for message in call.messages
        )
        usage = compaction.complete_usage(reply.usage, prompt, reply.content)
        cost = call_cost(usage, self._project.price_of(name))  # even if the reply is unusable
        return summary.evolve(text=text, model=name if text else "", usage=usage, cost_usd=cost)


def _with_final_figures(summary: Summary, parts: Sequence[Part], front: int) -> Summary:
    """Add the figures after the summary. The journal counts as one part, without its text."""
    journal = journal_of(Journal(), "", "")
    after = [*parts, compaction.summary_part(summary), journal]
    messages = compaction.messages_of(after, [], 0)
    tokens = compaction.estimate_request(after, messages, front)
    return summary.evolve(after_tokens=tokens, after_messages=len(messages))


def _trace_line(request: SummaryRequest, summary: Summary) -> dict[str, Any]:
    return {
        "key": f"summary:{request.length}",
        "event": "deep prune" if summary.is_deep else "compact",
        **compaction.summary_figures(summary),
        "usage": summary.usage.model_dump(),
    }
