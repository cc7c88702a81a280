"""Agents with many tools: the model searches for them, and calls them by `call_tool` as if they were in its list."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from perdure.contracts.tool import Approval, Effect, ToolKind
from perdure.testkit.model_server import ScriptedAnswer, calls, fails, says
from perdure.testkit.tools import ScriptedTool
from tests.timeline import timeline
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.runs import failure_of, id_of, result_of, trace_events
from tests.workflows.script import FINISH, is_summary, message_blocks, tool_results
from tests.workflows.test_export import export_run
from tests.workflows.test_mcp import project

OFFICE = {"command": sys.executable, "args": [str(Path(__file__).parents[1] / "mcp" / "office.py")]}
CREATE = {"name": "office__create_ticket", "arguments": {"title": "lift is stuck"}}
ASKS = calls(("ask_human", {"question": "Go on?"}))


def by_call_tool(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "call_tool", {"name": name, "arguments": arguments}


def many_tools(count: int = 41) -> list[ScriptedTool]:
    """Tools of which the model sees none, each with its number as the result."""
    return [ScriptedTool(f"tool_{n}", lambda *_, n=n: f"result {n}", kind=ToolKind.mcp) for n in range(count)]


def offered_names(it: World) -> list[list[str]]:
    return [[tool["name"] for tool in request["tools"]] for request in it.model.requests if not is_summary(request)]


async def test_a_tool_of_a_large_server_is_found_and_called_under_its_own_name(
    world: MakeWorld, tmp_path: Path
) -> None:
    script = [calls(("search_tools", {"query": "open a new ticket"})), calls(("call_tool", CREATE)), FINISH]
    async with project(tmp_path, "office", OFFICE) as offer:
        tools = offer.agents["default"].tools
        assert len(tools) == 60
        async with world(script, *offer.tools.values(), allowed=tools) as it:
            run = await it.start(run_id="searched")
            assert (await result_of(run))["payload"]["steps_taken"] == 2
            requests, record = it.model.requests, await export_run(it, run)
            (_, found), (_, created), _ = await it.results(run)
    fronts = [json.dumps([request["tools"], request["system"]]) for request in requests]
    assert len(requests) == 3
    assert fronts == [fronts[0]] * 3  # so that the provider's cache holds
    assert "office__" not in fronts[0]
    assert "There are 60: 60 of office." in fronts[0]
    best = json.loads(found)["tools"][0]
    assert (best["name"], best["input_schema"]["required"]) == ("office__create_ticket", ["title"])
    assert len(json.loads(found)["tools"]) <= 8
    assert created == '{"result":"created ticket lift is stuck"}'
    (use,) = [block for block in message_blocks(requests[-1], "tool_use") if block["name"] == "call_tool"]
    assert use["input"] == CREATE  # the model reads its own words
    assert [(call.tool, call.step, call.arguments, call.effect) for call in record.calls[:2]] == [
        ("search_tools", 1, {"query": "open a new ticket"}, Effect.read),
        ("office__create_ticket", 2, CREATE["arguments"], Effect.once),
    ]
    (line, *_) = trace_events(tmp_path / "searched", "reflect")
    assert line["calls"] == ["office__create_ticket lift is stuck"]


async def test_a_person_approves_the_tool_that_is_called_and_not_call_tool(world: MakeWorld, tmp_path: Path) -> None:
    toml = '[tools.office__create_ticket]\nkind = "mcp"\napproval = "always"\n'
    async with (
        project(tmp_path, "office", OFFICE, toml) as offer,
        world([calls(("call_tool", CREATE)), FINISH], *offer.tools.values()) as it,
    ):
        run = await it.start()
        question = (await it.until_state(run, question=True))["question"]
        assert question["text"].startswith("office__create_ticket lift is stuck")
        await run.execute_update("answer", {"decision": "approve", "call": question["call"]})
        await result_of(run)
        assert (await it.shown(run))[0] == '{"result":"created ticket lift is stuck"}'


async def test_arguments_that_do_not_fit_bring_the_schema_and_json_in_texts_is_read(
    world: MakeWorld, tmp_path: Path
) -> None:
    script = [
        calls(by_call_tool("office__get_ticket", id=4)),
        calls(
            (
                "call_tool",
                {"name": "office__create_ticket", "arguments": '{"title": "a", "fields": "{\\"b\\": \\"c\\"}"}'},
            )
        ),
        calls(("search_tools", {})),
        FINISH,
    ]
    async with (
        project(tmp_path, "office", OFFICE) as offer,
        world(script, *offer.tools.values()) as it,
    ):
        run = await it.run_to_end()
        bad, good, unsaid, _ = await it.shown(run)
        record = await export_run(it, run)
    assert bad.startswith("invalid_arguments: arguments: 'number' is a required property\nthe schema of office__get_")
    assert '"minimum": 1' in bad
    assert good == '{"result":"created ticket a"}'
    assert record.calls[1].arguments == {"title": "a", "fields": {"b": "c"}}
    assert unsaid.startswith("invalid_arguments: arguments: 'query' is a required property")


async def test_a_known_tool_needs_no_search_and_an_unknown_one_is_answered_with_similar_names(
    world: MakeWorld,
) -> None:
    script = [
        calls(by_call_tool("tool_7"), ("tool_8", {})),
        calls(
            by_call_tool("tool7"),
            ("call_tool", {"name": "call_tool", "arguments": {"name": "tool_1"}}),
            ("call_tool", {"tool": "tool_1"}),
        ),
        FINISH,
    ]
    async with world(script, *many_tools()) as it:
        run = await it.run_to_end()
        seven, eight, unknown, nested, nameless, _ = await it.shown(run)
        assert (await it.state(run))["step"] == 2
    assert (seven, eight) == ("result 7", "result 8")
    assert unknown.startswith("unknown_tool: there is no tool 'tool7' here; similar names: tool_7, ")
    assert "tool_40" not in unknown
    assert unknown.endswith("and those that search_tools returns")
    assert nested == nameless
    assert nested.startswith('invalid_arguments: call_tool takes {"name": the name of another tool, "arguments"')


async def test_a_search_is_by_words_or_names_and_says_if_nothing_matches(world: MakeWorld) -> None:
    tools = many_tools()
    tools[3].schema = tools[3].schema.evolve(description="Translates whole letters. " + "x" * 17_000)
    tools[4].schema = tools[4].schema.evolve(description="Translates words.")
    words = ["translating words", "tool_9, tool_11", 'DROP "table" AND (', "\"'*^-"]
    async with world([*(calls(("search_tools", {"query": query})) for query in words), FINISH], *tools) as it:
        run = await it.run_to_end()
        found = [json.loads(text) for text in (await it.shown(run))[:-1]]
    assert [tool["name"] for tool in found[0]["tools"]] == ["tool_4"]
    assert found[0]["without_schema"] == ["tool_3"]
    assert [tool["name"] for tool in found[1]["tools"]] == ["tool_9", "tool_11"]
    assert [each["tools"] for each in found[2:]] == [[], []]
    assert "try other words" in found[2]["note"]


async def test_what_the_prompt_names_and_perdures_own_tools_stay_in_the_list(world: MakeWorld) -> None:
    async with world([FINISH], *many_tools(), ScriptedTool("look"), works=False) as it:
        agent = it.project.agents["default"].evolve(prompt="Begin with `tool_5`; tool_50 is gone.")
        it.project = replace(it.project, agents={"default": agent})
        async with it.worker():
            await it.run_to_end()
        (names,) = offered_names(it)
    assert names[-4:] == ["search_tools", "call_tool", "tool_5", "look"]


async def test_an_agent_may_search_a_few_tools_or_have_all_of_them_in_its_list(world: MakeWorld) -> None:
    for count, searches, is_searched in ((40, None, False), (41, None, True), (41, False, False), (2, True, True)):
        async with world([FINISH], *many_tools(count), works=False) as it:
            agent = it.project.agents["default"].evolve(search_tools=searches)
            it.project = replace(it.project, agents={"default": agent})
            async with it.worker():
                await it.run_to_end()
            (names,) = offered_names(it)
        assert ("search_tools" in names, "call_tool" in names, "tool_1" in names) == (
            is_searched,
            is_searched,
            not is_searched,
        )


async def test_few_tools_with_long_schemas_are_searched(world: MakeWorld) -> None:
    tools = many_tools(3)
    tools[0].schema = tools[0].schema.evolve(description="word " * 8_000)
    async with world([FINISH], *tools) as it:
        await it.run_to_end()
        (names,) = offered_names(it)
    assert names[-2:] == ["search_tools", "call_tool"]


async def test_a_large_call_is_passed_by_reference_and_a_once_call_is_in_the_ledger(
    world: MakeWorld, tmp_path: Path
) -> None:
    pay = ScriptedTool("pay", lambda arguments, _: len(arguments["text"]), kind=ToolKind.mcp, effect=Effect.once)
    script = [calls(by_call_tool("pay", text="x" * 20_000)), FINISH]
    async with world(script, *many_tools(), pay) as it:
        run = await it.run_to_end()
        assert (await it.shown(run))[0] == "20000"
        assert (await it.raw_history(run)).count(b"x" * 20_000) == 1
    assert len(list((tmp_path / id_of(run)).glob(".store/ledger/*"))) == 2


async def test_searches_and_found_reads_are_fused_with_the_next_turn(world: MakeWorld) -> None:
    script = [calls(("search_tools", {"query": "tool_2"})), calls(by_call_tool("tool_2")), FINISH]
    async with world(script, *many_tools(), fuses=True) as it:
        run = await it.run_to_end()
        assert (await timeline(run)).count("read_and_reflect") == 2
        assert (await it.shown(run))[1] == "result 2"


async def test_a_resumed_run_and_a_fork_call_what_was_found_before(world: MakeWorld) -> None:
    search, second = calls(("search_tools", {"query": "tool_2"})), calls(by_call_tool("tool_2"))
    note = calls(by_call_tool("append_run_journal_entry", section="decisions", entry="take tool_2"))
    breaking = [fails(401, type="authentication_error")]

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        made = len(message_blocks(body, "tool_use"))
        return breaking[0] if made == 2 and breaking else (search, note, second, FINISH)[made]

    async with world(script, *many_tools()) as it:
        run = await it.start()
        await failure_of(run)
        breaking.clear()
        again = await it.resume(run)
        await result_of(again)
        assert tool_results(it.model.requests[-1])[-1] == "result 2"
        fork = await it.fork(again, 2)
        await result_of(fork)
        journal = (await fork.query("snapshot"))["state"]["journal"]
    assert journal["decisions"] == ["take tool_2"]  # also of a journal's tool that was called by another name


async def test_after_a_summary_the_tools_are_still_there_and_the_summary_has_their_names(world: MakeWorld) -> None:
    tools = [
        *many_tools(),
        ScriptedTool("read", lambda arguments, _: f"{arguments['n']}:" + "lorem ipsum " * 400, kind=ToolKind.mcp),
    ]
    made = iter(range(12))

    def script(body: dict[str, Any]) -> Any:
        if is_summary(body):
            return says("So far: much was read.")
        return calls(by_call_tool("read", n=n)) if (n := next(made, None)) is not None else FINISH

    async with world(script, *tools, window=20_000, max_steps=50) as it:
        assert (await result_of(await it.start()))["payload"]["steps_taken"] == 12
        summaries = [request for request in it.model.requests if is_summary(request)]
        assert len({json.dumps(names) for names in offered_names(it)}) == 1
    assert summaries
    assert "read" in str(summaries[0]["messages"])
    assert "call_tool" not in str(summaries[0]["messages"])


async def test_an_approval_of_a_tool_holds_for_each_way_of_calling_it(world: MakeWorld) -> None:
    guarded = ScriptedTool("guarded", kind=ToolKind.mcp, approval=Approval.always)
    script = [calls(by_call_tool("guarded", n=1)), calls(("guarded", {"n": 2})), ASKS, FINISH]
    async with world(script, *many_tools(), guarded) as it:
        run = await it.start()
        await it.answer(run, decision="approve_tool")
        await it.until(lambda: len(guarded.calls) == 2)
        assert (await it.until_state(run, question=True))["question"]["kind"] == "question"
        await run.execute_update("answer", {"text": "yes"})
        await result_of(run)
    assert [arguments for arguments, _ in guarded.calls] == [{"n": 1}, {"n": 2}]
