"""The one error that reading or running a model raises for reasons the user can do something about."""

import contextlib
from collections.abc import Iterator


class ModelError(Exception):
    """A model that cannot be served, with a one-line reason that names the file, tensor or setting at fault."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.splitlines()))  # names in a file may hold anything


@contextlib.contextmanager
def one_line(name: str) -> Iterator[None]:
    """Let what reading a model's files raises out as ModelError. `name`: of what is read.

    Files come from anybody, and the libraries that read them fail in any way on what nobody expected: also with the
    panics of those written in Rust, which derive from BaseException.
    """
    try:
        yield
    except ModelError:
        raise
    except RecursionError as error:
        raise ModelError(f"{name} is nested too deeply") from error
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"{name} cannot be used: {type(error).__name__}: {str(error)[:300]}") from error
