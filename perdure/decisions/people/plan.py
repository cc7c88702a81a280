"""The plan of a run: the calls of a dry run that its starter approved. It counts as that person's approval alone."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.contracts.people import Sender
from perdure.contracts.run.events import DryCall, Plan, PlanInForce, ShownCall
from perdure.contracts.run.signals import Decision, HumanInput, Question, QuestionKind
from perdure.contracts.run.state import Call, RunState
from perdure.decisions.ids import call_digest
from perdure.decisions.run.call_state import current_call, replace_call
from perdure.decisions.text.formatting import truncate

MAX_SHOWN_CALL = 500  # characters


class PlanError(ValueError):
    """A plan whose dry run did not list its calls. The message is one line."""


def adopt_plan(plan: Plan, by: Sender | None) -> PlanInForce:
    """Return the plan of a start, which its sender approves. It is not looked up yet."""
    calls = tuple(ShownCall(**call.model_dump()) for call in plan.calls)
    return PlanInForce(run_id=plan.run_id, by=by, calls=calls)


def match_plan(plan: PlanInForce, listed: Sequence[DryCall]) -> PlanInForce:
    """Return the plan with its calls as they are shown. Raises PlanError unless the dry run listed each of them once.

    The digests are those of the listed arguments.
    """
    known = {(call.step, call.tool, call_digest(call.tool, call.arguments)): call for call in listed}
    calls: list[ShownCall] = []
    for call in plan.calls:
        found = known.pop((call.step, call.tool, call.call), None)
        if found is None:
            place = f"step {call.step}, {truncate(call.tool, 80)}"
            raise PlanError(f"{plan.run_id} did not list the call of {place}, or the plan names it twice")
        calls.append(_show_call(call.step, call.tool, found.arguments))
    return plan.evolve(calls=tuple(calls))


def take_from_plan(state: RunState, call: Call) -> tuple[RunState, Call]:
    """Take the call from the plan, in which it counts once; note a call that is not in it."""
    if state.planned is None or call.plan or call.approval is not None:
        return state, call
    shown = _show_call(call.step or 0, call.tool, call.arguments)
    planned = next((other for other in state.planned.calls if other.call == shown.call), None)
    if planned is None or state.answer_keys:  # answers must be signed, and a plan is not
        noted = tuple(dict.fromkeys((*state.unplanned, shown)))  # asked again in another execution
        return state.evolve(unplanned=noted), call
    remaining = tuple(other for other in state.planned.calls if other is not planned)
    state = state.evolve(planned=state.planned.evolve(calls=remaining))
    return replace_call(state, current_call(state, call).evolve(plan=state.planned.run_id if state.planned else ""))


def vote_of_plan(state: RunState, call: Call, question: Question) -> HumanInput | None:
    """Return the approval that the plan's starter gives by it, if the plan has the call."""
    if not call.plan or state.planned is None or question.kind is not QuestionKind.approval:
        return None
    return HumanInput(
        question_id=question.id,
        call=question.call,
        decision=Decision.approve,
        text=f"by the plan of the dry run {call.plan}",
        sender=state.planned.by,
    )


def _show_call(step: int, tool: str, arguments: Mapping[str, Any]) -> ShownCall:
    shown = truncate(f"{tool} {json.dumps(arguments, ensure_ascii=False)}", MAX_SHOWN_CALL)
    return ShownCall(step=step, tool=tool, call=call_digest(tool, arguments), shown=shown)
