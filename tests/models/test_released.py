"""The released FlexiDepth layout: a checkpoint that others computed the outputs of, and one made here."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from laval.models import dense, using
from laval.models.load import load
from laval.models.released import load_released
from tests.conftest import shared_path
from tests.models.folders import assert_came_back, logits_of, prompt, tiny_tokenizer

# The file holds float32 roundings of the router norm weights that the float64 outputs were computed with. These are
# the unrounded ones, recovered from the gates (12 numbers from 360); the other weights were float32 from the start.
UNROUNDED = {
    "3": (1.043168518692, 1.044337417930, 0.835440143943, 0.969410255551),
    "4": (1.157707348466, 0.959234647453, 0.971039336175, 1.064694590867),
    "5": (1.041660957038, 1.062422595918, 1.033078595996, 1.023513440043),
}
SIZES = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 8}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
ROUTED, ROUTER_WIDTH, ADAPTER_WIDTH = (2, 3), 4, 6


@pytest.fixture(scope="module")
def parity():
    folder = shared_path("parity", "flexidepth_tiny")
    return load(folder, dtype=torch.float64), load_file(folder / "expected.safetensors")


def gates_of(output):
    return torch.stack([route.gate for route in output.routes], dim=-1)  # [B, T, Lr]


@pytest.mark.parametrize("runtime", ["masked", "grouped", "conditional"])
@torch.no_grad()
def test_outputs_of_another_implementation_from_the_file(parity, runtime):
    model, expected = parity
    with using(model, runtime):
        output = model(expected["input_ids"])
    torch.testing.assert_close(gates_of(output), expected["gates"], rtol=0, atol=5e-8)  # see UNROUNDED
    torch.testing.assert_close(output.logits, expected["logits"], rtol=0, atol=5e-7)


@pytest.mark.parametrize("runtime", ["masked", "grouped", "conditional"])
@torch.no_grad()
def test_outputs_of_another_implementation_with_unrounded_norms(parity, runtime):
    model, expected = load(shared_path("parity", "flexidepth_tiny"), dtype=torch.float64), parity[1]
    for layer, weights in UNROUNDED.items():
        norm, rounded = model.policy.routers[layer].norm, model.policy.routers[layer].norm.float()
        norm.data = torch.tensor(weights, dtype=torch.float64)
        assert torch.equal(norm.float(), rounded)
    with using(model, runtime):
        output = model(expected["input_ids"])
    torch.testing.assert_close(gates_of(output), expected["gates"], rtol=0, atol=1e-12)
    # rows gathered, their queries differ by 1e-16, and a float32 norm of transformers may round such a row elsewhere
    atol = 1e-12 if runtime == "masked" else 1e-9
    torch.testing.assert_close(output.logits, expected["logits"], rtol=0, atol=atol)


@torch.no_grad()
def test_dense_logits_of_another_implementation(parity):
    model, expected = parity
    with dense(model):
        logits = model(expected["input_ids"]).logits
    torch.testing.assert_close(logits, expected["dense_logits"], rtol=0, atol=1e-12)


def made_up(folder, **fields):
    """A random checkpoint in the released layout. Returns its tensors and its base model."""
    generator = torch.Generator().manual_seed(5)
    config = LlamaConfig(**SIZES, **HEADS, initializer_range=0.15)
    base = LlamaForCausalLM(config).eval()
    tensors = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    shapes = {
        "router.router_enc": (ROUTER_WIDTH, 32),
        "router.router_norm": (ROUTER_WIDTH,),
        "router.router_dec": (32, ROUTER_WIDTH),
        "router.router_head": (1, 32),
        "router_proj.gate_proj": (ADAPTER_WIDTH, 32),
        "router_proj.down_proj": (ADAPTER_WIDTH, 32),
        "router_proj.up_proj": (32, ADAPTER_WIDTH),
    }
    for layer in ROUTED:
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.randn(shape, generator=generator)
    own = {"routing_layers": list(ROUTED), "proj_reduction_factor": 8, "router_reduction_factor": 8}
    folder.mkdir(exist_ok=True)
    described = {**config.to_dict(), "model_type": "ddllama", "auto_map": {"AutoModel": "evil.Model"}, **own, **fields}
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "evil.py").write_text("raise AssertionError('remote code was run')")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors, base


@torch.no_grad()
def reference(tensors, base, ids):
    """The published equations, written down over the stock layers: every branch for every token, then selection."""
    model, x = base.model, base.model.embed_tokens(ids)
    positions = torch.arange(ids.shape[1])[None]
    rotary = model.rotary_emb(x, positions)
    causal = torch.full((ids.shape[1],) * 2, -torch.inf).triu(1)[None, None]
    for index, layer in enumerate(model.layers):
        z = layer.input_layernorm(x)
        attention = layer.self_attn(z, position_embeddings=rotary, attention_mask=causal)[0]
        g, run, adapter = torch.ones(1), torch.ones(1), None
        if index in ROUTED:
            part = lambda name, index=index: tensors[f"model.layers.{index}.{name}.weight"]  # noqa: E731
            e = z @ part("router.router_enc").T
            e = e * torch.rsqrt(e.square().mean(-1, keepdim=True) + 1e-5) * part("router.router_norm")
            g = (e.tanh() @ part("router.router_dec").T @ part("router.router_head").T).sigmoid()
            run = (g > 0.5).float()
        h = x + run * attention
        u = layer.post_attention_layernorm(h)
        x = h + run * g * layer.mlp(u)
        if index in ROUTED:
            gate = torch.nn.functional.silu(u @ part("router_proj.gate_proj").T)
            adapter = (gate * (u @ part("router_proj.down_proj").T)) @ part("router_proj.up_proj").T
            x = x + (1 - run) * (1 - g) * adapter
    return base.lm_head(model.norm(x))


@pytest.mark.usefixtures("no_pickles")
@pytest.mark.parametrize("runtime", ["masked", "grouped", "conditional"])
def test_a_made_up_checkpoint_follows_the_published_equations(tmp_path, runtime):
    tensors, base = made_up(tmp_path)
    model = load(tmp_path)
    with using(model, runtime), torch.no_grad():
        output = model(prompt())
    run = torch.stack([route.run for route in output.routes])
    assert run.any() and not run.all()
    torch.testing.assert_close(output.logits, reference(tensors, base, prompt()), rtol=1e-4, atol=1e-4)
    with dense(model):
        assert torch.equal(logits_of(model), logits_of(base))


@pytest.mark.parametrize("runtime", ["auto", "masked", "grouped", "conditional"])
def test_a_made_up_checkpoint_generates_with_its_cache(tmp_path, runtime):
    tensors, base = made_up(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    model = load(tmp_path)
    ids = prompt()[:1]
    with using(model, runtime):
        made = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)
    for _ in range(6):
        ids = torch.cat([ids, reference(tensors, base, ids)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(made, ids) and model.tokenizer("laval").input_ids == [6]


def test_shards_are_read(tmp_path):
    tensors, _ = made_up(tmp_path)
    whole = load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    shards = [dict(list(tensors.items())[i::2]) for i in (0, 1)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, tmp_path / name, metadata={"format": "pt"})
    places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert_came_back(load(tmp_path), whole)
    (tmp_path / names[1]).unlink()
    with pytest.raises(ValueError, match=f"{names[1]}: not found"):
        load(tmp_path)
    index.write_text(json.dumps({"weight_map": {**places, "lm_head.weight": "../model.safetensors"}}))
    with pytest.raises(ValueError, match="expected names of files beside it"):
        load(tmp_path)


def test_the_method_is_the_released_one(tmp_path):
    made_up(tmp_path)
    model = load_released(tmp_path, dtype=torch.float64)
    method = model.config.build_method()
    assert (method.gate, method.router, method.tau, method.keep_kv) == ("released", "norm_tanh", 0.5, True)
    assert method.layers == ROUTED and set(model.policy.thresholds.values()) == {0.0}
    assert all(router.head.bias.item() == 0 for router in model.policy.routers.values())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


def test_it_can_be_saved_as_a_whole_model(tmp_path):
    made_up(tmp_path / "released")
    model = load(tmp_path / "released")
    model.save_pretrained(tmp_path / "whole")
    assert_came_back(load(tmp_path / "whole"), model)


ENC, FOREIGN = (f"model.layers.{layer}.router.router_enc.weight" for layer in (2, 1))
EXTRA = "model.layers.2.router.bias"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(ENC), f"missing: {ENC}"),
        (lambda tensors: tensors.update({ENC: torch.ones(5, 32)}), r"router_enc.weight \[5, 32\]"),
        (lambda tensors: tensors.pop("model.norm.weight"), "missing: model.norm.weight"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}), "other shapes"),
        (
            lambda tensors: tensors.update({"model.layers.1.router.router_enc.weight": torch.ones(4, 32)}),
            "unexpected: model.layers.1.router",
        ),
        (
            lambda tensors: tensors.update({"model.layers.2.router.bias": torch.ones(4)}),
            "unexpected: model.layers.2.router.bias",
        ),
        (lambda tensors: tensors[ENC].fill_(torch.nan), "not finite"),
    ],
)
def test_wrong_tensors_are_named(tmp_path, change, message):
    tensors, _ = made_up(tmp_path)
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_a_wrong_config_is_named(tmp_path):
    made_up(tmp_path, routing_layers=[0, 3])
    with pytest.raises(ValueError, match=r"layers \[0, 3\] cannot be skipped"):
        load(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    del fields["proj_reduction_factor"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="config.json: proj_reduction_factor missing"):
        load(tmp_path)
