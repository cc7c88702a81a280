"""The gateway's page as a person uses it: by what is written on it, with the mouse or with the keyboard alone."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.browser import browsing
from tests.gateway.conftest import Gateway
from tests.waiting import PATIENCE, until

MOST_TABS = 150
# What a screen reader would call it. A name that ends with "…" is the beginning of one.
NAMED = """
const nameOf = (it) => (it.getAttribute("aria-label") ?? it.labels?.[0]?.textContent ?? it.textContent)
  .replace(/\\s+/g, " ").trim();
const isNamed = (it, name) => name.endsWith("…") ? nameOf(it).startsWith(name.slice(0, -1)) : nameOf(it) === name;
"""
FIND = f"""{NAMED}
const [name, within] = arguments;
const root = within ? document.querySelector(within) : document.body;
return [...(root?.querySelectorAll("a, button, input, select, textarea, summary, [tabindex]") ?? [])]
  .find((it) => isNamed(it, name) && it.checkVisibility());
"""
IS_FOCUSED = f"""{NAMED}
const [name, within] = arguments;
const it = document.activeElement;
return Boolean(isNamed(it, name) && it.closest(within || "body"));
"""
IS_OUTLINED = """
return [document.activeElement, document.activeElement.parentElement].some((it) => {
  const style = getComputedStyle(it);
  return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
});
"""
SHOW = """
Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
performance.mark("shown or hidden");
document.dispatchEvent(new Event("visibilitychange"));
"""

# What was asked for since the page was shown or hidden.
REQUESTS = """
const since = performance.getEntriesByName("shown or hidden").at(-1)?.startTime ?? 0;
return performance.getEntriesByType("resource").filter((it) => it.startTime > since).map((it) => it.name);
"""


@dataclass(frozen=True)
class Page:
    """The page in a browser that is signed in. `by` is what a person's hands are at."""

    driver: Any
    gateway: Gateway
    by: Literal["mouse", "keyboard"] = "mouse"

    def until(self, look: Callable[[], Any]) -> Any:
        wait = WebDriverWait(
            self.driver, PATIENCE, poll_frequency=0.1, ignored_exceptions=[WebDriverException, OSError]
        )
        return wait.until(lambda _: look())

    @property
    def text(self) -> str:
        text: str = self.driver.find_element(By.TAG_NAME, "body").text
        return text

    def all(self, css: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements(By.CSS_SELECTOR, css)
        return found

    def shows(self, words: str, css: str = "body") -> None:
        try:
            self.until(lambda: any(words in each.text for each in self.all(css)))
        except WebDriverException:
            raise AssertionError(f"{words!r} never came in {css}: {self.text}") from None

    def drops(self, words: str, css: str = "body") -> None:
        try:
            self.until(lambda: not any(words in each.text for each in self.all(css)))
        except WebDriverException:
            raise AssertionError(f"{words!r} never left {css}: {self.text}") from None

    # ---- places

    def load(self, place: str = "") -> None:
        """Load the page anew, at a place such as "runs" or "run/ID/calls"."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.gateway.url}/#/{place}")

    def open(self, place: str = "now") -> None:
        """Load the page at a place, signed in."""
        self.load(place)
        self.until(lambda: self.named("Token") or self.named("Sign out"))
        if self.named("Token"):
            self.sign_in(self.gateway.token)

    def open_run(self, run_id: str, tab: str = "") -> None:
        self.open(f"run/{run_id}/{tab}" if tab else f"run/{run_id}")
        self.shows(run_id, ".run-head")

    def sign_in(self, token: str) -> None:
        self.write("Token", token + Keys.ENTER)
        self.until(lambda: self.named("Sign out"))

    def sign_out(self) -> None:
        """Leave the browser without a session, at the sign-in."""
        self.driver.delete_all_cookies()
        self.load()
        self.until(lambda: self.named("Token"))

    # ---- what a person does

    def named(self, name: str, within: str = "") -> Any:
        """Return what can be pressed or written and has this name, or None."""
        return self.driver.execute_script(FIND, name, within)

    def wait_for(self, name: str, within: str = "") -> Any:
        try:
            return self.until(lambda: self.named(name, within))
        except WebDriverException:
            raise AssertionError(f"nothing is called {name!r} in {within or 'the page'}: {self.text}") from None

    def press(self, name: str, within: str = "") -> None:
        found = self.wait_for(name, within)
        self.until(lambda: self.wait_for(name, within).is_enabled())
        if self.by == "mouse":
            self.until(lambda: self.wait_for(name, within).click() or True)
            return
        self.tab_to(name, within)
        self.type(Keys.SPACE if found.get_attribute("type") == "checkbox" else Keys.ENTER)

    def write(self, name: str, text: str, within: str = "") -> None:
        """Write in place of what a field holds."""
        if self.by == "mouse":
            self.until(lambda: self.wait_for(name, within).click() or True)
        else:
            self.tab_to(name, within)
        ActionChains(self.driver).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).perform()
        self.type(text)

    def attach(self, name: str, path: object, within: str = "") -> None:
        """Choose a file; the dialog is the browser's own."""
        self.wait_for(name, within).send_keys(str(path))

    def choose(self, name: str, option: str, within: str = "") -> None:
        path = f".//option[normalize-space()='{option}']"
        found = self.until(lambda: self.wait_for(name, within).find_element(By.XPATH, path))
        if self.by == "mouse":
            found.click()
        else:
            self.tab_to(name, within)
            self.type(option)

    def tab_to(self, name: str, within: str = "") -> None:
        """Go by Tab until it has the focus, which must be seen."""
        for _ in range(MOST_TABS):
            self.type(Keys.TAB)
            if self.driver.execute_script(IS_FOCUSED, name, within):
                assert self.driver.execute_script(IS_OUTLINED), f"{name!r} has the focus, and nothing shows it"
                return
        raise AssertionError(f"the keyboard never came to {name!r}: {self.text}")

    def type(self, keys: str) -> None:
        ActionChains(self.driver).send_keys(keys).perform()

    def show(self, *, is_shown: bool) -> None:
        """Bring the tab to the front, or behind another."""
        self.driver.execute_script(SHOW, not is_shown)

    def requests(self, to: str = "") -> list[str]:
        """The addresses that were asked for since it was last brought to the front or left, up to 250."""
        return [each for each in self.driver.execute_script(REQUESTS) if each.endswith(to)]

    # ---- what it looks like

    def resize(self, width: int = 0, height: int = 1000) -> None:
        """Make the page as wide as this, which a window need not be able to; by default, as wide as the window."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        if width:
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        else:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def fits(self, *widths: int) -> None:
        """Fail if the page scrolls sideways at one of the widths."""
        for width in widths:
            self.resize(width)
            seen = self.driver.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
            assert seen[0] == width >= seen[1], f"it is {seen[1]} pixels wide in a window of {seen[0]}"
        self.resize()


def card_of(run_id: str, kind: str = "") -> str:
    """Return the CSS of the card of a question of a run, on the first screen."""
    return f'article[aria-label$=": {run_id}"]' + (f'[aria-label^="{kind}"]' if kind else "")


async def asking(gateway: Gateway, goal: str = "ask: which colour") -> str:
    """A run that waits for a person, and is listed."""
    run_id = await gateway.waiting(goal)

    async def is_listed() -> bool:
        questions = (await gateway.get("/v1/questions")).json()["questions"]
        return run_id in [each["run_id"] for each in questions]

    await until(is_listed)
    return run_id


async def cancel(gateway: Gateway, *run_ids: str) -> None:
    for run_id in run_ids:
        await gateway.post(f"/v1/runs/{run_id}/cancel", {})


BROKEN = ("Uncaught", "Content Security Policy", "TrustedHTML", "Trusted Type", "Error:")
VIEWED = re.compile(r"^http://\S+/v1/runs/[^/]+/(artifacts|media)/")


@contextmanager
def unbroken(driver: Any) -> Iterator[None]:
    """Fail if the page breaks meanwhile, or does what its policy forbids.

    A refused request is no fault of it, nor what the browser's own viewer of a file would like to do.
    """
    driver.get_log("browser")
    yield
    errors = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    faults = [each for each in errors if any(words in each for words in BROKEN) and not VIEWED.search(each)]
    assert not faults, faults


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browsing(tmp_path_factory.mktemp("chromium"), "1280,1000") as started:
        yield started


@pytest.fixture
def page(driver: Any, gateway: Gateway) -> Iterator[Page]:
    with unbroken(driver):
        yield Page(driver, gateway)
    if len(driver.window_handles) > 1:
        raise AssertionError("a test left a window open")


@pytest.fixture(params=["mouse", "keyboard"])
def hands(page: Page, request: pytest.FixtureRequest) -> Page:
    """The page by the mouse, and by the keyboard alone."""
    return replace(page, by=request.param)
