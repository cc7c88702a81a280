"""The page in a real browser: who is signed in, what waits for a person, and that nothing else acts through it."""

import asyncio
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

from selenium.webdriver.common.keys import Keys

from tests.browser import needs_browser
from tests.gateway.conftest import Gateway, make_token
from tests.gateway.paging import Page, asking, cancel, card_of, driver, hands, page
from tests.gateway.test_access_log import lines
from tests.gateway.test_runs import wait_for_end

__all__ = ["driver", "hands", "page"]  # fixtures

QUESTIONS = "/v1/questions"
STORED = """
return JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, performance.getEntries(),
  document.documentElement.outerHTML, [...document.querySelectorAll("input")].map((it) => it.value), location.href]);
"""


async def answers_to(gateway: Gateway, run_id: str) -> list[dict[str, Any]]:
    """The answers that a run got, in order."""
    events = await gateway.events(run_id)
    return [event["answer"] for _, event in events if event.get("type") == "answer_received"]


# ---- who is signed in


@needs_browser
async def test_a_wrong_token_is_reported(page: Page) -> None:
    page.sign_out()
    page.write("Token", "pdr_wrong" + Keys.ENTER)
    page.shows("unknown, expired or revoked", "[role=alert]")
    assert page.named("Token")


@needs_browser
async def test_a_browser_stays_signed_in_without_the_token_until_it_is_told_to_forget(page: Page) -> None:
    run_id = await page.gateway.start()
    await wait_for_end(page.gateway, run_id)
    page.sign_out()
    page.open_run(run_id)
    page.shows("completed", ".end")
    assert page.gateway.token not in page.driver.execute_script(STORED)
    assert page.driver.execute_script("return document.cookie") == ""
    [cookie] = page.driver.get_cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
    page.driver.refresh()
    page.shows("completed", ".end")
    assert not page.named("Token")
    assert page.gateway.token not in page.driver.execute_script(STORED)
    page.press("Sign out")
    page.wait_for("Token")
    assert page.driver.get_cookies() == []
    assert run_id not in page.text


@needs_browser
async def test_a_session_that_is_over_asks_for_a_token_again(page: Page) -> None:
    gateway, name = page.gateway, f"guest-{uuid4().hex[:8]}"
    token = await asyncio.to_thread(make_token, gateway.project, name, "runs:read")
    page.sign_out()
    page.sign_in(token)
    page.shows(name, "header.top")
    assert (await asyncio.to_thread(gateway.project.perdure, "token", "revoke", name)).code == 0
    page.wait_for("Token")
    page.shows("The session is over", "main")


HOSTILE = """<form method="post" action="{address}"></form><script>
fetch("{address}", {{ method: "POST", mode: "no-cors", credentials: "include" }})
  .then(() => document.forms[0].submit());
</script>"""


