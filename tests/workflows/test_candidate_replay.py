"""A recorded run is played as it was, and with another model or agent: the record answers, and nothing acts."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from perdure.activities.project import Project
from perdure.activities.providers.anthropic import MessagesModel
from perdure.activities.providers.port import Model
from perdure.activities.storage.store import LocalStores
from perdure.client.errors import RejectedError
from perdure.client.records.export import Exporter
from perdure.contracts.agent import Agent
from perdure.contracts.run.export import Export
from perdure.contracts.tool import Approval, Effect, ToolKind
from perdure.features.proof.contract import Case
from perdure.features.proof.replay import STAND_IN, Beyond, Candidate, Comparison, must_be_replayable, replay_run
from perdure.process.models import create_http_client
from perdure.settings import load_settings
from perdure.testkit.model_server import Script, calls, fails, says
from perdure.testkit.tools import ScriptedTool
from tests.media_files import image_bytes
from tests.shared_model import SharedModel
from tests.workflows import checks
from tests.workflows.conftest import KEY, MakeWorld, Run, World
from tests.workflows.runs import failure_of, result_of
from tests.workflows.script import FINISH, is_summary, tool_results
from tests.workflows.test_context import WINDOW, reader, reads
from tests.workflows.test_delegation import LEAD, WRITER, delegates, finishes, script, task, tree
from tests.workflows.test_media import camera, seeing, shown, upload

LOOK, PAY = calls(("look", {"order": 1})), calls(("pay", {"order": 1}))


@dataclass(frozen=True)
class Tried(Candidate):
    """A candidate with a scripted model, in a project that a test may change. `requests` are the model's."""

    project: Project | None = None
    script: Script = ()
    requests: list[dict[str, Any]] = field(default_factory=list)

    @asynccontextmanager
    async def open(self, agent: str) -> AsyncIterator[tuple[Project, Model]]:
        assert self.project is not None
        assert agent in self.project.agents
        with SharedModel(self.script) as model:
            client = AsyncAnthropic(
                api_key=KEY, base_url=model.base_url, max_retries=0, http_client=create_http_client()
            )
            async with client:
                yield self.project, MessagesModel(client)
            self.requests.extend(model.requests)


async def export(it: World, run: Run) -> Export:
    workspaces = LocalStores(it.project.workspaces)
    return await Exporter(it.client, it.project.stores, workspaces, asks=False).export(run.id)


async def replayed(
    it: World,
    run: Run,
    script: Script,
    *cases: Case,
    current: Callable[[Project], Project] = lambda project: project,
    beyond: Beyond = Beyond.stop,
) -> tuple[Comparison, list[dict[str, Any]]]:
    """The comparison, and the requests of the candidate's model. `current` is what became of the project."""
    project = current(it.project)
    tried = Tried(load_settings({}, Path("/")), None, None, beyond, cases, project, script)
    server = await it.another_client()
    comparison = await replay_run(await export(it, run), project, tried, server, it.project.workspaces / "plays")
    for column in comparison.columns[1:]:
        it.started.append(f"run:{column.record.run_id}")  # these are runs, too: their histories replay
    return comparison, tried.requests


def tools() -> tuple[ScriptedTool, ScriptedTool]:
    look = ScriptedTool("look", lambda arguments, _: {"order": arguments["order"], "paid": False})
    return look, ScriptedTool("pay", lambda *_: "paid", effect=Effect.once, approval=Approval.always)


def count_calls(tools: Sequence[ScriptedTool]) -> list[int]:
    return [len(tool.calls) for tool in tools]


async def pays(it: World, decision: str = "approve") -> Run:
    run = await it.start("pay order 1")
    await it.answer(run, decision=decision)
    await result_of(run)
    return run


