"""Temporal's Web UI in a real browser: what a person sees of a run there, and what they can do to it."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle

from perdure.client.connection import connect, register_search_attributes
from perdure.client.runs import start_or_get_run
from perdure.contracts.run.events import StartEvent
from perdure.devserver import embedded_server
from perdure.testkit.model_server import ScriptedAnswer, ScriptedModel, calls
from tests.browser import browsing, needs_browser, picture
from tests.e2e.projects import MakeProject, turn_of
from tests.waiting import PATIENCE, until

pytestmark = needs_browser

QUESTION = "Shall it cost $5, or $10?"

CHARGE = '''
def charge(amount: int) -> str:
    """Charges the customer."""
    return f"charged {amount}"
'''
TOOL = '[tools.charge]\nkind = "python"\neffect = "once"\napproval = "always"\ntarget = "till:charge"\n'
AGENTS = {
    "agents/lead.md": "---\ndescription: makes books\ntools: [charge]\npeers: [writer]\n---\nYou lead.\n",
    "agents/writer.md": "---\ndescription: writes chapters\n---\nYou write.\n",
}

Run = WorkflowHandle[Any, Any]
Json = dict[str, Any]


@dataclass
class Browser:
    """One window on the Web UI at `ui`. Each look waits until it can be had."""

    driver: Any
    ui: str

    def open(self, path: str) -> None:
        self.driver.get(f"{self.ui}/namespaces/default/workflows{path}")

    def open_run(self, run: Run, tab: str = "timeline") -> None:
        self.open(f"/{quote(run.id)}/{run.first_execution_run_id}/{tab}")

    def until(self, look: Callable[[], Any]) -> Any:
        wait = WebDriverWait(self.driver, PATIENCE, poll_frequency=0.1, ignored_exceptions=[WebDriverException])
        return wait.until(lambda _: look())

    def text(self) -> str:
        return str(self.driver.execute_script("return document.body.textContent"))

    def shows(self, *words: str) -> None:
        try:
            self.until(lambda: all(word in self.text() for word in words))
        except WebDriverException:
            raise AssertionError(f"{words} never came in: {self.text()[-3000:]}") from None

    def click(self, css: str, words: str = "") -> None:
        """The first element of this selector and text that takes a click."""

        def clicked() -> bool:
            for element in self.driver.find_elements(By.CSS_SELECTOR, css):
                if element.is_displayed() and words in element.text:
                    element.click()
                    return True
            return False

        self.until(clicked)

    def visible(self, css: str) -> WebElement:
        found: WebElement = self.until(
            lambda: next((e for e in self.driver.find_elements(By.CSS_SELECTOR, css) if e.is_displayed()), None)
        )
        return found

    def send(self, kind: str, handler: str, body: Json) -> None:
        """More Actions, Send a Signal or Send an Update: choose the handler, type the JSON, submit."""
        self.click("button", "More Actions")
        self.click(f"[data-testid={kind}-button]")
        self.click(f"dialog[open] [data-testid={kind}-select-button]")
        self.click("dialog[open] [role=option]", handler)
        field = self.visible("dialog[open] [role=textbox]")
        field.send_keys(json.dumps(body))
        self.driver.execute_script("document.activeElement.blur()")  # which formats the field, and moves the button
        self.until(lambda: "\n" in field.text)
        self.click("dialog[open] [data-testid=confirm-modal-button]")
        self.until(lambda: not self.driver.find_elements(By.CSS_SELECTOR, "dialog[open]"))

    def picture(self, name: str) -> None:
        picture(self.driver, f"web-ui-{name}")

    def result_has(self, words: str) -> None:
        self.until(lambda: words in self.visible("[role=textbox][aria-label='Query Result']").text)

    def rendered(self) -> str:
        """The text of the Markdown frames."""
        texts = []
        for frame in self.driver.find_elements(By.CSS_SELECTOR, "iframe"):
            self.driver.switch_to.frame(frame)
            texts.append(self.driver.find_element(By.TAG_NAME, "body").text)
            self.driver.switch_to.default_content()
        return "\n".join(texts)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browsing(tmp_path_factory.mktemp("chromium"), "1500,1200") as started:
        yield started


def replies(site: str) -> Callable[[Json], ScriptedAnswer]:
    """Fetches the page, asks a person, and finishes with the answer; a lead has two others write first."""

    def reply(body: Json) -> ScriptedAnswer:
        lead = "You lead." in json.dumps(body["system"])
        if lead or "a chapter" in json.dumps(body["messages"][0]):
            return lead_reply(body) if lead else calls(("finish", {"outcome": "a chapter on it"}))
        turn = turn_of(body)
        if turn == 0:
            return calls(("fetch", {"url": site}), text="1. Read the **page**\n2. Ask")
        if turn == 1:
            return calls(("ask_human", {"question": QUESTION, "options": ["five", "ten"]}))
        answer = body["messages"][-1]["content"][0]["content"]
        return calls(("finish", {"outcome": f"decided: {answer}"}))

    return reply


def lead_reply(body: Json) -> ScriptedAnswer:
    turn = turn_of(body)
    tasks = [
        {"id": name, "agent": "writer", "instructions": f"write a chapter on {name}", "depends_on": needs}
        for name, needs in (("sea", []), ("land", []), ("shore", ["sea", "land"]))
    ]
    book = {"outcome": "a book, paid for"}
    return calls((("delegate", {"subtasks": tasks}), ("charge", {"amount": 5}), ("finish", book))[turn])


@dataclass(frozen=True)
class Scene:
    client: Client
    browser: Browser

    async def start(self, goal: str = "read and ask", agent: str = "default") -> Run:
        event = StartEvent.model_validate({"type": "agentic.start", "payload": {"goal": goal, "agent": agent}})
        return await start_or_get_run(self.client, "perdure", event, f"ui-{uuid4().hex[:8]}")

    async def waiting(self, goal: str = "read and ask", agent: str = "default") -> Run:
        """A run that waits for a person."""
        run = await self.start(goal, agent)

        async def asks() -> bool:
            return bool((await run.query("state"))["status"] == "waiting_on_human")

        await until(asks)
        return run


@pytest.fixture(scope="module")
async def scene(make_project: MakeProject, site: str, driver: Any) -> AsyncIterator[Scene]:
    """A server with its Web UI, and a worker that speaks to a scripted model."""
    with ScriptedModel(replies(site)) as model:
        project = make_project(ANTHROPIC_BASE_URL=model.base_url)
        project.write_all({"till.py": CHARGE, **AGENTS})
        with project.folder.joinpath("perdure.toml").open("a") as file:
            file.write(TOOL)
        async with embedded_server(project.home) as server:
            client = await connect(server.address)
            await register_search_attributes(client)
            with project.worker(TEMPORAL_ADDRESS=server.address):
                yield Scene(client, Browser(driver, server.ui))


async def test_the_timeline_says_what_each_turn_and_call_does(scene: Scene, site: str) -> None:
    run = await scene.waiting()
    scene.browser.open_run(run)
    scene.browser.shows("open_run", "plan • turn 1", f"call_tool • fetch {site} · step 1", "reflect • turn 2")
    scene.browser.picture("timeline")


async def test_a_list_query_finds_the_runs_that_wait_for_a_person(scene: Scene) -> None:
    waiting, done = await scene.waiting(), await scene.waiting()
    await done.signal("human_input", {"text": "five"})
    await done.result()
    scene.browser.open("?query=" + quote('AgentStatus="waiting_on_human"'))
    scene.browser.shows(waiting.id)
    assert done.id not in scene.browser.text()


async def test_the_details_show_goal_question_answer_and_plan_with_dollars_as_typed(scene: Scene) -> None:
    run = await scene.waiting(goal="decide on a price")
    scene.browser.open_run(run, "user-metadata")
    scene.browser.until(lambda: QUESTION in scene.browser.rendered())
    rendered = scene.browser.rendered()
    assert rendered.count("decide on a price") == 2  # the summary, and the goal in the details
    for said in ("waiting_on_human", '{"question_id": "q1", "text": "five"}', "Read the page"):
        assert said in rendered
    scene.browser.picture("waiting")


@pytest.mark.parametrize(("kind", "handler"), [("update", "answer"), ("signal", "human_input")])
async def test_a_question_is_answered_from_the_dialogs(scene: Scene, kind: str, handler: str) -> None:
    run = await scene.waiting()
    scene.browser.open_run(run)
    scene.browser.send(kind, handler, {"question_id": "q1", "text": "ten"})
    assert (await run.result())["payload"]["outcome"] == "decided: ten"
    scene.browser.shows("agent.completed")


async def test_a_lead_shows_its_tree_and_its_call_is_approved_from_the_dialog(scene: Scene) -> None:
    run = await scene.waiting(goal="make a book", agent="lead")
    scene.browser.open_run(run, "relationships")
    subtasks = [f"{run.id}.1-{name}" for name in ("sea", "land", "shore")]
    scene.browser.shows(f"{run.id}/delegation:1")
    scene.browser.click("button", "/delegation:1")  # unfolds it
    scene.browser.shows(*subtasks)
    scene.browser.picture("delegation")
    scene.browser.send("update", "answer", {"question_id": "q1", "decision": "approve"})
    assert (await run.result())["payload"]["outcome"] == "a book, paid for"


async def test_request_cancellation_ends_a_run_canceled(scene: Scene) -> None:
    run = await scene.waiting()
    scene.browser.open_run(run)
    scene.browser.click("button", "Request Cancellation")
    scene.browser.click("dialog[open] [data-testid=confirm-modal-button]")

    async def canceled() -> bool:
        return (await run.describe()).status is WorkflowExecutionStatus.CANCELED

    await until(canceled)


async def test_the_queries_are_listed_with_what_they_tell_and_answer(scene: Scene) -> None:
    run = await scene.waiting()
    browser = scene.browser
    browser.open_run(run, "query")
    for query, expected in (("state", '"waiting_on_human"'), ("journal", '"objective"'), ("transcript", '"toolu_0_0"')):
        browser.click("[data-testid=query-select-button]")
        browser.click("[role=option]", query)
        browser.click("button", "Run Query")
        browser.result_has(expected)
