"""The error of layer 2, with the place in the request that caused it."""

from tokenline.fields import FieldError, dotted


class RenderError(FieldError):
    """A request that cannot become a line: a value is wrong, or the chat template refused it."""

    @property
    def message(self) -> str:
        """The whole sentence, with places in OpenAI's notation."""
        return self.text()

    @property
    def param(self) -> str | None:
        """The place in OpenAI's notation, e.g. "messages[2].role"; None where no single place is at fault."""
        return dotted(self.path) if self.path else None
