"""The tools of the shop."""

from bench.crash import tools


def look_up(bill: str) -> str:
    """Looks a bill up."""
    return tools.look_up(bill)


def pay(bill: str, cents: int) -> str:
    """Pays a bill. It cannot be taken back."""
    return tools.pay(bill, cents)


def pay_asked(bill: str, cents: int) -> str:
    """Pays a bill. It cannot be taken back."""
    return tools.pay(bill, cents)


def pay_keyed(bill: str, cents: int, idempotency_key: str) -> str:
    """Pays a bill, once for each key."""
    return tools.pay(bill, cents, idempotency_key)


def mail(bill: str, text: str) -> str:
    """Mails the customer about a bill."""
    return tools.mail(bill, text)
