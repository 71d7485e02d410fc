"""The one long-lived object of the server: what all routes share. Built by `create_app`, closed by its lifespan."""

import asyncio
from functools import cached_property

from starlette.requests import Request

from tokenline.engine.engine import Engine
from tokenline.parse.constrain import Constrainer
from tokenline.render.renderer import Renderer
from tokenline.server.auth import Authenticator
from tokenline.server.errors import ApiError, shown
from tokenline.server.parsers import ParserChoice
from tokenline.server.settings import ServerSettings


class ServerState:
    """The renderer and the engine of the served model, the settings, and the way down."""

    def __init__(self, renderer: Renderer, engine: Engine, settings: ServerSettings):
        self.renderer = renderer
        self.engine = engine
        self.settings = settings
        self.parsers = ParserChoice.of(renderer, settings)
        self.constrainer = Constrainer(
            renderer.tokenizer, renderer.tokenizer.vocab_size, engine.limits.vocab_size, renderer.end_ids
        )
        self._authenticator = Authenticator(settings.api_keys)
        self._closing: asyncio.Task[None] | None = None

    def caller(self, request: Request) -> str | None:
        """Who sent this request (None without authentication). Raises a 401."""
        return self._authenticator.caller(request)

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

    @property
    def vocab_size(self) -> int:
        """Ids below this number are known to both the tokenizer and the model, whose tables may be padded."""
        return min(self.renderer.tokenizer.vocab_size, self.engine.limits.vocab_size)

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest text that one id stands for, so that a text has at least so many tokens."""
        tokenizer = self.renderer.tokenizer
        return max(1, max(len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size)))

    def may_be_too_long(self, size: int) -> bool:
        """Whether a text of so many bytes cannot be known to fit the context: then it is worth a look."""
        return size > self.engine.limits.max_model_len * self.longest_token

    async def close(self) -> None:
        """Refuse new requests, let running ones go on for the grace period, end the rest. May be called again."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self.engine.close(grace_s=self.settings.shutdown_grace_s))
        await asyncio.shield(self._closing)
