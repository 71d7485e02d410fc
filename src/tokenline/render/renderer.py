"""Layer 2 as one object: a request becomes a `Line`.

    ChatInput -> normalize -> template -> text -> tokenizer -> Line

The server, the command line and the diagnosis call this and nothing below it. Immutable after loading and safe to
call from several threads.
"""

import functools
import shlex
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from tokenline.fields import Path, json_pointer
from tokenline.models.errors import ModelError, one_line
from tokenline.models.gguf_file import GGUFFile
from tokenline.render.chat_input import ChatInput
from tokenline.render.chat_renderer import CHATML, ChatRenderer
from tokenline.render.check import check_ids
from tokenline.render.control import ControlTokens
from tokenline.render.encoder import LineEncoder
from tokenline.render.errors import RenderError
from tokenline.render.infill import Infiller, find_infill_tokens
from tokenline.render.line import Line, Origin, Span
from tokenline.render.memory import IdMemory
from tokenline.render.provenance import spans_of
from tokenline.render.sandbox import Clock
from tokenline.render.stability import Stability, check_stability
from tokenline.render.tokenizer import Tokenizer, text_for_utf8


class Renderer:
    """Chat template and tokenizer of one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        templates: Mapping[str, str] | None = None,
        *,
        clock: Clock = datetime.now,
        memory: IdMemory | None = None,
    ):
        """`templates`: by name, "default" and perhaps "tool_use"; None for those that came with the tokenizer.
        `memory`: where the ids of chats are remembered; None for a new one. Raises ModelError.
        """
        self.tokenizer = tokenizer
        self.template_source = "MODEL"  # what `tokenline template check` has to be given to check these templates
        self.end_ids: frozenset[int] = tokenizer.vocabulary.end_ids
        self.default_sampling: dict[str, Any] = dict(tokenizer.vocabulary.default_sampling)
        sources = dict(tokenizer.vocabulary.chat_templates if templates is None else templates)
        if not sources and {"<|im_start|>", "<|im_end|>"} <= tokenizer.special_tokens.keys():
            sources["default"] = CHATML
        try:
            self.chats = ChatRenderer(sources, tokenizer.vocabulary.named, clock=clock)
        except RenderError as error:
            raise ModelError(error.message) from error
        self.control = ControlTokens(tokenizer.vocabulary, self.chats.templates.values())
        infill_tokens = find_infill_tokens(tokenizer.vocabulary)
        self.infiller = None if infill_tokens is None else Infiller(tokenizer, self.control, infill_tokens)
        self._encoder = LineEncoder(tokenizer, self.control, memory)

    @classmethod
    def from_model(
        cls,
        path: FilePath,
        *,
        chat_template: str | None = None,
        clock: Clock = datetime.now,
        gguf: GGUFFile | None = None,
    ) -> "Renderer":
        """Load from a Hugging Face folder or a GGUF file. `chat_template` is a template's text that replaces the
        model's own; `gguf` is the file at `path` where that has been opened already. Raises ModelError.
        """
        templates = None if chat_template is None else {"default": chat_template}
        tokenizer = Tokenizer.from_model(path, gguf)
        with one_line(f"{FilePath(path).name}: the chat template"):
            renderer = cls(tokenizer, templates, clock=clock)
        renderer.template_source = shlex.quote(str(path)) if chat_template is None else "the file of --chat-template"
        return renderer

    def apply_template(self, chat: ChatInput) -> str:
        """The rendered chat as text. Raises RenderError."""
        return text_for_utf8(self.chats.render(chat).text)

    def chat(
        self, chat: ChatInput, trace: bool = False, *, namespace: Hashable = None, for_generation: bool = False
    ) -> Line:
        """The line of a chat. Raises RenderError.

        `trace`: with the origin of every character. `namespace`: whose remembered ids may be used (see `remember`).
        The ids are the same with and without `trace`. `for_generation`: an empty line is an error, since a model has
        nothing to begin with.
        """
        now = self.chats.now()
        rendering = self.chats.render(chat, now=now)
        text = rendering.text
        traced: str | None = None
        if trace or self.control.may_forge(rendering.sent):
            traced = self.chats.render(chat, traced=True, now=now).text
            if traced != text:  # provenance fails for something that the template does: then no origin is known
                if self.control.occur_in(rendering.sent):
                    raise RenderError(
                        (),
                        "The request holds the text of a control token, and with this chat template it cannot be "
                        "distinguished from the template's own.",
                    )
                traced = None
        spans = spans_of(text if traced is None else traced) if trace else ()
        text = text_for_utf8(text)
        ids, offsets = self._encoder.encode(text, traced, namespace)
        if for_generation and len(ids) == 0:
            raise RenderError(("messages",), "give an empty prompt: the chat template writes nothing for them.")
        return Line(ids, text, offsets, spans)

    def stability(self, *, explain: bool = True) -> Stability:
        """Whether each turn of a chat extends the last one's tokens (see `stability`). Raises RenderError without a
        template. `explain=False` is enough for a line in a log, and quicker.
        """
        encode = functools.partial(self.tokenizer.encode, parse_special=True)
        return check_stability(self.chats, explain=explain, encode=encode)

    def remember(self, line: Line, generated: Sequence[int], *, namespace: Hashable = None) -> None:
        """Remember what was generated behind a line of `chat`. When a client sends that text back as history, or the
        part of it that it got, its line will have these ids, and not others that spell the same. Call it when no more
        of the answer comes, however it ended, with all its ids.
        """
        self._encoder.remember(line, generated, self.end_ids, namespace)

    def text(self, prompt: str, path: Path = ("prompt",), *, namespace: Hashable = None) -> Line:
        """The line of a raw prompt (/v1/completions): BOS where the tokenizer asks for it, unless it is there already.

        Special tokens in it are read as such, as in vLLM: whoever writes a raw prompt writes all of it.
        `path`: where in the request it stands. `namespace`: whose remembered prompts may make this cheaper; the ids
        are the same.
        """
        prompt = text_for_utf8(prompt)
        ids, offsets = self._encoder.encode_prompt(prompt, namespace)
        prefix = np.array(self.tokenizer.vocabulary.prefix_ids, dtype=np.int32)
        if not np.array_equal(ids[: len(prefix)], prefix):
            ids = np.concatenate((prefix, ids))
            offsets = np.concatenate((np.zeros((len(prefix), 2), dtype=np.int32), offsets))
        spans = (Span(0, len(prompt), Origin.REQUEST, json_pointer(path)),) if prompt else ()
        return Line(ids, prompt, offsets, spans)

    def ids(self, ids: Sequence[int], path: Path = ("prompt",), *, vocab_size: int | None = None) -> Line:
        """The line of a prompt that is given as ids. Raises RenderError for an id outside the vocabulary.

        `path`: where in the request the ids stand. `vocab_size`: the model's, if smaller than the tokenizer's.
        """
        check_ids(ids, self.tokenizer.vocab_size if vocab_size is None else vocab_size, path)
        text, offsets = self.tokenizer.decode_with_offsets(ids)
        return Line(self.tokenizer.as_array(ids), text, offsets, ids_pointer=json_pointer(path))
