"""SentencePiece's BPE as llama.cpp has it, written for clearness: the reference that fast code must equal."""


class SentencePiece:
    """A vocabulary of pieces with scores; the first three are control tokens."""

    def __init__(self, tokens: list[str], scores: list[float]) -> None:
        self.ids = {token: id for id, token in enumerate(tokens) if id > 2}
        self.scores = scores

    def encode(self, text: str) -> list[int]:
        """Merge, as long as any two neighbours make a token, the two whose token has the best score, leftmost first."""
        if not text:
            return []
        symbols = list((" " + text).replace(" ", "\u2581"))
        while True:
            pairs = [
                (-self.scores[self.ids[symbols[i] + symbols[i + 1]]], i)
                for i in range(len(symbols) - 1)
                if symbols[i] + symbols[i + 1] in self.ids
            ]
            if not pairs:
                break
            _, at = min(pairs)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        result: list[int] = []
        for symbol in symbols:
            if symbol in self.ids:
                result.append(self.ids[symbol])
            else:
                result += [self.ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        return result
