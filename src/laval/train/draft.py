"""Training a draft head on what the model itself wrote: it learns to guess the next state, and so the next token.

Loss of EAGLE (Li et al. 2024, section 3.2), with the divergence from the dense distribution over the head's own
vocabulary in place of its cross-entropy, and guesses read again as states (as in HASS, Zhang et al. 2024), since
that is what a draft of several tokens does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F
from tqdm.auto import tqdm

from laval.blocks import Backbone, backbone_of
from laval.models.checks import check_adaptive
from laval.speculate.head import DraftHead
from laval.train.answers import Answers

DECAY = 0.8
"""Weight of each further guess, over that of the one before."""


@dataclass(frozen=True)
class DraftRecipe:
    """vocabulary: frequent tokens that may be proposed. rows: answers per step.

    guesses: tokens guessed one from another in the last third of the steps; before, each from dense states alone.
    """

    vocabulary: int = 8192
    epochs: int = 3
    rate: float = 6e-4
    rows: int = 2
    guesses: int = 2
    warmup: int = 50
    seed: int = 0


def train_draft(model, folders: Sequence[Path], recipe: DraftRecipe = DraftRecipe()) -> DraftHead:
    """A head for `model`, float32, from batches that `write_answers` left; the model is not changed.

    ValueError for no answers; TypeError for a model that is not adaptive.
    """
    check_adaptive(model)
    if not folders:
        raise ValueError("folders is empty; expected those that write_answers returns")
    torch.manual_seed(recipe.seed)
    base = model.base
    vocabulary = frequent(folders, base.get_output_embeddings().weight.shape[0], recipe.vocabulary)
    teacher = Teacher(base, vocabulary)
    head = DraftHead(teacher.backbone, vocabulary).float().train()
    optimiser = torch.optim.AdamW(head.parameters(), recipe.rate, betas=(0.9, 0.95), weight_decay=0.01)
    plan = steps(folders, recipe)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: pace(step, len(plan), recipe.warmup))
    bar = tqdm(plan, desc="draft", unit="step")
    for step, batch in enumerate(loaded(bar)):
        loss, divergence = teacher.loss(head, batch, recipe.guesses if 3 * step >= 2 * len(plan) else 1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
        bar.set_postfix(divergence=f"{divergence:.3f}", refresh=False)
    return head.eval()


class Teacher:
    """The dense model's part in training: embeddings, and the scores of states over the head's vocabulary."""

    def __init__(self, base, vocabulary: torch.Tensor):
        self.backbone: Backbone = backbone_of(base)
        self.embeddings = base.get_input_embeddings()
        self.candidates = base.get_output_embeddings().weight[vocabulary].detach().float()  # [Vd, D]

    def loss(self, head: DraftHead, batch: Batch, guesses: int) -> tuple[torch.Tensor, float]:
        """Of guesses from dense states, and of guesses from those guesses; and the first one's divergence."""
        with torch.no_grad():
            embeddings = self.embeddings(batch.ids).float()
        states, seen, total, first = batch.states[:, :-1], batch.mask[:, :-1] * batch.mask[:, 1:], 0.0, None
        for ahead in range(1, guesses + 1):
            guessed = head(self.backbone, states, embeddings[:, ahead:], seen)
            told = seen.bool()
            divergence, distance = self.compare(guessed[told], batch.states[:, ahead:][told])
            total = total + DECAY ** (ahead - 1) * (divergence + distance)
            first = divergence.item() if first is None else first
            states, seen = guessed[:, :-1], seen[:, :-1] * batch.mask[:, ahead + 1 :]
        return total, first

    def compare(self, guessed: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """How far guesses [N, D] are from the dense states: as distributions of the next token, and as vectors."""
        wanted, found = (F.linear(each, self.candidates).log_softmax(-1) for each in (states, guessed))
        return F.kl_div(found, wanted, reduction="batchmean", log_target=True), F.smooth_l1_loss(guessed, states)

    @torch.no_grad()
    def acceptance(self, head: DraftHead, answers: Answers, guesses: int = 4) -> list[float]:
        """Share of positions in greedy answers at which the first, the first two, ... guesses are the dense choice."""
        batch = batch_of(answers, slice(None), greedy=True)
        head_all = F.linear(batch.states, self.backbone.model.get_output_embeddings().weight.float()).argmax(-1)
        embeddings, start = self.embeddings(batch.ids).float(), max(batch.prompt - 1, 0)
        states, seen, right, shares = batch.states[:, :-1], batch.mask[:, :-1] * batch.mask[:, 1:], None, []
        for ahead in range(1, guesses + 1):
            guessed = head(self.backbone, states, embeddings[:, ahead:], seen)
            tokens = head.vocabulary[F.linear(guessed, self.candidates).argmax(-1)]
            hit = tokens == head_all[:, ahead:]
            right = hit if right is None else right[:, :-1] & hit
            answer = seen[:, start:].bool()
            shares.append((right[:, start:] & answer).sum().item() / max(int(answer.sum()), 1))
            states, seen = guessed[:, :-1], seen[:, :-1] * batch.mask[:, ahead + 1 :]
        return shares


@dataclass(frozen=True)
class Batch:
    """ids, mask [B, T], states [B, T, D] in float32; prompt: columns of the prompts."""

    ids: torch.Tensor
    mask: torch.Tensor
    states: torch.Tensor
    prompt: int


def batch_of(answers: Answers, rows, greedy: bool = False) -> Batch:
    """Some rows of a batch of answers, without the columns that are padding in all of them."""
    ids, mask, states = answers.ids[rows], answers.mask[rows], answers.states[rows]
    if greedy:
        chosen = torch.arange(len(answers.ids))[rows] % 3 != 2
        ids, mask, states = ids[chosen], mask[chosen], states[chosen]
    used = mask.any(0).nonzero()[:, 0]
    columns = slice(int(used[0]), int(used[-1]) + 1)
    return Batch(
        ids[:, columns].long(), mask[:, columns].long(), states[:, columns].float(), answers.prompt - columns.start
    )


def frequent(folders: Sequence[Path], size: int, kept: int) -> torch.Tensor:
    """The `kept` most frequent of `size` tokens, in order of their ids."""
    counts = torch.zeros(size, dtype=torch.long)
    for folder in folders:
        answers = Answers.load(folder)
        counts += torch.bincount(answers.ids[answers.mask.bool()].long(), minlength=size)
    return counts.topk(min(kept, size)).indices.sort().values


def steps(folders: Sequence[Path], recipe: DraftRecipe) -> list[tuple[Path, slice]]:
    """What is read in each step: batches in random order, their rows in random order within."""
    order, plan = random.Random(recipe.seed), []
    for _ in range(recipe.epochs):
        for folder in order.sample(list(folders), len(folders)):
            count = len(Answers.load(folder).ids)
            parts = [(folder, slice(row, row + recipe.rows)) for row in range(0, count, recipe.rows)]
            plan += order.sample(parts, len(parts))
    return plan


def loaded(plan):
    """The batches of a plan; a file is read once for all its parts."""
    folder = answers = None
    for wanted, rows in plan:
        if wanted != folder:
            folder, answers = wanted, Answers.load(wanted)
        yield batch_of(answers, rows)


def pace(step: int, total: int, warmup: int) -> float:
    """Share of the full rate: up in `warmup` steps, then down in a straight line to a fiftieth."""
    return min((step + 1) / warmup, max(0.02, 1 - step / total))
