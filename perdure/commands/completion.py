"""`perdure completion`."""

import click
from click.shell_completion import get_completion_class

EXAMPLES = """\b
Examples:
  perdure completion bash >> ~/.bashrc
  perdure completion zsh >> ~/.zshrc
  perdure completion fish > ~/.config/fish/completions/perdure.fish"""


@click.command("completion", epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the shell completion script.

    It completes commands, options, agents and, while a server is running, run ids. It never starts a server.
    """
    script = get_completion_class(shell)
    if script is not None:
        click.echo(script(ctx.find_root().command, {}, "perdure", "_PERDURE_COMPLETE").source())
