"""How a run begins: what it goes on from, if anything, and the snapshot of its agent that it keeps."""

from contextlib import suppress

from temporalio.exceptions import ActivityError

from activities.conversation import Conversations
from activities.run.files import Runs
from activities.run.fork import Inheritances
from contracts.agent import Opening, OpeningRequest
from contracts.conversation import Choice, Joined, JoinRequest
from contracts.failures import RunFailure
from contracts.run.events import ResumePayload
from contracts.run.question import QuestionKind
from contracts.run.state import Inherited, InheritRequest, RunStatus
from decisions.run.limits import format_excess, in_force, with_requested
from decisions.run.resume import journal_of
from decisions.run.transcript import Transcript, note_part
from decisions.text import formatting
from workflows.agent_run import events
from workflows.agent_run.context import LiveRun
from workflows.agent_run.local_first import filed, filed_in_sight
from workflows.agent_run.turn import fail


async def open_run(run: LiveRun) -> None:
    if run.state.status is not RunStatus.queued:
        return  # it goes on from an earlier execution
    if run.origin is not None:
        await _inherit(run, run.origin)
    elif run.state.is_turn:
        await _join(run)
    if run.state.ending is None and not run.state.definition:
        await take_snapshot(run)
    events.emit(run, "agent_run.started", agent=run.state.agent, origin=run.origin and run.origin.run_id)
    run.set_status(RunStatus.running)
    if run.state.ending is None:
        while run.state.choices:
            await _choose(run, run.state.choices[0])


async def _choose(run: LiveRun, choice: Choice) -> None:
    """What the sender left open, a person says before the first turn."""
    answer = await run.ask(QuestionKind.choice, f"{choice.name}: which one?", choice.options)
    run.transcript.append(note_part(f"A person was asked which one {choice.name} is. The answer: {answer.text}"))
    run.update(choices=run.state.choices[1:])


async def _inherit(run: LiveRun, origin: ResumePayload) -> None:
    request = InheritRequest(**origin.model_dump(), execution=run.state.execution)
    try:
        summary = formatting.cut(f"go on from {origin.run_id}", 80)
        inherited: Inherited = await run.halt.stoppable(filed_in_sight(Inheritances.inherit, request, summary))
    except ActivityError as error:
        fail(run, error, RunFailure.not_resumable)
        return
    last = inherited.segments[-1]
    run.inherit(inherited.state, Transcript(last.end, last.head), inherited.segments)


async def _join(run: LiveRun) -> None:
    try:
        _go_on(run, await run.halt.stoppable(_read_conversation(run)))
    except ActivityError as error:
        fail(run, error, RunFailure.bad_project)


async def join_at_last(run: LiveRun) -> None:
    """A turn that was stopped before it knew the conversation leaves it as it was, with the turn's own words."""
    with suppress(ActivityError):
        _go_on(run, await _read_conversation(run))


def _go_on(run: LiveRun, joined: Joined) -> None:
    """The turn's own words come after what the conversation holds already."""
    own, run.opening = run.opening, ()
    if joined.segment is None:
        return
    last, state = joined.segment, run.state
    if joined.journal is not None:
        state = state.model_copy(update={"journal": joined.journal})
    run.take_over(state, Transcript(last.end, last.head), (last,))
    if joined.shows_journal:
        run.transcript.append(journal_of(state.journal, "", ""))
    for part in own:
        run.transcript.append(part)


async def take_snapshot(run: LiveRun, shown: str | None = None) -> None:
    """As the project defines the agent now; not where a person has decided on another definition, `shown`."""
    request = OpeningRequest(
        agent=run.state.agent,
        length=run.transcript.length,
        head=run.transcript.head,
        depth=run.state.assignment.depth if run.state.assignment else 0,
        max_depth=run.state.requested.get("max_depth"),
        execution=run.state.execution,
    )
    try:
        opening: Opening = await run.halt.stoppable(filed(Runs.open_run, request, "read agent, tools and limits"))
    except ActivityError as error:
        fail(run, error, RunFailure.bad_project)
        return
    if shown not in (None, opening.definition):
        return
    _apply_ceiling(run, opening)
    run.update(
        agent=opening.agent,
        model=opening.model,
        definition=opening.definition,
        tools=opening.tools,
        workspace=opening.workspace,
        peers=opening.peers,
        mailboxes=opening.mailboxes,
        key_id=run.state.key_id if run.state.definition else opening.key_id,
        limits=in_force(run.state, opening.limits),
        sessions=opening.sessions,
        secret=run.state.secret or opening.secret,  # what has been handed out keeps its nonce
        answer_keys=run.state.answer_keys or opening.answer_keys,  # those that the run began with bind it
        window=None,  # of another model, perhaps
    )


def _apply_ceiling(run: LiveRun, opening: Opening) -> None:
    """Take the project's ceiling over. What the start asks beyond it is reported once, at the first snapshot."""
    if not run.state.definition:
        for excess in format_excess(with_requested(opening.limits, run.state.requested), opening.ceiling):
            run.ignore("limits", excess)
    run.update(ceiling=opening.ceiling)


async def _read_conversation(run: LiveRun) -> Joined:
    request = JoinRequest(conversation_id=run.state.conversation_id or "", after=run.after, forget=run.forget)
    joined: Joined = await filed(Conversations.join_conversation, request, "read the conversation so far")
    return joined
