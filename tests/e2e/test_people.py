"""People and runs at the command line: what waits, how it is answered, and the handoff to a person."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.client.runs import wait_for_run_end
from perdure.contracts.run.state import RunStatus
from perdure.testkit.model_server import ScriptedModel, calls, fails
from tests.e2e.projects import MakeProject, Served, reply_by_goal, results_of, serve_with_worker, until_asked, use_model
from tests.waiting import until

TOOL = """
[tools.note]
kind = "python"
effect = "once"
approval = "always"
approval_timeout = "1h"
target = "notes:note"
"""
CODE = '''
def note(text: str) -> str:
    """Writes a line down."""
    return f"noted {text}"
'''
AGENT = "---\ntools: [note]\n---\nYou take notes.\n"
FINISH = calls(("finish", {"outcome": "done"}))
NOTE = calls(("note", {"text": "milk"}), text="Frame: a list for the shop")
SCRIPTS: dict[str, list[Any]] = {
    "note it": [NOTE, NOTE, FINISH],
    "note all": [calls(*(("note", {"text": text}) for text in ("milk", "bread", "salt"))), FINISH],
    "ask": [calls(("ask_human", {"question": "Which shop?"})), FINISH],
    "ask nothing": [calls(("ask_human", {})), FINISH],
    "give up": [calls(("escalate", {"reason": "the shop is [closed]"}), text="Frame: buy milk")],
    "break": [fails(401, message="no such key")],
}
HANDOFF = {"objective", "state", "blocker", "next"}


@pytest.fixture(scope="module")
async def shop(make_project: MakeProject) -> AsyncIterator[Served]:
    with ScriptedModel(reply_by_goal(SCRIPTS)) as model:
        project = make_project(**use_model(model))
        project.write_all({"perdure.toml": TOOL, "notes.py": CODE, "agents/clerk.md": AGENT})
        async with serve_with_worker(project) as served:
            yield served


async def start(shop: Served, goal: str, run_id: str) -> None:
    assert shop.perdure("run", "--detach", "--agent", "clerk", "--id", run_id, goal).code == 0


async def start_and_wait(shop: Served, goal: str, run_id: str) -> None:
    await start(shop, goal, run_id)
    await until_asked(shop.client, run_id)


async def test_a_call_is_approved_by_its_digest_and_another_denied_with_a_reason(shop: Served) -> None:
    await start_and_wait(shop, "note it", "noting")
    shown = shop.perdure("show", "noting").out
    digest = re.findall(r"q1, call ([0-9a-f]{24}), until 20", shown)[0]
    assert "asks     approve a call: note milk" in shown
    assert f"perdure approve noting --question q1 --call {digest}" in shown
    other = shop.perdure("approve", "noting", "--call", "c0ffee")
    assert (other.code, other.err) == (1, "perdure: question q1 is not about the call c0ffee\n")
    accepted = shop.perdure("approve", "noting", "--call", digest, "--by", "eva")
    call = f'q1, call {digest}: note milk\n\n{{\n  "text": "milk"\n}}\n'
    assert (accepted.code, accepted.out, accepted.err) == (0, "accepted\n", call)
    await until_asked(shop.client, "noting", "q2")
    assert shop.perdure("deny", "noting", "--question", "q2", "--reason", "one is enough").out == "accepted\n"
    assert (await wait_for_run_end(shop.client, "noting")).status == RunStatus.completed
    assert (await results_of(shop.client, "noting"))[:2] == [
        "noted milk",
        "denied: a person denied this call: one is enough",
    ]
    traced = shop.perdure("trace", "noting").out.splitlines()
    assert [line for line in traced if "←" in line] == ["  ← cli, as eva  approve", "  ← cli  deny: one is enough"]
    assert "  ✗ note milk  step 2  denied: a person denied this call: one is enough" in traced
    assert [line.partition("  ")[0] for line in traced if line.startswith("■")] == ["■ completed"]
    late = shop.perdure("deny", "noting")
    assert (late.code, len(late.err.splitlines())) == (1, 1)


async def test_all_calls_of_a_turn_are_shown_and_one_is_changed_and_the_others_approved_together(shop: Served) -> None:
    await start_and_wait(shop, "note all", "several")
    shown = shop.perdure("show", "several").out
    assert [text in shown for text in ("note milk", "note bread", "note salt", "perdure approve several --all")] == [
        True
    ] * 4
    several = shop.perdure("approve", "several")
    assert (several.code, "name one of them: q1, q2, q3" in several.err) == (1, True)
    for wrong in ("[]", "{", "@nowhere.json", '{"text": "rye", "text": "white"}'):
        assert "--arguments" in shop.perdure("approve", "several", "--question", "q2", "--arguments", wrong).err
    edits = ("approve", "several", "--question", "q2", "--edit")
    for editor in ("/nosuch/editor", "false"):
        failed = shop.perdure(*edits, EDITOR=editor, VISUAL="")
        assert (failed.code, failed.out, len(failed.err.splitlines())) == (1, "", 1)
        assert "the editor of $VISUAL or $EDITOR does not work" in failed.err
    refused = shop.perdure("approve", "several", "--question", "q2", "--arguments", '{"text": 5}')
    assert (refused.code, "the changed arguments cannot be used" in refused.err) == (1, True)
    changed = shop.perdure(
        "approve", "several", "--question", "q2", "--arguments", '{"text": "rye bread"}', "--by", "eva"
    )
    assert changed.out == "accepted\n"
    together = shop.perdure("approve", "several", "--all").out.splitlines()
    assert [line.partition(":")[0] for line in together] == ["q1", "q3"]
    assert (await wait_for_run_end(shop.client, "several")).status == RunStatus.completed
    milk, bread, salt = (await results_of(shop.client, "several"))[:3]
    assert (milk, salt) == ("noted milk", "noted salt")
    assert bread == 'eva changed the arguments of this call to {"text": "rye bread"}. Its result:\nnoted rye bread'
    record = json.loads(shop.perdure("trace", "several", "--export", "-").out)
    proposed = next(call for call in record["calls"] if call["arguments"] == {"text": "bread"})
    assert (proposed["made"][0]["arguments"], proposed["made"][0]["outcome"]["result"]) == (
        {"text": "rye bread"},
        "noted rye bread",
    )
    answers = {question["id"]: question["answers"] for question in record["questions"]}
    assert [answers[name][0]["decision"] for name in ("q1", "q2", "q3")] == ["approve"] * 3
    assert answers["q2"][0]["arguments"] == {"text": "rye bread"}


async def test_a_tool_is_approved_for_the_rest_of_a_run(shop: Served) -> None:
    await start_and_wait(shop, "note it", "trusted")
    assert shop.perdure("approve", "trusted", "--tool").out == "accepted\n"
    assert (await wait_for_run_end(shop.client, "trusted")).status == RunStatus.completed


async def test_what_waits_for_a_person_is_listed_whatever_its_cause_and_nothing_else(shop: Served) -> None:
    await start(shop, "ask", "asking")
    await start_and_wait(shop, "note it", "approving")
    await until_asked(shop.client, "approving")
    await until(lambda: len(shop.perdure("list", "--waiting", "--json").rows()) == 2)
    listed = shop.perdure("list", "--waiting", "--json").rows()
    assert {row["run_id"]: row["waiting_for"] for row in listed} == {
        "asking": "human: asks: Which shop?",
        "approving": "human: approve note",
    }
    table = shop.perdure("list", "--waiting").out
    assert "  asks: Which shop?\n" in table
    assert "  approve note\n" in table
    assert 'perdure answer asking --question q1 "…"' in shop.perdure("show", "asking").out
    inbox = shop.perdure("questions").out
    assert '  perdure answer asking --question q1 "…"\n' in inbox
    assert "  perdure show approving\n" in inbox
    [row] = shop.perdure("questions", "--tool", "note", "--kind", "approval", "--for", "eva", "--json").rows()
    assert (row["run_id"], row["question"]["arguments"]) == ("approving", {"text": "milk"})
    assert shop.perdure("questions", "--older-than", "1d").out == "no such question is open\n"
    wrong = shop.perdure("approve", "asking")
    assert (wrong.code, wrong.err) == (1, "perdure: question q1 takes a text\n")
    assert shop.perdure("answer", "asking", "the near one").out == "accepted\n"
    assert shop.perdure("cancel", "approving").out.splitlines()[-1] == "cancelled"
    await until(lambda: shop.perdure("list", "--waiting").out == "no run waits for a person\n")


@pytest.mark.parametrize(
    ("goal", "run_id", "objective", "blocker"),
    [
        ("give up", "given-up", "buy milk", "the shop is [closed]"),
        ("break", "broken", "break", "the provider refused the request (401): no such key"),
    ],
)
async def test_an_escalated_or_failed_run_shows_a_handoff(
    shop: Served, goal: str, run_id: str, objective: str, blocker: str
) -> None:
    await start(shop, goal, run_id)
    end = await wait_for_run_end(shop.client, run_id)
    run = json.loads(shop.perdure("show", run_id, "--json").out)
    assert run["end"]["status"] == run["status"] == end.status
    assert run["handoff"].keys() == HANDOFF
    assert (run["handoff"]["objective"], run["handoff"]["blocker"]) == (objective, blocker)
    lines = [" ".join(line.split()) for line in shop.perdure("show", run_id).out.splitlines()]
    for name, said in run["handoff"].items():
        assert f"{name} {said}" in lines


async def test_a_run_without_a_handoff_shows_none(shop: Served) -> None:
    await start_and_wait(shop, "ask", "stopped")
    assert json.loads(shop.perdure("show", "stopped", "--json").out)["handoff"] is None
    assert shop.perdure("cancel", "stopped").code == 0
    assert json.loads(shop.perdure("show", "stopped", "--json").out)["handoff"] is None
    assert "handoff" not in shop.perdure("show", "stopped").out


async def test_a_call_of_a_built_in_tool_that_was_refused_is_traced(shop: Served) -> None:
    await start(shop, "ask nothing", "asked nothing")
    assert (await wait_for_run_end(shop.client, "asked nothing")).status == RunStatus.completed
    refused = "  ✗ ask_human  step 1  invalid_arguments: `question` is required: ask one question, in a sentence"
    assert refused in shop.perdure("trace", "asked nothing").out.splitlines()


async def test_a_misspelt_decision_is_refused_with_those_that_the_question_takes(shop: Served) -> None:
    def refused(run_id: str, decision: str) -> str:
        done = shop.perdure("answer", run_id, "--decision", decision)
        assert (done.code, done.out) == (2, "")
        return str(done.err).partition(" (see ")[0]

    await start_and_wait(shop, "note it", "misspelt")
    said = (
        "perdure: invalid --decision 'aprove' (did you mean approve?); question q1 takes one of: approve, approve_tool"
    )
    assert refused("misspelt", "aprove") == f"{said}, deny"
    assert shop.perdure("cancel", "misspelt").code == 0
    assert refused("misspelt", "aprove").endswith("keep_old, continue, stop")
    await start_and_wait(shop, "ask", "in words")
    assert refused("in words", "yes") == "perdure: invalid --decision 'yes'; question q1 takes: a text"
    assert shop.perdure("cancel", "in words").code == 0


def test_an_answer_that_no_run_takes_is_wrong_usage(shop: Served) -> None:
    refused = shop.perdure("approve", "noting", "--by", "x" * 300)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "by: " in refused.err
    assert shop.perdure("answer", "nobody", "--decision", "continue").err == "perdure: there is no run nobody\n"
