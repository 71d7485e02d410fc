"""The service that all protocols share: checked requests in, answers and lines out. Built once, by `create_app`.

A prompt is rendered on the event loop if it is small, and aside if it is large (see `aside`). What is certainly too
long for the context is not rendered or tokenized at all.
"""

from tokenline.aside import Aside
from tokenline.engine.client import EngineClient
from tokenline.engine.request import Namespace, Request
from tokenline.fields import FieldError, Path
from tokenline.grammar.spec import ConstraintSpec
from tokenline.render.chat_input import ChatInput
from tokenline.render.errors import RenderError
from tokenline.render.line import Line
from tokenline.render.renderer import Renderer
from tokenline.service.answer import Answer, Prompt
from tokenline.service.default_sampling import SMALL_MODELS, DefaultSampling
from tokenline.service.fit import check_chat_line, check_line
from tokenline.service.parsers import ParserChoice
from tokenline.service.prepare import Room, chat_constraint, check_scored, check_tool_choice, check_values
from tokenline.service.request import ChatRequest, GenerationRequest, TextRequest


class Service:
    """Layers 2 to 4 of one served model."""

    def __init__(
        self,
        renderer: Renderer,
        engine: EngineClient,
        parsers: ParserChoice,
        default_sampling: DefaultSampling = SMALL_MODELS,
    ):
        self.renderer = renderer
        self.engine = engine
        self.parsers = parsers
        self.aside = Aside("aside")
        self.room = Room(renderer, engine.limits, default_sampling)

    @property
    def chat_template(self) -> str:
        """The source of the template of chats without tools; "" if there is none."""
        try:
            return self.renderer.chats.template().source
        except RenderError:
            return ""

    async def answer(self, request: ChatRequest | TextRequest) -> Answer:
        """The answer to a request, not yet begun. Raises FieldError with a path of the request."""
        return await (self._chat(request) if isinstance(request, ChatRequest) else self._text(request))

    async def _chat(self, request: ChatRequest) -> Answer:
        check_values(request)
        self.parsers.check(request)
        namespace = namespace_of(request)
        line = await self.chat_line(request.chat, namespace, request.size)
        check_tool_choice(request)
        check_chat_line(line, self.engine.limits.vocab_size, request.chat, self.renderer)
        check_scored(request, len(line))
        constraint = chat_constraint(self.parsers, request, line)
        prompt = Prompt(
            line=line,
            request=self._request(request, request.id, line, ("messages",), constraint),
            stop=request.limits.stop,
            make_parser=lambda: self.parsers.parser_of(request, line),
            continues_text=request.chat.continue_final_message,
            tool_places=request.callable_places,
            # When the client sends this answer back as history, its line keeps the generated ids (invariant 7).
            on_answer=lambda ids: self.renderer.remember(line, ids, namespace=namespace),
        )
        return Answer(self.engine, self.renderer.tokenizer, [prompt])

    async def _text(self, request: TextRequest) -> Answer:
        check_values(request)
        prompts: list[Prompt] = []
        for index, given in enumerate(request.prompts):
            place: Path = ("prompt", index) if request.listed else ("prompt",)
            line = await self._prompt_line(request, given, place)
            own_id = request.id if len(request.prompts) == 1 else f"{request.id}-{index}"
            constraint = None if request.output is None else ConstraintSpec(request.output)
            prompts.append(
                Prompt(
                    line=line,
                    request=self._request(request, own_id, line, place, constraint),
                    stop=request.limits.stop,
                    continues_text=True,
                )
            )
        check_scored(request, sum(len(prompt.line) for prompt in prompts))
        return Answer(self.engine, self.renderer.tokenizer, prompts)

    def _request(
        self, asked: GenerationRequest, own_id: str, line: Line, place: Path, constraint: ConstraintSpec | None
    ) -> Request:
        return Request(
            own_id,
            line.ids,
            self.room.sampling_params(asked, len(line), place),
            namespace_of(asked),
            asked.limits.n,
            constraint,
            asked.cache.retention_s,
            prompt_logprobs=asked.sampling.prompt_logprobs,
            reports_progress=asked.reports_progress,
            sender=asked.sender,
        )

    async def _prompt_line(self, request: TextRequest, given: str | list[int], place: Path) -> Line:
        if request.suffix is not None:
            return await self._infill_line(request, given, request.suffix, place)
        whole_context = request.limits.max_tokens == 0  # may be the prompt's: see `Room.sampling_params`
        if isinstance(given, str):
            namespace = namespace_of(request)
            line = await self.text_line(given, place, namespace, request.size, to_count=whole_context)
        else:
            if not whole_context:
                self.room.check_prompt(len(given), place)  # before each of them is looked at
            vocab_size = self.room.vocab_size
            line = await self.aside.run_if_large(
                request.size, lambda: self.renderer.ids(given, place, vocab_size=vocab_size)
            )
        if len(line) == 0:
            raise FieldError(place, "has no tokens; there is nothing to continue.")
        check_line(line, self.engine.limits.vocab_size, place, self.renderer)
        return line

    async def _infill_line(self, request: TextRequest, given: str | list[int], suffix: str, place: Path) -> Line:
        infiller = self.renderer.infiller
        if infiller is None:
            raise FieldError(("suffix",), "is not supported by this model.", code="unsupported_parameter")
        if not isinstance(given, str):
            raise FieldError(place, "must be text, not token ids, with ", ("suffix",), ".", code="invalid_type")

        def make() -> Line:
            self.room.check_text(given + suffix, place)
            return infiller.line(given, suffix, place, ("suffix",))

        line = await self.aside.run_if_large(request.size, make)
        check_line(line, self.engine.limits.vocab_size, place, self.renderer)
        return line

    async def chat_line(self, chat: ChatInput, namespace: Namespace, size: int = 0, *, to_count: bool = False) -> Line:
        """The line of a conversation. `namespace`: within which answers that come back as history keep their ids.

        `to_count`: it need not fit the context. Raises FieldError.
        """

        def make() -> Line:
            self.room.check_chat(chat, size)
            if not to_count and self.room.may_be_too_long(size):
                self.room.check_text(self.renderer.apply_template(chat), ("messages",))
            return self.renderer.chat(chat, namespace=namespace, for_generation=not to_count)

        return await self.aside.run_if_large(size, make)

    async def text_line(
        self, prompt: str, place: Path, namespace: Namespace, size: int = 0, *, to_count: bool = False
    ) -> Line:
        """The line of a raw prompt. `namespace`: whose earlier prompts may make it cheaper. Raises FieldError."""

        def make() -> Line:
            self.room.check_text(prompt, place, to_count=to_count)
            return self.renderer.text(prompt, namespace=namespace)

        return await self.aside.run_if_large(size, make)

    async def text_ids(self, prompt: str, place: Path, size: int = 0) -> list[int]:
        """The ids of a text by itself, to be counted: without BOS. Raises FieldError."""

        def make() -> list[int]:
            self.room.check_text(prompt, place, to_count=True)
            return self.renderer.tokenizer.encode(prompt, parse_special=True)

        return await self.aside.run_if_large(size, make)

    async def chat_text(self, chat: ChatInput, size: int = 0) -> str:
        """The text that the chat template makes of a conversation. Raises FieldError."""

        def make() -> str:
            self.room.check_chat(chat, size)
            return self.renderer.apply_template(chat)

        return await self.aside.run_if_large(size, make)


def namespace_of(request: GenerationRequest) -> Namespace:
    return Namespace(caller=request.caller, salt=request.cache.salt)
