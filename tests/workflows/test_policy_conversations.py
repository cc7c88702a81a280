"""A policy replayed over 20 public conversations gives the counts that were made by hand.

The conversations are in `trading_calls.json`, with their source and licence. Each is played as a run: a scripted model
makes the calls of each of the user's turns in one reply. Then `replay_policy`, which `perdure replay --policy` calls
for each run, judges the calls, and so does the command itself. The counts below were made by reading the conversations
with the rules beside them.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure.activities.model.transcript_cache import TranscriptCache
from perdure.activities.policy import PolicyChecks
from perdure.activities.storage.store import LocalStores
from perdure.activities.tools.interface import CallContext
from perdure.client.records.export import Exporter
from perdure.client.run_list import RunFilter, list_past_runs
from perdure.contracts.agent import Agent
from perdure.contracts.tool import Effect
from perdure.decisions.policy.rules import parse_policy
from perdure.features.proof.contract import ReplayedCall
from perdure.features.proof.policy import replay_policy
from perdure.features.proof.rules import count_unfaithful
from perdure.testkit.model_server import ScriptedAnswer, calls, says
from perdure.testkit.tools import ScriptedTool
from tests.conftest import server
from tests.e2e.projects import Project
from tests.waiting import PATIENCE
from tests.workflows.conftest import World, worlds
from tests.workflows.script import count_replies
from tests.workflows.test_policy import ruled

CONVERSATIONS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("trading_calls.json").read_text(encoding="utf-8")
)["conversations"]
# These come from MCP servers here, so that a rule can ask what a run has read.
SERVERS = {"get_stock_info": "market", "get_available_stocks": "market", "get_ticket": "tickets"}
READS = ("get_", "view_")
SUPPORT = "TicketAPI"  # conversations with this API are of the agent `support`, the others of `trader`

EVERYTHING = '[[rule]]\nname = "everything"\ntools = ["*"]\nthen = "allow"\n'  # the policy that the runs were made by
POLICY = """
[[rule]]
name = "no passwords"
tools = ["*"]
when = "has(args.password)"
then = "deny"

[[rule]]
name = "one quote is free"
tools = ["market__*"]
when = "run.calls['market__get_stock_info'] + run.calls['market__get_available_stocks'] >= 1"
then = "ask"

[[rule]]
name = "earlier orders"
tools = ["get_order_details"]
when = "run.calls['place_order'] == 0"
then = "ask"

[[rule]]
name = "lookups"
tools = ["market__*", "tickets__*", "get_*", "view_*"]
then = "allow"

[[rule]]
name = "third stock to watch"
tools = ["add_to_watchlist"]
when = "run.calls['add_to_watchlist'] >= 2"
then = "ask"

[[rule]]
name = "watchlist not read"
tools = ["remove_stock_from_watchlist"]
when = "run.calls['get_watchlist'] == 0"
then = "ask"

[[rule]]
name = "watchlist"
tools = ["*_watchlist"]
then = "allow"

[[rule]]
name = "support does not trade"
tools = ["place_order"]
agents = ["support"]
then = "deny"

[[rule]]
name = "very large order"
tools = ["place_order"]
when = "double(args.price) * double(args.amount) > 50000.0"
then = "deny"

[[rule]]
name = "order, with the funds of the hour, above 15000"
tools = ["place_order"]
when = '''double(args.price) * double(args.amount) + double(total(history.filter(h,
          h.tool == 'fund_account' && h.at > now - duration('1h')).map(h, h.args.amount))) > 15000.0'''
then = "ask"

[[rule]]
name = "quote not read"
tools = ["place_order"]
when = "!history.exists(h, h.tool == 'market__get_stock_info' && h.args.symbol == args.symbol && h.outcome == 'ok')"
then = "ask"

[[rule]]
name = "small order"
tools = ["place_order"]
then = "allow"

[[rule]]
name = "funds, with the orders of the hour, above 25000"
tools = ["fund_account"]
when = '''double(args.amount) + double(total(history.filter(h, h.tool == 'place_order' && h.at > now - duration('1h'))
          .map(h, double(h.args.price) * double(h.args.amount)))) > 25000.0'''
then = "ask"

