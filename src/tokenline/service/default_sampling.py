"""The sampling values of requests that give none.

In this order: the operator's, the model's own (generation_config.json, or `general.sampling.*` of a GGUF file), and
those of llama.cpp, which keep small models readable. Each value by itself, as in llama.cpp: a request that gives only
a temperature takes the other values from here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Self

from tokenline.fields import FieldError, shown
from tokenline.service.request import RANGES


@dataclass(frozen=True, slots=True)
class DefaultSampling:
    """See `request.Sampling`. The defaults here are llama.cpp's."""

    temperature: float = 0.8
    top_k: int = 40  # 0: off
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, given: Mapping[str, Any], base: "DefaultSampling | None" = None) -> Self:
        """`base`, with the values of `given` instead of its own. Raises FieldError for a value that is not valid."""
        values = asdict(base or cls())
        for name, value in given.items():
            if name not in values:
                raise FieldError((name,), f"is not a sampling value; use one of {', '.join(values)}.")
            accepted = RANGES[name]
            number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < inf
            if not number or (accepted.integer and value != int(value)):
                raise FieldError((name,), f"must be {accepted.accepted}; got {shown(value)}.")
            accepted.check(name, value)
            values[name] = max(0, int(value)) if accepted.integer else value
        return cls(**values)

    def __str__(self) -> str:
        """`temperature 0.8, top_k 40, top_p 0.95, min_p 0.05`; what is off is left out."""
        if self.temperature == 0:
            return "temperature 0 (always the most likely token)"
        off = asdict(PLAIN) | {"temperature": None}
        return ", ".join(f"{name} {value:g}" for name, value in asdict(self).items() if value != off[name])


# Every token with the model's own probability: what vLLM and OpenAI's API do without a generation config.
PLAIN = DefaultSampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
SMALL_MODELS = DefaultSampling()
