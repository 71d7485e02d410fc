"""Where the usage stands in a stream: nowhere, on a last chunk of its own, or on every chunk."""

from tokenline.server.openai.answers import ChatCompletionChunk, Completion, usage_of
from tokenline.server.openai.wire import StreamOptions
from tokenline.service.answer import Answer


class StreamUsage:
    """What a request's `stream_options` say of it. vLLM's `continuous_usage_stats` counts with `include_usage` only."""

    def __init__(self, options: StreamOptions | None):
        self.is_included = options is not None and bool(options.include_usage)
        self._is_continuous = self.is_included and options is not None and bool(options.continuous_usage_stats)

    def add_to(self, chunk: ChatCompletionChunk | Completion, answer: Answer) -> None:
        """What a chunk before the last says: nothing, null, or what is counted up to it."""
        if self.is_included:
            chunk["usage"] = usage_of(answer.usage()) if self._is_continuous else None
