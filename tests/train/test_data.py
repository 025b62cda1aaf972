"""From files to sequences: order, mixture, held-out records, unreadable files."""

from __future__ import annotations

import json

import pytest
import torch

from laval.config import load_config
from laval.train.data import held_out, sequences, source_tokens, texts
from laval.train.recipe import Data, Source
from tests.train.runs import character_tokenizer, write_chat, write_text

TOKENIZER = character_tokenizer()


def read(sources, tokens=2000, seed=0, length=16, tokenizer=TOKENIZER):
    return sequences(load_config(Data, {"sources": sources, "length": length}), tokenizer, tokens, seed)


def rows(data) -> torch.Tensor:
    return torch.stack([data[i]["input_ids"] for i in range(len(data))])


def test_the_seed_decides_the_order(tmp_path):
    source = [{"path": write_text(tmp_path / "a.txt")}, {"path": write_text(tmp_path / "b.txt", seed=1)}]
    assert torch.equal(rows(read(source)), rows(read(source)))
    assert not torch.equal(rows(read(source)), rows(read(source, seed=1)))
    assert len(read(source, tokens=329)) == 20  # whole sequences


def test_order_of_a_seed_stays_what_it_was(tmp_path):
    """Old checkpoints resume by place in this order."""
    (tmp_path / "a.txt").write_text("a" * 160)
    (tmp_path / "b.txt").write_text("b" * 80)
    data = read([{"path": tmp_path / "a.txt", "weight": 2}, {"path": tmp_path / "b.txt"}], tokens=160)
    assert data.order == [(1, 2), (1, 3), (0, 8), (1, 0), (0, 9), (1, 4), (0, 3), (0, 0), (0, 5), (0, 2)]


def test_weights_are_shares_of_the_mixture(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 400)
    (tmp_path / "b.txt").write_text("b" * 4000)
    data = read([{"path": tmp_path / "a.txt", "weight": 3.0}, {"path": tmp_path / "b.txt"}], tokens=32000)
    share = (rows(data)[:, 0] == ord("a")).float().mean()
    assert abs(share - 0.75) < 0.03  # 2000 draws: a standard error of 0.01


def test_a_source_is_gone_through_before_it_repeats(tmp_path):
    data = read([{"path": write_text(tmp_path / "a.txt", 1600)}], tokens=3200)
    order = [row for _, row in data.order]
    assert sorted(order[:100]) == sorted(order[100:]) == list(range(100))


def as_written(line: str) -> str:
    return TOKENIZER.apply_chat_template(json.loads(line)["messages"], tokenize=False)


def test_held_out_records_are_disjoint_and_stable(tmp_path):
    path = write_chat(tmp_path / "chat.jsonl", 400)
    lines = path.read_text().split("\n")
    kept = list(texts(Source(path, hold_out=0.2), TOKENIZER))
    out = [as_written(line) for line in lines if held_out(line, 0.2)]
    assert not set(kept) & set(out) and len(kept) + len(out) == 400
    assert 50 < len(out) < 110
    more = {as_written(line) for line in lines if held_out(line, 0.3)}
    assert set(out) < more  # a larger share holds out the same ones, and others
    path.write_text("\n".join(reversed(lines)))
    assert set(kept) == set(texts(Source(path, hold_out=0.2), TOKENIZER))
    assert held_out("a line", 0.2) is False and held_out("the line", 0.5) is True  # everywhere


def test_line_separators_inside_json_do_not_cut_records(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "a\u2028b\x85c"}]}, ensure_ascii=False))
    assert list(texts(Source(path), TOKENIZER)) == ["<user>a\u2028b\x85c\n"]


def test_folders_are_read_in_order_without_hidden_files(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "deep" / "b.txt").write_text("second")
    (tmp_path / ".DS_Store").write_bytes(b"\xff\xfe")
    write_chat(tmp_path / "c.jsonl", 1)
    found = list(texts(Source(tmp_path), TOKENIZER))
    assert found[0] == "first" and found[1].startswith("<user>") and found[2] == "second"


def test_chat_is_rendered_with_the_template(tmp_path):
    ids = source_tokens(Source(write_chat(tmp_path / "c.jsonl", 2)), TOKENIZER)
    assert "".join(map(chr, ids)) == "<user>what is 0?\n<assistant>0\n<user>what is 1?\n<assistant>1\n"


def test_long_files_print_no_warning(tmp_path, caplog, capfd):
    source_tokens(Source(write_text(tmp_path / "a.txt")), character_tokenizer(max_length=8))
    assert "longer than" not in caplog.text + capfd.readouterr().err


def broken(tmp_path, content: bytes, name="x.jsonl"):
    (tmp_path / name).write_bytes(content)
    return [{"path": tmp_path / name}]


CHAT = b'{"messages": [{"role": "user", "content": "hi"}]}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"", r"x.txt: the file is empty"),
        ("x.txt", b"short", r"x.txt holds 5 tokens; expected at least one sequence of 16"),
        ("x.txt", b"\xff\xfe\x00", r"x.txt: not UTF-8 at byte 0; convert"),
        ("x.jsonl", CHAT + b"\n{oops", r"x.jsonl, line 2: invalid JSON"),
        ("x.jsonl", b'{"text": "hi"}', r"x.jsonl, line 1: expected \{.messages"),
        ("x.jsonl", b'{"messages": []}', r"line 1"),
        ("x.jsonl", CHAT.replace(b'"hi"', b"null"), r"line 1.*with text in each"),
    ],
)
def test_unusable_files(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        read(broken(tmp_path, content, name))


def test_missing_files_and_empty_folders(tmp_path):
    for path in (tmp_path / "nowhere.txt", tmp_path):
        with pytest.raises(ValueError, match="no file and no folder with files"):
            read([{"path": path}])


def test_plain_text_has_no_records_to_hold_out(tmp_path):
    with pytest.raises(ValueError, match="hold_out is 0.1; .*plain text"):
        read([{"path": write_text(tmp_path / "a.txt"), "hold_out": 0.1}])


def test_what_the_tokenizer_lacks(tmp_path):
    plain = character_tokenizer()
    plain.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        read([{"path": write_chat(tmp_path / "c.jsonl")}], tokenizer=plain)
    with pytest.raises(ValueError, match="model.tokenizer is missing"):
        read([{"path": write_text(tmp_path / "a.txt")}], tokenizer=None)
