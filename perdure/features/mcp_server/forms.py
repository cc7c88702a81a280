"""Questions as elicitations. A question in words is a form; whatever has an effect is a link to the gateway's page.

A model may fill a form by itself, so no form approves, settles or spends anything.
"""

from typing import Any
from urllib.parse import quote

from mcp_types import ClientCapabilities, ElicitResult
from pydantic import ValidationError

from perdure.client.errors import RejectedError
from perdure.contracts.run.signals import Decision, HumanInput, QuestionKind
from perdure.contracts.run.state import QuestionView
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.formatting import truncate
from perdure.decisions.text.visible_text import render_visible

ANSWER = "answer"  # the one field of a form
DECLINED = "The person declined to answer."
MAX_MESSAGE = 4000  # characters
FORM_KINDS = (QuestionKind.question, QuestionKind.choice, QuestionKind.thrash, QuestionKind.recovery)


def is_in_words(question: QuestionView) -> bool:
    """Return whether words answer the question, without any other effect."""
    return question.kind in FORM_KINDS and not (question.call or question.link or question.terms)


def request_key_of(question: QuestionView) -> str:
    """Return the key of a question. One that a person or the time has changed is another request."""
    is_first = not (question.revision or question.group)
    return question.id if is_first else f"{question.id}.{question.revision}.{question.group}"


def page_of(public_url: str | None, run_id: str) -> str | None:
    """Return the address of a run on the gateway's page, if that is known."""
    return f"{public_url.rstrip('/')}/#{quote(run_id, safe='')}" if public_url else None


def to_request(question: QuestionView, page: str | None, client: ClientCapabilities | None) -> dict[str, Any] | None:
    """Return the question as a request to this client; None if the client cannot show it."""
    if not is_in_words(question):
        return to_link(question.kind, question.text, page, client)
    elicitation = client.elicitation if client else None
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):  # neither of them means forms
        return None
    message = _message(question.kind, question.text)
    return _elicit({"mode": "form", "message": message, "requestedSchema": _schema_of(question)})


def to_link(kind: str, text: str, page: str | None, client: ClientCapabilities | None) -> dict[str, Any] | None:
    """Return a question of this kind as a link to the page; None if the client shows no links, or there is no page."""
    elicitation = client.elicitation if client else None
    if elicitation is None or elicitation.url is None or page is None:
        return None
    return _elicit({"mode": "url", "message": _message(kind, text), "url": page})


def _elicit(params: dict[str, Any]) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": params}


def _message(kind: str, text: str) -> str:
    return truncate(render_visible(f"{QUESTIONS[kind].title}: {text}"), MAX_MESSAGE)


def _schema_of(question: QuestionView) -> dict[str, Any]:
    options = [render_visible(option) for option in question.options]
    field: dict[str, Any] = {"type": "string", "title": "Answer", "minLength": 1}
    if question.kind == QuestionKind.choice:
        field["enum"] = options
    elif options:
        field["description"] = f"{', '.join(options)}, or other words"
    return {"type": "object", "properties": {ANSWER: field}, "required": [ANSWER]}


def to_answer(question: QuestionView, response: Any, by: str) -> HumanInput | None:
    """Return a client's response as an answer; None leaves the question open for people. Raises RejectedError.

    A client without a person cancels by itself, so that is no answer. A question is declined in words; the other kinds
    have no such answer.
    """
    try:
        given = ElicitResult.model_validate(response)
    except ValidationError:
        raise RejectedError(
            f"{request_key_of(question)}: expected action accept, decline or cancel, and content"
        ) from None
    match given.action:
        case "accept":
            return _accepted(question, (given.content or {}).get(ANSWER), by)
        case "decline" if question.kind == QuestionKind.question:
            return HumanInput(question_id=question.id, text=DECLINED, by=by)
        case _:
            return None


def _accepted(question: QuestionView, said: Any, by: str) -> HumanInput:
    if not isinstance(said, str) or not said.strip():
        raise RejectedError(f"{request_key_of(question)}: content.{ANSWER} must be a text")
    row = QUESTIONS[question.kind]
    if said in row.decisions:
        return HumanInput(question_id=question.id, decision=Decision(said), by=by)
    shown = {render_visible(option): option for option in question.options}
    return HumanInput(question_id=question.id, text=shown.get(said, said), by=by)
