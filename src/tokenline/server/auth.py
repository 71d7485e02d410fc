"""Who is calling: an API key becomes the digest that names the caller. Knows keys, and nothing of what they open."""

import hashlib
import hmac

from starlette.requests import Request

from tokenline.server.errors import ApiError


class Authenticator:
    """Checks `Authorization: Bearer KEY` in constant time, whichever of several keys it is."""

    def __init__(self, api_keys: tuple[str, ...]):
        self._digests = [hashlib.sha256(key.encode()).hexdigest() for key in api_keys]

    def caller(self, request: Request) -> str | None:
        """The caller's digest, the first part of its cache namespace; None where no keys are set. Raises a 401."""
        if not self._digests:
            return None
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _refused("No API key: send it as 'Authorization: Bearer KEY'.")
        # Headers are bytes, which Starlette shows as latin-1; digests are equally long whatever the keys are.
        given = hashlib.sha256(key.strip().encode("latin-1")).hexdigest()
        known = [hmac.compare_digest(given, digest) for digest in self._digests]  # all of them, found or not
        if not any(known):
            raise _refused("Invalid API key.")
        return given


def _refused(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
