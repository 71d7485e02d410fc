"""The one long-lived object of the server: what all routes share. Built by `create_app`, closed by its lifespan."""

import asyncio

from starlette.requests import Request

from tokenline.fields import shown
from tokenline.server.auth import Authenticator
from tokenline.server.body import BodyReader
from tokenline.server.errors import ApiError
from tokenline.server.settings import ServerSettings
from tokenline.service.service import Service


class ServerState:
    """The service of the served model, the settings, and an orderly shutdown."""

    def __init__(self, service: Service, settings: ServerSettings):
        self.service = service
        self.settings = settings
        self.bodies = BodyReader(settings.max_body_bytes, service.engine.limits.max_model_len, service.aside)
        self._authenticator = Authenticator(settings.api_keys)
        self._closing: asyncio.Task[None] | None = None

    def caller(self, request: Request) -> str | None:
        """The first part of the cache namespace of who sent this request (None without keys). Raises a 401."""
        key = self._authenticator.key(request)
        return None if key is None else key.digest

    def governed(self, request: Request) -> str | None:
        """Whose part of the cache the sender may clear: its own, or all of it (None). Raises a 401."""
        key = self._authenticator.key(request)
        return None if key is None or key.is_admin else key.digest

    def check_reader(self, request: Request) -> None:
        """Let in who may read the description of the API, a person in a browser too. Raises a 401."""
        self._authenticator.check_reader(request)

    def model_name(self, asked: str | None) -> str:
        """The name to answer under. Raises a 404 for a model that is not served."""
        if asked is None:
            return self.settings.model_names[0]
        if asked not in self.settings.model_names:
            served = ", ".join(map(shown, self.settings.model_names))
            raise ApiError(
                404,
                f"The model {shown(asked)} is not served here; there is {served}.",
                param="model",
                code="model_not_found",
            )
        return asked

    async def close(self) -> None:
        """Refuse new requests, let running ones go on for the grace period, end the rest. May be called again."""
        if self._closing is None:
            engine = self.service.engine
            self._closing = asyncio.ensure_future(engine.close(grace_s=self.settings.shutdown_grace_s))
        await asyncio.shield(self._closing)