async def test_a_candidate_that_does_the_same_gets_the_recorded_results_and_calls_nothing(world: MakeWorld) -> None:
    both = tools()
    async with world([LOOK, PAY, FINISH], *both) as it:
        run = await pays(it)
        before = count_calls(both)
        case = Case.model_validate({"goal": "pay order 1", "expect": {"contains": "done", "calls": ["look", "pay"]}})
        comparison, requests = await replayed(it, run, [LOOK, PAY, FINISH], case)
        assert count_calls(both) == before == [1, 1]
        shown = await it.shown(run)
    assert (comparison.differences, comparison.changed, comparison.unmade) == ((), (), ())
    assert comparison.has_passed
    observed, again, candidate = comparison.columns
    assert [column.why for column in comparison.columns] == [(), (), ()]
    assert [column.facts.status for column in comparison.columns] == ["completed"] * 3
    assert observed.facts.model_dump(exclude={"asked"}) == again.facts.model_dump(exclude={"asked"})
    assert (observed.turns, again.turns, candidate.turns) == (3, 3, 3)
    assert tool_results(requests[-1]) == shown[:2]


@pytest.mark.parametrize("beyond", list(Beyond))
async def test_a_call_that_is_not_in_the_record_is_marked_and_stops_or_goes_on_dry(
    world: MakeWorld, beyond: Beyond
) -> None:
    both = tools()
    other = [LOOK, calls(("pay", {"order": 2})), says("paid the wrong one")]
    async with world([LOOK, PAY, FINISH], *both) as it:
        comparison, requests = await replayed(it, await pays(it), other, beyond=beyond)
        assert count_calls(both) == [1, 1]
    candidate = comparison.candidate
    assert not comparison.differences
    assert [(departure.step, departure.call) for departure in candidate.left] == [(2, "pay order=2")]
    assert comparison.unmade == ("step 2: pay order=1",)
    if beyond is Beyond.stop:
        assert (len(requests), candidate.has_stopped, comparison.has_passed) == (2, True, False)
    else:
        assert (len(requests), candidate.facts.text, comparison.has_passed) == (3, "paid the wrong one", True)
        assert STAND_IN in tool_results(requests[-1])[-1]


async def test_the_same_call_gets_its_next_result_and_one_too_many_is_not_in_the_record(world: MakeWorld) -> None:
    look = ScriptedTool("look", lambda *_: f"look {len(look.calls)}")
    async with world([LOOK, LOOK, FINISH], look) as it:
        comparison, requests = await replayed(it, await it.run_to_end(), [LOOK] * 3, beyond=Beyond.stop)
    assert tool_results(requests[-1]) == ["look 1", "look 2"]
    assert [departure.step for departure in comparison.candidate.left] == [3]


async def test_a_replay_in_a_changed_project_is_not_faithful_and_says_where(world: MakeWorld) -> None:
    both = tools()

    def without_pay(project: Project) -> Project:
        return replace(project, agents={"default": Agent(name="default", tools=("look",), prompt="Be quick.")})

    async with world([LOOK, PAY, FINISH], *both) as it:
        comparison, _ = await replayed(it, await pays(it), [FINISH], current=without_pay)
    assert comparison.differences == ("pay order=1 and not step 2: pay order=1",)
    assert comparison.changed == ("prompt", "tools")
    assert not comparison.has_passed


async def test_what_a_person_decided_and_answered_is_part_of_the_record(world: MakeWorld) -> None:
    both = tools()
    ask = calls(("ask_human", {"question": "Which one?", "options": ["one", "two"]}))
    async with world([PAY, ask, FINISH], *both) as it:
        run = await it.start("pay")
        await it.answer(run, decision="deny", text="too dear")
        await it.answer(run, text="two")
        await result_of(run)
        comparison, requests = await replayed(it, run, [PAY, ask, FINISH])
        assert not comparison.differences
        assert tool_results(requests[-1]) == ["denied: a person denied this call: too dear", "two"]
        assert "pay" not in comparison.candidate.facts.made
        other = calls(("ask_human", {"question": "Really?"}))
        comparison, _ = await replayed(it, run, [other])
        assert [departure.call for departure in comparison.candidate.left] == ["ask_human Really?"]
        comparison, requests = await replayed(it, run, [other, FINISH], beyond=Beyond.dry)
        assert "no person is asked" in tool_results(requests[-1])[0]
        assert comparison.has_passed


