import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache

from laval.models import AdaptiveConfig, attach, dense, smollm2
from laval.models.load import load
from laval.models.plugin import save_plugin
from laval.skip import DropLayers
from tests.models.folders import assert_came_back, logits_of, prompt, routed, tiny_tokenizer
from tests.tiny import tiny_model


@pytest.fixture
def whole(tmp_path):
    model = routed()
    model.tokenizer = tiny_tokenizer()
    model.policy.set_thresholds([0.45, 0.55])
    model.generation_config.max_new_tokens = 3
    model.save_pretrained(tmp_path / "whole")
    return model, tmp_path / "whole"


def stock_folder(tmp_path, family="llama", **overrides):
    model = tiny_model(family, **overrides)
    model.save_pretrained(tmp_path / "stock")
    return model, tmp_path / "stock"


@pytest.mark.usefixtures("no_pickles")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
def test_a_whole_model_comes_back_bit_for_bit(family, tied, tmp_path):
    model = routed(tiny_model(family, tie_word_embeddings=tied))
    model.save_pretrained(tmp_path / "whole")
    how = model.base.config._attn_implementation
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", attn_implementation=how)
    assert loaded.base.config._attn_implementation == how
    assert_came_back(loaded, model)
    assert (loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight) == tied
    assert torch.equal(load(tmp_path / "whole").policy.routers["2"].norm, model.policy.routers["2"].norm)


@pytest.mark.usefixtures("no_pickles")
def test_everything_around_a_whole_model_comes_back(whole):
    model, folder = whole
    assert not [name for name in os.listdir(folder) if not name.endswith((".json", ".safetensors", ".jinja"))]
    for loaded in (load(folder), AutoModelForCausalLM.from_pretrained(folder)):
        assert_came_back(loaded, model)
        assert not loaded.training
        assert loaded.policy.thresholds == model.policy.thresholds
        assert loaded.generation_config.max_new_tokens == 3
        assert torch.equal(loaded.generate(prompt()), model.generate(prompt()))
    assert load(folder).tokenizer("de laval").input_ids == [5, 6]
    assert AutoTokenizer.from_pretrained(folder)("de laval").input_ids == [5, 6]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_whole_model_takes_the_dtype_asked_for(whole, dtype, tmp_path):
    loaded = load(whole[1], dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    loaded.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert {parameter.dtype for parameter in again.parameters()} == {dtype}


def test_saving_again_keeps_strangers_and_drops_old_shards(whole):
    model, folder = whole
    (folder / "notes.txt").write_text("mine")
    model.save_pretrained(folder, max_shard_size="100KB")
    assert (folder / "model.safetensors.index.json").exists() and not (folder / "model.safetensors").exists()
    assert_came_back(load(folder), model)
    model.save_pretrained(folder)
    assert [name for name in os.listdir(folder) if "safetensors" in name] == ["model.safetensors"]
    assert (folder / "notes.txt").read_text() == "mine"


def test_thresholds_moved_by_hand_are_saved(whole):
    model, folder = whole
    model.policy.set_thresholds([0.2, 0.9])
    model.save_pretrained(folder)
    assert load(folder).policy.thresholds == model.policy.thresholds


def test_the_config_round_trips(whole, tmp_path):
    model, folder = whole
    config = AdaptiveConfig.from_pretrained(folder)
    assert config.to_diff_dict() == model.config.to_diff_dict()
    assert config.build_method() == model.config.build_method() and config.base_shape == model.config.base_shape
    assert config.get_text_config().model_type == "llama"
    assert config.get_text_config() is config.text_config and len(DynamicCache(config=config).layers) == 4
    config.save_pretrained(tmp_path / "again")
    assert AdaptiveConfig.from_pretrained(tmp_path / "again").to_diff_dict() == config.to_diff_dict()


def edit_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


DAMAGED = {
    "missing": (lambda f: edit_weights(f, lambda t: t.pop("policy.routers.2.norm")), "missing: policy.routers.2.norm"),
    "extra": (lambda f: edit_weights(f, lambda t: t.update(x=torch.ones(1))), "unexpected: x"),
    "shape": (lambda f: edit_weights(f, lambda t: t.update({"policy.routers.2.norm": torch.ones(5)})), "other shapes"),
    "cut": (lambda f: os.truncate(f / "model.safetensors", 90_000), "model.safetensors: damaged or cut off"),
    "absent": (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors.*never read"),
    "pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "no model.safetensors.*never read",
    ),
    "config": (lambda f: (f / "config.json").write_text("{"), "config.json: not readable as JSON"),
}


@pytest.mark.usefixtures("no_pickles")
@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_whole_model_is_an_error(whole, case):
    damage, message = DAMAGED[case]
    damage(whole[1])
    with pytest.raises(ValueError, match=message):
        load(whole[1])


def test_missing_tensors_are_an_error_through_auto_model_too(whole):
    DAMAGED["missing"][0](whole[1])
    with pytest.raises(ValueError, match="missing: policy.routers.2.norm"):
        AutoModelForCausalLM.from_pretrained(whole[1])


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_a_stock_model_skips_nothing(family, tmp_path):
    model, folder = stock_folder(tmp_path, family)
    loaded = load(folder)
    torch.testing.assert_close(logits_of(loaded), logits_of(model), rtol=0, atol=1e-5)  # by kernels for a few rows
    assert dense_equals(loaded, model) and loaded.policy.layers == ()
    assert loaded.tokenizer is None and not loaded.training
    assert torch.equal(loaded.generate(prompt(), max_new_tokens=3), model.generate(prompt(), max_new_tokens=3))


def test_a_damaged_stock_model_is_an_error(tmp_path):
    _, folder = stock_folder(tmp_path)
    edit_weights(folder, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ValueError, match="missing: model.norm.weight"):
        load(folder)


def test_a_stock_model_is_the_base_that_its_plugins_name(tmp_path):
    _, folder = stock_folder(tmp_path)
    model = routed(load(folder))
    save_plugin(model, tmp_path / "plugin")
    assert_came_back(load(tmp_path / "plugin"), model)
    assert_came_back(load(tmp_path / "plugin", base=model.base), model)


def test_only_plugins_take_a_base(tmp_path):
    model, folder = stock_folder(tmp_path)
    with pytest.raises(ValueError, match="base: only plug-ins"):
        load(folder, base=model)


def test_the_hub_gives_whatever_a_folder_may_hold(tmp_path, monkeypatch):
    import huggingface_hub

    model, folder = stock_folder(tmp_path)
    wanted = []
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, allow_patterns: wanted.append((name, allow_patterns)) or folder,
    )
    loaded = load("org/tiny")
    assert dense_equals(loaded, model) and loaded.config.base_name == "org/tiny"
    assert wanted[0][0] == "org/tiny" and not [p for p in wanted[0][1] if p.endswith((".bin", ".py", ".pt"))]


