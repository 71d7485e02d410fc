"""The errors of layer 2, each with the place in the request that caused it."""


class RenderError(Exception):
    """A request that cannot become a line: the template raised, or a message does not fit this model.

    `param` names the place in OpenAI's notation, e.g. "messages[2].role"; None when no single place is at fault.
    """

    def __init__(self, message: str, param: str | None = None):
        super().__init__(message)
        self.message = message
        self.param = param