async def test_subtasks_are_not_run_again(world: MakeWorld) -> None:
    dag = delegates(task("a"), task("b"))
    async with world(script([dag, FINISH], finishes), agents=[LEAD, WRITER]) as it:
        run = await it.run_to_end(agent="lead")
        await tree(it, run)
        asked = len(it.model.requests)
        comparison, requests = await replayed(it, run, [dag, FINISH])
        assert len(it.model.requests) == asked
        kinds = {e["type"] for c in comparison.columns[1:] for x in c.record.executions for e in x.events}
        assert "activity_task_completed" in kinds
        assert "start_child_workflow_execution_initiated" not in kinds
        assert not comparison.differences
        assert tool_results(requests[-1]) == (await it.shown(run))[:1]


async def test_a_result_from_outside_is_that_of_the_record(world: MakeWorld) -> None:
    ship = ScriptedTool("ship", lambda *_: "handed out", kind=ToolKind.signal)
    async with world([calls(("ship", {"order": 1})), FINISH], ship) as it:
        run = await it.start()
        await it.until_pending(run, 1)
        await it.send_result(run, 1, "ship", result={"van": 7})
        await result_of(run)
        comparison, requests = await replayed(it, run, [calls(("ship", {"order": 1})), FINISH])
        assert len(ship.calls) == 1
    assert comparison.has_passed
    assert tool_results(requests[-1]) == ['{"van":7}']


async def test_a_check_by_a_function_is_not_called_again(world: MakeWorld) -> None:
    checks.seen.clear()
    bad, good = (calls(("finish", {"outcome": text})) for text in ("a bad one", "a good one"))
    agent = Agent(name="default", tools=(), accept="tests.workflows.checks:has_good_outcome")
    async with world([bad, good], agents=[agent]) as it:
        run = await it.run_to_end("find one")
        count = len(checks.seen)
        comparison, requests = await replayed(it, run, [bad, good])
        assert (count, len(checks.seen), len(requests)) == (2, 2, 2)
    assert comparison.has_passed


async def test_reads_that_went_with_the_next_turn_are_replayed_alike(world: MakeWorld) -> None:
    look, _ = tools()
    async with world([LOOK, FINISH], look, fuses=True) as it:
        comparison, _ = await replayed(it, await it.run_to_end(), [LOOK, FINISH])
    assert comparison.has_passed
    assert (comparison.observed.turns, comparison.as_it_was.turns) == (2, 2)


async def test_a_failed_run_is_replayed_to_its_failure(world: MakeWorld) -> None:
    look, _ = tools()
    async with world([LOOK, fails(401, type="authentication_error", message="no such key")], look) as it:
        run = await it.start()
        await failure_of(run)
        comparison, _ = await replayed(it, run, [LOOK, fails(404, message="no such model")])
    assert not comparison.differences
    assert [column.facts.status for column in comparison.columns] == ["failed"] * 3
    assert "no such model" in comparison.candidate.facts.text
    assert not comparison.has_passed


async def test_a_case_that_does_not_pass_fails_the_candidate_alone(world: MakeWorld) -> None:
    look, _ = tools()
    case = Case.model_validate({"goal": "do it", "expect": {"calls": "look"}})
    async with world([LOOK, FINISH], look) as it:
        run = await it.run_to_end()
        comparison, _ = await replayed(it, run, [FINISH], case)
        assert [bool(column.why) for column in comparison.columns] == [False, False, True]
        assert not comparison.has_passed
        others = [case.evolve(goal=goal) for goal in ("a", "b")]
        with pytest.raises(RejectedError, match="no case has its goal"):
            await replayed(it, run, [FINISH], *others)


