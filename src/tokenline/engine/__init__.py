"""Layer 3: scheduler, prefix cache, KV pool, model runner, sampler. Knows ids only: no text, no JSON, no HTTP."""

from tokenline.engine.client import EngineClient, EngineStats, Health, StepStream, Totals
from tokenline.engine.engine import Engine
from tokenline.engine.errors import SettingError
from tokenline.engine.request import (
    CacheUse,
    FinishReason,
    Namespace,
    PromptProgress,
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
    "EngineClient",
    "EngineLimits",
    "EngineSettings",
    "EngineStats",
    "FinishReason",
    "Health",
    "Namespace",
    "PromptProgress",
    "Request",
    "RequestRefused",
    "SamplingParams",
    "SettingError",
    "Step",
    "StepStream",
    "TokenLogprob",
    "Totals",
]
