"""The tool of the example: a refund, which needs approval. It is written down once, whatever breaks."""

from pathlib import Path


def refund(order: str, amount: float) -> str:
    """Refund an order."""
    with Path(__file__).with_name("refunds.txt").open("a", encoding="utf-8") as file:
        file.write(f"{order} {amount}\n")
    return f"refunded {amount} for {order}"
