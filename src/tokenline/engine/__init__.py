"""Layer 3: scheduler, prefix cache, KV pool, model runner, sampler. Knows ids only: no text, no JSON, no HTTP."""

from tokenline.engine.engine import Engine, EngineStats
from tokenline.engine.request import (
    CacheUse,
    FinishReason,
    Namespace,
    Request,
    RequestRefused,
    SamplingParams,
    Step,
    TokenLogprob,
)
from tokenline.engine.settings import EngineLimits, EngineSettings

__all__ = [
    "CacheUse",
    "Engine",
    "EngineLimits",
    "EngineSettings",
    "EngineStats",
    "FinishReason",
    "Namespace",
    "Request",
    "RequestRefused",
    "SamplingParams",
    "Step",
    "TokenLogprob",
]
