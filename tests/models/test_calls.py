"""Arguments and outputs of a forward beside tokens and logits."""

import pytest
import torch
from transformers import Trainer, TrainingArguments

import laval
from tests.models.folders import logits_of, prompt, routed


def test_integer_routes_are_read_as_yes_and_no():
    model, ids = routed(), prompt()
    wanted = torch.randint(0, 2, (2, *ids.shape), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(ids, routes=wanted.bool()).logits
        for runtime in ("masked", "grouped", "conditional"):
            model.runtime = runtime
            torch.testing.assert_close(model(ids, routes=wanted).logits, expected)


@pytest.mark.parametrize("shape", [(1, 2, 12), (2, 2, 3), (2, 12), (3, 2, 12)])
def test_routes_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"routes .*expected \[2, 2, 12\]"):
        routed()(prompt(), routes=torch.ones(shape, dtype=torch.bool))


def test_return_dict_false_gives_a_tuple():
    model = routed()
    with torch.no_grad():
        assert torch.equal(model(prompt(), return_dict=False)[0], logits_of(model))


@pytest.mark.parametrize("wanted", ["output_hidden_states", "output_attentions"])
@pytest.mark.parametrize("runtime", ["auto", "dense"])
def test_states_that_are_not_kept_are_refused_not_left_out(wanted, runtime):
    model = routed()
    with laval.models.using(model, runtime), torch.no_grad():
        with pytest.raises(ValueError, match=f"{wanted} is True"):
            model(prompt(), **{wanted: True})
        for plain in (None, False):
            assert torch.isfinite(model(prompt(), **{wanted: plain}).logits).all()


def test_the_trainer_predicts(tmp_path):
    model = routed()
    rows = [{"input_ids": ids, "labels": ids} for ids in prompt()]
    arguments = TrainingArguments(
        tmp_path, report_to=[], use_cpu=True, disable_tqdm=True, per_device_eval_batch_size=2
    )
    found = Trainer(model, arguments).predict(rows)
    torch.testing.assert_close(torch.from_numpy(found.predictions), logits_of(model))
