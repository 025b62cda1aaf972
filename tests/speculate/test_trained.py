"""A trained draft: drawn token by token it guesses what the head guesses over the whole text at once."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DynamicCache

from laval.models import using
from laval.speculate import lossless
from laval.speculate.head import DRAFT, DraftHead
from laval.speculate.keep import load_draft, save_draft
from laval.speculate.reader import Reader
from laval.speculate.states import States
from laval.speculate.trained import TrainedDraft
from tests.models.folders import edit_tensors
from tests.speculate.models import adaptive, plain

TEXT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
VOCABULARY = torch.arange(3, 100)


def head_of(model) -> DraftHead:
    """With weights that do something."""
    torch.manual_seed(3)
    head = DraftHead(model.backbone, VOCABULARY).to(model.base.dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return head.eval()


@torch.no_grad()
def guesses_at_once(model, head, tokens, known: int) -> torch.Tensor:
    """Naive twin: logits [V] after `tokens`, of which the dense model's states are known up to `known`."""
    with using(model, "full"):
        states = model.base.get_decoder()(torch.tensor([tokens[:known]])).last_hidden_state
    embeddings = model.get_input_embeddings()(torch.tensor([tokens]))
    while True:
        guessed = head(model.backbone, states, embeddings[:, 1 : states.shape[1] + 1])
        if states.shape[1] == len(tokens) - 1:
            break
        states = torch.cat((states, guessed[:, -1:]), dim=1)
    logits = torch.full((model.config.text_config.vocab_size,), -torch.inf, dtype=guessed.dtype)
    logits[VOCABULARY] = (guessed[0, -1] @ model.get_output_embeddings().weight[VOCABULARY].T).to(guessed.dtype)
    return logits


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
@torch.no_grad()
def test_drawn_by_steps_it_guesses_what_it_guesses_at_once(family):
    model = adaptive(family, dtype=torch.float64)
    head = head_of(model)
    draft, reader = TrainedDraft(model, head), Reader(model, DynamicCache(config=model.config.text_config), States())
    reader.start(torch.tensor([TEXT[:5]]))
    for stands in (1, 3, 2):  # tokens that each round adds
        place = reader.length
        for ahead in range(3):
            tokens = TEXT[: place + 1 + ahead]
            torch.testing.assert_close(draft.read(tokens[-1], reader)[0], guesses_at_once(model, head, tokens, place))
        draft.forget(3, reader)
        reader.read(TEXT[place : place + stands])


@torch.no_grad()
def test_a_long_prompt_is_caught_up_with(monkeypatch):
    monkeypatch.setattr("laval.speculate.trained.MOST", 3)
    model = adaptive("llama", dtype=torch.float64)
    head = head_of(model)
    draft, reader = TrainedDraft(model, head), Reader(model, DynamicCache(config=model.config.text_config), States())
    reader.start(torch.tensor([TEXT[:8]]))
    torch.testing.assert_close(draft.read(TEXT[8], reader)[0], guesses_at_once(model, head, TEXT[:9], 8))


