"""`perdure policy`: the group, and `policy check`."""

from collections.abc import Iterator
from pathlib import Path

import click

from activities.project import Project
from activities.providers.prices import CLAUDE_MODELS
from contracts.people.rubric import Rubric
from decisions.model_names import provider_of
from decisions.policy.rules import Policy
from perdure.commands.policy.accept import accept_policy_command
from perdure.commands.policy.cases import test_policy_command
from perdure.commands.policy.explain import explain_policy_command
from perdure.terminal.command import async_command, console, format_examples
from settings import load_settings
from settings.problems import format_suggestion

policy_file = click.argument("file", type=click.Path(path_type=Path), default=Path("policy.toml"))


@click.group("policy", epilog=format_examples("policy check", "policy test cases.yaml", "policy explain RUN 3"))
def policy_command() -> None:
    """Check, test and explain the policy of a project, `policy.toml`."""


@policy_command.command("check", epilog=format_examples("policy check", "policy check drafts/policy.toml"))
@policy_file
@async_command()
async def check_policy_command(file: Path) -> int:
    """Check syntax, names, models, and that rules can be reached.

    The exit code is 1 if anything is wrong.
    """
    from perdure.process.project import display_project
    from settings.policy import find_flaws, read_policy

    policy = read_policy(file)
    async with display_project(load_settings()) as project:
        tools = {*project.tools, *(route.name for route in project.builtins)}
        flaws = [*find_flaws(file, policy, tools, project.agents), *find_unknown_reviewers(file, policy, project)]
    for flaw in flaws:
        click.echo(flaw)
    if not flaws:
        console.print(f"{file}: {len(policy.rules)} rules, hash {policy.ref}", soft_wrap=True, markup=False)
    return 1 if flaws else 0


def find_unknown_reviewers(path: Path, policy: Policy, project: Project) -> Iterator[str]:
    """Yield a line for each rule whose reviewing model the project cannot know. Other providers' names are theirs."""
    known = {
        *CLAUDE_MODELS,
        *project.prices,
        *(name for agent in project.agents.values() for name in project.models_of(agent)),
    }
    for compiled in policy.rules:
        model = compiled.rule.review.model if isinstance(compiled.rule.review, Rubric) else None
        if model is None or model in known:
            continue
        provider, bare = provider_of(model, project.providers)
        if provider in project.claude_priced and bare not in known:
            remedy = f'if it is right, set its price in [prices."{model}"]'
            reason = f"there is no model {model!r}{format_suggestion(model, known)}; {remedy}"
            yield f"{path}, line {compiled.line}: {compiled.rule.name}: review: {reason}"


policy_command.add_command(test_policy_command)
policy_command.add_command(accept_policy_command)
policy_command.add_command(explain_policy_command)
