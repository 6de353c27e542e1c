"""An OpenID provider on this machine that replaces the Hub's in tests of signing in."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwk, jwt


class IdentityProvider:
    """Signs in every visitor as ``next_account``, without a password.

    Args:
        accounts: Hub tokens by account name.
    """

    def __init__(self, accounts: Mapping[str, str]) -> None:
        self.accounts = dict(accounts)
        self.next_account = next(iter(self.accounts))
        self.client_id, self.client_secret = "the-space", secrets.token_hex(8)
        self.key = jwk.RSAKey.generate_key(2048, {"kid": "k"})
        self.codes: dict[str, tuple[str, str]] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> IdentityProvider:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a Space whose card has ``hf_oauth``."""
        return {
            "OAUTH_CLIENT_ID": self.client_id,
            "OAUTH_CLIENT_SECRET": self.client_secret,
            "OAUTH_SCOPES": "openid profile gated-repos",
            "OPENID_PROVIDER_URL": self.url,
        }

    def _configuration(self) -> dict[str, object]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/jwks",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def _token(self, code: str) -> dict[str, object]:
        account, nonce = self.codes.pop(code)
        now = int(time.time())
        claims = {
            **{"iss": self.url, "sub": account, "aud": self.client_id, "iat": now, "exp": now + 600, "nonce": nonce},
            **{"name": account.title(), "preferred_username": account, "profile": "", "picture": ""},
        }
        return {
            "access_token": self.accounts[account],
            "token_type": "bearer",
            "expires_in": 28800,
            "scope": "openid profile gated-repos",
            "id_token": jwt.encode({"alg": "RS256", "kid": "k"}, claims, self.key),
        }

    def _handler(provider) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            """The pages of the provider."""

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                if parts.path == "/.well-known/openid-configuration":
                    self.answer(provider._configuration())
                elif parts.path == "/jwks":
                    self.answer({"keys": [provider.key.as_dict(private=False)]})
                elif parts.path == "/authorize":
                    code = secrets.token_hex(8)
                    provider.codes[code] = (provider.next_account, query.get("nonce", ""))
                    self.send_response(302)
                    back = urlencode({"code": code, "state": query["state"]})
                    joint = "&" if "?" in query["redirect_uri"] else "?"
                    self.send_header("Location", f"{query['redirect_uri']}{joint}{back}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.answer(provider._token(form["code"][0]))

            def answer(self, content: object) -> None:
                body = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler
