"""Who is calling: the header of a request becomes one of the known keys. Knows keys, and nothing of what they open."""

import base64
import binascii
import hmac
from collections.abc import Sequence

from starlette.requests import Request

from tokenline.server.errors import ApiError
from tokenline.server.keys import ApiKey, digest_of

BEARER = "Bearer"
# For people in a browser, which asks for a password and sends it along from then on. So it opens only what is read.
BASIC = 'Basic realm="tokenline: an API key as the password, any user name", charset="UTF-8"'


class Authenticator:
    """Checks keys in constant time, whichever of several it is."""

    def __init__(self, keys: Sequence[ApiKey]):
        self._keys = keys

    def key(self, request: Request) -> ApiKey | None:
        """The caller's key, of `Authorization: Bearer KEY`; None where no keys are set. Raises a 401."""
        if not self._keys:
            return None
        scheme, _, given = _authorization(request)
        if scheme.lower() != b"bearer" or not given.strip():
            raise _refused("No API key: send it as 'Authorization: Bearer KEY'.", BEARER)
        return self._known(given.strip(), BEARER)

    def check_reader(self, request: Request) -> None:
        """Let in who may read what the server says of itself: a caller, or a person in a browser. Raises a 401."""
        scheme, _, given = _authorization(request)
        if not self._keys or scheme.lower() != b"basic":
            try:
                self.key(request)
            except ApiError as error:
                raise _refused(error.message, BASIC) from None
            return
        try:
            _, _, password = base64.b64decode(given.strip(), validate=True).partition(b":")
        except binascii.Error:
            password = b""
        self._known(password, BASIC)

    def _known(self, given: bytes, challenge: str) -> ApiKey:
        digest = digest_of(given)  # equally long whatever the key is
        found = [key for key in self._keys if hmac.compare_digest(digest, key.digest)]  # looks at all of them
        if not found:
            raise _refused("Invalid API key.", challenge)
        return found[0]


def sender_of(request: Request, caller: str | None) -> str:
    """Among whom time and the queue are divided: the key's caller, or the connection where there are no keys."""
    if caller is not None:
        return caller
    host, port = request.client or ("", 0)  # a Unix socket has none
    return f"{host} {port}"


def _authorization(request: Request) -> tuple[bytes, bytes, bytes]:
    # Headers are bytes, which Starlette shows as latin-1.
    return request.headers.get("authorization", "").encode("latin-1").partition(b" ")


def _refused(message: str, challenge: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": challenge})
