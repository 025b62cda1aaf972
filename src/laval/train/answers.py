"""What a model answers to prompts, with its last hidden states: the text that a draft for it is trained on.

A draft has to guess what the model writes, so the model's own text teaches it more than other people's would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tqdm.auto import tqdm

from laval.compat import cache_argument, output_cache
from laval.files import atomic_folder
from laval.models.checks import check_adaptive

ENOUGH = 0.15
"""Share of a batch still being written at which it ends: the last few cost nearly as much per step as many."""
WARM = 0.7
"""Temperature of the sampled answers; every third is one, the others are greedy."""


@dataclass(frozen=True)
class Answers:
    """One batch of prompts and answers. ids, mask [B, T], states [B, T, D]; prompt: columns of the prompts."""

    ids: torch.Tensor
    mask: torch.Tensor
    states: torch.Tensor
    prompt: int

    def save(self, folder: Path) -> None:
        tensors = {"ids": self.ids.int(), "mask": self.mask.to(torch.uint8), "states": self.states}
        with atomic_folder(folder) as new:
            tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(tensors, new / "answers.safetensors", metadata={"prompt": str(self.prompt)})

    @classmethod
    def load(cls, folder: Path) -> Answers:
        with safe_open(folder / "answers.safetensors", "pt") as file:
            return cls(*(file.get_tensor(name) for name in ("ids", "mask", "states")), int(file.metadata()["prompt"]))


def write_answers(
    model, prompts: Sequence[Sequence[int]], folder: str | Path, batch: int = 128, new: int = 112
) -> list[Path]:
    """Let the dense model answer `prompts` (lists of token ids), batch by batch, into subfolders of `folder`.

    new: tokens of an answer at most. Batches that are there already stay: a stopped run goes on where it was. Returns
    the subfolders. ValueError for an empty prompt, or one that leaves no room in the context; TypeError for a model
    that is not adaptive.
    """
    check_adaptive(model)
    check_prompts(prompts, model.config.text_config.max_position_embeddings - new)
    folders = []
    for number, rows in enumerate(tqdm(batches(prompts, batch), desc="answers", unit="batch")):
        folders.append(Path(folder) / f"{number:04d}")
        if not folders[-1].exists():
            answered(model.base, rows, new, number).save(folders[-1])
    return folders


def check_prompts(prompts, longest: int) -> None:
    for number, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= longest:
            raise ValueError(f"prompt {number} has {len(prompt)} tokens; expected 1 to {longest}, to leave room")


def batches(prompts, size: int) -> list[list[list[int]]]:
    """Prompts of like lengths together, for little padding, out of four batches at a time, for mixed ones."""
    made = []
    for start in range(0, len(prompts), 4 * size):
        near = sorted((list(prompt) for prompt in prompts[start : start + 4 * size]), key=len)
        made += [near[i : i + size] for i in range(0, len(near), size)]
    return made


@torch.inference_mode()
def answered(base, rows: list[list[int]], new: int, seed: int) -> Answers:
    """One batch, on the stock model `base`: greedy answers, and every third one sampled."""
    writing = Writing(base, rows, new, seed)
    while writing.goes_on():
        writing.step()
    return writing.answers()


class Writing:
    """A batch of answers being written. Those that end leave the batch."""

    def __init__(self, base, rows: list[list[int]], new: int, seed: int):
        self.base, self.random = base, torch.Generator().manual_seed(seed)
        self.ends = torch.tensor(base.generation_config.eos_token_id or -1).view(-1)
        self.count, self.prompt, self.at = len(rows), max(map(len, rows)), 0
        shape = self.count, self.prompt + new
        self.ids, self.mask = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
        self.states = torch.zeros(*shape, base.config.get_text_config().hidden_size, dtype=torch.bfloat16)
        for row, ids in enumerate(rows):
            self.ids[row, self.prompt - len(ids) : self.prompt] = torch.tensor(ids)
            self.mask[row, self.prompt - len(ids) : self.prompt] = 1
        self.live = torch.arange(self.count)
        self.filled, self.cache = self.prompt, None

    def goes_on(self) -> bool:
        return self.filled < self.ids.shape[1] and len(self.live) >= max(1, ENOUGH * self.count)

    def step(self) -> None:
        """Read what is new, write one token more, and let go of the rows that ended."""
        seen, columns = self.mask[self.live, : self.filled], slice(self.at, self.filled)
        places = (seen.cumsum(1) - 1).clamp(min=0)[:, columns]
        inputs = {"input_ids": self.ids[self.live, columns], "attention_mask": seen, "position_ids": places}
        output = self.base.get_decoder()(**inputs, use_cache=True, **cache_argument(self.cache))
        self.cache, states = output_cache(output), output.last_hidden_state
        self.states[self.live, columns] = states.bfloat16()
        tokens = self.choose(self.base.get_output_embeddings()(states[:, -1]))
        self.ids[self.live, self.filled], self.mask[self.live, self.filled] = tokens, 1
        self.at, self.filled = self.filled, self.filled + 1
        self.leave(torch.isin(tokens, self.ends))

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """The next token of each row, logits [B, V] -> [B]."""
        drawn = torch.multinomial((logits.float() / WARM).softmax(-1), 1, generator=self.random)[:, 0]
        return torch.where(self.live % 3 == 2, drawn, logits.argmax(-1))

    def leave(self, ended: torch.Tensor) -> None:
        if ended.any():
            self.mask[self.live[ended], self.filled - 1] = 0  # their last token will not be read
            staying = (~ended).nonzero()[:, 0]
            self.live = self.live[staying]
            self.cache.batch_select_indices(staying)

    def answers(self) -> Answers:
        """All that was read: the last tokens have no states and are left out."""
        read = slice(0, self.at)
        return Answers(self.ids[:, read], self.mask[:, read], self.states[:, read], self.prompt)
