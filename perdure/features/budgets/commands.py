"""`perdure budget`: list, raise and reset the budgets that runs share."""

from collections.abc import Iterable

import click
from rich.markup import escape
from rich.table import Table

from perdure.client.door import name_person, set_sender
from perdure.contracts.people import CLI
from perdure.decisions.text.formatting import format_duration
from perdure.features.budgets.client import list_allowances, raise_budget, reset_budget
from perdure.features.budgets.contract import USD, AllowanceView, Measure
from perdure.features.budgets.rules import format_amount
from perdure.session import Needs, open_session
from perdure.settings import load_settings
from perdure.settings.file import ProjectFile
from perdure.terminal.command import as_json_option, async_command, console, format_examples, require_utf8

name_argument = click.argument("name", metavar="NAME", callback=require_utf8)
for_option = click.option(
    "--for",
    "value",
    default="",
    callback=require_utf8,
    help="The holder of the allowance: the agent, owner, requester, schedule or key.",
)
by_option = click.option("--by", callback=require_utf8, help="Your name; by default the user of this machine.")


@click.group("budget", epilog=format_examples("budget list", "budget raise support --usd 20", "budget reset support"))
def budget_command() -> None:
    """List, raise and reset budgets that runs share.

    A budget (`[[budget]]` in perdure.toml) is an allowance of money, tokens, runs or steps that many runs share.
    """


@budget_command.command("list", epilog=format_examples("budget list"))
@as_json_option
@async_command()
async def list_budgets_command(as_json: bool) -> int:
    """List the allowances, and when they reset.

    Leased was granted to workers and is not spent yet. Unaccounted was granted to workers that were not heard of for
    five minutes: it counts as spent until the window ends, or until another worker of their disk reads their journal.
    """
    settings = load_settings(strict=False)
    async with open_session(settings, Needs.answers) as session:
        views = await list_allowances(session.client, settings)
    if not views and not as_json:
        console.print("no budgets yet; describe one as [[budget]] in perdure.toml", markup=False)
    else:
        _print_allowances(views, as_json=as_json)
    return 0


@budget_command.command(
    "raise",
    epilog=format_examples("budget raise support --usd 20", "budget raise customers --for anna --tokens 100000"),
)
@name_argument
@click.option("--usd", type=click.FloatRange(0, 10**9, min_open=True), help="By so many USD.")
@click.option("--tokens", type=click.IntRange(1), help="By so many tokens.")
@click.option("--runs", type=click.IntRange(1), help="By so many runs.")
@click.option("--steps", type=click.IntRange(1), help="By so many steps.")
@for_option
@by_option
@as_json_option
@async_command()
async def raise_budget_command(
    name: str,
    usd: float | None,
    tokens: int | None,
    runs: int | None,
    steps: int | None,
    value: str,
    by: str | None,
    as_json: bool,
) -> int:
    """Raise an allowance for its current window. Runs that wait for it go on."""
    given = {Measure.usd: usd and round(usd * USD), Measure.tokens: tokens, Measure.runs: runs, Measure.steps: steps}
    amounts = {measure: int(amount) for measure, amount in given.items() if amount}
    if not amounts:
        raise click.UsageError("say by how much: --usd, --tokens, --runs or --steps")
    settings = load_settings(strict=False)
    async with open_session(settings, Needs.answers) as session:
        _name_sender(settings.file, by)
        views = await raise_budget(session.client, settings, name, amounts, value)
    _print_allowances(views, as_json=as_json)
    return 0


@budget_command.command("reset", epilog=format_examples("budget reset support", "budget reset customers --for anna"))
@name_argument
@for_option
@by_option
@as_json_option
@async_command()
async def reset_budget_command(name: str, value: str, by: str | None, as_json: bool) -> int:
    """Count an allowance from zero again. Runs that wait for it go on."""
    settings = load_settings(strict=False)
    async with open_session(settings, Needs.answers) as session:
        _name_sender(settings.file, by)
        views = await reset_budget(session.client, settings, name, value)
    _print_allowances(views, as_json=as_json)
    return 0


def _name_sender(file: ProjectFile, by: str | None) -> None:
    """Act as `--by` says: a user of this machine is trusted with the name, as with everything else."""
    if by:
        set_sender(name_person(file.people, by, CLI))


def _print_allowances(views: Iterable[AllowanceView], *, as_json: bool) -> None:
    if as_json:
        for view in views:
            click.echo(view.model_dump_json())
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("budget", no_wrap=True)
    for heading in ("whose", "used", "of", "leased", "unaccounted", "resets in"):
        table.add_column(heading, overflow="fold")
    for view in views:
        used, limit, leased, lost = (
            format_amount(view.measure, amount) if amount else "–"
            for amount in (view.used, view.limit or 0, view.leased, view.unaccounted)
        )
        used = f"[yellow]{used}, used up[/]" if view.is_used_up else used
        resets = "never" if view.resets_in is None else format_duration(view.resets_in)
        table.add_row(escape(view.name), escape(view.value or "project"), used, limit, leased, lost, resets)
    console.print(table)
