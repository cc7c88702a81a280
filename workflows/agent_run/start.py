"""The start of a run: its input, the run or conversation that it continues, and the snapshot of its agent."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from perdure.activities.telemetry.attributes import DRY_RUN
from perdure.contracts.agent import DEFAULT_AGENT, StartSnapshotRequest
from perdure.contracts.conversation import Choice, Joined, JoinRequest
from perdure.contracts.failures import RunFailure
from perdure.contracts.people import Sender
from perdure.contracts.run.events import BeginEvent, ResumeEvent, ResumePayload, StartEvent, StartPayload
from perdure.contracts.run.limits import limits_in
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import Continuation, InheritRequest, RunState, RunStatus
from perdure.decisions import ids
from perdure.decisions.people.plan import adopt_plan
from perdure.decisions.people.terms import name_of, sources_of_start, split_account
from perdure.decisions.run.limits import (
    DEFAULTS,
    apply_requested,
    format_excess,
    format_idle,
    limits_in_force,
    values_set_in,
)
from perdure.decisions.run.resume import journal_of
from perdure.decisions.run.state import apply_snapshot, settle_choice
from perdure.decisions.run.transcript import Transcript, brief_part, goal_part, note_part, said_part, start_rejection
from perdure.decisions.text import formatting
from perdure.decisions.text.visible_text import render_visible
from perdure.workflows.activities import Activities
from perdure.workflows.agent_run import events
from perdure.workflows.agent_run.context import RunContext
from perdure.workflows.agent_run.turn import check_calls, fail_run, take_attachments
from perdure.workflows.agent_run.waiting import ask_person, return_to_work
from perdure.workflows.execution import execute_locally_first
from perdure.workflows.handlers import invalid_input, read_argument, require_continue_as_new, start_type


def begin_run(args: Sequence[Any]) -> RunContext:
    """Return the run of a start event or of an earlier execution. Raises ApplicationError `InvalidInput`."""
    match start_type(args):
        case "agentic.continue":
            continuation = read_argument(Continuation, args)
            require_continue_as_new()
            last = continuation.segments[-1]
            run = RunContext(continuation.state, Transcript(last.end, last.head), continuation.segments)
            run.inbox.messages.extend(continuation.said)
            return run
        case "agentic.resume":
            event = read_argument(ResumeEvent, args)
            state = _new_state(StartPayload(goal=f"go on from {event.payload.run_id}"), event.sender)
            return RunContext(state, Transcript(), (), event.payload)
        case "agentic.begin":
            return _begin_new_run(read_argument(BeginEvent, args))
        case _:
            start = read_argument(StartEvent, args)
            return _begin_new_run(
                BeginEvent(type="agentic.begin", payload=start.payload, work=start.work, sender=start.sender)
            )


def _begin_new_run(event: BeginEvent) -> RunContext:
    payload = event.payload
    requested = {**values_set_in(limits_in(payload.context)), **values_set_in(payload.limits)}
    parts = [brief_part(event.brief)] if event.brief else []
    parts.append(goal_part(payload.goal, payload.context, sources_of_start(event.sender, event.work)))
    transcript = Transcript()
    for part in parts:
        transcript.append(part)
    if reason := start_rejection(parts):
        raise invalid_input(reason)
    work, account = split_account(event.work)
    state = _new_state(payload, event.sender).evolve(
        requested=requested,
        headers=event.headers,
        is_turn=event.is_turn,
        assignment=event.assignment,
        work=work,
        account=account,
        share=event.share,
        choices=event.choices,
        output_schema=payload.output_schema,
        dry_run=payload.dry_run,
        quiet=payload.quiet or payload.dry_run,
        planned=adopt_plan(payload.plan, event.sender) if payload.plan else None,
    )
    run = RunContext(state.evolve(limits=limits_in_force(state, DEFAULTS)), transcript, ())
    run.after, run.forget, run.opening, run.attachments = event.after, event.forget, tuple(parts), payload.attachments
    return run


def _new_state(payload: StartPayload, sender: Sender | None) -> RunState:
    now, info = workflow.now(), workflow.info()
    is_retry = info.attempt > 1 and info.cron_schedule is None
    return RunState(
        run_id=ids.run_id_of_workflow(info.workflow_id),
        goal=payload.goal,
        agent=payload.agent or DEFAULT_AGENT,
        context=payload.context,
        conversation_id=payload.conversation_id,
        pace=payload.pace,
        sender=sender,
        created_at=now,
        updated_at=now,
        limits=DEFAULTS,
        execution=ids.run_start_id(info.first_execution_run_id, info.continued_run_id, is_retry=is_retry),
    )


async def open_files(run: RunContext) -> None:
    """Read the files that the run begins with, unless an earlier execution has done it."""
    if run.state.status is not RunStatus.queued:
        return
    if run.origin is not None:
        await _inherit_run(run, run.origin)
    elif run.state.is_turn:
        await _join_conversation(run)
    if run.state.ending is None and not run.state.definition:
        await take_snapshot(run)
    if run.state.dry_run:
        workflow.upsert_memo({DRY_RUN: True})  # for lists, which see no state
    if run.state.ending is None:
        await _attach_files(run)
    events.emit_event(run, "agent_run.started", agent=run.state.agent, origin=run.origin and run.origin.run_id)
    run.set_status(RunStatus.running)
    if run.state.ending is None:
        while run.state.choices:
            await _ask_choice(run, run.state.choices[0])


async def _attach_files(run: RunContext) -> None:
    """Add the attachments of the start to the conversation, behind its goal."""
    try:
        attached = await take_attachments(run, run.attachments, run.state.definition)
    except ActivityError as error:
        fail_run(run, error, RunFailure.invalid_input)
        return
    run.attachments = ()
    if attached.media:
        run.transcript.append(said_part("", attached.media))


async def _ask_choice(run: RunContext, choice: Choice) -> None:
    """Ask a person for a choice that the sender left open."""
    answer = await ask_person(run, QuestionKind.choice, f"{choice.name}: which one?", choice.options)
    chosen = next((option for option in choice.options if render_visible(option) == answer.text), answer.text)
    run.transcript.append(note_part(f"A person was asked which one {choice.name} is. The answer: {chosen}"))
    run.state = settle_choice(run.state)


async def _inherit_run(run: RunContext, origin: ResumePayload) -> None:
    request = InheritRequest(**origin.model_dump(), execution=run.state.execution, by=name_of(run.state.sender))
    try:
        inherited = await run.execute(
            Activities.inherit, request, formatting.truncate(f"go on from {origin.run_id}", 80)
        )
    except ActivityError as error:
        fail_run(run, error, RunFailure.not_resumable)
        return
    last = inherited.segments[-1]
    run.inherit_from(inherited.state, Transcript(last.end, last.head), inherited.segments)
    if run.state.place:  # of the run that it goes on from
        run.state = run.state.evolve(has_left_place=True)
        await return_to_work(run)
    await check_calls(run)


async def _join_conversation(run: RunContext) -> None:
    try:
        _continue_conversation(run, await run.cancellation.cancellable(_read_conversation(run)))
    except ActivityError as error:
        fail_run(run, error, RunFailure.bad_project)


async def join_stopped_turn(run: RunContext) -> None:
    """Add the turn's own words to a conversation that it was stopped before reading, and change nothing else."""
    with suppress(ActivityError):
        _continue_conversation(run, await _read_conversation(run))


