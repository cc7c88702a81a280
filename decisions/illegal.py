"""A move that no rule allows."""


class IllegalMove(AssertionError):
    """Our own fault, whatever came from outside: the workflow task fails, and what it is of waits for a repair."""

    def __init__(self, move: str, why: str) -> None:
        super().__init__(f"cannot {move}: {why}")
