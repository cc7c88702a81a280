"""A turn that ends without an answer does not spoil its conversation: what may be the cause is not sent again."""

from collections.abc import Callable
from typing import Any

import pytest

from perdure.client.lanes import RequestRejectedError, forget_lane_turn
from perdure.contracts.bounds import Backoff
from perdure.contracts.tool import Effect
from perdure.testkit.model_server import ScriptedAnswer, calls, fails, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld
from tests.workflows.lane import echo, new_id, run_of, say, turn_ends, until_idle, wait_for_question
from tests.workflows.script import texts, tool_results

FILTERED = fails(400, message="the content filter refused this")


def filters(
    otherwise: Callable[[dict[str, Any]], ScriptedAnswer], refusal: ScriptedAnswer = FILTERED
) -> Callable[..., ScriptedAnswer]:
    """As a provider with a content filter: it reads the whole conversation each time."""
    return lambda body: refusal if "POISON" in str(body["messages"]) else otherwise(body)


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (FILTERED, "ModelRefused"),
        (fails(500, message="template error"), "ModelUnavailable"),
        (says("no", stop_reason="refusal"), "model_declined"),
        (says("", stop_reason="end_turn"), "ModelUnusable"),
        (says("cut o", stop_reason="max_tokens"), "ModelUnusable"),
    ],
)
async def test_a_message_that_the_model_does_not_answer_is_not_sent_again(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, refusal: ScriptedAnswer, kind: str
) -> None:
    monkeypatch.setattr("perdure.activities.model.turn.PAUSES", Backoff(0.01, 0.01, retries=5))
    chat = new_id()
    async with world(filters(echo, refusal)) as it:
        await say(it, chat, "my name is Ada")
        await say(it, chat, "POISON")
        await say(it, chat, "what is 1 + 1?")
        view = await until_idle(it, chat, 3)
        last = it.model.requests[-1]
    assert [end for _, end in turn_ends(view)][::2] == ["completed", "completed"]
    assert texts(last) == [
        "my name is Ada",
        "you said: my name is Ada",
        f"[An earlier turn ended without an answer: {kind}. The user's message of that turn was left out.]",
        "what is 1 + 1?",
    ]


async def test_an_effect_before_the_refusal_is_kept_without_its_result(world: MakeWorld) -> None:
    chat = new_id()
    paid: list[int] = []

    def pay(*_: Any) -> str:
        paid.append(1)
        return "POISON in a receipt"

    def pays_once(body: dict[str, Any]) -> ScriptedAnswer:
        return calls(("pay", {}), text="I pay") if texts(body)[-1] == "pay it" else echo(body)

    async with world(filters(pays_once), ScriptedTool("pay", pay, effect=Effect.once)) as it:
        await say(it, chat, "pay it")
        await say(it, chat, "is it paid?")
        view = await until_idle(it, chat, 2)
        last = it.model.requests[-1]
        await it.replay()
    assert turn_ends(view) == [("pay it", "failed"), ("is it paid?", "completed")]
    assert (len(paid), tool_results(last)) == (1, ["(done; the result was left out)"])
    assert texts(last)[:2] == ["pay it", "I pay"]


async def test_a_turn_terminated_before_its_answer_is_left_out_with_a_note(world: MakeWorld) -> None:
    chat = new_id()
    async with world(filters(echo, fails(529, retry_after=60))) as it:
        await say(it, chat, "my name is Ada")
        first = await say(it, chat, "POISON")
        await it.until(lambda: len(it.model.requests) >= 2)
        await run_of(it, first).terminate("its worker was killed by it")
        await say(it, chat, "what is 1 + 1?")
        view = await until_idle(it, chat, 3)
        last = it.model.requests[-1]
    assert [end for _, end in turn_ends(view)] == ["completed", "cancelled", "completed"]
    assert "POISON" not in str(last)
    assert "[An earlier turn ended without an answer: Terminated." in texts(last)[2]


async def test_a_person_takes_a_turn_out_of_the_conversation(world: MakeWorld) -> None:
    """Also one that is in the middle of it, and while another turn runs; its calls are announced, and once."""
    chat = new_id()

    def pays(body: dict[str, Any]) -> ScriptedAnswer:
        match texts(body)[-1], body["messages"][-1]["content"][0]["type"]:
            case "pay it", "text":
                return calls(("pay", {}), text="I pay")
            case "ask", "text":
                return calls(("ask_human", {"question": "which one?"}))
            case _:
                return echo(body)

    async with world(pays, ScriptedTool("pay", lambda *_: "paid", effect=Effect.once)) as it:
        await say(it, chat, "my name is Ada")
        paid = await say(it, chat, "pay it")
        await until_idle(it, chat, 2)
        asking_turn = await say(it, chat, "ask")
        question = await wait_for_question(it, asking_turn)
        gone = await forget_lane_turn(it.client, chat, paid.run_id)
        with pytest.raises(RequestRejectedError, match="is not among the latest turns"):
            await forget_lane_turn(it.client, chat, paid.run_id)
        await say(it, chat, "red", question_id=question["id"])
        await until_idle(it, chat, 4)
        assert (await forget_lane_turn(it.client, chat)).run_id == asking_turn.run_id
        await say(it, chat, "and now?")
        await until_idle(it, chat, 5)
        await say(it, chat, "and then?")
        view = await until_idle(it, chat, 6)
        last = it.model.requests[-1]
    assert (gone.asked, [turn.asked for turn in view.recent if turn.forgotten]) == ("pay it", ["pay it", "ask"])
    note = "[A person took an earlier turn out of the conversation.{}]"
    assert texts(last) == [
        "my name is Ada",
        "you said: my name is Ada",
        note.format(" Calls in what was left out: pay (step 1): done. They are not undone."),
        note.format(" Calls in what was left out: ask_human (step 1): done. They are not undone."),
        "and now?",
        "you said: and now?",
        "and then?",
    ]
