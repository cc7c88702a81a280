"""The rehearsal model, asked by the real `anthropic` client."""

import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from time import process_time
from typing import Any

import httpx
import httpx2
import pytest
from anthropic import AsyncAnthropic, BadRequestError, NotFoundError
from anthropic.types import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.activities.tools.fetch import read_webpage
from perdure.commands.demo import PAGES, serve_site
from perdure.testkit.rehearsal.model import RehearsalTransport, answer_request
from perdure.testkit.rehearsal.page import open_page, split_sentences
from perdure.testkit.rehearsal.review import review_page, weak_points

TOOLS = ("fetch", "write_file", "finish", "escalate", "ask_human")
URL = "http://127.0.0.1:8000/page.html"
GOAL = f"fetch web {URL} and produce a 2 para critique"

GOOD = """url: http://127.0.0.1:8000/page.html
status: 200
content-type: text/html
title: Bees in winter

# Bees in winter

By Ruth Calloway, 3 May 2024.

Bees do not sleep in winter. They hold together in a ball and shiver to keep warm.

## The ball

The queen sits in the middle. The others take turns at the cold outside, and nobody freezes.

## What you can do

Leave the hive alone. To learn more, read [our calendar for beekeepers](calendar.html) or
write to [the club](mailto:club@bees.example).
"""
BAD = """url: http://127.0.0.1:8000/page.html
status: 200
title: Untitled

**WELCOME!!!!**

![](logo.png)

We are a world-class and truly innovative team which, whatever the nature of the question that you may wish to put \
to us in the course of the year, and at whichever of our many offices you should happen to find yourself, will always \
endeavour to give you an answer that meets with your expectations.

For prices [click here](prices.html). For times [click here](times.html). Our shop is coming soon
"""


@pytest.fixture
async def client() -> AsyncIterator[AsyncAnthropic]:
    http = httpx2.AsyncClient(transport=RehearsalTransport(pause=0))
    async with AsyncAnthropic(api_key="none", max_retries=0, http_client=http) as client:
        yield client


async def ask(client: AsyncAnthropic, messages: list[Any], tools: tuple[str, ...] = TOOLS, **extra: Any) -> Message:
    schemas = [{"name": tool, "description": tool, "input_schema": {"type": "object"}} for tool in tools]
    if schemas:
        extra["tools"] = schemas
    async with client.messages.stream(model="rehearsal", max_tokens=1000, messages=messages, **extra) as stream:
        return await stream.get_final_message()


