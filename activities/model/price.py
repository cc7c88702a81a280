"""The cost of a model call, from the tokens that the provider counted."""

from dataclasses import dataclass

from contracts.run.turn import Usage


@dataclass(frozen=True)
class Price:
    """USD per million tokens.

    If the prompt has more than `long_prompt` tokens, cached ones included, the whole call is charged by `long`.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    long_prompt: int | None = None
    long: "Price | None" = None


FREE = Price(input=0, output=0, cache_read=0, cache_write=0)


def call_cost(usage: Usage, price: Price | None) -> float | None:
    """Return the USD of one call, if the price is known."""
    if price is None:
        return None
    prompt = usage.input + usage.cache_read + usage.cache_write
    if price.long and price.long_prompt is not None and prompt > price.long_prompt:
        price = price.long
    return (
        usage.input * price.input
        + usage.output * price.output
        + usage.cache_read * price.cache_read
        + usage.cache_write * price.cache_write
    ) / 1e6
