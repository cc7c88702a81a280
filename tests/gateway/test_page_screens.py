"""Each screen of the page: nothing that axe finds, in both colour schemes, and no sideways scrolling at any width."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import pytest

from tests.browser import needs_browser
from tests.gateway.conftest import Gateway
from tests.gateway.paging import Page, asking, cancel, card_of, driver, page
from tests.gateway.test_runs import dry_run, wait_for_end

__all__ = ["driver", "page"]  # fixtures

AXE = Path(__file__).parents[1] / "page" / "node_modules" / "axe-core" / "axe.min.js"
IS_SCHEME = "return matchMedia(`(prefers-color-scheme: ${arguments[0]})`).matches"
SCHEMES = ("light", "dark")
CHECKED, WIDTHS = (400, 1280), (360, 2560)  # pixels: with axe, and for sideways scrolling alone
FINDINGS = """
const done = arguments[0];
axe.run(document, { resultTypes: ["violations"] }).then(
  ({ violations }) => done(violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.html}`))),
  (error) => done([String(error)]),
);
"""


@pytest.fixture(scope="module")
async def shown(gateway: Gateway) -> AsyncIterator[dict[str, str]]:
    """Runs and a conversation, by what the screens show of them."""
    conversation = f"shown-{uuid4().hex[:8]}"
    said = await gateway.post(f"/v1/conversations/{conversation}/requests", {"request_id": "one", "goal": "say: hello"})
    ended = await gateway.start(f"say: {'a long goal, ' * 30}")
    runs = {
        "asks": await asking(gateway, "ask: which colour"),
        "pays": await asking(gateway, "charge: the card"),
        "waits": await gateway.waiting("lookup: the parcel", "waiting_on_tool"),
        "ended": ended,
        "dry": await dry_run(gateway),
    }
    for run_id in (ended, said.json()["run_id"]):
        await wait_for_end(gateway, run_id)
    yield {**runs, "conversation": conversation}
    await cancel(gateway, runs["asks"], runs["pays"], runs["waits"])


def show_all(page: Page, runs: dict[str, str]) -> None:
    card = card_of(runs["pays"])
    page.press("Filter")
    page.press("change the arguments", card)
    page.press("exactly as the run asks", card)
    page.press("what it did before", card_of(runs["asks"]))
    page.shows("model turn", card_of(runs["asks"]))


def choose_a_call(page: Page, runs: dict[str, str]) -> None:
    page.until(lambda: len(page.all(".timeline .row")) >= 2)
    page.all(".timeline .row button")[0].click()
    page.shows("1. Charge", ".chosen-row")


def open_the_call(page: Page, runs: dict[str, str]) -> None:
    page.press("… lookup…")
    page.shows("arguments", ".talk")


def ask_to_cancel(page: Page, runs: dict[str, str]) -> None:
    page.press("Cancel")
    page.press("Tell it", ".actions")


def fill_in(page: Page, runs: dict[str, str]) -> None:
    page.choose("agent", "clerk")
    page.shows("Stamps.", "form")
    page.write("goal *", "stamp it")


def nothing_more(page: Page, runs: dict[str, str]) -> None:
    """It is shown by its address alone."""


# Where each screen is, what is on it once it is whole, and what is opened there.
Act = Callable[[Page, dict[str, str]], None]
SCREENS: dict[str, tuple[str, str, Act]] = {
    "now": ("now", "Latest", show_all),
    "run-time": ("run/{pays}", "asks a person", choose_a_call),
    "run-talk": ("run/{waits}/talk", "lookup", open_the_call),
    "run-calls": ("run/{waits}/calls", "what: parcel 7", ask_to_cancel),
    "run-files": ("run/{ended}/files", "no files", nothing_more),
    "run-dry": ("run/{dry}", "not made, as this was a dry run", nothing_more),
    "run-unknown": ("run/nobody", "nobody", nothing_more),
    "runs": ("runs", "completed", nothing_more),
    "conversations": ("conversations", "{conversation}", nothing_more),
    "conversation": ("conversation/{conversation}", "done", nothing_more),
    "start": ("start", "goal *", fill_in),
    "agents": ("agents", "clerk", nothing_more),
    "follow-ups": ("follow-ups", "Follow-ups", nothing_more),
    "schedules": ("schedules", "Schedules", nothing_more),
    "mailboxes": ("mailboxes", "Mailboxes", nothing_more),
    "dead-letters": ("dead-letters", "Dead letters", nothing_more),
}


def findings_of(page: Page) -> list[str]:
    """Return the findings of axe in both colour schemes."""
    if not AXE.is_file():
        pytest.skip("axe is not installed: npm ci --prefix tests/page")
    page.driver.execute_script(AXE.read_text(encoding="utf-8"))
    found = []
    for scheme in SCHEMES:
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        assert page.driver.execute_script(IS_SCHEME, scheme)
        found += [f"{scheme}: {each}" for each in page.driver.execute_async_script(FINDINGS)]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    return found


def check(page: Page) -> None:
    page.fits(*WIDTHS, *CHECKED)
    found = []
    for width in CHECKED:
        page.resize(width)
        found += [f"{width} pixels, {each}" for each in findings_of(page)]
    page.resize()
    assert not found, "\n".join(found)


@needs_browser
@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen_is_for_everyone(page: Page, shown: dict[str, str], name: str) -> None:
    place, words, act = SCREENS[name]
    page.open(place.format(**shown))
    page.shows(words.format(**shown), "main")
    act(page, shown)
    check(page)


@needs_browser
async def test_the_sign_in_is_for_everyone(page: Page) -> None:
    page.sign_out()
    check(page)
