from hypothesis import given
from hypothesis import strategies as st

from tests.parse.fake_tokens import Vocabulary, cut_at
from tokenline.parse.detokenize import DecodedText, Detokenizer

TEXTS = st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("aé漢😀👩‍👩‍👧 \n"), max_size=12)
# Real characters, broken ones, and bytes that can never be UTF-8, one after another.
CHUNKS = st.one_of(
    TEXTS.map(str.encode), st.binary(max_size=4), st.sampled_from([b"\xff", b"\xe4\xbd", b"\xf0\x9f", b"\xed\xa0\x80"])
)
DATA = st.lists(CHUNKS, max_size=6).map(b"".join)


def detokenize(tokens: Vocabulary, **options: object) -> list[str]:
    detokenizer = Detokenizer(tokens, **options)  # pyright: ignore[reportArgumentType]
    pieces = ["".join(piece.text for piece in detokenizer.feed(token_id)) for token_id in tokens.ids]
    return [*pieces, detokenizer.finish()]


@given(data=DATA, borders=st.sets(st.integers(0, 60)))
def test_the_joined_pieces_are_the_decoding_of_all_bytes(data: bytes, borders: set[int]) -> None:
    pieces = detokenize(Vocabulary(cut_at(data, borders)))
    assert "".join(pieces) == data.decode("utf-8", "replace")


@given(data=DATA)
def test_only_a_valid_but_incomplete_character_is_held(data: bytes) -> None:
    tokens = Vocabulary([data[i : i + 1] for i in range(len(data))])
    detokenizer = Detokenizer(tokens)
    text = ""
    for count, token_id in enumerate(tokens.ids, start=1):
        text += "".join(piece.text for piece in detokenizer.feed(token_id))
        so_far = data[:count]
        if text != so_far.decode("utf-8", "replace"):  # something is held: completing it must be possible
            held = so_far.decode("utf-8", "replace").removeprefix(text)
            assert held == "\ufffd"
            assert any(
                _is_utf8(so_far[-size:] + rest)
                for size in (1, 2, 3)
                for fill in (b"\x80", b"\x90", b"\xa0", b"\xbf")
                for rest in (fill, fill + b"\x80", fill + b"\x80\x80")
            )


def _is_utf8(data: bytes) -> bool:
    try:
        return len(data.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


def test_st_04_a_cut_character_and_a_byte_that_can_never_be_one() -> None:
    cut = detokenize(Vocabulary([b"abc", b"\xe4\xbd"]))
    assert cut == ["abc", "", "\ufffd"]
    impossible = detokenize(Vocabulary([b"a", b"\xff", b"b"]))
    assert impossible == ["a", "\ufffd", "b", ""]  # nothing is delayed


def test_an_emoji_over_four_ids_comes_whole() -> None:
    assert detokenize(Vocabulary([b"\xf0", b"\x9f", b"\x98", b"\x80"])) == ["", "", "", "😀", ""]


def test_st_08_one_leading_space_is_stripped_once() -> None:
    for pieces, text in (
        ([" Open", " gate", ",", " please"], "Open gate, please"),
        ([" ", " left", " bank"], " left bank"),
        (["", " a"], "a"),
        (["a", " b"], "a b"),
    ):
        assert "".join(detokenize(Vocabulary(pieces, strips_leading_space=True))) == text
        assert "".join(detokenize(Vocabulary(pieces))) == "".join(pieces)


def test_an_answer_that_continues_text_keeps_its_space() -> None:
    tokens = Vocabulary([" there"], strips_leading_space=True)
    assert "".join(detokenize(tokens, continues_text=True)) == " there"


def test_control_tokens_are_dropped_unless_asked_for() -> None:
    tokens = Vocabulary(["a", "<|x|>", "[CALL]", "b"], special={1, 2})
    assert "".join(detokenize(tokens)) == "ab"
    detokenizer = Detokenizer(tokens, control_tokens={"[CALL]"})
    assert [detokenizer.feed(token_id) for token_id in tokens.ids] == [
        (DecodedText("a"),),
        (),
        (DecodedText("[CALL]", control=True),),
        (DecodedText("b"),),
    ]


def test_a_control_token_ends_a_begun_character() -> None:
    tokens = Vocabulary([b"\xe4\xbd", "[CALL]", b"\xa0"], special={1})
    detokenizer = Detokenizer(tokens, control_tokens={"[CALL]"})
    assert detokenizer.feed(0) == ()
    assert detokenizer.feed(1) == (DecodedText("\ufffd"), DecodedText("[CALL]", control=True))
    assert detokenizer.feed(2) == (DecodedText("\ufffd"),)


def test_an_id_past_the_vocabulary_is_no_text() -> None:
    assert Detokenizer(Vocabulary(["a"])).feed(99) == ()
