"""A play: a run that is followed to its end, and whose questions are answered as a case or a record says."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from temporalio.client import Client

from perdure.client.run_events import WaitStarted
from perdure.client.run_list import find_run
from perdure.client.runs import query_run_state, submit_answer, wait_for_run_end
from perdure.client.watch import Watch
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.run.state import QuestionView, RunStatus

POLL_SECONDS = 0.5  # between queries of a run that does not answer


@dataclass
class Person:
    """Answers the questions of a play, each once. `asked` are the questions.

    `choose` returns the answer to a question, or None if there is none.
    """

    client: Client
    choose: Callable[[QuestionView], Awaitable[HumanInput | None]]
    asked: list[str] = field(default_factory=list)
    _chosen: dict[tuple[str, str], HumanInput | None] = field(default_factory=dict)  # by run and question
    _sent: set[tuple[str, str]] = field(default_factory=set)

    async def answer(self, run_id: str, question: QuestionView) -> bool:
        """Answer a question; False if there is no answer. One that could not be sent is sent again next time.

        Raises as `choose`; RejectedError, RunNotFoundError, TemporalUnavailableError.
        """
        key = (run_id, question.id)
        if key not in self._chosen:
            self.asked.append(question.text)
            self._chosen[key] = await self.choose(question)
        answer = self._chosen[key]
        if answer is not None and key not in self._sent:
            await submit_answer(self.client, run_id, answer)  # no person's key signs it
            self._sent.add(key)
        return answer is not None


async def play_to_end(client: Client, run_id: str, answer: Callable[[QuestionView], Awaitable[None]]) -> None:
    """Follow a run that was started to its end, and have its questions answered."""
    async for event in Watch(client, run_id).events():
        if isinstance(event, WaitStarted) and event.is_for_person:
            for question in await _open_questions(client, run_id):
                await answer(question)
    await wait_for_run_end(client, run_id)


async def _open_questions(client: Client, run_id: str) -> tuple[QuestionView, ...]:
    """Return the open questions, however slow the worker is; none if they were answered in the meantime."""
    while (await find_run(client, run_id)).status == RunStatus.waiting_on_human:
        view = await query_run_state(client, run_id)
        if view is not None and view.questions:
            return tuple(view.questions)
        await asyncio.sleep(POLL_SECONDS)
    return ()
