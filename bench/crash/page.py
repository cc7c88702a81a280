"""The tables of `docs/never-twice.md`, from the file of results."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from bench.crash.results import ALL_CASES, Results, cases_of
from bench.crash.server import Moment
from bench.crash.sides import SIDES, Side
from bench.crash.trial import Case, Trial, Variant
from bench.side import ROOT

PAGE = ROOT / "docs" / "never-twice.md"
TABLE = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
HEADS = {
    Moment.before: "before the payment",
    Moment.within: "in it",
    Moment.after: "after it, unrecorded",
    Moment.asked: "while a person is asked",
    Moment.reply: "in the model's reply",
}
PAID = ("never", "once", "**twice**")


def write_page(results: Results) -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


def filled(page: str, results: Results) -> str:
    """The page with its tables as the results have them."""
    return TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found['name']](results)}\n\n", page)


def outcome(trial: Trial) -> str:
    """The fate of the payment, in words."""
    paid = PAID[trial.payments] if trial.payments < len(PAID) else f"**{trial.payments} times**"
    if trial.end != "ended":
        return f"{trial.end}, paid {paid}" if trial.payments else f"{trial.end}, unpaid"
    return f"{paid}, asked" if trial.asked_of is not None else paid


def _outcomes(variant: Variant) -> Callable[[Results], str]:
    def table(results: Results) -> str:
        tried = {case.moment for case in ALL_CASES if case.variant is variant}
        moments = [moment for moment in Moment if moment in tried]
        rows = [
            [side.title, *(_counted(results.of(Case(side.name, variant, moment))) for moment in moments)]
            for side in SIDES
            if any(case.variant is variant for case in cases_of(side))
        ]
        return _table(["killed", *(HEADS[moment] for moment in moments)], rows)

    return table


def _counted(trials: Sequence[Trial]) -> str:
    counts = Counter(outcome(trial) for trial in trials)
    return ", ".join(f"{count} × {words}" for words, count in counts.most_common()) or "not tried"


def _recovery(results: Results) -> str:
    rows = [
        [side.title, *(_recovered(results.of(Case(side.name, Variant.plain, moment))) for moment in Moment)]
        for side in SIDES
    ]
    return _table(["killed", *(HEADS[moment] for moment in Moment)], rows)


def _recovered(trials: Sequence[Trial]) -> str:
    """Until a person was asked what became of the payment, or else until the end; and the model's calls."""
    if not trials:
        return "not tried"
    seconds = median(trial.seconds if trial.asked_of is None else trial.asked_of for trial in trials)
    return f"{seconds:.0f} s, {median(trial.calls for trial in trials):g} calls"


def _costs(results: Results) -> str:
    rows = []
    for side in SIDES:
        if cost := results.costs.get(side.name):
            actions = f"{cost.actions:.1f}" if cost.actions else "none"
            rows.append([side.title, actions, f"{cost.size:,.0f}", f"{cost.wall * 1000:.0f} ms"])
    return _table(["a step", "billable actions", "bytes of record", "wall"], rows)


def _sides(results: Results) -> str:
    return _table(["side", "versions", "time-outs", "code"], [_side(side, results) for side in SIDES])


def _side(side: Side, results: Results) -> list[str]:
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.get(side.name, {}).items())
    name = "bench/crash/shop" if side.peer is None else f"{side.module.replace('.', '/')}.py"
    return [side.title, versions, side.timeouts, f"[`{name}`](../{name})"]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


TABLES: dict[str, Callable[[Results], str]] = {
    "crash-plain": _outcomes(Variant.plain),
    "crash-keyed": _outcomes(Variant.keyed),
    "crash-single": _outcomes(Variant.single),
    "crash-recovery": _recovery,
    "crash-costs": _costs,
    "crash-sides": _sides,
}
