"""Messages of a delegation with external peers: a dispatch to their mailbox, and the reply."""

import asyncio
from datetime import timedelta

from temporalio import workflow

from activities.mailbox.client import Mailboxes
from contracts.delegation import Collected, DelegationRequest, DelegationState, Subtask, SubtaskStatus
from contracts.mail.peers import Dispatch, MailDispatch, MailReply, ReplyVerdict
from decisions import delegation, ids
from decisions.text import formatting
from workflows.cancellation import Cancellation
from workflows.policies import FILES

REMINDER, MAX_REMINDER = (
    timedelta(hours=1),
    timedelta(days=1),
)  # between repeats: a mailbox may have forgotten the dispatch


class PeerMail:
    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._replies: dict[str, MailReply] = {}

    def take_reply(self, request: DelegationRequest, state: DelegationState, reply: MailReply) -> ReplyVerdict:
        """Judge a reply, and store the first valid one."""
        verdict = delegation.judge_reply(request, state, reply)
        if verdict is ReplyVerdict.resolved and reply.subtask_id in self._replies:
            return ReplyVerdict.already_done
        if verdict is ReplyVerdict.resolved:
            self._replies[reply.subtask_id] = reply
        return verdict

    async def run_subtask(self, request: DelegationRequest, subtask: Subtask) -> Collected:
        """Dispatch the subtask and wait for its reply. Withdraw a dispatch without a reply."""
        await _dispatch_mail(request, subtask)
        end = await self._wait_for_end(request, subtask)
        reply = self._replies.get(subtask.id)
        if reply is None or reply.mailbox != subtask.agent:  # the mailbox of the reply knows it by itself
            await _dispatch_mail(request, subtask, withdraw=True)
        reply = self._replies.get(subtask.id)  # its sender got the verdict that it counts
        return delegation.collect_reply(request, reply) if reply is not None else end

    async def _wait_for_end(self, request: DelegationRequest, subtask: Subtask) -> Collected:
        """Wait for the reply. Return the subtask's end without one."""
        deadline = None if subtask.timeout is None else workflow.time() + subtask.timeout.total_seconds()
        pause = REMINDER.total_seconds()
        while True:
            remaining = None if deadline is None else max(deadline - workflow.time(), 0.001)
            is_last = remaining is not None and remaining <= pause
            try:
                await self._cancellation.cancellable(self._wait_for_reply(subtask, remaining if is_last else pause))
            except TimeoutError:
                if is_last:
                    outcome = f"its time of {subtask.timeout} was used up"
                    return Collected(status=SubtaskStatus.timed_out, outcome=outcome)
            except asyncio.CancelledError:
                break
            else:
                break
            await _dispatch_mail(request, subtask)
            pause = min(2 * pause, MAX_REMINDER.total_seconds())
        return Collected(status=SubtaskStatus.cancelled, outcome="it was cancelled")

    async def _wait_for_reply(self, subtask: Subtask, limit: float | None) -> None:
        await workflow.wait_condition(
            lambda: subtask.id in self._replies,
            timeout=limit,
            timeout_summary=formatting.truncate(f"the reply of {subtask.agent} about {subtask.id}", 200),
        )


async def _dispatch_mail(request: DelegationRequest, subtask: Subtask, *, withdraw: bool = False) -> None:
    dispatch = Dispatch(
        delegation=workflow.info().workflow_id,
        plan_id=request.id_base,
        task_id=ids.delegated_task_id(request.id_base, request.step),
        subtask_id=subtask.id,
        sender=request.agent,
    )
    mail = MailDispatch(agent=subtask.agent, dispatch=dispatch, withdraw=withdraw)
    verb = "take back" if withdraw else "send"
    summary = formatting.truncate(f"{verb} {subtask.id} · {subtask.agent}", 200)
    await workflow.execute_activity_method(Mailboxes.dispatch_mail, mail, summary=summary, **FILES)
