"""Fields that other servers know and this one cannot honour: asking for them is a 400, since ignoring them would change
the answer without a word. A value that asks for nothing is accepted.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenline.fields import FieldError


class Refusal(NamedTuple):
    reason: str
    harmless: tuple[Any, ...] = ()  # besides null


GENERATION: Mapping[str, Refusal] = {
    "use_beam_search": Refusal("beam search is not supported", (False,)),
    "length_penalty": Refusal("beam search is not supported", (1,)),
    "truncate_prompt_tokens": Refusal("a prompt is never cut; send a shorter one"),
    "bad_words": Refusal("use 'logit_bias'", ([],)),
    "allowed_token_ids": Refusal("use 'logit_bias'"),
    "logits_processors": Refusal("logits processors are not supported", ([],)),
    "include_stop_str_in_output": Refusal("stop strings are never part of the answer", (False,)),
    "skip_special_tokens": Refusal("special tokens are never part of the answer's text", (True,)),
    "spaces_between_special_tokens": Refusal("special tokens are never part of the answer's text", (True,)),
    "return_tokens_as_token_ids": Refusal("use 'return_token_ids'", (False,)),
    "kv_transfer_params": Refusal("transfer of keys and values is not supported"),
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
}

COMPLETION: Mapping[str, Refusal] = {
    **GENERATION,
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
