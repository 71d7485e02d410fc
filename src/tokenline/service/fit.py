"""Whether the tokenizer fits the model: ids that a text can become, and for which the model has no row.

Such files exist: tokens were added to a tokenizer, and the model was not resized. What can never work is refused when
the server starts; a request that meets such an id is refused with the place at which it does.
"""

import logging

import numpy as np

from tokenline.fields import FieldError, Path, pointer_parts
from tokenline.models.errors import ModelError
from tokenline.render.chat_input import ChatInput
from tokenline.render.errors import RenderError
from tokenline.render.line import Line
from tokenline.render.origins import token_origins
from tokenline.render.renderer import Renderer

log = logging.getLogger(__name__)

HELLO = ChatInput([{"role": "user", "content": "Hello"}])


def check_fit(renderer: Renderer, rows: int) -> None:
    """Raise ModelError if no prompt, no chat or no end of an answer can have an id below `rows`, the ids that the
    model knows. Say in the log if some tokens are beyond.
    """
    vocabulary = renderer.tokenizer.vocabulary

    def named(token_id: int) -> str:
        text = renderer.tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        return f"{text!r} (id {token_id})"

    lacks = f"and the model knows only the ids 0 to {rows - 1}: the files do not belong together"
    for token_id in vocabulary.prefix_ids:
        if token_id >= rows:
            raise ModelError(f"the tokenizer begins every prompt with {named(token_id)}, {lacks}")
    if renderer.end_ids and min(renderer.end_ids) >= rows:
        raise ModelError(f"answers end with {' or '.join(map(named, sorted(renderer.end_ids)))}, {lacks}")
    try:
        chat = renderer.chat(HELLO).ids
    except RenderError:  # no template, or one that wants more
        chat = np.empty(0, np.int32)
    if len(beyond := chat[chat >= rows]):
        raise ModelError(f"the chat template writes {named(int(beyond[0]))}, {lacks}")
    if count := sum(len(piece) > 0 for piece in vocabulary.pieces[rows:]):
        log.warning(
            "The tokenizer has %d tokens that the model does not know (from id %d on). Requests whose text has one are "
            "refused.",
            count,
            rows,
        )


def check_line(line: Line, rows: int, place: Path, renderer: Renderer) -> None:
    """Raise FieldError if the model does not know an id of the line of a text, which stands at `place`."""
    if (index := _beyond(line, rows)) is not None:
        raise _unknown(line, index, rows, place, renderer)


def check_chat_line(line: Line, rows: int, chat: ChatInput, renderer: Renderer) -> None:
    """The same for a chat: names the value of the request in which the token stands."""
    if _beyond(line, rows) is None:
        return
    traced = renderer.chat(chat, trace=True)  # without an answer's remembered ids, all of which the model has generated
    index = _beyond(traced, rows)
    if index is None:  # not reached
        raise _unknown(line, _beyond(line, rows) or 0, rows, ("messages",), renderer)
    token = next(token for token in token_origins(traced, renderer.tokenizer) if token.position == index)
    pointers = [part.pointer for part in token.parts if part.pointer is not None]
    place = _path(pointers[0]) if pointers else ("messages",)
    raise _unknown(traced, index, rows, place, renderer)


def _beyond(line: Line, rows: int) -> int | None:
    """The first token of a line that the model does not know."""
    if len(line.ids) == 0 or line.ids.max() < rows:
        return None
    return int(np.argmax(line.ids >= rows))


def _unknown(line: Line, index: int, rows: int, place: Path, renderer: Renderer) -> FieldError:
    token_id = int(line.ids[index])
    text = renderer.tokenizer.token_bytes(token_id).decode("utf-8", "replace")
    return FieldError(
        place,
        f"has the token {text!r} with id {token_id}, which this model does not know: it has the ids 0 to {rows - 1}.",
    )


def _path(pointer: str) -> Path:
    """The path of an RFC 6901 pointer into a request."""
    return tuple(int(part) if part.isdigit() else part for part in pointer_parts(pointer))
