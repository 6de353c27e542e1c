"""Who asks: told apart for fairness, and with which rights on the Hub."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import gradio as gr

TOKEN_HEADER = "x-hf-token"
"""Programs that want gated models read send their token in this header; the page has a button to sign in."""


@dataclass(frozen=True)
class Visitor:
    """Whoever sent a request.

    Attributes:
        key: Tells visitors apart: an account where somebody is signed in, else an address.
        token: Their own token, used for their own reads and kept nowhere; None: only what everybody may read.
    """

    key: str
    token: str | None = field(default=None, repr=False)


def signing_in_is_possible() -> bool:
    """Tell whether this runs in a Space whose card asks for ``hf_oauth``.

    Elsewhere gradio would sign every visitor in as the owner of the machine, so there is no button there.
    """
    return os.environ.get("SYSTEM") == "spaces" and bool(os.environ.get("OAUTH_CLIENT_ID"))


def visitor_of(
    request: gr.Request | None, account: gr.OAuthProfile | None = None, account_token: gr.OAuthToken | None = None
) -> Visitor:
    """Return who sent a request.

    Args:
        request: The request.
        account: Who is signed in, if anybody is.
        account_token: The token that signing in gave.
    """
    headers = {} if request is None else {name.lower(): value for name, value in dict(request.headers).items()}
    token = None if account_token is None else account_token.token
    if account is not None:
        return Visitor(f"account {account.username}", token)
    # A proxy puts the visitor's address first; whoever forges it gains a longer turn in the queue and nothing else.
    address = str(headers.get("x-forwarded-for", "")).split(",")[0].strip()
    if not address and request is not None:
        address = str(getattr(getattr(request, "client", None), "host", "") or "")
    return Visitor(f"address {address[:64]}", token or str(headers.get(TOKEN_HEADER, "")).strip() or None)