def test_it_comes_back(tmp_path):
    model = adaptive("llama")
    head = head_of(model)
    (tmp_path / "laval.json").write_text("{}")
    save_draft(head, model, tmp_path, dtype=torch.float32)
    loaded = load_draft(model, tmp_path)
    assert (tmp_path / "laval.json").exists()
    assert all(torch.equal(tensor, head.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_a_damaged_one_is_refused(tmp_path):
    model = adaptive("llama")
    save_draft(head_of(model), model, tmp_path)
    whole = (tmp_path / DRAFT).read_bytes()
    (tmp_path / DRAFT).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=f"{DRAFT}: damaged or cut off"):
        load_draft(model, tmp_path)
    (tmp_path / DRAFT).unlink()
    with pytest.raises(ValueError, match=f"{DRAFT}: not found"):
        load_draft(model, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("join.weight"), "missing.*join.weight"),
        (lambda tensors: tensors.update(vocabulary=torch.tensor([1, 100_000])), "vocabulary: expected ids from 0 to"),
        (lambda tensors: tensors["norm.weight"].fill_(torch.nan), "not finite"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused(tmp_path, change, message):
    model = adaptive("llama")
    edit_tensors(save_draft(head_of(model), model, tmp_path), change)
    with pytest.raises(ValueError, match=message):
        load_draft(model, tmp_path)


def test_a_draft_of_another_base_is_refused(tmp_path):
    model = adaptive("llama")
    model.config.base_name = "Laval/Tiny"
    save_draft(head_of(model), model, tmp_path)
    model.config.base_name = "Laval/Other"
    with pytest.raises(ValueError, match="was made for Laval/Tiny; the model is Laval/Other"):
        load_draft(model, tmp_path)


def with_draft(model, folder, head):
    model.folder = folder
    save_draft(head, model, folder, dtype=torch.float32)
    return model


@pytest.mark.parametrize("draft", ["head", "auto"])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_greedy_text_is_the_dense_models_own(tmp_path, family, draft):
    model = adaptive(family, dtype=torch.float64)
    with_draft(model, tmp_path, head_of(model))
    ids = torch.tensor([TEXT])
    result = lossless(model, ids, draft=draft, max_new_tokens=24, do_sample=False)
    assert result.ids.tolist() == plain(model, ids, max_new_tokens=24, do_sample=False).tolist()
    assert draft == "auto" or result.account.rounds["head"]


def test_a_right_guess_stands(tmp_path, monkeypatch):
    """A head whose guesses are the dense model's own states is accepted nearly always."""
    model = adaptive("llama", dtype=torch.float64)
    with_draft(model, tmp_path, head_of(model))
    dense = plain(model, torch.tensor([TEXT]), max_new_tokens=24, do_sample=False)[0]

    def knowing(self, token, reader):
        self.ahead = getattr(self, "ahead", 0) + 1
        self.sure = 0.95
        logits = torch.full((1, self.size), -torch.inf, dtype=torch.float64)
        logits[0, dense[reader.length + self.ahead]] = 0.0
        return logits

    def forget(self, count, reader):
        self.ahead = 0

    monkeypatch.setattr(TrainedDraft, "read", knowing)
    monkeypatch.setattr(TrainedDraft, "forget", forget)
    account = lossless(model, torch.tensor([TEXT]), draft="head", max_new_tokens=20, do_sample=False).account
    assert account.acceptance == 1 and account.tokens_per_pass > 1.5


def test_a_draft_that_is_not_there_is_named(tmp_path):
    model = adaptive("llama")
    with pytest.raises(ValueError, match="draft is 'head', but the model was not loaded"):
        lossless(model, torch.tensor([TEXT]), draft="head", max_new_tokens=2)
    model.folder = tmp_path
    with pytest.raises(ValueError, match="holds no draft.safetensors"):
        lossless(model, torch.tensor([TEXT]), draft="head", max_new_tokens=2)


def test_a_draft_that_comes_later_is_found(tmp_path):
    model = adaptive("llama")
    model.folder = tmp_path
    options = {"max_new_tokens": 4, "do_sample": False}
    lossless(model, torch.tensor([TEXT]), **options)
    save_draft(head_of(model), model, tmp_path)
    assert lossless(model, torch.tensor([TEXT]), draft="head", **options).account.rounds["head"]


def test_a_damaged_draft_is_in_the_way_of_nothing_else(tmp_path):
    model = adaptive("llama")
    model.folder = tmp_path
    (tmp_path / DRAFT).write_bytes(b"no tensors")
    lossless(model, torch.tensor([TEXT]), draft="lookup", max_new_tokens=4)
    with pytest.raises(ValueError, match="damaged or cut off"):
        lossless(model, torch.tensor([TEXT]), max_new_tokens=4)
