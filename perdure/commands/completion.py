"""`completion`: the script that completes commands in a shell."""

import click
from click.shell_completion import get_completion_class

EXAMPLES = """\b
Examples:
  perdure completion bash >> ~/.bashrc
  perdure completion zsh >> ~/.zshrc
  perdure completion fish > ~/.config/fish/completions/perdure.fish"""


@click.command(epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands in a shell.

    It completes commands, options, agents, and the ids of runs where a server is up; it starts none.
    """
    of_shell = get_completion_class(shell)
    if of_shell is not None:
        click.echo(of_shell(ctx.find_root().command, {}, "perdure", "_PERDURE_COMPLETE").source())
