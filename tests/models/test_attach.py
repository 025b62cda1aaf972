"""What a user can get wrong when attaching, each with an error that says so."""

import pytest
from transformers import BloomConfig, BloomForCausalLM

from laval.models import attach
from laval.skip import DropLayers, FlexiDepth
from tests.tiny import tiny_model


@pytest.mark.parametrize("method", [FlexiDepth(), FlexiDepth(layers=(9,)), DropLayers((1,))])
def test_an_unknown_family_is_named_before_anything_else(method):
    model = BloomForCausalLM(BloomConfig(vocab_size=32, hidden_size=16, n_layer=2, n_head=2))
    with pytest.raises(ValueError, match="model_type 'bloom' is not a family that laval knows; expected one of llama"):
        attach(model, method)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("method", ["flexidepth", FlexiDepth, None])
def test_a_method_is_an_instance(method):
    with pytest.raises(ValueError, match=r"method is .*expected FlexiDepth\(\.\.\.\), DropLayers"):
        attach(tiny_model("llama"), method)


def test_a_model_is_no_name():
    with pytest.raises(ValueError, match=r"model is 'Qwen/Qwen3-0.6B'.*AutoModelForCausalLM"):
        attach("Qwen/Qwen3-0.6B", FlexiDepth())


@pytest.mark.parametrize("method", [FlexiDepth, DropLayers])
@pytest.mark.parametrize("layers", ["12", 5, [1.7], ["1", "2"], [True], [None], [float("nan")]])
def test_layers_are_whole_numbers(layers, method):
    with pytest.raises(ValueError, match="layers .* cannot be skipped; .* from 1 to 3 in a list"):
        attach(tiny_model("llama"), method(layers=layers))


@pytest.mark.parametrize(
    "fields", [{"start": float("nan")}, {"start": float("inf")}, {"tau": "0.5"}, {"tau": None}, {"router_width": "a"}]
)
def test_numbers_are_numbers(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))} is .*expected"):
        FlexiDepth(**fields)
