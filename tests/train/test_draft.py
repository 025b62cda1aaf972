"""Answers are the model's own, their states too; and a head trained on them guesses more of what it writes."""

from __future__ import annotations

import pytest
import torch

from laval.models import using
from laval.speculate.head import DraftHead
from laval.train.answers import Answers, batches, write_answers
from laval.train.draft import DraftRecipe, Teacher, frequent, train_draft
from tests.speculate.models import adaptive

NEW = 12


def prompts(count: int = 9) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 128, (3 + row % 4,), generator=generator).tolist() for row in range(count)]


@pytest.fixture(scope="module")
def model():
    return adaptive("llama")


@pytest.fixture(scope="module")
def folders(model, tmp_path_factory):
    return write_answers(model, prompts(), tmp_path_factory.mktemp("answers"), batch=6, new=NEW)


def test_greedy_answers_are_those_of_generate(model, folders):
    written = [Answers.load(folder) for folder in folders]
    for answers, rows in zip(written, batches(prompts(), 6), strict=True):
        for number, prompt in enumerate(rows):
            ids = answers.ids[number][answers.mask[number].bool()].tolist()
            assert ids[: len(prompt)] == prompt and len(ids) > len(prompt)
            if number % 3 == 2:
                continue  # sampled
            with using(model, "full"):
                text = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)[0].tolist()
            assert text[: len(ids)] == ids


@torch.no_grad()
def test_states_are_those_of_the_whole_text(model, folders):
    answers = Answers.load(folders[0])
    for ids, mask, states in zip(answers.ids, answers.mask, answers.states, strict=True):
        text = ids[mask.bool()].long()
        expected = model.base.get_decoder()(text[None]).last_hidden_state[0]
        torch.testing.assert_close(states[mask.bool()].float(), expected, rtol=0.01, atol=0.01)  # kept in bfloat16


def test_an_answer_that_ends_leaves_the_batch(model, tmp_path):
    """Its last token has no state, and is not told as one that has."""
    rows = prompts(6)
    with using(model, "full"):
        second = model.generate(torch.tensor([rows[0]]), max_new_tokens=2, do_sample=False)[0, -1]
    model.base.generation_config.eos_token_id = int(second)
    try:
        answers = Answers.load(write_answers(model, rows, tmp_path, batch=6, new=NEW)[0])
    finally:
        model.base.generation_config.eos_token_id = None
    row = [list(each) for each in batches(rows, 6)[0]].index(rows[0])
    assert answers.mask[row, answers.prompt :].sum() == 1  # of two, the last was never read
    assert (answers.states[row][~answers.mask[row].bool()] == 0).all()


def test_a_stopped_run_goes_on(model, folders):
    before = [folder.stat().st_mtime_ns for folder in folders]
    again = write_answers(model, prompts(), folders[0].parent, batch=6, new=NEW)
    assert again == folders and [folder.stat().st_mtime_ns for folder in folders] == before


@pytest.mark.parametrize("wrong", [[], [1] * 1000])
def test_prompts_must_leave_room(model, tmp_path, wrong):
    with pytest.raises(ValueError, match="prompt 1 has .* tokens; expected 1 to"):
        write_answers(model, [[1, 2], wrong], tmp_path, new=NEW)


def test_training_teaches_to_guess(model, folders):
    recipe = DraftRecipe(vocabulary=120, epochs=30, rate=3e-3, rows=6, warmup=5)
    held = Answers.load(folders[0])
    vocabulary = frequent(folders, 128, 120)
    teacher = Teacher(model.base, vocabulary)
    untrained = DraftHead(teacher.backbone, vocabulary)
    head = train_draft(model, folders, recipe)
    before, after = (teacher.acceptance(each, held) for each in (untrained, head))
    assert after[0] > before[0] + 0.2 and after[0] >= after[1] >= after[2] >= after[3]
    assert not head.training


def test_no_answers_are_no_lesson(model):
    with pytest.raises(ValueError, match="folders is empty"):
        train_draft(model, [])
