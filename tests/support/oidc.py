"""Signing in with the loopback Hub: OpenID Connect as the real one speaks it, but its consent page:
whoever comes is `user` and agrees.

Source: https://openid.net/specs/openid-connect-core-1_0.html
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlencode

from joserfc import jwt
from joserfc.jwk import RSAKey


@cache
def _key() -> RSAKey:
    return RSAKey.generate_key(2048, parameters={"kid": "test"})


@dataclass
class Provider:
    """What the Hub knows of sign-ins."""

    user: str = "ada"  # who signs in
    asked: list[str] = field(default_factory=list)  # the scopes of every sign-in, in their order
    tokens: dict[str, str] = field(default_factory=dict)  # access token -> the scopes it has
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def metadata(self, url: str) -> dict[str, Any]:
        """What `/.well-known/openid-configuration` says."""
        return {
            "issuer": url,
            "authorization_endpoint": f"{url}/oauth/authorize",
            "token_endpoint": f"{url}/oauth/token",
            "userinfo_endpoint": f"{url}/oauth/userinfo",
            "jwks_uri": f"{url}/oauth/jwks",
            "id_token_signing_alg_values_supported": ["RS256"],
            "response_types_supported": ["code"],
        }

    def keys(self) -> dict[str, Any]:
        """What its signatures are checked with."""
        return {"keys": [_key().as_dict(private=False)]}

    def authorize(self, query: dict[str, str]) -> str:
        """Where the browser is sent back to, with a code."""
        code = secrets.token_urlsafe(8)
        self._codes[code] = query
        self.asked.append(query["scope"])
        mark = "&" if "?" in query["redirect_uri"] else "?"
        back = urlencode({"code": code, "state": query["state"]})
        return f"{query['redirect_uri']}{mark}{back}"

    def exchange(self, form: dict[str, str], url: str) -> dict[str, Any]:
        """The tokens for a code, which is good for once."""
        asked = self._codes.pop(form["code"])
        assert form["redirect_uri"] == asked["redirect_uri"]
        token = f"hf_oauth_{secrets.token_urlsafe(12)}"
        self.tokens[token] = asked["scope"]
        now = int(time.time())
        claims = {
            "iss": url, "aud": asked["client_id"], "sub": "1", "iat": now, "exp": now + 3600,
            "nonce": asked["nonce"], "name": self.user.title(), "preferred_username": self.user,
            "profile": f"{url}/{self.user}", "picture": "",
        }  # fmt: skip
        return {
            "access_token": token, "token_type": "bearer", "expires_in": 3600,
            "scope": asked["scope"],
            "id_token": jwt.encode({"alg": "RS256", "kid": "test"}, claims, _key()),
        }  # fmt: skip
