"""A signature holds for one answer to one question of one run, and for nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.answer_keys import AnswerKeys, MissingKeyError, format_public, read_answer_keys
from perdure.codec import InvalidKeysError
from perdure.contracts.people import Sender
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.decisions.people.signature import SignedQuestion, add_signature, signature_error

ONE = "k1:" + "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
OTHER = "k2:" + "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI="
KEYS = read_answer_keys(ONE)
WORD = st.text(max_size=200)
ASKED = SignedQuestion("r1", "e1", "q1", "c1")
APPROVAL = HumanInput(question_id="q1", call="c1", decision=Decision.approve, by="ann", sender=Sender(door="cli"))
SIGNED = add_signature("r1", "e1", APPROVAL, "k1", KEYS.secret["k1"])


def test_a_signed_answer_holds_and_an_unsigned_one_does_where_no_key_is_named() -> None:
    assert signature_error(KEYS.public, ASKED, SIGNED) is None
    assert signature_error({}, ASKED, APPROVAL) is None
    assert "not signed" in str(signature_error(KEYS.public, ASKED, APPROVAL))


@pytest.mark.parametrize(
    "changed",
    [
        {"decision": Decision.approve_tool},
        {"text": "5"},
        {"by": "eva"},
        {"sender": Sender(door="gateway", token="ann")},
        {"sender": None},
        {"call": "c2"},
        {"call": None},
        {"question_id": "q2"},
        {"question_id": None},
        {"signature": "k2:" + str(SIGNED.signature).partition(":")[2]},
        {"signature": "k1:"},
        {"signature": "k1"},
        {"signature": ":::"},
        {"signature": "k1:ä"},
    ],
)
def test_a_changed_answer_does_not(changed: dict[str, Any]) -> None:
    assert signature_error(KEYS.public, ASKED, SIGNED.evolve(**changed)) is not None


@pytest.mark.parametrize(
    "asked",
    [
        SignedQuestion("r2", "e1", "q1", "c1"),
        SignedQuestion("r1", "e2", "q1", "c1"),
        SignedQuestion("r1", "e1", "q2", "c1"),
        SignedQuestion("r1", "e1", "q1"),
    ],
)
def test_it_answers_no_other_run_execution_question_or_call(asked: SignedQuestion) -> None:
    assert signature_error(KEYS.public, asked, SIGNED) is not None


@given(st.builds(HumanInput, question_id=WORD, call=st.none() | WORD, text=st.none() | st.text(), by=WORD))
def test_whatever_is_said_can_be_signed_and_checked_after_the_way_through_history(answer: HumanInput) -> None:
    asked = SignedQuestion("r1", "e1", str(answer.question_id), answer.call)
    signed = add_signature("r1", "e1", answer, "k1", KEYS.secret["k1"])
    came = HumanInput.model_validate_json(signed.model_dump_json(exclude_none=True))
    assert signature_error(KEYS.public, asked, came) is None


def test_the_first_key_that_the_run_takes_signs() -> None:
    both = read_answer_keys(f"{OTHER},{ONE}")
    assert str(both.sign_for("r1", "e1", KEYS.public, APPROVAL).signature).startswith("k1:")
    assert str(both.sign_for("r1", "e1", both.public, APPROVAL).signature).startswith("k2:")
    assert both.sign_for("r1", "e1", {}, APPROVAL) == APPROVAL


@pytest.mark.parametrize("held", [OTHER, "k1:" + OTHER.partition(":")[2], f"k1:public:{KEYS.public['k1']}"])
def test_without_the_secret_key_the_error_names_it(held: str) -> None:
    with pytest.raises(MissingKeyError, match="only answers signed with key k1"):
        read_answer_keys(held).sign_for("r1", "e1", KEYS.public, APPROVAL)


def test_a_public_key_checks_what_its_secret_one_signs() -> None:
    assert read_answer_keys(format_public(KEYS)) == AnswerKeys(KEYS.public)


@pytest.mark.parametrize("text", ["k1", "k1:public:", "k1:short", f"{ONE},{ONE}", "k1:private:" + ONE[3:]])
def test_keys_that_are_none_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidKeysError) as refused:
        read_answer_keys(text)
    assert ONE[3:] not in str(refused.value)
