"""`python -m bench.crash`: tries each cell some times, and writes the results and `docs/never-twice.md`'s tables."""

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client

from bench.__main__ import _at_least
from bench.actions import Actions
from bench.crash.cost import measure
from bench.crash.model import ShopModel
from bench.crash.page import PAGE, write_page
from bench.crash.results import FILE, Results, cases_of, versions_of
from bench.crash.server import Moment, PaymentServer
from bench.crash.sides import NAMES, SIDES, Side
from bench.crash.tools import Settings
from bench.crash.trial import Bench, Case, Variant, run_trial
from bench.crash.workers import Nursery, nursery
from perdure.converter import data_converter
from perdure.devserver import embedded_server
from perdure.testkit.model_server import ScriptedModel
from tests.ports import free_port


@dataclass(frozen=True)
class Plan:
    """The cells to try, how often, and how many trials at the same time."""

    sides: Sequence[str] = NAMES
    moments: Sequence[str] = tuple(Moment)
    variants: Sequence[str] = tuple(Variant)
    times: int = 20
    at_once: int = 4
    has_costs: bool = True

    def cases(self, side: Side, results: Results) -> list[Case]:
        """Each cell of a side as often as it is still to be tried, in turns."""
        cells = [case for case in cases_of(side) if case.moment in self.moments and case.variant in self.variants]
        return [case for turn in range(self.times) for case in cells if len(results.of(case)) <= turn]


@asynccontextmanager
async def benching() -> AsyncIterator[tuple[Bench, Actions]]:
    """A Temporal server, a model and a payment server of its own."""
    async with AsyncExitStack() as held:
        home = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="crash-", ignore_cleanup_errors=True)))
        port = free_port()
        temporal = await held.enter_async_context(embedded_server(home / "server", metrics_port=port))
        client = await Client.connect(temporal.address, data_converter=data_converter)
        server = await held.enter_async_context(PaymentServer().serving())
        shop = ShopModel(server, asyncio.get_running_loop())
        model = held.enter_context(ScriptedModel(shop.reply))
        settings = Settings(address=temporal.address, server=server.url, model=model.base_url, home=str(home))
        yield Bench(client, server, shop, settings), Actions(port)


async def run(plan: Plan, results: Results) -> None:
    """Prints each trial, and the error of one that breaks, which is left out."""
    async with benching() as (bench, actions), AsyncExitStack() as held:
        nurseries: dict[str, Nursery] = {}
        chosen = [side for side in SIDES if side.name in plan.sides]
        for side in chosen:
            nurseries[side.name] = await held.enter_async_context(
                nursery(side.name, side.module, side.preloaded, bench.server, peer=side.peer)
            )
            results.versions[side.name] = versions_of(side)
        for side in chosen if plan.has_costs else ():
            if side.name not in results.costs:
                results.costs[side.name] = await measure(bench, side, nurseries[side.name], actions)
                results.save()
                print(results.costs[side.name], flush=True)
        few = asyncio.Semaphore(plan.at_once)

        async def try_case(side: Side, case: Case) -> None:
            async with few:
                try:
                    trial = await run_trial(bench, side, nurseries[side.name], case)
                except Exception as error:  # noqa: BLE001 - a pass of an hour goes on, and says what it left out
                    print(f"{case.side} {case.variant} {case.moment}: left out: {error!r}", flush=True)
                    return
            results.add(trial)
            print(trial, flush=True)

        # In turns over the sides: a pass that is stopped has tried all of them as often.
        cases = [(turn, side, case) for side in chosen for turn, case in enumerate(plan.cases(side, results))]
        cases.sort(key=lambda each: each[0])
        await asyncio.gather(*(try_case(side, case) for _, side, case in cases))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.crash", description=__doc__)
    parser.add_argument("--sides", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--moments", nargs="+", choices=[*Moment], default=[*Moment])
    parser.add_argument("--variants", nargs="+", choices=[*Variant], default=[*Variant])
    parser.add_argument("--times", type=_at_least(1), default=Plan.times, help="trials of each cell")
    parser.add_argument("--at-once", type=_at_least(1), default=Plan.at_once, help="trials at the same time")
    parser.add_argument("--no-costs", action="store_true", help="do not measure what a step costs")
    parser.add_argument("--resume", action="store_true", help="keep the trials of the file, and do what is missing")
    parser.add_argument("--results", type=Path, default=FILE, metavar="FILE")
    parser.add_argument("--page", action="store_true", help=f"only write the table of {PAGE.name} again")
    options = parser.parse_args()
    results = Results.load(options.results) if options.resume or options.page else Results(options.results)
    if not options.page:
        given = (options.sides, options.moments, options.variants, options.times, options.at_once)
        plan = Plan(*given, has_costs=not options.no_costs)
        asyncio.run(run(plan, results))
    if options.results == FILE:
        write_page(results)


if __name__ == "__main__":
    main()
