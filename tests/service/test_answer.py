"""An answer's events, from a real engine: what comes first, what ends them, and that closing frees the engine."""

from contextlib import asynccontextmanager

import numpy as np
import pytest

from tests.engine.ledger import LedgerModel, expected_answer
from tests.parse.fake_tokens import Vocabulary, content
from tokenline.engine import Engine, EngineSettings, Request, RequestRefused, SamplingParams
from tokenline.parse.stream import EndReason
from tokenline.render.line import Line
from tokenline.service.answer import Answer, AnswerFailed, Prompt
from tokenline.service.events import Piece, PromptDone

WORDS = Vocabulary([f"{id} " for id in range(97)])


@asynccontextmanager
async def running(model: LedgerModel | None = None, **settings):
    engine = Engine(
        model or LedgerModel(max_positions=100_000),
        EngineSettings(**{"kv_cache_memory": 8 * 200_000, "block_size": 4, "max_batch_tokens": 80, **settings}),
    )
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close(grace_s=0)


def prompt(name: str, ids: list[int], max_tokens: int = 4, n: int = 1, **options) -> Prompt:
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    array = np.asarray(ids, np.int32)
    line = Line(array, "", np.zeros((len(ids), 2), np.int32))
    return Prompt(line, Request(name, array, params, n=n), **options)


async def test_events_of_several_prompts_and_choices():
    async with running() as engine:
        prompts = [prompt("a", [1, 2, 3], n=2), prompt("b", list(range(20)), max_tokens=6)]
        async with Answer(engine, WORDS, prompts) as answer:
            await answer.open()
            seen: dict[int, list[Piece]] = {0: [], 1: [], 2: []}
            done: list[int] = []
            async for event in answer:
                if isinstance(event, PromptDone):
                    done.append(event.prompt)
                    assert event.cache.prompt == len(prompts[event.prompt].line)
                elif isinstance(event, Piece):
                    assert (0 if event.choice < 2 else 1) in done, "the prompt's account comes before its pieces"
                    seen[event.choice].append(event)
        assert sorted(done) == [0, 1]
        for choice, (ids, tokens) in enumerate([([1, 2, 3], 4), ([1, 2, 3], 4), (list(range(20)), 6)]):
            expected = expected_answer(ids, tokens)
            assert [id for piece in seen[choice] for id in piece.ids] == expected
            text = "".join(f"{id} " for id in expected)
            assert "".join(content(piece.deltas) for piece in seen[choice]) == text
            assert answer.message(choice).content == text
            assert [piece.end for piece in seen[choice]][-1] is EndReason.LENGTH
        usage = answer.usage()
        assert (usage.prompt_tokens, usage.completion_tokens) == (23, 14)
        assert usage.cache is not None
        assert usage.cache.cached + usage.cache.computed == 23


async def test_a_stop_string_ends_its_choice_and_the_engine_hears_of_it():
    async with running() as engine:
        expected = expected_answer([1, 2, 3], 9)
        stop = f"{expected[3]} "
        async with Answer(engine, WORDS, [prompt("a", [1, 2, 3], max_tokens=90_000, stop=(stop,))]) as answer:
            await answer.open()
            pieces = [event async for event in answer if isinstance(event, Piece)]
        assert pieces[-1].end is EndReason.STOP_STRING
        assert pieces[-1].stop_string == stop
        assert answer.message(0).content == "".join(f"{id} " for id in expected[: expected.index(expected[3])])
        assert engine.num_open == 0


async def test_closing_in_the_middle_frees_the_engine():
    async with running() as engine:
        answer = Answer(engine, WORDS, [prompt("a", [1, 2, 3], max_tokens=90_000)])
        await answer.open()
        await anext(answer)
        await answer.aclose()
        await answer.aclose()
        await engine.between_steps(lambda: None)
        assert engine.snapshot().running == 0
        assert answer.end_reasons() == [None]


async def test_what_the_engine_refuses_is_refused_before_anything_is_begun():
    async with running(max_waiting=1) as engine:
        answer = Answer(engine, WORDS, [prompt("a", [1]), prompt("b", [2])])
        with pytest.raises(RequestRefused, match="waiting or running"):
            await answer.open()
        await answer.aclose()
        assert engine.num_open == 0


async def test_an_engine_that_fails_ends_the_answer():
    model = LedgerModel()
    async with running(model, kv_cache_memory=8 * 4 * 256) as engine:
        model.fail_on = 77
        async with Answer(engine, WORDS, [prompt("a", [77])]) as answer:
            with pytest.raises(AnswerFailed, match="told to fail"):
                await answer.open()


async def test_the_ids_of_an_answer_are_reported_however_it_ends():
    heard: list[list[int]] = []
    async with running() as engine:
        for stop in ((), ("7",)):
            asked = prompt("a", [1, 2, 3], max_tokens=40, stop=stop, on_answer=lambda ids: heard.append(list(ids)))
            async with Answer(engine, WORDS, [asked]) as answer:
                await answer.open()
                async for _ in answer:
                    pass
        expected = expected_answer([1, 2, 3], 40)
        assert heard[0] == expected
        assert 0 < len(heard[1]) < 40
        assert heard[1] == expected[: len(heard[1])]
        heard.clear()
        asked = prompt("b", [1, 2, 3], max_tokens=40, n=2, on_answer=lambda ids: heard.append(list(ids)))
        async with Answer(engine, WORDS, [asked]) as answer:  # whose client leaves
            await answer.open()
            while not isinstance(await anext(answer), Piece):
                pass
        assert 1 <= len(heard) <= 2, "once a choice that has begun"
        for ids in heard:
            assert ids == expected[: len(ids)]
