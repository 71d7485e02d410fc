"""Fields that other servers know under another name and that mean the same here: read as if they had ours.

Sources: llama.cpp's server (README, server-task.cpp), SGLang's and TGI's protocol, Ollama's options, Mistral's API.
"""

from collections.abc import Mapping

TEMPLATE: Mapping[str, str] = {
    "reasoning_budget": "thinking_budget",
    "reasoning_budget_tokens": "thinking_budget",
    "thinking_budget_tokens": "thinking_budget",
    "thinking_token_budget": "thinking_budget",
}

GENERATION: Mapping[str, str] = {
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "repeat_penalty": "repetition_penalty",
    "random_seed": "seed",
    "sampling_seed": "seed",
    "n_cmpl": "n",
    "stop_sequences": "stop",
}

CHAT: Mapping[str, str] = {**TEMPLATE, **GENERATION}
