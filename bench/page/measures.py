"""How fast the console shows long runs and lists: each measure is a script in the page, by the page's own clock."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.page.project import BURSTS, LONG, OPEN_LONG
from bench.page.server import STEPS

SECONDS = 3  # of a scroll from top to end
PATIENCE = 60  # seconds for one script
NODES = 500  # elements that a long list, and the whole screen, may have

# Runs in each document before the page's own scripts: it counts frames, and notes when a run is drawn to its end.
PROBE = """
window.bench = { draws: {}, frames: 0, drawn: 0 };
const tick = (at) => {
  bench.frames++;
  if (!bench.drawn && document.querySelector(".end") && document.querySelector(".bar-row")) bench.drawn = at;
  requestAnimationFrame(tick);
};
requestAnimationFrame(tick);
"""
WATCH_DRAWS = """
const done = arguments[arguments.length - 1];
import("./page/base.js").then(() => import("./page/vendor/preact.mjs")).then(({ options }) => { // hooks come first
  const before = options.__r;
  options.__r = (node) => {
    const name = node.type?.name;
    if (name) bench.draws[name] = (bench.draws[name] ?? 0) + 1;
    before?.(node);
  };
  performance.clearResourceTimings();
  bench.frames = 0;
  done(Boolean(before));
});
"""
SCROLL = """
const [css, seconds, done] = arguments;
const box = document.querySelector(css);
let from = 0, frames = 0, last = 0, gap = 0, nodes = 0, inMain = 0;
box.scrollTop = 0;
const step = (at) => {
  from ||= at;
  if (last) gap = Math.max(gap, at - last);
  last = at;
  const share = (at - from) / (1000 * seconds);
  box.scrollTop = share * (box.scrollHeight - box.clientHeight);
  if (frames % 10 === 0) {
    nodes = Math.max(nodes, box.querySelectorAll("*").length);
    inMain = Math.max(inMain, document.querySelector("main").querySelectorAll("*").length);
  }
  if (share < 1) return void (frames++, requestAnimationFrame(step));
  const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
  done({ rate: (1000 * frames) / (at - from), gap, nodes, inMain, isAtEnd });
};
requestAnimationFrame(() => requestAnimationFrame(step));
"""
UNTIL_DRAWN = """
const done = arguments[arguments.length - 1];
const look = () => (bench.drawn ? done(bench.drawn) : requestAnimationFrame(look));
look();
"""
UNTIL_STILL = """
const [css, least, done] = arguments;
let last = -1, same = 0;
const look = () => {
  const now = document.querySelector(css)?.scrollHeight ?? 0;
  same = now === last && now >= least ? same + 1 : 0;
  last = now;
  if (same > 20) return done(now);
  requestAnimationFrame(look);
};
look();
"""
ALL_PAGES = """
const done = arguments[arguments.length - 1];
const from = performance.now();
let clicks = 0;
const look = () => {
  const button = [...document.querySelectorAll(".list-screen button")].find((it) => it.textContent === "older runs");
  if (!button) return done({ ms: performance.now() - from, clicks });
  if (!button.disabled) (clicks++, button.click());
  requestAnimationFrame(look);
};
look();
"""
FIRST_RUNS = """
const done = arguments[arguments.length - 1];
const look = () => {
  if (document.querySelector(".list-screen .row")) return done(performance.now());
  requestAnimationFrame(look);
};
look();
"""
BURST_ENDED = """
const done = arguments[arguments.length - 1];
const look = () => {
  if (!document.querySelector(".end")) return requestAnimationFrame(look);
  const answers = performance.getEntriesByType("resource").length;
  done({ draws: bench.draws, frames: bench.frames, answers });
};
look();
"""


@dataclass(frozen=True)
class Figure:
    """A measure by its name, with its aim: `least` or `most`."""

    name: str
    unit: str
    values: tuple[float, ...]
    least: float | None = None
    most: float | None = None

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def is_met(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def aim(self) -> str:
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}" if self.most is not None else ""


@dataclass
class Browser:
    """A driver on the server's address."""

    driver: Any
    url: str

    def __post_init__(self) -> None:
        self.driver.set_script_timeout(PATIENCE)
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": PROBE})

    def open(self, place: str) -> None:
        """Load the page anew at a place: without a document before it, the whole page is loaded."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/#{place}")

    def go(self, place: str) -> None:
        """Go to another place of the page that is open."""
        self.driver.execute_script("location.hash = arguments[0]", place)

    def ask(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_async_script(script, *arguments)

    def scroll(self, css: str) -> Mapping[str, float]:
        """Scroll a list from top to end. `cpu`: milliseconds of the page's main thread for a frame."""
        self.driver.execute_cdp_cmd("Performance.disable", {})
        self.driver.execute_cdp_cmd("Performance.setTimeDomain", {"timeDomain": "threadTicks"})
        self.driver.execute_cdp_cmd("Performance.enable", {})
        before = self._busy()
        found: dict[str, float] = self.ask(SCROLL, css, SECONDS)
        assert found["isAtEnd"], found
        return found | {"cpu": 1000 * (self._busy() - before) / (found["rate"] * SECONDS)}

    def _busy(self) -> float:
        metrics = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def measure_run(browser: Browser) -> Mapping[str, float]:
    """A run of many steps that has ended: open it, and scroll its timeline and its conversation."""
    browser.open(f"/run/{LONG}")
    drawn = browser.ask(UNTIL_DRAWN)
    time = browser.scroll(".timeline .long")
    browser.go(f"/run/{LONG}/talk")
    browser.ask(UNTIL_STILL, ".talk.long", 10_000)
    talk = browser.scroll(".talk.long")
    return {
        "opened": drawn / 1000,
        "timeline": time["rate"],
        "timeline gap": time["gap"],
        "timeline cpu": time["cpu"],
        "timeline nodes": time["nodes"],
        "timeline main": time["inMain"],
        "talk": talk["rate"],
        "talk gap": talk["gap"],
        "talk cpu": talk["cpu"],
        "talk nodes": talk["nodes"],
        "talk main": talk["inMain"],
    }


