"""`python -m bench.page.pictures`: the pictures of `docs/console.md`, of the made-up project, wide and narrow."""

import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from selenium.webdriver.support.ui import WebDriverWait

from bench.page.project import SHOWN
from bench.page.server import Site, serving
from tests.browser import IMAGES, browsing

COLOURS = 256  # of a picture: a page has few
PATIENCE = 20  # seconds
WIDE, NARROW = 1280, 400  # pixels

OPEN_EDIT = """
const card = [...document.querySelectorAll(".question")].find((it) => it.textContent.includes("edit_file"));
card.scrollIntoView();
scrollBy(0, -12);
"""
OPEN_MAIL = """
const card = [...document.querySelectorAll(".question")].find((it) => it.textContent.includes("send_mail"));
[...card.querySelectorAll("button")].find((it) => it.textContent.includes("change the arguments")).click();
card.scrollIntoView();
"""
TO_VIEWS = """
document.querySelector(".run .tabs").scrollIntoView();
"""
CHOOSE_WAIT = """
[...document.querySelectorAll(".bar-row.wait .track")][0].click();
"""


@dataclass(frozen=True)
class Shot:
    """A screen: its place, what it must show first, and a script that prepares it. `height` in pixels."""

    name: str
    place: str
    shows: str
    script: str = ""
    height: int = 900
    signed_in: bool = True


SHOTS = (
    Shot("sign-in", "", "#token", height=420, signed_in=False),
    Shot("now", "/now", ".question .letter", height=1400),
    Shot("edit", "/now", ".question .difference", OPEN_EDIT, height=620),
    Shot("change", "/now", ".question .letter", OPEN_MAIL, height=900),
    Shot("time", f"/run/{SHOWN}/time", ".bar-row.wait", CHOOSE_WAIT, height=1160),
    Shot("talk", f"/run/{SHOWN}/talk", ".said.question", TO_VIEWS, height=900),
    Shot("calls", f"/run/{SHOWN}/calls", "td", TO_VIEWS, height=700),
    Shot("runs", "/runs", ".row", height=700),
    Shot("start", "/start?agent=bookkeeper", "#goal", height=800),
    Shot("conversation", "/conversation/books", ".turn.active .question", height=1200),
    Shot("agents", "/agents", "table", height=900),
    Shot("more", "/schedules", ".rows li", height=400),
)


def until(driver: Any, look: Callable[[], Any]) -> None:
    WebDriverWait(driver, PATIENCE, poll_frequency=0.1).until(lambda _: look())


def take(driver: Any, url: str, site: Site, shot: Shot, width: int) -> bytes:
    """The screen as a PNG, as tall as it is, up to its height."""
    site.is_signed_in = shot.signed_in
    driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    metrics = {"width": width, "height": shot.height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get("about:blank")
    driver.get(f"{url}/#{shot.place}")
    until(driver, lambda: driver.find_elements("css selector", shot.shows))
    driver.execute_async_script("setTimeout(arguments[0], 400)")  # the other looks have answered
    if shot.script:
        driver.execute_script(shot.script)
        driver.execute_async_script("setTimeout(arguments[0], 200)")
    png: bytes = driver.get_screenshot_as_png()
    return png


def small(png: bytes) -> bytes:
    """The same picture with few colours."""
    with Image.open(io.BytesIO(png)) as whole:
        few = whole.convert("RGB").quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    written = io.BytesIO()
    few.save(written, "PNG", optimize=True)
    return written.getvalue()


def main() -> None:
    site = Site(steps=20, runs=0)
    with tempfile.TemporaryDirectory() as profile, serving(site) as url, browsing(Path(profile), "1280,900") as driver:
        for shot in SHOTS:
            for width in (WIDE, NARROW):
                file = IMAGES / f"console-{shot.name}{'-narrow' * (width == NARROW)}.png"
                file.write_bytes(small(take(driver, url, site, shot, width)))
                print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
