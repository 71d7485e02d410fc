"""What a model's files say about its tokenizer, whichever format they have: the contract between readers and Tokenizer.

`vocabulary_hf` reads a Hugging Face folder, `vocabulary_gguf` a GGUF file; `Tokenizer` works on what they return.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer and its model's defaults. Not changed after it was read."""

    spec: str  # the `tokenizers` library's JSON: model, normaliser, pre-tokenizer and added tokens
    pieces: list[bytes]  # by id: the bytes a token stands for; b"" for an id with no token
    missing: frozenset[int] = field(default=frozenset(), kw_only=True)  # ids with no token
    special: dict[str, int]  # control tokens by their text
    added: dict[str, int]  # tokens that are matched in text before all others: the control tokens and more
    named: dict[str, str]  # what templates call them: {"bos_token": "<s>", "eos_token": "</s>", ...}
    prefix_ids: tuple[int, ...] = ()  # what begins a raw prompt (BOS), where the tokenizer asks for it
    suffix_ids: tuple[int, ...] = ()
    strips_leading_space: bool = False  # decoding drops one space at the start of the text (SentencePiece)
    infill_ids: dict[str, int] = field(default_factory=dict)  # of a GGUF file: "prefix", "suffix", "middle" and others
    chat_templates: dict[str, str] = field(default_factory=dict)  # by name; the usual one is "default"
    end_ids: frozenset[int] = frozenset()  # end of turn, from generation_config and tokenizer
    default_sampling: dict[str, Any] = field(default_factory=dict)  # from generation_config.json


# Control tokens that end an assistant's turn in the templates of the families we know, whatever the model's
# configuration forgets to say. Only where the vocabulary has them as control tokens.
END_OF_TURN = (
    "<|im_end|>",  # ChatML, Qwen, SmolLM
    "<|eot_id|>",  # Llama 3: end of turn; the next: end of message, before a tool answers
    "<|eom_id|>",
    "<|eot|>",  # Llama 4
    "<|end|>",  # Phi
    "<end_of_turn>",  # Gemma 2 and 3
    "<turn|>",  # Gemma 4
    "<|endoftext|>",
    "<|end_of_text|>",  # Llama 3, Granite
    "<|return|>",  # gpt-oss: end of answer; the next: a tool is called
    "<|call|>",
    "<|calls|>",  # Solar
    "<|flush|>",
    "<｜end▁of▁sentence｜>",  # DeepSeek
    "<|END_OF_TURN_TOKEN|>",  # Command-R
    "<|user|>",  # GLM-4: a turn ends where the next one would begin
    "<|observation|>",
    "[EOT]",  # Kimi
    "[e~[",  # MiniMax
    "<end_of_utterance>",
    "<|tool_response>",  # Gemma 4: the model hands over to the tool
)


def end_of_turn_ids(special: dict[str, int]) -> frozenset[int]:
    """Ids among the control tokens `special` that end an assistant's turn."""
    found = {text: special[text] for text in END_OF_TURN if text in special}
    if ("<|return|>" in found and "<|call|>" in found) or ("<|flush|>" in found and "<|calls|>" in found):
        found.pop("<|end|>", None)  # harmony: it ends one message of a turn, and the next one follows
    if not {"[gMASK]", "<sop>"} <= special.keys():
        for text in ("<|user|>", "<|observation|>"):  # GLM only: in Phi-3.5 and Granite `<|user|>` opens a turn
            found.pop(text, None)
    return frozenset(found.values())


def byte_of_character() -> dict[str, int]:
    """GPT-2's table, backwards: the printable character that byte-level tokens use for each byte."""
    direct = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in direct}
    others = (byte for byte in range(256) if byte not in direct)
    table.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return table


def bytes_of_token(text: str, table: dict[int, int]) -> bytes:
    """The bytes of a byte-level token. `table`: `byte_of_character`, by code point. A token with other characters (one
    that was added without being encoded) stands for its own text.
    """
    if text.isascii():  # printable ASCII stands for itself
        return text.encode()
    try:
        return bytes([table[ord(character)] for character in text])
    except KeyError:
        return text.encode()
