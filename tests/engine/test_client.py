"""The engine's contract is plain data: what goes in and comes out survives pickling and means the same afterwards."""

import asyncio
import pickle
from typing import Any

import numpy as np
import pytest

from tests.engine.ledger import LedgerModel, expected_answer
from tokenline.engine import (
    CacheUse,
    Engine,
    EngineClient,
    EngineSettings,
    FinishReason,
    Health,
    Namespace,
    Request,
    RequestRefused,
    SamplingParams,
    Step,
    TokenLogprob,
)
from tokenline.engine.settings import ContextLimit, EngineLimits
from tokenline.fields import FieldError
from tokenline.grammar import spec
from tokenline.grammar.errors import ConstraintError


def through(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


FUNCTION = spec.Function("weather", {"type": "object", "properties": {"城市": {"type": "string"}}}, strict=True)
FORMS = [
    spec.JsonSchema({"type": "object", "properties": {"a": {"enum": [1, "👋", None]}}}),
    spec.Regex(r"\d{3}"),
    spec.Choice(("yes", "no")),
    spec.Grammar('root ::= "a"'),
    spec.NamedCall(FUNCTION),
    spec.RequiredCalls((FUNCTION,), parallel=False),
    spec.StrictTools((FUNCTION,), "hermes"),
]
VALUES = [
    *(spec.ConstraintSpec(form, spec.Reasoning((), ("</think>",), opened=True)) for form in FORMS),
    SamplingParams(max_tokens=3, logit_bias={5: -1.0}, stop_ids=frozenset([2]), seed=2**63),
    Namespace("caller", None, "salt"),
    Step("r", 1, (3, 4), (TokenLogprob(-0.5, ((3, -0.5),)),), FinishReason.STOP, CacheUse(9, 4, 5, evicted_ago_s=1.5)),
    EngineLimits(100, 200, 20, 10, 500, ContextLimit.MEMORY),
    Health(False, "RuntimeError: no"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_survive(value: Any):
    assert through(value) == value


def test_a_request_survives():
    request = Request(
        "r", np.asarray([1, 2], np.int32), SamplingParams(max_tokens=1), Namespace("a"), 2, VALUES[0], retention_s=60
    )
    other = through(request)
    assert other.prompt_ids.tolist() == [1, 2]
    assert other.prompt_ids.dtype == np.int32
    for name in ("request_id", "params", "namespace", "n", "constraint", "retention_s"):
        assert getattr(other, name) == getattr(request, name)


@pytest.mark.parametrize("kind", [FieldError, ConstraintError])
def test_a_refusal_survives_with_its_fault(kind: type[FieldError]):
    fault = kind(("properties", "a"), "cannot stand beside ", ("b", 0), ".", code="unsupported_value")
    refusal = through(RequestRefused("constraint", str(fault), fault))
    assert (refusal.code, refusal.message, str(refusal)) == ("constraint", str(fault), str(fault))
    assert isinstance(refusal.fault, kind)
    assert (refusal.fault.path, refusal.fault.parts, refusal.fault.code) == (fault.path, fault.parts, fault.code)
    assert str(refusal.fault) == "'properties.a' cannot stand beside 'b[0]'."


class Pickling:
    """An engine on the other side of a border: all that crosses is pickled."""

    def __init__(self, engine: EngineClient):
        self._engine = engine

    @property
    def limits(self):
        return through(self._engine.limits)

    async def start(self):
        await self._engine.start()

    async def check(self, request):
        await self._engine.check(through(request))

    async def generate(self, requests):
        try:
            return _PicklingSteps(await self._engine.generate(through(requests)))
        except RequestRefused as refusal:
            raise through(refusal) from None

    async def stop(self, request_id, choice):
        await self._engine.stop(through(request_id), choice)

    async def reset_prefix_cache(self, caller: str | None = None):
        await self._engine.reset_prefix_cache(caller)

    async def stats(self):
        return through(await self._engine.stats())

    async def health(self):
        return through(await self._engine.health())

    async def close(self, grace_s=10.0):
        await self._engine.close(grace_s)


class _PicklingSteps:
    def __init__(self, steps):
        self._steps = steps
        self.left_out = through(steps.left_out)

    def __aiter__(self):
        return self

    async def __anext__(self):
        return through(await anext(self._steps))

    async def aclose(self):
        await self._steps.aclose()


async def test_everything_that_crosses_the_contract_is_plain():
    settings = EngineSettings(kv_cache_memory=8 * 4 * 256, block_size=4, max_batch_tokens=80)
    engine: EngineClient = Pickling(Engine(LedgerModel(), settings))
    await engine.start()
    try:
        prompt = np.arange(20, dtype=np.int32)
        params = SamplingParams(max_tokens=4, temperature=0)
        requests = [Request("a", prompt, params, n=2), Request("b", prompt[:7], params)]
        ids: dict[tuple[str, int], list[int]] = {}
        steps = await engine.generate(requests)
        async for step in steps:
            ids.setdefault((step.request_id, step.choice), []).extend(step.ids)
        expected = expected_answer(prompt.tolist(), 4)
        assert ids == {("a", 0): expected, ("a", 1): expected, ("b", 0): expected_answer(prompt[:7].tolist(), 4)}
        stats = await engine.stats()
        assert stats.totals.finished == 2
        assert (await engine.health()).ok
        with pytest.raises(RequestRefused) as refused:
            await engine.generate([requests[1], Request("c", np.zeros(5000, np.int32), params)])
        assert refused.value.code == "context_length_exceeded"
        assert (await engine.stats()).running == 0, "none is begun where one is refused"
        with pytest.raises(RequestRefused, match="no compiler"):
            await engine.check(Request("d", prompt, params, constraint=VALUES[0]))
        await engine.reset_prefix_cache()
    finally:
        await asyncio.wait_for(engine.close(grace_s=0), 30)
