"""`Mailbox`: admits messages that come to an agent as files, and follows them to their end (C2 to C5, C7, C8, D2, D6).

Handlers judge and append, without waiting. The loop gives due tasks to the folders' bridges, one `carry` at a time in
each folder, and looks at runs whose end was not reported. A task that was lost is given out again.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, is_cancelled_exception

from activities.mailbox.client import Mailboxes
from activities.telemetry.attributes import AGENT_NAME, format_keyword
from activities.telemetry.metrics import add_counts
from contracts.conversation import LaneFault
from contracts.mail.commands import BridgeBatch, BridgeResults
from contracts.mail.delivery import InboxMessage
from contracts.mail.mailbox import (
    DeadLetter,
    DeliverRequest,
    GiveUp,
    InputPicked,
    MailboxStart,
    MailboxState,
    MailboxView,
    Redeliver,
    TurnEnded,
    TurnLookup,
)
from contracts.mail.message import MAX_MAIL_NAME
from contracts.mail.peers import Dispatch
from decisions import ids, telemetry
from decisions.mailbox import capacity, commands, peers, view
from decisions.mailbox import state as mailbox
from decisions.text.formatting import truncate
from workflows.cancellation import Cancellation
from workflows.handlers import (
    ValidatedWorkflow,
    ignore_if_invalid,
    invalid_input,
    read_argument,
    read_optional_argument,
    start_type,
)
from workflows.policies import CARRYING, LOOKING_AT_TURNS, WAIT_FOR_END
from workflows.rotation import Rotation, continue_as_new
from workflows.search_attributes import ShownAttributes

MAX_REST_WAIT = timedelta(seconds=10)  # for running activities, before the mailbox continues as new without them
BRIDGE_REST = timedelta(seconds=30)  # of a folder whose bridge has returned a bad answer
LOOK = ""  # the name of the task that looks at runs; other tasks have the name of their folder

Change = Callable[[MailboxState], MailboxState]  # the effect of a task that has ended


@workflow.defn
class Mailbox(ValidatedWorkflow[MailboxState]):
    """The mailbox of an agent: each message that arrives as a file is admitted once.

    Input: `{"agent"}`. It stays open for later messages.
    """

    UNKNOWN_SIGNAL = "no such signal; there are redeliver, turn_ended, input_picked, give_up, dispatch and withdraw"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        super().__init__(_begin_mailbox, args)
        self._cancellation = Cancellation()
        self._rotation = Rotation()
        self._running: dict[str, asyncio.Task[Change]] = {}  # by folder, and `LOOK`
        self._rests: dict[str, datetime] = {}
        self._alarm: tuple[datetime, asyncio.Task[None]] | None = None

    @workflow.run
    async def run(self, *args: Any) -> None:  # noqa: ARG002 - read by __init__; Temporal wants both alike
        ShownAttributes().show_once(AGENT_NAME, format_keyword(self._box.agent))
        await self._cancellation.shield(self._run_loop())
        if self._cancellation.reason is not None:
            raise asyncio.CancelledError
        continue_as_new(self._box)

    @property
    def _box(self) -> MailboxState:
        return self.context

    @_box.setter
    def _box(self, state: MailboxState) -> None:
        """Set the next state, and report the messages that it makes dead letters."""
        before, self.context = self.context, state
        for dead in mailbox.newly_dead(before, state):
            _report_dead_letter(state.agent, dead)
        workflow.set_current_details(view.format_mailbox_details(state))

    async def _run_loop(self) -> None:
        """Make moves until the mailbox continues as new or is cancelled, and no activity is running."""
        while not self._is_to_leave():
            self._set_alarm()
            await workflow.wait_condition(self._is_due)
            self._rotation.decide()
            if (due := self._next_move()) is not None:
                due()
        await self._come_to_rest()

    def _is_due(self) -> bool:
        return bool(self._next_move()) or self._has_rung() or self._is_to_leave() or self._rotation.is_undecided

    def _is_to_leave(self) -> bool:
        return self._cancellation.reason is not None or self._rotation.is_due

    def _next_move(self) -> Callable[[], None] | None:
        """Return the most urgent move that is due."""
        over = next((name for name, task in self._running.items() if task.done()), None)
        if over is not None:
            return partial(self._close, over)
        now = workflow.now()
        for folder in commands.folders_with_work(self._box):
            is_free = folder not in self._running and self._rests.get(folder, now) <= now
            if is_free and commands.next_orders(self._box, folder, now):
                return partial(self._start_carry, folder)
        if LOOK not in self._running and (silent := commands.stale_letters(self._box, now)):
            return partial(self._start_look, silent)
        return None

    def _close(self, name: str) -> None:
        task = self._running.pop(name)
        if not task.cancelled():
            self._box = task.result()(self._box)

    def _has_rung(self) -> bool:
        return self._alarm is not None and self._alarm[1].done()

    def _set_alarm(self) -> None:
        """Set a timer for the next change. An early one is harmless, and costs less than a new one for each message."""
        now = workflow.now()
        if self._has_rung():
            self._alarm = None
        times = [commands.next_change(self._box, now), *self._rests.values()]
        soonest = min((time for time in times if time is not None and time > now), default=None)
        if soonest is None or (self._alarm is not None and self._alarm[0] <= soonest):
            return
        if self._alarm is not None:
            self._alarm[1].cancel()
        seconds = (soonest - now).total_seconds() + 0.001
        self._alarm = soonest, asyncio.create_task(workflow.sleep(seconds, summary="look again"))

    def _start_carry(self, folder: str) -> None:
        self._rests.pop(folder, None)
        self._box, request = commands.issue_batch(self._box, folder, workflow.now())
        self._running[folder] = asyncio.create_task(self._run_carry(request))

    async def _run_carry(self, request: BridgeBatch) -> Change:
        """Have a bridge carry out a request. Its answer is validated: a bad one must not wedge the mailbox."""
        try:
            answer: Any = await workflow.execute_activity(
                "carry",
                request,
                task_queue=ids.mail_queue(request.folder),
                summary=view.summarize_orders(request.orders),
                cancellation_type=WAIT_FOR_END,
                **CARRYING,
            )
            carried = read_argument(BridgeResults, [answer])
            if len(carried.done) != len(request.orders):
                raise invalid_input(f"{len(request.orders)} orders, and {len(carried.done)} answers")
        except ActivityError as error:
            is_cancelled = is_cancelled_exception(error) or error.retry_state is RetryState.CANCEL_REQUESTED
            reason = "" if is_cancelled else str(error.cause)
        except ApplicationError as error:
            reason = error.message
        else:
            return lambda state: commands.apply_results(state, request, carried, workflow.now())
        if reason:
            self._rests[request.folder] = workflow.now() + BRIDGE_REST
            self.ignore(f"carry in folder {truncate(request.folder, 40)}", reason)
        return lambda state: state

    def _start_look(self, letters: tuple[InboxMessage, ...]) -> None:
        self._running[LOOK] = asyncio.create_task(self._look_at_turns(letters))

    async def _look_at_turns(self, letters: tuple[InboxMessage, ...]) -> Change:
        request = commands.build_look_request(self._box, letters)
        answer: TurnLookup | None = None
        with suppress(ActivityError):
            answer = await workflow.execute_activity_method(
                Mailboxes.look_at_turns, request, summary=f"look at {len(letters)} runs", **LOOKING_AT_TURNS
            )
        return lambda state: commands.apply_look(state, letters, answer, workflow.now())

    async def _come_to_rest(self) -> None:
        """Wait briefly for running activities, and cancel the rest, whose tasks the next execution gives out again.

        By then the bridge has released the task, so no two bridges run it at the same time.
        """
        if self._cancellation.reason is None:
            try:
                await workflow.wait_condition(
                    lambda: self._cancellation.reason is not None or not self._running_tasks(),
                    timeout=MAX_REST_WAIT,
                    timeout_summary="what is under way",
                )
            except TimeoutError:
                workflow.logger.info("tasks that no bridge has carried out are given out again")
        for task in self._running_tasks():
            task.cancel()
        await workflow.wait_condition(lambda: not self._running_tasks())
        for name in list(self._running):
            self._close(name)

    def _running_tasks(self) -> list[asyncio.Task[Change]]:
        return [task for task in self._running.values() if not task.done()]

    @workflow.update(description='For bridges: {"folder", "deliveries"}. Returns a verdict for each')
    def deliver(self, *args: Any) -> dict[str, Any]:
        request = self._parse_delivery(args)
        self._box, delivered = mailbox.judge_deliveries(self._box, request.folder, request.deliveries, workflow.now())
        own = delivered.model_copy(update={"mailbox": workflow.info().first_execution_run_id})
        return own.model_dump(mode="json")

    @deliver.validator
    def _is_taken(self, *args: Any) -> None:
        self._parse_delivery(args)

    def _parse_delivery(self, args: Sequence[Any]) -> DeliverRequest:
        if self._cancellation.reason is not None:
            reason = f"the mailbox is being cancelled: {self._cancellation.reason}"
            raise ApplicationError(reason, type=LaneFault.lane_closing, non_retryable=True)
        self.context  # noqa: B018 - raises the error of a rejected start
        return read_argument(DeliverRequest, args)

    @workflow.signal(description='Redeliver dead letters: {"message_id"?, "file"?}; without either, all of them')
    @ignore_if_invalid
    def redeliver(self, *args: Any) -> None:
        request = read_optional_argument(Redeliver, args)
        self._box = mailbox.redeliver_dead_letters(self._box, request, workflow.now())

    @workflow.signal(description="For lanes: the end of a message's run")
    @ignore_if_invalid
    def turn_ended(self, *args: Any) -> None:
        self._box = mailbox.end_letter_turn(self._box, read_argument(TurnEnded, args), workflow.now())

    @workflow.signal(description="For bridges: a person has picked the file of an input")
    @ignore_if_invalid
    def input_picked(self, *args: Any) -> None:
        self._box = mailbox.record_pick(self._box, read_argument(InputPicked, args).key, workflow.now())

    @workflow.signal(description='Give up a message that waits for its inputs: {"message_id", "by"?}')
    @ignore_if_invalid
    def give_up(self, *args: Any) -> None:
        self._box = mailbox.give_up_letters(self._box, read_argument(GiveUp, args), workflow.now())

    @workflow.signal(description="For delegations: a subtask for this external agent")
    @ignore_if_invalid
    def dispatch(self, *args: Any) -> None:
        self._box = peers.add_dispatch(self._box, read_argument(Dispatch, args), workflow.now())

    @workflow.signal(description="For delegations: that subtask is no longer waited for")
    @ignore_if_invalid
    def withdraw(self, *args: Any) -> None:
        self._box = peers.withdraw_dispatch(self._box, read_argument(Dispatch, args), workflow.now())

    def note(self, notice: str) -> None:
        self._box = capacity.add_mailbox_notice(self._box, notice)

    @workflow.query(description="The messages in hand, and the latest that have ended", name="acks")
    def _mailbox_view(self, *_: Any) -> MailboxView:
        return view.mailbox_view(self._box)

    @workflow.query(description="Messages that have failed, and files that are not messages")
    def deadletters(self, *_: Any) -> tuple[DeadLetter, ...]:
        return self._box.dead


def _begin_mailbox(args: Sequence[Any]) -> MailboxState:
    """Return a new mailbox, or that of an earlier execution. Raises ApplicationError `InvalidInput`."""
    if start_type(args) == "mailbox.continue":
        return read_argument(MailboxState, args)
    own = workflow.info().workflow_id
    agent = own.removeprefix(ids.mailbox_workflow_id(""))
    if not 0 < len(agent) <= MAX_MAIL_NAME or own != ids.mailbox_workflow_id(agent):
        raise invalid_input(f"the workflow id is mailbox:<agent>, and the agent has 1 to {MAX_MAIL_NAME} characters")
    if read_optional_argument(MailboxStart, args).agent not in (None, agent):
        raise invalid_input(f"agent: this is the mailbox of {agent!r}")
    return MailboxState(agent=agent)


def _report_dead_letter(agent: str, dead: DeadLetter) -> None:
    name = "agent.mail.dead_letter"
    figures = dead.model_dump(mode="json", include={"plan", "file", "message_id", "attempt", "why"})
    workflow.logger.warning(name, extra={"event": {"event": name, "agent": agent, **figures}})
    add_counts(workflow.metric_meter(), telemetry.count_event(name, figures))
