"""The person of a play, who answers its questions as a case or a record says."""

from typing import cast

import pytest
from temporalio.client import Client

from perdure.client.errors import TemporalUnavailableError
from perdure.contracts.run.signals import HumanInput, QuestionKind
from perdure.contracts.run.state import QuestionView
from perdure.features.proof import play
from perdure.features.proof.play import Person
from perdure.terminal.prompt import parse_answer

CLIENT = cast("Client", None)


def question(number: int) -> QuestionView:
    return QuestionView(id=f"q{number}", kind=QuestionKind.question, text=f"which {number}?", options=())


class Run:
    """A run that takes answers, unless its server is away."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, str | None]] = []
        self.is_away = False

    async def take(self, _: Client, run_id: str, body: HumanInput) -> None:
        if self.is_away:
            raise TemporalUnavailableError("it is away")
        self.answers.append((run_id, body.text))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    run = Run()
    monkeypatch.setattr(play, "submit_answer", run.take)
    return run


def make_person(*lines: str) -> Person:
    left = list(lines)

    async def choose(question: QuestionView) -> HumanInput | None:
        return parse_answer(question, left.pop(0)) if left else None

    return Person(CLIENT, choose)


async def test_a_question_is_answered_once_in_each_run(run: Run) -> None:
    person = make_person("a", "b")
    for run_id in ("r", "r", "r.1-sub"):
        assert await person.answer(run_id, question(1))
    assert run.answers == [("r", "a"), ("r.1-sub", "b")]
    assert person.asked == ["which 1?", "which 1?"]


async def test_an_answer_that_could_not_be_sent_is_sent_again_and_no_later_one_in_its_place(run: Run) -> None:
    person = make_person("a", "b")
    run.is_away = True
    with pytest.raises(TemporalUnavailableError):
        await person.answer("r", question(1))
    run.is_away = False
    assert await person.answer("r", question(1))
    assert await person.answer("r", question(2))
    assert run.answers == [("r", "a"), ("r", "b")]


async def test_a_question_without_an_answer_stays_open(run: Run) -> None:
    person = make_person()
    assert not await person.answer("r", question(1))
    assert not await person.answer("r", question(1))
    assert (run.answers, person.asked) == ([], ["which 1?"])
