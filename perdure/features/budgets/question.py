"""The question whether to raise an allowance that is used up, and the effect of its answer."""

from datetime import UTC, datetime, timedelta

from perdure.activities.parts import WorkerParts
from perdure.contracts.people import Sender
from perdure.features.budgets.contract import AllowanceView, BudgetChange, Occasion, Terms
from perdure.features.budgets.rules import (
    budget_question_id,
    budgets_id,
    format_amount,
    format_share,
    format_whose,
    split_key,
)
from perdure.features.project_questions.contract import ProjectAnswer, QuestionInput

SUBJECT, RAISE, STOP = "budget", "raise", "stop"
CHANGED = "changed"  # the end of a question whose allowance was raised or reset, or whose window has ended


def budget_question(
    task_queue: str, key: str, terms: Terms, occasion: Occasion, seconds: float | None
) -> QuestionInput:
    """Return the question. It is open for so many seconds, until the window ends."""
    name, measure, value = split_key(key)
    share, step = format_share(measure, occasion.used, occasion.limit), format_amount(measure, terms.limit or 0)
    text = f"Budget {format_whose(name, value)}: {share} used, and what is left does not cover another call."
    return QuestionInput(
        id=budget_question_id(task_queue, key, occasion),
        subject=SUBJECT,
        text=f"{text} Raise it by {step} in this window, or stop the runs that need it?",
        options=(RAISE, STOP),
        approvers=terms.raise_by,
        expires_at=None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds),
        details={"key": key, "changes": occasion.changes, "terms": terms.model_dump(mode="json")},
    )


async def apply_budget_answer(parts: WorkerParts, question: QuestionInput, answer: ProjectAnswer) -> None:
    """Raise the allowance by its limit, or stop the runs that need it, unless the answer is late."""
    if answer.option not in (RAISE, STOP):
        return
    terms = Terms.model_validate(question.details["terms"])
    stops = answer.option == STOP
    change = BudgetChange(
        key=question.details["key"],
        amount=0 if stops else terms.limit or 0,
        stops=stops,
        only_after=question.details["changes"],
        terms=terms,
        sender=Sender(door="question", person=answer.by or None, groups=terms.raise_by),
    )
    handle = parts.client.get_workflow_handle(budgets_id(parts.task_queue))
    await handle.execute_update("change_allowance", change, id=question.id, result_type=AllowanceView)