def tool_uses(message: Message) -> list[tuple[str, dict[str, Any]]]:
    return [(block.name, dict(block.input)) for block in message.content if block.type == "tool_use"]


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def add_results(messages: list[Any], message: Message, *results: str | Exception) -> list[Any]:
    """The conversation, one turn on. An exception stands for a failed call."""
    said: list[Any] = [{"type": "text", "text": text_of(message)}]
    uses = [block for block in message.content if block.type == "tool_use"]
    said += [{"type": "tool_use", "id": use.id, "name": use.name, "input": use.input} for use in uses]
    answers = [
        {
            "type": "tool_result",
            "tool_use_id": use.id,
            "content": str(result),
            "is_error": isinstance(result, Exception),
        }
        for use, result in zip(uses, results, strict=True)
    ]
    return [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": answers}]


async def write_document(client: AsyncAnthropic, goal: str, *pages: str | Exception) -> str:
    messages: list[Any] = [{"role": "user", "content": goal}]
    message = await ask(client, add_results(messages, await ask(client, messages), *pages))
    [(name, arguments)] = tool_uses(message)
    assert name == "write_file"
    return str(arguments["content"])


def paragraphs(document: str) -> list[str]:
    return [block for block in document.split("\n\n") if not block.startswith(("#", "---"))]


async def test_work_for_a_peer_is_delegated_and_what_comes_back_is_handed_on(client: AsyncAnthropic) -> None:
    tools = (*TOOLS, "delegate")
    messages: list[Any] = [{"role": "user", "content": "Please ask scribe to write two lines on bees."}]
    asked = await ask(client, messages, tools)
    assert tool_uses(asked) == [
        ("delegate", {"subtasks": [{"id": "part", "agent": "scribe", "instructions": "write two lines on bees."}]})
    ]
    came = json.dumps({"subtasks": [{"id": "part", "agent": "scribe", "status": "done", "outcome": "Bees hum."}]})
    assert tool_uses(await ask(client, add_results(messages, asked, came), tools)) == [
        ("finish", {"outcome": "Bees hum."})
    ]
    refused = await ask(client, add_results(messages, asked, RuntimeError("scribe is none of your peers")), tools)
    [(tool, why)] = tool_uses(refused)
    assert (tool, why["reason"]) == ("escalate", "scribe did not do it: scribe is none of your peers")


async def test_the_worked_example_goes_from_goal_to_artifact(client: AsyncAnthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": GOAL}]
    first = await ask(client, messages)
    assert re.match(r"(?s)Frame: .*\n\nPlan:\n1\. ", text_of(first))
    assert tool_uses(first) == [("fetch", {"url": URL})]
    assert (first.model, first.stop_reason) == ("rehearsal", "tool_use")

    messages = add_results(messages, first, GOOD)
    second = await ask(client, messages)
    assert text_of(second).startswith("Finding: “Bees in winter”")
    assert [(name, arguments["path"]) for name, arguments in tool_uses(second)] == [
        ("write_file", "artifacts/critique.md")
    ]

    third = await ask(client, add_results(messages, second, "written"))
    outcome = {"outcome": "Two paragraph critique generated in artifacts/critique.md"}
    assert tool_uses(third) == [("finish", {**outcome, "artifacts": ["artifacts/critique.md"]})]


async def test_a_retried_call_gets_a_byte_identical_answer() -> None:
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": GOAL}]}
    async with httpx2.AsyncClient(transport=RehearsalTransport(pause=0)) as http:
        first, second = [await http.post("http://model/v1/messages", json=body) for _ in range(2)]
    assert first.content == second.content


async def test_another_turn_gets_other_tool_use_ids(client: AsyncAnthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": GOAL}]
    first = await ask(client, messages)
    second = await ask(client, add_results(messages, first, GOOD))
    ids = [block.id for message in (first, second) for block in message.content if block.type == "tool_use"]
    assert len(set(ids)) == len(ids) == 2


async def test_streaming_or_not_the_reply_is_the_same(client: AsyncAnthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": GOAL}]
    whole = await client.messages.create(model="m", max_tokens=9, messages=messages)
    streamed = await ask(client, messages, tools=())
    assert (text_of(whole), whole.id, whole.usage.output_tokens) == (
        text_of(streamed),
        streamed.id,
        streamed.usage.output_tokens,
    )
    assert whole.usage.input_tokens > 0


async def test_text_arrives_in_many_pieces(client: AsyncAnthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    async with client.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
        pieces = [piece async for piece in stream.text_stream]
    assert len(pieces) > 3


async def test_two_pages_get_two_different_critiques_made_from_what_they_hold(client: AsyncAnthropic) -> None:
    good, bad = await write_document(client, GOAL, GOOD), await write_document(client, GOAL, BAD)
    assert "“The ball”" in good
    assert "says who wrote it, and when" in good
    assert "click here” (twice)" in bad
    assert "“Untitled”" in bad
    assert "no heading" in bad
    assert not set(split_sentences(" ".join(paragraphs(good)))) & set(split_sentences(" ".join(paragraphs(bad))))


@pytest.mark.parametrize(
    ("wish", "number"),
    [
        ("a 2 para critique", 2),
        ("a critique in one paragraph", 1),
        ("a two-paragraph critique", 2),
        ("three short paragraphs of critique", 3),
        ("a single paragraph of critique", 1),
        ("a 5 paragraph critique", 5),
        ("a 7 para report", 7),
    ],
)
@pytest.mark.parametrize("page", [GOOD, BAD])
async def test_the_number_of_paragraphs_is_the_one_asked_for(
    client: AsyncAnthropic, wish: str, number: int, page: str
) -> None:
    document = await write_document(client, f"Fetch {URL} and write {wish}", page)
    assert document.startswith("# A ")
    assert len(paragraphs(document)) == number


async def test_where_a_page_cannot_fill_the_paragraphs_the_outcome_names_the_real_number(
    client: AsyncAnthropic,
) -> None:
    messages: list[Any] = [{"role": "user", "content": f"a 40 paragraph critique of {URL}"}]
    writing = await ask(client, messages := add_results(messages, await ask(client, messages), GOOD))
    number = len(paragraphs(tool_uses(writing)[0][1]["content"]))
    [(_, arguments)] = tool_uses(await ask(client, add_results(messages, writing, "written")))
    assert 7 < number < 40
    words = {8: "Eight", 9: "Nine", 10: "Ten"}
    assert arguments["outcome"].startswith(f"{words.get(number, number)} paragraph critique")


async def test_a_critique_says_that_no_language_model_wrote_it(client: AsyncAnthropic) -> None:
    assert "no language model" in (await write_document(client, GOAL, GOOD)).splitlines()[-1]


async def test_a_constructive_tone_turns_each_weak_point_into_advice(client: AsyncAnthropic) -> None:
    plain = await write_document(client, GOAL, BAD)
    kind = await write_document(client, f"{GOAL}\n\nContext:\n- tone: constructive", BAD)
    assert "; it would help to " not in plain
    assert kind.count("; it would help to ") >= 2


async def test_several_pages_are_fetched_at_once_and_judged_together(client: AsyncAnthropic) -> None:
    goal = f'Review "{URL}", (http://127.0.0.1:8000/b.html) and http://127.0.0.1:8000/b.html.'
    first = await ask(client, [{"role": "user", "content": goal}])
    assert tool_uses(first) == [("fetch", {"url": URL}), ("fetch", {"url": "http://127.0.0.1:8000/b.html"})]
    document = await write_document(client, goal, GOOD, BAD)
    assert "“Bees in winter” leaves the least to mend" in document


async def test_a_page_that_failed_is_said_to_have_failed(client: AsyncAnthropic) -> None:
    goal = f"critique {URL} and http://gone.example"
    document = await write_document(client, goal, GOOD, RuntimeError("not_found: 404"))
    assert "http://gone.example could not be fetched (not_found: 404)" in document


async def test_where_no_page_came_it_escalates_with_the_reason(client: AsyncAnthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": GOAL}]
    last = await ask(
        client, add_results(messages, await ask(client, messages), RuntimeError("blocked: private address"))
    )
    [(name, arguments)] = tool_uses(last)
    assert name == "escalate"
    assert "blocked: private address" in arguments["reason"]


async def test_where_the_artifact_cannot_be_written_it_escalates(client: AsyncAnthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": GOAL}]
    messages = add_results(messages, await ask(client, messages), GOOD)
    last = await ask(client, add_results(messages, await ask(client, messages), RuntimeError("denied: no")))
    assert [name for name, _ in tool_uses(last)] == ["escalate"]


async def test_without_an_address_it_asks_and_goes_on_with_the_answer(client: AsyncAnthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "produce a 2 para critique"}]
    asked = await ask(client, messages)
    assert [name for name, _ in tool_uses(asked)] == ["ask_human"]
    assert tool_uses(await ask(client, add_results(messages, asked, f"Take {URL}, please"))) == [
        ("fetch", {"url": URL})
    ]
    [(name, arguments)] = tool_uses(await ask(client, add_results(messages, asked, "no idea")))
    assert name == "finish"
    assert "ANTHROPIC_API_KEY" in arguments["outcome"]


async def test_a_later_goal_of_the_conversation_starts_afresh(client: AsyncAnthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": GOAL}]
    for result in (GOOD, "written", "finished"):
        messages = add_results(messages, await ask(client, messages), result)
    messages[-1]["content"].append({"type": "text", "text": "Now a report on http://other.example/"})
    assert tool_uses(await ask(client, messages)) == [("fetch", {"url": "http://other.example/"})]


async def test_it_calls_only_tools_that_the_request_offers(client: AsyncAnthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": GOAL}]
    assert not tool_uses(await ask(client, messages, tools=("read_file",)))
    assert not tool_uses(await ask(client, messages, tools=()))
    fetching = await ask(client, messages, tools=("fetch",))
    answered = await ask(client, add_results(messages, fetching, GOOD), tools=("fetch",))
    assert not tool_uses(answered)
    assert "# A critique of “Bees in winter”" in text_of(answered)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "none"}, []),
        ({"type": "any"}, ["fetch"]),
        ({"type": "tool", "name": "escalate"}, ["escalate"]),
        ({"type": "tool", "name": "fetch"}, ["fetch"]),
    ],
)
async def test_a_forced_choice_of_tool_is_respected(client: AsyncAnthropic, choice: Any, expected: list[str]) -> None:
    message = await ask(client, [{"role": "user", "content": GOAL}], tool_choice=choice)
    assert [name for name, _ in tool_uses(message)] == expected


async def test_a_tool_use_without_its_result_is_refused_as_the_api_refuses_it(client: AsyncAnthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": GOAL}]
    broken = add_results(messages, await ask(client, messages), GOOD)
    broken[-1]["content"] = [{"type": "text", "text": "go on"}]
    with pytest.raises(BadRequestError, match="without `tool_result`") as caught:
        await ask(client, broken)
    assert caught.value.type == "invalid_request_error"


async def test_another_path_is_not_found(client: AsyncAnthropic) -> None:
    with pytest.raises(NotFoundError):
        await client.models.list()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "image"]) | JSON},
    optional={
        "text": st.text(max_size=8) | st.just(f"{GOAL}\ud800") | JSON,
        "id": st.sampled_from(["a", "\ud800"]),
        "tool_use_id": st.sampled_from(["a", "\ud800"]),
        "name": st.sampled_from(TOOLS),
        "input": st.dictionaries(st.just("url"), JSON) | JSON,
        "content": st.just(GOOD) | JSON,
        "is_error": JSON,
    },
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]) | JSON,
        "content": st.just(GOAL) | st.lists(BLOCK, max_size=3) | JSON,
    }
)
USE = st.fixed_dictionaries(
    {
        "type": st.just("tool_use"),
        "id": st.just("a"),
        "name": st.sampled_from(TOOLS),
        "input": st.sampled_from([{"url": URL}, {"url": ["no"]}, {"path": 1, "content": None}, {}]),
    }
)
RESULT = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "tool_use_id": st.just("a")},
    optional={"content": st.sampled_from([GOOD, BAD, "", f"{URL} \ud800", [], [{"text": None}]]), "is_error": JSON},
)
SOUND = st.tuples(
    st.fixed_dictionaries({"role": st.just("user"), "content": st.sampled_from([GOAL, "hello \ud800"])}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.tuples(USE)}),
    st.fixed_dictionaries({"role": st.just("user"), "content": st.tuples(RESULT)}),
)
BODY = st.fixed_dictionaries(
    {"model": st.just("m"), "max_tokens": st.just(9), "messages": SOUND | st.lists(MESSAGE, max_size=4) | JSON},
    optional={
        "tools": st.lists(st.fixed_dictionaries({"name": st.sampled_from(TOOLS)}), max_size=3) | JSON,
        "tool_choice": st.fixed_dictionaries({"type": st.sampled_from(["any", "tool", "none"]) | JSON}) | JSON,
        "system": JSON,
        "stream": JSON,
    },
)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(body=BODY | JSON)
async def test_whatever_is_posted_it_answers_or_refuses_and_never_raises(body: Any) -> None:
    async with httpx2.AsyncClient(transport=RehearsalTransport(pause=0)) as http:
        response = await http.post("http://model/v1/messages", content=json.dumps(body))
    assert response.status_code in (200, 400)
    if response.status_code == 400:
        assert response.json()["error"]["type"] == "invalid_request_error"