@pytest.mark.parametrize(
    ("name", "message", "asked"),
    [
        ("nowhere", "no such folder. Accepted", []),
        ("org/nowhere", r"hub did not give.*ConnectionError.*Accepted", ["org/nowhere"]),
        ("a/b/c", "no such folder. Accepted", []),
        (os.devnull, "no such folder|found a file", []),
    ],
)
def test_a_name_that_is_nothing_says_what_is_accepted(name, message, asked, no_hub):
    with pytest.raises(ValueError, match=message):
        load(name)
    assert no_hub == asked


def test_a_folder_without_a_model_says_what_was_looked_for(tmp_path):
    with pytest.raises(ValueError, match="neither laval.json nor config.json. Accepted"):
        load(tmp_path)


def test_an_unknown_family_is_an_error(tmp_path):
    config = AutoConfig.for_model("gpt2", vocab_size=8, n_layer=1, n_embd=8, n_head=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="gpt2.*not a family that laval knows"):
        load(tmp_path)


def test_the_default_is_found_in_the_package(tmp_path, monkeypatch):
    stock, _ = stock_folder(tmp_path)
    monkeypatch.setattr(smollm2, "smollm2_folder", lambda: tmp_path / "stock")
    monkeypatch.setattr("laval.models.load.files", lambda package: tmp_path)
    with pytest.raises(ValueError, match="smollm2: this copy of laval has no plug-in.*laval train"):
        load("smollm2")
    stock.config._name_or_path = smollm2.NAME
    model = routed(stock)
    save_plugin(model, tmp_path / "plugins" / "smollm2-135m-instruct")
    assert_came_back(load("smollm2"), model)


def test_dense_is_the_base(whole, tmp_path):
    loaded = load(whole[1])
    assert dense_equals(loaded, loaded.base)
    assert dense_equals(attach(loaded, DropLayers(())), loaded.base)


def dense_equals(model, base) -> bool:
    """Bit for bit."""
    with dense(model):
        return torch.equal(logits_of(model), logits_of(base))