[[rule]]
name = "funds"
tools = ["fund_account"]
then = "allow"

[[rule]]
name = "order not looked at"
tools = ["cancel_order"]
when = "!history.exists(h, h.tool == 'get_order_details' && h.args.order_id == args.order_id)"
then = "deny"

[[rule]]
name = "cancels"
tools = ["cancel_order"]
then = "allow"

[[rule]]
name = "customer service"
tools = ["send_message"]
when = "args.receiver_id == 'USR002'"
then = "allow"

[[rule]]
name = "price in a message"
tools = ["send_message"]
when = "args.message.contains('$')"
then = "ask"

[[rule]]
name = "message after market data"
tools = ["send_message"]
when = "run.has_read.exists(s, s == 'mcp:market')"
then = "ask"

[[rule]]
name = "orders are not public"
tools = ["post_tweet"]
when = "run.calls['place_order'] > 0"
then = "deny"

[[rule]]
name = "urgent ticket"
tools = ["create_ticket"]
when = "args.priority >= 3"
then = "ask"

[[rule]]
name = "a ticket was read"
tools = ["resolve_ticket", "close_ticket"]
when = "run.has_read.exists(s, s == 'mcp:tickets')"
then = "allow"

[[rule]]
name = "all else"
tools = ["*"]
then = "ask"
"""

# Made by hand: allowed, asked and denied calls of each conversation, and why those that are not allowed are not.
BY_HAND: dict[int, tuple[int, int, int, str]] = {
    100: (2, 0, 0, "a quote, and funds of 2203.40"),
    101: (2, 1, 0, "the message at step 2 has a price"),
    102: (3, 1, 1, "step 1 is an order by support; the ticket at step 5 has no priority, so its rule asks"),
    103: (5, 0, 1, "step 4 orders for 68584.50; step 6 is to customer service"),
    104: (3, 0, 0, "a quote, and the watchlist"),
    105: (3, 2, 0, "step 2 is the second quote, step 5 the third stock to watch in one reply"),
    106: (4, 0, 1, "step 2 is an order by support; step 5 resolves after a ticket was read"),
    107: (5, 0, 0, "7537.50, with a quote read in the reply before; cancelled after a look at it"),
    108: (5, 1, 0, "step 3 orders for 11017 in the same reply as its quote, which the model has not read then"),
    109: (4, 2, 1, "step 2 is the second quote; step 3 orders for 31023; step 7 tweets of it"),
    110: (5, 1, 2, "step 3 is an order by support; step 7 has a password; the ticket at step 8 has priority 3"),
    111: (3, 1, 0, "step 2 looks at an order, and the run made none; step 3 is to customer service"),
    112: (2, 1, 1, "step 2 is the second quote; step 3 cancels an order not looked at"),
    113: (3, 1, 0, "step 4 is the second quote of one reply"),
    114: (4, 1, 0, "step 4 has no price, but follows a quote"),
    115: (2, 1, 0, "step 3 looks at an order, and the run made none"),
    116: (4, 2, 0, "step 4 is the second quote; step 6 orders for 7500 after funds of 10000, which alone are allowed"),
    117: (3, 3, 0, "step 1 has not read the watchlist; 4 is the second quote; 5 orders for 16000; 6 makes it 21000"),
    118: (5, 1, 0, "step 4 orders for 22716"),
    119: (1, 2, 1, "step 2 is the second quote; step 3 cancels an order not looked at; step 4 closes a ticket unread"),
}
# By rule, over all conversations: the calls that were counted above, once more by their reasons.
ASKED_OR_DENIED = {
    "no passwords": 1,  # 110: step 7
    "one quote is free": 7,  # 105, 109, 112, 119: step 2; 113, 116, 117: step 4
    "earlier orders": 2,  # 111: step 2; 115: step 3
    "third stock to watch": 1,  # 105: step 5
    "watchlist not read": 1,  # 117: step 1
    "support does not trade": 3,  # 102: step 1; 106: step 2; 110: step 3
    "very large order": 1,  # 103: step 4
    "order, with the funds of the hour, above 15000": 4,  # 109: step 3; 116: step 6; 117: step 5; 118: step 4
    "quote not read": 1,  # 108: step 3
    "order not looked at": 2,  # 112, 119: step 3
    "price in a message": 1,  # 101: step 2
    "message after market data": 1,  # 114: step 4
    "orders are not public": 1,  # 109: step 7
    "urgent ticket": 2,  # 102: step 5; 110: step 8
    "all else": 1,  # 119: step 4
}


def full_name(tool: str) -> str:
    return f"{SERVERS[tool]}__{tool}" if tool in SERVERS else tool


def play(body: dict[str, Any]) -> ScriptedAnswer:
    """The calls of the next turn of the conversation that the goal names."""
    match = re.search(r"conversation (\d+)\b", str(body["messages"][0]))
    assert match
    turns, turn = CONVERSATIONS[match[1]]["turns"], count_replies(body)
    uses = [(full_name(tool), arguments) for tool, arguments in turns[turn]] if turn < len(turns) else []
    return calls(*uses) if uses else says("done")


def answer(_: dict[str, Any], context: CallContext) -> str:
    return f"done {context.step}"


def tools() -> list[ScriptedTool]:
    names = {name for each in CONVERSATIONS.values() for turn in each["turns"] for name, _ in turn}
    effects = {name: Effect.read if name.startswith(READS) else Effect.once for name in sorted(names)}
    return [ScriptedTool(full_name(name), answer, effect=effect) for name, effect in effects.items()]


def agent_of(number: str) -> str:
    return "support" if SUPPORT in CONVERSATIONS[number]["apis"] else "trader"


@pytest.fixture(scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """The conversations, played on a server that has no other runs."""
    allowed = tools()
    names = tuple(tool.route.name for tool in allowed)
    agents = [Agent(name="trader", tools=names), Agent(name="support", tools=names)]
    async with await server() as environment:
        world = worlds(environment.client, tmp_path_factory.mktemp("runs"))
        async with ruled(world, EVERYTHING, play, *allowed, agents=agents) as it:
            for number in CONVERSATIONS:  # one after the other, for a worker without a cache
                run = await it.start(f"conversation {number}", run_id=f"c{number}", agent=agent_of(number))
                await asyncio.wait_for(run.result(), PATIENCE)
            await it.until(lambda: are_all_past(it))
            yield it


async def are_all_past(it: World) -> bool:
    """The server lists the end of a run some time after it."""
    return len([each async for each in list_past_runs(it.client, RunFilter())]) == len(CONVERSATIONS)


async def replayed(it: World) -> list[ReplayedCall]:
    exporter = Exporter(it.client, it.project.stores, LocalStores(it.project.workspaces), asks=False)
    checks = PolicyChecks(TranscriptCache(it.client, it.project.stores), it.project)
    policy, runs = parse_policy(POLICY), [run.run_id async for run in list_past_runs(it.client, RunFilter())]
    return [row for run in runs for row in await replay_policy(await exporter.export(run), policy, checks, it.project)]


async def test_the_counts_are_those_made_by_hand(played: World) -> None:
    rows = await replayed(played)
    counted = {number: Counter(row.candidate for row in rows if row.run_id == f"c{number}") for number in BY_HAND}
    found = {number: (count["allow"], count["ask"], count["deny"]) for number, count in counted.items()}
    assert found == {number: counts[:3] for number, counts in BY_HAND.items()}
    assert Counter(row.rule for row in rows if row.candidate != "allow") == ASKED_OR_DENIED
    assert Counter(row.candidate for row in rows) == {"allow": 68, "ask": 21, "deny": 8}
    assert count_unfaithful(rows) == 0
    assert {(row.verdict, row.as_it_was) for row in rows} == {("allow", "allow")}


def test_the_command_counts_all_of_them(played: World, tmp_path: Path) -> None:
    project = Project(tmp_path, {"TEMPORAL_ADDRESS": played.client.service_client.config.target_host})
    project.write_all({"perdure.toml": "", "new.toml": POLICY})
    place = str(played.project.workspaces)
    done = project.perdure("replay", "--policy", "new.toml", "--since", "1h", PERDURE_WORKSPACE=place)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "20 runs, 97 calls: 21 asked, 68 allowed, 8 denied"