@needs_browser
async def test_a_page_at_another_port_cannot_act_with_the_cookie(page: Page, tmp_path: Path) -> None:
    """Which a browser sends with its requests: cookies know no ports."""
    gateway = page.gateway
    run_id = await gateway.waiting("ask: which colour")
    page.open()
    (tmp_path / "index.html").write_text(HOSTILE.format(address=f"{gateway.url}/v1/runs/{run_id}/cancel"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page.driver.get(f"http://127.0.0.1:{server.server_port}/")
        refused = await lines(gateway, 2, reason="cross_site", run_id=run_id)
        server.shutdown()
    assert {line["status"] for line in refused} == {403}
    assert (await gateway.get(f"/v1/runs/{run_id}")).json()["state"]["status"] == "waiting_on_human"
    await cancel(gateway, run_id)


# ---- what waits for a person


@needs_browser
async def test_the_questions_are_filtered(hands: Page) -> None:
    gateway = hands.gateway
    asks, pays = await asking(gateway, "ask: which colour"), await asking(gateway, "charge: the card")
    hands.open()
    for run_id in (asks, pays):
        hands.shows(run_id, card_of(run_id))
    hands.press("Filter")
    hands.write("tool", "charge" + Keys.TAB)
    hands.wait_for("Filter (on)")
    hands.until(lambda: not hands.all(card_of(asks)))
    hands.shows(pays, card_of(pays))
    hands.choose("kind", "The agent asks")
    if hands.by == "keyboard":
        hands.type(Keys.TAB)
    hands.shows("No such question is open.")
    await cancel(gateway, asks, pays)


@needs_browser
async def test_a_call_is_approved_with_changed_arguments(hands: Page) -> None:
    """By a form of the tool's schema, which knows what does not fit."""
    gateway = hands.gateway
    run_id = await asking(gateway, "charge: the card")
    hands.open()
    card = card_of(run_id, "Approve a call")
    hands.press("change the arguments", card)
    hands.write("amount *", Keys.BACK_SPACE, card)
    hands.shows("amount: is missing", f"{card} .faults")
    assert not hands.named("approve as changed", card).is_enabled()
    hands.write("amount *", "40", card)
    hands.press("approve as changed", card)
    hands.until(lambda: not hands.all(card))
    hands.open_run(run_id, "calls")
    hands.shows("tester: approve, amount: 42 → 40", "table")
    await cancel(gateway, run_id)
    [answer] = await answers_to(gateway, run_id)
    assert (answer["arguments"], answer["decision"]) == ({"amount": 40}, "approve")


@needs_browser
async def test_a_call_is_denied_with_a_reason(hands: Page) -> None:
    """A press of Enter in the reason decides nothing."""
    gateway = hands.gateway
    run_id = await asking(gateway, "charge: the card")
    hands.open()
    card = card_of(run_id)
    hands.write("reason", "the card is stolen" + Keys.ENTER, card)
    assert (await gateway.get(f"/v1/runs/{run_id}")).json()["state"]["status"] == "waiting_on_human"
    hands.press("deny", card)
    hands.until(lambda: not hands.all(card))
    await wait_for_end(gateway, run_id)
    [answer] = await answers_to(gateway, run_id)
    assert (answer["decision"], answer["text"]) == ("deny", "the card is stolen")


@needs_browser
async def test_chosen_calls_are_decided_together(hands: Page) -> None:
    gateway = hands.gateway
    one, other = await asking(gateway, "charge: the card"), await asking(gateway, "charge: the card")
    kept = await asking(gateway, "charge: the card")
    hands.open()
    for run_id in (one, other):
        hands.press(f"choose charge of {run_id}")
    hands.press("deny chosen")
    hands.shows("2 calls: deny", "[role=status]")
    for run_id in (one, other):
        await wait_for_end(gateway, run_id)
        hands.until(lambda: not hands.all(card_of(run_id)))  # noqa: B023 - awaited here
    assert hands.all(card_of(kept))
    await cancel(gateway, kept)


@needs_browser
async def test_a_hidden_page_makes_no_requests(page: Page) -> None:
    """The question that came meanwhile is there once the page is visible."""
    gateway = page.gateway
    page.open()
    page.until(lambda: page.requests(QUESTIONS))
    page.show(is_shown=False)
    run_id = await gateway.waiting("ask: which colour")
    await asyncio.sleep(10)  # longer than from one look to the next
    assert page.requests() == []
    page.show(is_shown=True)
    page.until(lambda: page.all(card_of(run_id)))
    await gateway.post(f"/v1/runs/{run_id}/answer", {"text": "red"})


@needs_browser
async def test_a_new_question_is_on_the_page_by_itself_and_an_answered_one_leaves_at_once(page: Page) -> None:
    page.open()
    page.until(lambda: page.requests(QUESTIONS))
    run_id = await page.gateway.waiting("ask: which colour")
    before, card = len(page.requests(QUESTIONS)), card_of(run_id)
    page.until(lambda: page.all(card))
    assert len(page.requests(QUESTIONS)) <= before + 2  # with the next look, or with that after one under way
    page.write("answer", "red" + Keys.ENTER, card)
    page.shows("answered", "[role=status]")
    page.until(lambda: not page.all(card))
    looks = len(page.requests(QUESTIONS))
    page.until(lambda: len(page.requests(QUESTIONS)) > looks)  # and does not come back
    assert not page.all(card)


@needs_browser
async def test_of_two_people_the_second_is_told_that_the_first_was_quicker(page: Page) -> None:
    gateway = page.gateway
    token = await asyncio.to_thread(
        make_token, gateway.project, f"second-{uuid4().hex[:8]}", "runs:read", "human:answer"
    )
    seen, stale = await asking(gateway, "charge: the card"), await asking(gateway, "charge: the card")
    page.open()
    for run_id in (seen, stale):
        page.shows(run_id, card_of(run_id))

    async def second_approves(run_id: str) -> None:
        done = await gateway.post(f"/v1/runs/{run_id}/answer", {"decision": "approve"}, Authorization=f"Bearer {token}")
        assert done.status_code == 200, done.text

    await second_approves(seen)
    page.until(lambda: not page.all(card_of(seen)))
    page.show(is_shown=False)  # so that it does not look
    await second_approves(stale)
    page.press("approve", card_of(stale))
    page.shows("no question is open on this run", f"{card_of(stale)} [role=alert]")
    page.show(is_shown=True)
    page.until(lambda: not page.all(card_of(stale)))


@needs_browser
async def test_the_first_screen_shows_the_exact_call(page: Page) -> None:
    run_id = await asking(page.gateway, "charge: the card")
    page.open()
    card = card_of(run_id, "Approve a call")
    page.shows("42", f"{card} .fields")
    page.press("exactly as the run asks", card)
    page.shows('"amount": 42', card)
    page.fits(360, 1280)
    await cancel(page.gateway, run_id)
