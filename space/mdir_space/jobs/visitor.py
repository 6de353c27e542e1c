"""The visitor who sent a request: a key for the queue, and a Hub token."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field, replace

import gradio as gr
from starlette.requests import Request

from mdir_space.jobs.lease import Lease

TOKEN_HEADER = "x-hf-token"
"""Header in which programs send their token to read gated models; the page has a sign-in button instead."""


@dataclass(frozen=True)
class Visitor:
    """The sender of a request.

    Attributes:
        key: The account if signed in, otherwise the IP address.
        token: The visitor's own token, used only for their own reads and never stored; None to read only public models.
        lease: Lease of the connection that waits for the answer; None if the caller of the service waits itself.
    """

    key: str
    token: str | None = field(default=None, repr=False)
    lease: Lease | None = field(default=None, repr=False, compare=False)

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.lease is not None and self.lease.is_over

    def without_rights(self) -> Visitor:
        """Return the same visitor without a token."""
        return replace(self, token=None)


def signing_in_is_possible() -> bool:
    """Return whether this is a Space whose card sets ``hf_oauth``.

    Elsewhere, gradio would sign in every visitor as the owner of the machine, so the page has no button.
    """
    return os.environ.get("SYSTEM") == "spaces" and bool(os.environ.get("OAUTH_CLIENT_ID"))


def visitor_of(
    request: gr.Request | Request | None,
    account: gr.OAuthProfile | None = None,
    account_token: gr.OAuthToken | None = None,
    *,
    n_proxies: int = 0,
) -> Visitor:
    """Return the sender of a request.

    ``account`` and ``account_token`` are None unless the visitor has signed in. ``n_proxies`` is as in
    :class:`~mdir_space.jobs.limits.Limits`.
    """
    headers = {} if request is None else {name.lower(): value for name, value in dict(request.headers).items()}
    token = None if account_token is None else account_token.token
    if account is not None:
        return Visitor(f"account {account.username}", token)
    address = forwarded_for(str(headers.get("x-forwarded-for", "")), n_proxies)
    if not address and request is not None:
        address = str(getattr(getattr(request, "client", None), "host", "") or "")
    return Visitor(f"address {address[:64]}", token or str(headers.get(TOKEN_HEADER, "")).strip() or None)


def forwarded_for(header: str, n_proxies: int) -> str:
    """Return the visitor's address from ``X-Forwarded-For``; empty if it has none.

    Each proxy appends the address that reached it. Only the entries added by our own proxies can be trusted, since the
    visitor may have written the others. Hops inside the platform have private addresses and are ignored. ``n_proxies``
    is the number of our own proxies with public addresses, including the outermost one; 0 to trust no entry.
    """
    if not n_proxies:
        return ""
    public = [entry for entry in map(str.strip, header.split(",")) if _is_public(entry)]
    return public[-n_proxies] if len(public) >= n_proxies else ""


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False