def measure_open_run(browser: Browser) -> Mapping[str, float]:
    """The same run before its end: its open row grows while the reader scrolls."""
    browser.open(f"/run/{OPEN_LONG}")
    browser.ask(UNTIL_STILL, ".timeline .long", 30 * STEPS / 2)
    time = browser.scroll(".timeline .long")
    return {"open timeline": time["rate"], "open timeline gap": time["gap"]}


def measure_bursts(browser: Browser) -> Mapping[str, float]:
    """A run whose events come in bursts, several a frame. Answers to requests are drawn, too: they are not counted."""
    browser.open("/now")
    assert browser.ask(WATCH_DRAWS)
    browser.go(f"/run/{BURSTS}")
    counted = browser.ask(BURST_ENDED)
    draws = counted["draws"]["RunScreen"] - counted["answers"]
    return {"draws": draws, "draws a frame": draws / counted["frames"]}


def measure_runs(browser: Browser) -> Mapping[str, float]:
    """The list of runs: open it, load all pages, and scroll it."""
    browser.open("/runs")
    opened = browser.ask(FIRST_RUNS)
    pages = browser.ask(ALL_PAGES)
    list_ = browser.scroll(".list-screen .long")
    return {
        "runs opened": opened / 1000,
        "pages": pages["ms"] / 1000,
        "page": pages["ms"] / max(pages["clicks"], 1),
        "runs": list_["rate"],
        "runs gap": list_["gap"],
        "runs cpu": list_["cpu"],
        "runs nodes": list_["nodes"],
        "runs main": list_["inMain"],
    }


MEASURES: tuple[Callable[[Browser], Mapping[str, float]], ...] = (
    measure_run,
    measure_open_run,
    measure_bursts,
    measure_runs,
)
# Each value of a measure: its name for people, its unit, the least and the most that it should be.
ROWS: Mapping[str, tuple[str, str, float | None, float | None]] = {
    "opened": ("a run of 2,000 steps: page loaded, all events folded, timeline drawn", "s", None, 1.5),
    "timeline": ("scrolling its timeline from top to end in 3 s", "frames/s", 50, None),
    "timeline gap": ("the longest time between two of these frames", "ms", None, None),
    "timeline cpu": ("CPU of the page's main thread for a frame", "ms", None, None),
    "timeline nodes": ("elements of the timeline's list, at most", "", None, NODES),
    "timeline main": ("elements of the screen, at most", "", None, NODES),
    "talk": ("scrolling its conversation from top to end in 3 s", "frames/s", 50, None),
    "talk gap": ("the longest time between two of these frames", "ms", None, None),
    "talk cpu": ("CPU of the page's main thread for a frame", "ms", None, None),
    "talk nodes": ("elements of the conversation's list, at most", "", None, NODES),
    "talk main": ("elements of the screen, at most", "", None, NODES),
    "open timeline": ("scrolling the timeline while the run is open", "frames/s", 50, None),
    "open timeline gap": ("the longest time between two of these frames", "ms", None, None),
    "draws": ("draws of the run's screen while its 6,837 events come, 4,000 a second", "", None, None),
    "draws a frame": ("of these in a frame", "", None, 1),
    "runs opened": ("the list of 10,000 runs: page loaded, first 200 drawn", "s", None, 1.5),
    "pages": ("its other 49 pages, loaded by clicking", "s", None, None),
    "page": ("one of them", "ms", None, None),
    "runs": ("scrolling all 10,000 in 3 s", "frames/s", 50, None),
    "runs gap": ("the longest time between two of these frames", "ms", None, None),
    "runs cpu": ("CPU of the page's main thread for a frame", "ms", None, None),
    "runs nodes": ("elements of the list, at most", "", None, NODES),
    "runs main": ("elements of the screen, at most", "", None, NODES),
}
