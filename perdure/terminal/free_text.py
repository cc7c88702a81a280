"""Commands whose argument is a text in anybody's words: it may begin with "-", as "-5 degrees: is that cold?" does."""

import re
from collections.abc import Iterator

import click

_NUMBER = re.compile(r"-[\d.]")


class FreeText(click.Command):
    """Takes for text, not for an option, what begins with "-" and has a blank in it or is a number."""

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
                        return super().parse_args(ctx, args)  # which says what is missing
                    options.append(value)
        return super().parse_args(ctx, [*options, "--", *texts])

    def _is_text(self, arg: str) -> bool:
        name = arg.partition("=")[0] if arg.startswith("--") else arg[:2]
        if self._has_value(name):
            return False
        return _NUMBER.match(arg) is not None or re.search(r"\s", arg) is not None

    def _takes_next(self, arg: str) -> bool:
        """Whether the next argument is the value of the last option in this one."""
        names = [arg] if arg.startswith("--") else [f"-{letter}" for letter in arg[1:]]
        first = next((place for place, name in enumerate(names) if self._has_value(name)), None)
        return first == len(names) - 1

    def _has_value(self, name: str) -> bool:
        return any(name in option.opts and not option.is_flag for option in self._options())

    def _options(self) -> Iterator[click.Option]:
        return (param for param in self.params if isinstance(param, click.Option))
