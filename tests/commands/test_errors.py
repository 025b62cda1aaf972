"""What users get wrong ends with exit code 2 and a line that names the fix; Ctrl-C with 130."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.commands.conftest import CONTEXT, run


def edited(folder, name: str, change) -> None:
    """Change the JSON file `name` of a folder in place."""
    path = folder / name
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def plugin(place, tmp_path):
    """A copy of the plug-in to damage."""
    return shutil.copytree(place.plugin, tmp_path / "plugin")


def refused(*words) -> str:
    """The message of a command that must end with exit code 2: one line, in words."""
    said = run(*words)
    assert said.code == 2, said
    assert "Traceback" not in said.err and said.out == ""
    lines = [line for line in said.err.splitlines() if line.startswith("error ")]
    assert len(lines) == 1, said.err
    return lines[0]


def test_unknown_family_lists_the_known_ones(place, tmp_path):
    folder = shutil.copytree(place.base, tmp_path / "other")
    edited(folder, "config.json", lambda config: config.update(model_type="gpt2", architectures=["GPT2LMHeadModel"]))
    (folder / "model.safetensors").unlink()
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=32)).save_pretrained(folder)
    message = refused("generate", folder, "hello")
    assert "gpt2" in message and "llama" in message and "CONTRIBUTING.md" in message


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_truncated_weights_name_the_file(plugin, keep):
    path = plugin / "plugin.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    message = refused("info", plugin)
    assert "plugin.safetensors" in message and ("damaged" in message or "cut off" in message)


def test_plugin_for_another_base_says_what_differs(plugin):
    edited(plugin, "laval.json", lambda record: record["base_shape"].update(hidden_size=96))
    message = refused("info", plugin)
    assert "hidden_size" in message and "96" in message and "64" in message


def test_unknown_key_names_the_nearest(plugin):
    edited(plugin, "laval.json", lambda record: record["method"].update(adapterwidth=3))
    message = refused("info", plugin)
    assert "adapterwidth" in message and "adapter_width" in message


def test_layer_out_of_range(plugin):
    edited(plugin, "laval.json", lambda record: record["method"].update(layers=[1, 2, 9]))
    message = refused("info", plugin)
    assert "9" in message and "from 1 to 3" in message


@pytest.mark.parametrize("tau", [0.0, 1.0, 1.5])
def test_tau_outside(plugin, tau):
    edited(plugin, "laval.json", lambda record: record["method"].update(tau=tau))
    message = refused("info", plugin)
    assert "tau" in message and "between 0 and 1" in message


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_empty_prompt(place, prompt):
    message = refused("generate", place.plugin, prompt)
    assert "prompt is empty" in message and "expected" in message


def test_prompt_in_another_encoding(place, tmp_path):
    prompt = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert "not UTF-8" in refused("generate", place.plugin, prompt)
    assert "not UTF-8" in refused("trace", place.plugin, prompt, "--html", tmp_path / "x.html")


@pytest.mark.parametrize("temperature", ["1e-40", "inf"])
def test_temperature_out_of_range(place, temperature):
    assert "temperature is" in refused("generate", place.plugin, "hi", "--temperature", temperature)


@pytest.mark.parametrize("weights", ["int4", "", "INT8"])
def test_weights_of_no_known_kind(place, weights):
    for words in (
        ("generate", place.plugin, "hi"),
        ("eval", place.plugin, "--text", place.text),
        ("bench", place.base),
    ):
        assert f'weights is {weights!r}; expected "int8"' in refused(*words, "--weights", weights)


@pytest.mark.parametrize("seed", [-1, 2**32, 2**70, -(2**70)])
def test_seed_out_of_range(place, tmp_path, seed):
    message = f"seed is {seed}; expected a whole number from 0 to {2**32 - 1}"
    assert message in refused("generate", place.plugin, "hi", "--seed", seed)
    (tmp_path / "recipe.yaml").write_text(
        f"{{model: x, output: y, method: {{name: flexidepth}}, data: {{sources: [{{path: z}}]}}, seed: {seed}, "
        "stages: [{objective: align, tokens: 9}]}"
    )
    assert message in refused("train", tmp_path / "recipe.yaml")


def test_prompt_over_the_context_length(place):
    message = refused("generate", place.plugin, "x" * 900, "--raw")
    assert "900 tokens" in message and str(CONTEXT) in message and "shorten" in message
    message = refused("generate", place.plugin, "x" * 480, "--raw", "--max-new-tokens", 60)
    assert f"at most {CONTEXT - 480} new tokens" in message
    assert str(CONTEXT) in refused("trace", place.plugin, "x" * 900)
    assert str(CONTEXT) in refused("eval", place.plugin, "--text", place.text, "--length", 4096)


def test_text_that_cannot_be_read(place, tmp_path):
    assert "no such file" in refused("eval", place.plugin, "--text", tmp_path / "nothing.txt")
    (tmp_path / "empty.txt").write_text("")
    assert "empty" in refused("trace", place.plugin, "--text", tmp_path / "empty.txt", "--html", tmp_path / "x.html")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "hi"}\n')
    message = refused("eval", place.plugin, "--text", tmp_path / "bad.jsonl")
    assert "line 1" in message and "messages" in message


def test_depth_off_the_curve(place):
    for depth in ("9", "nan", "inf", "-1", "0"):
        message = refused("generate", place.plugin, "hi", "--depth", depth)
        assert f"depth is {float(depth)}; expected a mean number of layers from " in message
    message = refused("eval", place.plugin, "--text", place.text, "--depth", 9)
    assert "depth is 9" in message and "calibrated range" in message
    assert "no budget curve" in refused("generate", place.base, "hi", "--depth", 3)


def test_no_such_model_says_what_is_accepted(tmp_path):
    message = refused("info", tmp_path / "nowhere")
    assert "no such folder" in message and "smollm2" in message


def test_page_in_no_folder_is_known_before_the_work(place, tmp_path):
    message = refused("trace", place.plugin, "hi", "--html", tmp_path / "no" / "page.html")
    assert "there is no folder" in message and "create it" in message
    assert "is a folder" in refused("demo", "--model", place.plugin, "--out", tmp_path)


def test_trace_needs_one_text(place, tmp_path):
    assert "exactly one" in refused("trace", place.plugin, "--html", tmp_path / "x.html")
    assert "exactly one" in refused("trace", place.plugin, "hi", "--text", place.text, "--html", tmp_path / "x.html")


def test_calibrate_says_where_it_cannot_save(place):
    assert "--out" in refused("calibrate", place.base, "--text", place.text, "--depths", "2,3")
    assert "26,27,28" in refused("calibrate", place.plugin, "--text", place.text, "--depths", "two")
    words = ("--text", place.text, "--depths", "3", "--out", place.base.parent / "new")
    assert "no thresholds" in refused("calibrate", place.base, *words)


def test_a_picture_is_known_to_fail_before_the_work(place, tmp_path, monkeypatch):
    words = ("calibrate", place.plugin, "--text", place.text, "--depths", "2.5", "--out", tmp_path / "new", "--plot")
    assert "there is no folder" in refused(*words, tmp_path / "no" / "curve.svg")
    monkeypatch.setattr("laval.commands.calibrate.find_spec", lambda name: None)
    assert "pip install 'laval[report]'" in refused(*words, tmp_path / "curve.svg")
    assert not (tmp_path / "new").exists()


def test_disk_full_while_saving_keeps_the_old_plugin(place, plugin, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    before = (plugin / "plugin.safetensors").read_bytes()
    monkeypatch.setattr("laval.models.plugin.save_file", full)
    words = ("--text", place.text, "--depths", "2.5", "--length", 64, "--limit", 200)
    said = run("calibrate", plugin, *words)
    assert said.code == 2 and "no space left to save" in said.err and "Free some space" in said.err
    assert (plugin / "plugin.safetensors").read_bytes() == before


def test_ctrl_c_ends_with_130(place, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("laval.commands.stream.trace_generation", stop)
    said = run("generate", place.plugin, "hi", "--max-new-tokens", 4)
    assert said.code == 130 and "stopped" in said.err and "Traceback" not in said.err


def test_debug_shows_the_traceback(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        run("--debug", "info", tmp_path / "nowhere")


def test_wrong_options_are_usage_errors(place):
    for words in (["generate", place.plugin, "hi", "--top-p", 2], ["eval", place.plugin], ["nothing"]):
        assert run(*words).code == 2
