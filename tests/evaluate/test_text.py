"""Files become token ids, token ids become windows, and bad files are told by name."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from laval.evaluate.text import as_batch, collate, read_text, tokenize, windows

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer():
    """One token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, chat_template=TEMPLATE)


def test_plain_text_counts_the_bytes_after_the_first_token(tmp_path, tokenizer):
    file = tmp_path / "a.txt"
    file.write_text("Grüße aus Oulu", "utf-8")
    text = read_text(file, tokenizer)
    assert len(text) == 16 and text.bytes == 15
    assert tokenizer.decode(text.ids) == "Grüße aus Oulu"


def test_a_limit_cuts_tokens_and_bytes_alike(tokenizer):
    text = tokenize("Grüße aus Oulu", tokenizer, limit=5)  # G r ü(2) ß(1 of 2: its bytes count as a whole)
    assert len(text) == 5 and text.bytes == 5


def test_chat_is_rendered_with_the_template(tmp_path, tokenizer):
    file = tmp_path / "a.jsonl"
    chats = [
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}],
        [{"role": "user", "content": "x"}],
    ]
    file.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats) + "\n\n")
    assert tokenizer.decode(read_text(file, tokenizer).ids) == "<user>hi\n<assistant>yo\n<user>x\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b" \n", "empty"),
        ("empty.jsonl", b"", "empty"),
        ("latin.txt", b"Gr\xfc", "not UTF-8 at byte 2"),
        ("one.txt", b"a", "1 tokens"),
        ("bad.jsonl", b'{"messages": [{"role": "user", "content": "a"}]}\n\n{oops\n', "line 3: invalid JSON"),
        ("other.jsonl", b'{"text": "a"}\n', "line 1: expected"),
        ("hollow.jsonl", b'{"messages": []}\n', "line 1: expected"),
    ],
)
def test_a_bad_file_is_told_by_name(tmp_path, tokenizer, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_text(tmp_path / name, tokenizer)
    assert name in str(error.value)


def test_an_absent_file_and_an_absent_template(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="no such file"):
        read_text(tmp_path / "gone.txt", tokenizer)
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    with pytest.raises(ValueError, match="no chat template"):
        read_text(tmp_path / "chat.jsonl", bare)


@given(st.integers(2, 60), st.integers(1, 12), st.data())
def test_windows_score_every_token_but_the_first_once(tokens, length, data):
    stride = data.draw(st.none() | st.integers(1, length))
    ids = torch.arange(tokens)
    cuts = windows(ids, length, stride)
    scored = torch.cat([cut.targets[cut.scored] for cut in cuts])
    assert scored.tolist() == list(range(1, tokens))
    assert all(torch.equal(cut.ids + 1, cut.targets) and cut.ids.shape[1] <= length for cut in cuts)


def test_windows_that_would_leave_tokens_out_are_refused():
    for arguments in ((4, 5), (4, 0)):
        with pytest.raises(ValueError, match="stride"):
            windows(torch.arange(9), *arguments)
    with pytest.raises(ValueError, match="1 tokens"):
        windows(torch.arange(1), 4)


def test_pads_are_neither_valid_nor_scored():
    batch = collate(windows(torch.arange(1, 8), 4))  # inputs 1 2 3 4 | 5 6
    assert batch.valid.tolist() == [[True] * 4, [True, True, False, False]]
    assert torch.equal(batch.valid, batch.scored)
    assert batch.arguments["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    left = as_batch(
        {"input_ids": torch.arange(8).view(2, 4), "attention_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])}
    )
    assert left.scored.tolist() == [[False, False, True, False], [True, True, True, False]]
    assert left.arguments["position_ids"].tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