async def test_an_open_run_and_one_that_continues_another_are_not_replayed(world: MakeWorld) -> None:
    async with world([calls(("ask_human", {"question": "?"})), FINISH]) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        with pytest.raises(RejectedError, match="it is open: wait for its end"):
            must_be_replayable(await export(it, run), it.project)
        await it.answer(run, text="go on")
        await result_of(run)
        fork = await it.fork(run, 0)
        await it.answer(fork, text="go on")
        await result_of(fork)
        with pytest.raises(RejectedError, match="it continues a conversation or another run"):
            must_be_replayable(await export(it, fork), it.project)


async def test_a_conversation_that_became_a_summary_is_replayed_with_it(world: MakeWorld) -> None:
    read = reader()
    async with world(reads(16), read, window=WINDOW, max_steps=50) as it:
        run = await it.run_to_end("read it all")
        summaries = sum(map(is_summary, it.model.requests))
        comparison, requests = await replayed(it, run, reads(16))
        assert (len(read.calls), sum(map(is_summary, requests))) == (16, summaries)
    assert summaries >= 1
    assert comparison.has_passed, comparison.differences


async def test_a_follow_up_is_not_started_again(world: MakeWorld) -> None:
    create = calls(("workflow_create", {"definition": {"summary": "all is known"}}))
    async with world([create, FINISH], follow_ups=()) as it:
        run = await it.run_to_end()
        comparison, requests = await replayed(it, run, [create, FINISH])
        assert tool_results(requests[-1]) == (await it.shown(run))[:1]
        activities = {turn["activity_type"]["name"] for turn in scheduled(comparison.candidate.record)}
    assert "workflowId" in tool_results(requests[-1])[0]
    assert "command_follow_up" in {turn["activity_type"]["name"] for turn in scheduled(comparison.observed.record)}
    assert "command_follow_up" not in activities
    assert comparison.has_passed


def scheduled(record: Export) -> list[dict[str, Any]]:
    events = [event for execution in record.executions for event in execution.events]
    return [event for event in events if event["type"] == "activity_task_scheduled"]


async def test_what_a_tool_says_of_bad_arguments_is_part_of_a_faithful_replay(world: MakeWorld) -> None:
    """A candidate's bad arguments are no departure: the tool would not have been called."""
    look, _ = tools()
    look.schema = look.schema.evolve(input_schema={"type": "object", "required": ["order"]})
    bad = calls(("look", {}))
    async with world([bad, LOOK, FINISH], look) as it:
        run = await it.run_to_end()
        comparison, requests = await replayed(it, run, [LOOK, bad, FINISH])
        assert len(look.calls) == 1

        def with_more(project: Project) -> Project:
            changed = ScriptedTool("look")
            changed.schema = look.schema.evolve(input_schema={"type": "object", "required": ["place"]})
            return replace(project, tools={"look": changed})

        other, _ = await replayed(it, run, [LOOK], current=with_more)
    assert comparison.has_passed
    assert "order" in tool_results(requests[-1])[1]
    assert other.differences[0].startswith("part 3 of the conversation: ")


async def test_pictures_are_shown_to_the_candidate_too(world: MakeWorld) -> None:
    picture, look = image_bytes(), calls(("look", {}))
    async with world([look, FINISH], camera(picture), agents=[seeing("look")]) as it:
        run = await it.run_to_end(agent="eyes", attachments=[await upload(it, picture, "a.png")])
        comparison, requests = await replayed(it, run, [look, FINISH])
    assert comparison.has_passed
    assert shown(requests[-1]) == [picture, picture]


async def test_a_run_whose_agent_is_gone_is_not_replayed(world: MakeWorld) -> None:
    async with world([FINISH], agents=[WRITER]) as it:
        run = await it.run_to_end(agent="writer")
        with pytest.raises(RejectedError, match="the project has no agent 'writer' any more"):
            await replayed(it, run, [FINISH], current=lambda project: replace(project, agents={}))
