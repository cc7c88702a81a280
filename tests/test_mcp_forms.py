"""Questions as MCP elicitations: which are forms, and what a client's response to one means."""

from typing import Any

import pytest
from mcp_types import ClientCapabilities

from perdure.client.errors import RejectedError
from perdure.contracts.run.signals import Decision, QuestionKind
from perdure.contracts.run.state import QuestionView, TermsView
from perdure.decisions.run.question import QUESTIONS
from perdure.features.mcp_server.forms import is_in_words, page_of, request_key_of, to_answer, to_request

PAGE = "https://agents.example/#r1"
BOTH = ClientCapabilities.model_validate({"elicitation": {"form": {}, "url": {}}})


def question(kind: str = "question", *options: str, **more: Any) -> QuestionView:
    return QuestionView(id="q1", kind=kind, text="What now?", options=options, **more)


@pytest.mark.parametrize("kind", QuestionKind)
def test_a_form_is_for_words_alone(kind: QuestionKind) -> None:
    request = to_request(question(kind), PAGE, BOTH)
    assert request is not None
    words = {QuestionKind.question, QuestionKind.choice, QuestionKind.thrash, QuestionKind.recovery}
    assert request["params"]["mode"] == ("form" if kind in words else "url")
    assert request["params"].get("url") == (None if kind in words else PAGE)


def test_every_kind_with_a_decision_that_has_an_effect_is_a_link() -> None:
    harmless = {Decision.proceed, Decision.stop}
    for kind, row in QUESTIONS.items():
        assert set(row.decisions) <= harmless or not is_in_words(question(kind))


@pytest.mark.parametrize(
    "more",
    [{"call": "digest"}, {"link": "v1/mcp/x/login"}, {"terms": (TermsView(approvers=("boss",), quorum=1),)}],
)
def test_a_question_about_a_call_a_login_or_for_a_group_is_a_link(more: dict[str, Any]) -> None:
    request = to_request(question("question", **more), PAGE, BOTH)
    assert request is not None
    assert request["params"]["mode"] == "url"


@pytest.mark.parametrize(
    ("declared", "words", "approval"),
    [
        ({}, False, False),
        ({"elicitation": {}}, True, False),
        ({"elicitation": {"form": {}}}, True, False),
        ({"elicitation": {"url": {}}}, False, True),
        ({"elicitation": {"form": {}, "url": {}}}, True, True),
    ],
)
def test_a_client_gets_what_it_declares(declared: dict[str, Any], words: bool, approval: bool) -> None:
    client = ClientCapabilities.model_validate(declared)
    assert (to_request(question(), PAGE, client) is not None) is words
    assert (to_request(question("approval"), PAGE, client) is not None) is approval
    assert to_request(question("approval"), None, client) is None
    assert to_request(question(), PAGE, None) is None


def test_a_changed_question_has_another_key() -> None:
    """A client that has answered a key takes a changed request under it for a fault of the server."""
    keys = [request_key_of(question("approval", **more)) for more in ({}, {"revision": 1}, {"group": 1})]
    assert keys == ["q1", "q1.1.0", "q1.0.1"]


def test_hidden_characters_are_shown_and_the_choice_is_the_one_that_was_offered() -> None:
    asked = question("choice", "a\u202eb", "c")
    request = to_request(asked, PAGE, BOTH)
    assert request is not None
    [shown, _] = request["params"]["requestedSchema"]["properties"]["answer"]["enum"]
    assert "\u202e" not in shown
    answer = to_answer(asked, {"action": "accept", "content": {"answer": shown}}, "ann")
    assert answer is not None
    assert (answer.text, answer.question_id, answer.by) == ("a\u202eb", "q1", "ann")


def test_words_may_be_a_decision_of_the_question_and_no_other_one() -> None:
    def decided(kind: str, text: str) -> Decision | None:
        answer = to_answer(question(kind), {"action": "accept", "content": {"answer": text}}, "ann")
        assert answer is not None
        return answer.decision

    assert decided("thrash", "continue") is Decision.proceed
    assert decided("thrash", "approve") is None
    assert decided("question", "continue") is None


@pytest.mark.parametrize(("kind", "is_answer"), [("question", True), ("choice", False), ("thrash", False)])
def test_a_decline_answers_a_question_alone_and_a_cancel_nothing(kind: str, is_answer: bool) -> None:
    assert (to_answer(question(kind), {"action": "decline"}, "ann") is not None) is is_answer
    assert to_answer(question(kind), {"action": "cancel", "content": {"answer": "x"}}, "ann") is None


@pytest.mark.parametrize("response", [None, [], "yes", {"action": "accept"}, {"action": "accept", "content": {}}])
def test_a_malformed_response_is_refused(response: object) -> None:
    with pytest.raises(RejectedError, match="q1: "):
        to_answer(question(), response, "ann")


def test_a_page_is_the_gateways_and_an_id_is_quoted() -> None:
    assert page_of("https://agents.example/", "a/b #c") == "https://agents.example/#a%2Fb%20%23c"
    assert page_of(None, "a") is None
