"""Fields that other servers know and this one cannot honour: asking for them is a 400, since ignoring them would change
the answer without a word. A value that asks for nothing is accepted.

Fields that only set how another of them works (`dry_base`, `mirostat_tau`) are not listed: without it they do nothing.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenline.fields import FieldError


class Refusal(NamedTuple):
    reason: str
    harmless: tuple[Any, ...] = ()  # besides null


_BEAMS = "beam search is not supported"
_SPECIALS = "special tokens are never part of the answer's text"
_SAMPLER = "there is no such sampler; leave it out"
_REASONING = "the answer has its reasoning in a field of its own"

GENERATION: Mapping[str, Refusal] = {
    # Of several servers
    "use_beam_search": Refusal(_BEAMS, (False,)),
    "num_beams": Refusal(_BEAMS, (1,)),
    "length_penalty": Refusal(_BEAMS, (1,)),
    "do_sample": Refusal("for greedy answers send 'temperature': 0", (True,)),
    "typical_p": Refusal(_SAMPLER, (1,)),
    "top_a": Refusal(_SAMPLER, (0,)),
    "tfs_z": Refusal(_SAMPLER, (1,)),
    "no_repeat_ngram_size": Refusal(_SAMPLER, (0,)),
    "truncate": Refusal("a prompt is never cut; send a shorter one", (False,)),
    "options": Refusal("send what stands in it as fields of their own", ({},)),
    "stop_regex": Refusal("use 'stop'", ("", [])),
    # vLLM
    "logprob_token_ids": Refusal("use 'top_logprobs'", ([],)),
    "truncate_prompt_tokens": Refusal("a prompt is never cut; send a shorter one"),
    "bad_words": Refusal("use 'logit_bias'", ([],)),
    "allowed_token_ids": Refusal("use 'logit_bias'"),
    "logits_processors": Refusal("logits processors are not supported", ([],)),
    "include_stop_str_in_output": Refusal("stop strings are never part of the answer", (False,)),
    "skip_special_tokens": Refusal(_SPECIALS, (True,)),
    "spaces_between_special_tokens": Refusal(_SPECIALS, (True,)),
    "return_tokens_as_token_ids": Refusal("use 'return_token_ids'", (False,)),
    "kv_transfer_params": Refusal("transfer of keys and values is not supported"),
    "repetition_detection": Refusal("repetitions are not looked for"),
    "guided_whitespace_pattern": Refusal("the white space of JSON cannot be chosen"),
    "structural_tag": Refusal("use 'tools' or 'response_format'"),
    "vllm_xargs": Refusal("there are no such arguments", ({},)),
    # SGLang
    "no_stop_trim": Refusal("stop strings are never part of the answer", (False,)),
    "lora_path": Refusal("adapters are not supported"),
    "custom_logit_processor": Refusal("logits processors are not supported"),
    "session_params": Refusal("sessions are not supported; send the whole conversation", ({},)),
    # llama.cpp
    "dynatemp_range": Refusal(_SAMPLER, (0,)),
    "top_n_sigma": Refusal(_SAMPLER, (-1, 0)),
    "xtc_probability": Refusal(_SAMPLER, (0,)),
    "dry_multiplier": Refusal(_SAMPLER, (0,)),
    "mirostat": Refusal(_SAMPLER, (0,)),
    "adaptive_target": Refusal(_SAMPLER, (-1,)),
    "samplers": Refusal("the order of the samplers cannot be chosen", ([], "")),
    "min_keep": Refusal(_SAMPLER, (0, 1)),
    "n_probs": Refusal("use 'logprobs'", (0,)),
    "post_sampling_probs": Refusal("log probabilities are those before sampling", (False,)),
    "n_indent": Refusal("use 'regex' or 'grammar'", (0,)),
    "t_max_predict_ms": Refusal("there is no time limit; use 'max_tokens', or close the connection", (-1, 0)),
    "grammar_lazy": Refusal("a grammar holds from the start; use 'tools'", (False,)),
    "grammar_triggers": Refusal("a grammar holds from the start; use 'tools'", ([],)),
    "response_fields": Refusal("an answer has all of its fields", ([],)),
    "lora": Refusal("adapters are not supported", ([],)),
}

CHAT: Mapping[str, Refusal] = {
    **GENERATION,
    "audio": Refusal("this model writes text only"),
    "modalities": Refusal('this model writes text only; leave it out or send ["text"]', (["text"],)),
    "web_search_options": Refusal("there is no web search"),
    "functions": Refusal("it is deprecated; use 'tools'", ([],)),
    "function_call": Refusal("it is deprecated; use 'tool_choice'", ("none",)),
    "prediction": Refusal("predicted outputs are not supported"),
    "moderation": Refusal("there is no moderation"),
    "store": Refusal("answers are not stored", (False,)),
    "verbosity": Refusal('only "medium" is supported; ask for a style in a message', ("medium",)),
    "chat_template": Refusal("the template is set when the server starts"),
    "documents": Refusal("put documents into a message", ([],)),
    "echo": Refusal("a chat completion cannot repeat its prompt", (False,)),
    "best_of": Refusal("use 'n'", (1,)),
    "add_special_tokens": Refusal("the chat template writes the special tokens", (False,)),
    "mm_processor_kwargs": Refusal("this model reads text only"),
    "images": Refusal("this model reads text only", ([],)),
    "system": Refusal('send a message with the role "system"', ("",)),
    "prompt": Refusal("use 'messages'", ("",)),
    "input_ids": Refusal("use /v1/completions, whose 'prompt' may be token ids"),
    "safe_prompt": Refusal("there is no such prompt", (False,)),
    "tool_prompt": Refusal("the chat template shows the tools", ("",)),
    "include_reasoning": Refusal(_REASONING, (True,)),
    "separate_reasoning": Refusal(_REASONING, (True,)),
    "stream_reasoning": Refusal(_REASONING, (True,)),
    "reasoning_format": Refusal(_REASONING, ("auto", "deepseek")),
    "reasoning_in_content": Refusal(_REASONING, (False,)),
    "thinking_forced_open": Refusal("the chat template says so", (False,)),
    "parse_tool_calls": Refusal("send 'tool_choice': \"none\"", (True,)),
}

COMPLETION: Mapping[str, Refusal] = {
    **GENERATION,
    "messages": Refusal("use /v1/chat/completions", ([],)),
    "prompt_embeds": Refusal("send 'prompt' as text or token ids"),
    "add_special_tokens": Refusal("send token ids for full control of special tokens", (True,)),
}


def refuse_unsupported(body: Mapping[str, Any], table: Mapping[str, Refusal]) -> None:
    """Raise FieldError for the first field of the body that stands in the table and asks for something."""
    for name, refusal in table.items():
        if body.get(name) is not None and not any(_same(body[name], value) for value in refusal.harmless):
            raise FieldError((name,), f"is not supported: {refusal.reason}.", code="unsupported_parameter")


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)  # True == 1 in Python, not in JSON
