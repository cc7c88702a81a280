"""What a model call costs, from the tokens that the provider counted."""

from dataclasses import dataclass

from contracts.run.turn import Usage


@dataclass(frozen=True)
class Price:
    """USD per million tokens.

    A prompt of more than `long_prompt` tokens, whatever the cache had of it, is charged by `long` with all of its call.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    long_prompt: int | None = None
    long: "Price | None" = None


FREE = Price(input=0, output=0, cache_read=0, cache_write=0)


def cost(usage: Usage, price: Price | None) -> float | None:
    """USD of one call; None where the model's price is not known."""
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
