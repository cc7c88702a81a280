"""Commands with a free text as argument: it may begin with "-", as in "-5 degrees: is that cold?"."""

import re

import click

_NUMBER = re.compile(r"-[\d.]")


class FreeTextCommand(click.Command):
    """A command that takes an argument as text if it begins with "-" and contains a space or is a number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options, texts = list[str](), list[str]()
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                texts.extend(rest)
            elif arg == "-" or not arg.startswith("-") or self._is_text(arg):
                texts.append(arg)
            else:
                options.append(arg)
                if self._takes_next(arg):
                    if (value := next(rest, None)) is None:
                        return super().parse_args(ctx, args)  # raises the error for the missing value
                    options.append(value)
        return super().parse_args(ctx, [*options, "--", *texts])

    def _is_text(self, arg: str) -> bool:
        name = arg.partition("=")[0] if arg.startswith("--") else arg[:2]
        if self._has_value(name):
            return False
        return _NUMBER.match(arg) is not None or re.search(r"\s", arg) is not None

    def _takes_next(self, arg: str) -> bool:
        """Return whether the next argument is the value of the last option in this one."""
        names = [arg] if arg.startswith("--") else [f"-{letter}" for letter in arg[1:]]
        first = next((index for index, name in enumerate(names) if self._has_value(name)), None)
        return first == len(names) - 1

    def _has_value(self, name: str) -> bool:
        options = (param for param in self.params if isinstance(param, click.Option))
        return any(name in option.opts and not option.is_flag for option in options)
