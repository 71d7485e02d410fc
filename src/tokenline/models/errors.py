"""The one error that reading or running a model raises for reasons the user can do something about."""


class ModelError(Exception):
    """A model that cannot be served, with a one-line reason that names the file, tensor or setting at fault."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.splitlines()))  # names in a file may hold anything