@settings(max_examples=100)
@given(page=st.lists(st.sampled_from([*'aA .!\n#-|*[]()`<>:“”é1{}"\\_', "http://[", "url: ", "[a](//["])).map("".join))
def test_whatever_a_page_holds_it_can_be_judged(page: str) -> None:
    use = {"type": "tool_use", "id": "a", "name": "fetch", "input": {"url": URL}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": page}
    reply = answer_request(
        {
            "messages": [
                {"role": "user", "content": GOAL},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ],
            "tools": [{"name": "write_file"}],
        }
    )
    assert reply["content"][-1]["input"]["path"] == "artifacts/critique.md"


@pytest.mark.parametrize(
    "shape",
    [
        GOOD,
        GOOD.replace("# Bees in winter\n", "Bees in winter\n==============\n").replace("## The ball", "The ball\n---"),
        json.dumps({"url": URL, "status": 200, "title": "Bees in winter", "text": GOOD.split("\n\n", 1)[1]}),
        f"<fetched>\n{GOOD}</fetched>",
        "---\n" + GOOD.replace("\n\n", "\n---\n", 1),
    ],
    ids=["header", "setext", "json", "fenced", "front matter"],
)
def test_a_page_is_understood_in_any_usual_shape(shape: str) -> None:
    page = open_page(URL, shape)
    assert page.title == "Bees in winter"
    assert [section.title for section in page.headings] == ["Bees in winter", "The ball", "What you can do"]
    assert page.links == (("our calendar for beekeepers", "http://127.0.0.1:8000/calendar.html"),)
    assert not weak_points([page])


def test_a_link_keeps_the_brackets_of_its_address() -> None:
    page = open_page(URL, "See [the mill](https://x.example/Mill_(tide) 'a title').")
    assert page.links == (("the mill", "https://x.example/Mill_(tide)"),)
    assert page.paragraphs == ["See the mill."]


@pytest.mark.parametrize("run", ["[", "[a](", "![", "a", "a.\n", "<", "\n- ", "_ ", "# ", "a@", "(("])
def test_a_hostile_page_is_measured_in_bounded_time(run: str) -> None:
    started = process_time()
    weak_points([open_page(URL, run * 100_000)])
    assert process_time() - started < 2  # unbounded, it takes minutes


def test_a_page_without_text_is_said_to_hold_none() -> None:
    image = f"url: {URL}\nstatus: 200 OK\ncontent-type: image/png\n\n[not text: 5,120 bytes, not shown]"
    assert "holds no text to be read" in weak_points([open_page(URL, image)])[0].text


def test_images_without_a_text_alternative_are_found_on_a_page_as_it_is_fetched() -> None:
    html = (PAGES / "visit.html").read_bytes()
    page = read_webpage(html, "text/html", URL, timedelta(seconds=20))
    remarks = [remark.text for remark in weak_points([open_page(URL, f"title: {page.title}\n\n{page.text}")])]
    assert "None of its two images has a text alternative" in remarks


def test_links_that_are_only_images_are_not_praised_for_their_names() -> None:
    page = open_page(URL, "Our pictures. " + "[![](a.jpg)](a.html) " * 3)
    assert len(page.links) == 3
    assert not any("click here" in remark.text for topic in review_page(page) for remark in topic)


def test_every_weak_point_has_an_advice() -> None:
    found = [remark for topic in review_page(open_page(URL, BAD)) for remark in topic]
    assert all(bool(remark.advice) or not remark.weight for remark in found)
    assert sum(remark.weight > 0 for remark in found) >= 7


def test_the_example_site_serves_its_pages_with_links_that_hold() -> None:
    with serve_site() as address, httpx.Client(base_url=address) as http:
        home = http.get("")
        pages = set(re.findall(r'href="(\w+\.html)"', home.text))
        assert home.headers["content-type"] == "text/html; charset=utf-8"
        assert pages == {"index.html", "about.html", "tides.html", "visit.html"}
        assert {http.get(page).status_code for page in pages} == {200}
