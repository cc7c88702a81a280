"""The example page in a real browser: send, approve, reload in the middle of an answer, kill the gateway, go on."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.browser import browsing, needs_browser
from tests.e2e.projects import ROOT
from tests.gateway.conftest import Gateway, Gateways
from tests.waiting import PATIENCE
from tests.web_ui.conftest import STORY
from tests.web_ui.test_chats import paid

EXAMPLE = ROOT / "examples" / "web-chat"
MODULES = EXAMPLE / "node_modules"


@dataclass(frozen=True)
class Page:
    driver: Any
    url: str

    def until(self, look: Any) -> Any:
        wait = WebDriverWait(self.driver, PATIENCE, poll_frequency=0.1, ignored_exceptions=[WebDriverException])
        try:
            return wait.until(lambda _: look())
        except WebDriverException:
            raise AssertionError(self.text) from None

    @property
    def text(self) -> str:
        text: str = self.driver.find_element(By.TAG_NAME, "body").text
        return text

    def open(self, chat: str) -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/#{chat}")
        self.until(lambda: self.driver.find_element(By.TAG_NAME, "form"))

    def write(self, text: str) -> None:
        self.until(lambda: self.driver.find_element(By.CSS_SELECTOR, "[aria-label=message]")).send_keys(text)
        self.press("send")

    def press(self, name: str) -> None:
        self.until(lambda: self.button(name).click() or True)

    def button(self, name: str) -> Any:
        """The button, or WebDriverException."""
        return self.driver.find_element(By.XPATH, f"//button[text()='{name}']")

    def shows(self, words: str) -> None:
        self.until(lambda: words in self.text)

    def articles(self) -> list[str]:
        return [each.text for each in self.driver.find_elements(By.TAG_NAME, "article")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browsing(tmp_path_factory.mktemp("profile"), "900,900") as started:
        yield started


@contextmanager
def serving(gateway: Gateway) -> Iterator[str]:
    """The example's server, in front of a gateway."""
    node = shutil.which("node")
    if node is None or not MODULES.exists():
        pytest.skip("node or a package is not installed: npm ci --prefix examples/web-chat")
    env = {**os.environ, "GATEWAY": gateway.url, "TOKEN": gateway.token}
    command = [node, str(EXAMPLE / "server.mjs"), "0"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


@pytest.fixture
def page(driver: Any, ui_gateway: Gateway) -> Iterator[Page]:
    with serving(ui_gateway) as url:
        yield Page(driver, url)


@needs_browser
async def test_a_person_sends_approves_and_answers(page: Page, ui_gateway: Gateway) -> None:
    before = paid(ui_gateway)
    page.open("first")
    page.write("GOAL pay")
    page.press("approve")
    page.shows('Done: {"paid":42}.')
    page.write("GOAL ask")
    page.press("red")
    page.shows("Done: red.")
    page.write("GOAL pay")
    page.press("deny")
    page.until(lambda: "output-denied" in page.articles()[-1] and page.articles()[-1].endswith("completed"))
    assert paid(ui_gateway) == before + 1
    shown = page.articles()
    page.open("first")
    page.until(lambda: page.articles() == shown)
    assert [entry for entry in page.driver.get_log("browser") if "favicon" not in entry["message"]] == []


@needs_browser
async def test_a_reload_in_the_middle_of_an_answer_goes_on(page: Page) -> None:
    page.open("second")
    page.write("GOAL story")
    page.shows("word3")
    page.open("second")
    page.shows("word3")
    page.shows("completed")
    assert [(text.count(STORY), text.count("word0")) for text in page.articles()] == [(0, 0), (1, 1)]


@needs_browser
async def test_a_cancel_button_cancels(page: Page) -> None:
    page.open("third")
    page.write("GOAL story")
    page.shows("word3")
    page.press("cancel")
    page.shows("cancelled")


@needs_browser
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_the_page_goes_on_by_itself_when_the_gateway_is_back(
    driver: Any, ui_gateways: Gateways, number: signal.Signals
) -> None:
    """In the middle of an answer, before a message, and at a question."""
    with ui_gateways.open() as gateway:
        port = gateway.url.rpartition(":")[2]
        before = paid(gateway)
        with serving(gateway) as url:
            page = Page(driver, url)
            page.open(f"fourth-{number}")
            page.write("GOAL story")
            page.shows("word3")
            await asyncio.to_thread(gateway.process.send_signal, number)
            with ui_gateways.open("--port", port) as second:
                page.shows("completed")
                assert [(text.count(STORY), text.count("word0")) for text in page.articles()] == [(0, 0), (1, 1)]
                await asyncio.to_thread(second.process.send_signal, number)
                page.write("GOAL pay")
                page.shows("error")
                with ui_gateways.open("--port", port) as third:
                    page.press("approve")
                    page.shows('Done: {"paid":42}.')
                    page.write("GOAL pay")
                    page.until(lambda: page.button("approve"))
                    await asyncio.to_thread(third.process.send_signal, number)
                    page.press("approve")
                    page.shows("error")
                    with ui_gateways.open("--port", port):  # the decision is sent again, by itself
                        page.until(lambda: page.text.count('Done: {"paid":42}.') == 2)
        assert paid(gateway) == before + 2
        assert len(page.articles()) == 6


def test_the_page_is_as_short_as_it_says() -> None:
    lines = {name: len((EXAMPLE / name).read_text().splitlines()) for name in ("page.jsx", "reconnect.js")}
    assert lines["page.jsx"] <= 90
    assert lines["reconnect.js"] <= 30