async def _read_conversation(run: RunContext) -> Joined:
    request = JoinRequest(conversation_id=run.state.conversation_id or "", after=run.after, forget=run.forget)
    summary = "read the conversation so far"
    return await execute_locally_first(run.cancellation, Activities.join_conversation, request, summary)


def _continue_conversation(run: RunContext, joined: Joined) -> None:
    """Continue the conversation with the turn's own words."""
    own, run.opening = run.opening, ()
    if joined.segment is None:
        return
    last, state = joined.segment, run.state
    if joined.journal is not None:
        state = state.evolve(journal=joined.journal)
    run.adopt_transcript(state, Transcript(last.end, last.head), (last,))
    if joined.shows_journal:
        run.transcript.append(journal_of(state.journal, "", ""))
    for part in own:
        run.transcript.append(part)


def _has_own_context(run: RunContext) -> bool:
    """Return whether the context is the caller's own, to be checked: those of turns and subtasks are Perdure's."""
    state = run.state
    return not (state.definition or state.is_turn or state.assignment)


async def take_snapshot(run: RunContext, shown: str | None = None) -> None:
    """Take over the agent's definition from the project; only the one that a person was `shown`, if given."""
    request = StartSnapshotRequest(
        agent=run.state.agent,
        length=run.transcript.length,
        head=run.transcript.head,
        depth=run.state.assignment.depth if run.state.assignment else 0,
        max_depth=run.state.requested.get("max_depth"),
        pace=run.state.pace,
        execution=run.state.execution,
        output_schema=run.state.output_schema,
        context=run.state.context if _has_own_context(run) else None,
        planned=None if run.state.definition else run.state.planned,
        account=run.state.account,
        is_first=not run.state.definition,
    )
    try:
        opening = await run.execute_locally(Activities.open_run, request, "read agent, tools and limits")
    except ActivityError as error:
        fail_run(run, error, RunFailure.bad_project)
        return
    if shown not in (None, opening.definition):
        return
    if not run.state.definition:  # reported once, at the first snapshot
        for excess in format_excess(apply_requested(opening.limits, run.state.requested), opening.ceiling):
            run.ignore("limits", excess)
    is_first = not run.state.definition
    run.state = apply_snapshot(run.state, opening)
    if is_first:
        for idle in format_idle(run.state.limits):
            run.ignore("limits", idle)
