"""Drafting with a trained head: one layer for a token instead of all of them."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicCache

from laval.models import AdaptiveForCausalLM
from laval.ops import one_row, some_rows
from laval.ops.rows import MOST
from laval.runtime.buffers import GrowingLayer
from laval.runtime.lane import Lane
from laval.runtime.rows_lane import RowsLane
from laval.speculate.head import DRAFT, DraftHead
from laval.speculate.proposal import NOTHING, Proposal, source_at
from laval.speculate.reader import Reader


class TrainedDraft:
    """A `DraftHead` at work on one text, with keys and values of its own; the reader must keep states.

    ValueError where the base's layers have no lanes.
    """

    name = "head"

    def __init__(self, model: AdaptiveForCausalLM, head: DraftHead):
        dtype, backbone = model.base.dtype, model.quick
        block = backbone.Block(head.layer, backbone.kernels)
        self.layers = Lane(block, dtype), RowsLane(block, dtype)
        slides = backbone.layer_types()[-1] == "sliding_attention"
        self.window = backbone.config.sliding_window if slides else None
        self.maps = Maps(one_row, head, dtype), Maps(some_rows, head, dtype)
        self.embeddings = model.get_input_embeddings()
        self.turns = Turns(backbone)
        self.vocabulary, self.size = head.vocabulary, self.embeddings.num_embeddings
        self.candidates = one_row.product_of(head_rows(model, head.vocabulary))
        self.share = share_of(head, len(backbone.blocks), self.size)
        self.start(0)

    def start(self, first: int) -> None:
        """A new text, the dense model's states of which are known from `first` on."""
        self.cache = DynamicCache()
        self.cache.layers.append(GrowingLayer())
        self.first, self.known = first, first  # positions, and those read with the dense model's own states
        self.guess: torch.Tensor | None = None
        self.sure = 0.0  # of the last guess, from 0 to 1

    def read(self, token: int, reader: Reader) -> torch.Tensor:
        """Logits [1, V] after one more token, -inf outside the head's vocabulary."""
        if self.guess is None:
            tokens = torch.tensor([*reader.tokens[self.known + 1 :], token])
            guess = self.catch_up(reader.states.since(self.known), tokens)
        else:
            guess = self.step(self.guess, torch.tensor([token]))
        self.guess = guess
        scores = self.candidates(guess)  # [Vd]
        self.sure = float((scores.max() - scores.logsumexp(0)).exp())
        logits = guess.new_full((1, self.size), -torch.inf)
        logits[0, self.vocabulary] = scores
        return logits

    def forget(self, count: int, reader: Reader) -> None:
        """Drop what was guessed from guesses; what was guessed from the dense model's states stays."""
        extra = self.cache.get_seq_length() - (self.known - self.first)
        if extra:
            self.cache.crop(-extra)
        self.guess = None

    def catch_up(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Read dense states and the tokens that followed them, [T, D] and [T]; the guess [D] after the last."""
        for start in range(0, len(tokens), MOST):
            part = slice(start, start + MOST)
            guess = self.step(states[part], tokens[part])
        self.known += len(tokens)
        return guess

    def step(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The guess [D] after the last of states [T, D], or one [D], and tokens [T]."""
        rows, seen = len(tokens), self.cache.get_seq_length()
        maps, embeddings = self.maps[rows > 1], self.embeddings(tokens)
        turn = self.turns(seen, rows)
        mask = behind(rows, seen, self.window, states.dtype)
        if rows == 1:
            x = self.layers[0](maps.join(states.view(-1), embeddings[0]), turn, mask, self.cache)
            return self.maps[0].norm(x)
        lane = self.layers[1]
        x = lane(maps.join(states, embeddings), turn, mask.repeat(1, 1, lane.group, 1), self.cache)  # [T, D]
        return self.maps[0].norm(x[-1])


def propose(draft: TrainedDraft, reader: Reader, text: torch.Tensor, rule, most: int, goes_on) -> tuple[Proposal, int]:
    """Tokens after text [1, N] for as long as `goes_on` with their sources, `most` at most; and how often it looked.

    A look ahead is given up before a token is drawn from it: sampling stays exact.
    """
    tokens, probabilities, sources, token = [], [], [], int(text[0, -1])
    looks = 0
    while looks < most:
        logits, looks = draft.read(token, reader), looks + 1
        if not goes_on([*sources, source_at(draft.name, draft.sure)]):
            break
        sources.append(source_at(draft.name, draft.sure))
        token, p = rule.draw(rule.scores(text, tokens, logits))
        tokens.append(token)
        probabilities.append(p)
    draft.forget(looks, reader)
    if not tokens:
        return NOTHING, looks
    drawn = torch.stack(probabilities) if probabilities[0] is not None else None
    return Proposal(tuple(tokens), tuple(sources), drawn), looks


def check_trained(draft: TrainedDraft | None, model) -> TrainedDraft:
    """ValueError where there is none."""
    if draft is None:
        where = (
            f"{model.folder} holds no {DRAFT}" if model.folder else "the model was not loaded from a plug-in's folder"
        )
        raise ValueError(f"draft is 'head', but {where}; train one with laval draft, or leave it to draft='auto'")
    return draft


class Maps:
    """A head's own modules as maps of one row or of some."""

    def __init__(self, maps, head: DraftHead, dtype: torch.dtype):
        self.state_norm, self.token_norm, self.norm = (
            maps.norm_of(norm, dtype) for norm in (head.state_norm, head.token_norm, head.norm)
        )
        self.product = maps.map_of(head.join)

    def join(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        return self.product(torch.cat((self.state_norm(states), self.token_norm(embeddings)), dim=-1))


class Turns:
    """cos and sin of positions as lanes want them, made for many at once."""

    CHUNK = 512

    def __init__(self, backbone):
        self.backbone = backbone
        self.cos = self.sin = torch.empty(0, 0)

    def __call__(self, first: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of positions first to first + rows: 2 x [rows, Dh], or [Dh] for one."""
        if first + rows > len(self.cos):
            self.make(first + rows + self.CHUNK)
        if rows == 1:
            return self.cos[first], self.sin[first]
        return self.cos[first : first + rows], self.sin[first : first + rows]

    def make(self, count: int) -> None:
        backbone, positions = self.backbone, torch.arange(count)[None]
        like = backbone.decoder.embed_tokens(positions[:, :1])
        turn = backbone.rotary(like, positions)[backbone.layer_types()[-1]]
        self.cos, self.sin = (each[0] for each in backbone.kernels.turn(*turn))  # [count, Dh]


def behind(rows: int, seen: int, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask to be added, [1, 1, rows, seen + rows]: each of the last rows sees those before it and itself.

    None where a single row sees all. window: as far back as it sees.
    """
    inside = window is None or seen + rows <= window
    if rows == 1 and inside:
        return None
    mask = torch.full((1, 1, rows, seen + rows), -torch.inf, dtype=dtype)
    return mask.triu(seen + 1) if inside else mask.triu(seen + 1) + mask.tril(seen - window)


def head_rows(model: AdaptiveForCausalLM, vocabulary: torch.Tensor) -> torch.Tensor:
    """The rows [Vd, D] of the base's head for the tokens that may be proposed."""
    head = model.get_output_embeddings()
    rows = head.weights_of(vocabulary) if hasattr(head, "weights_of") else head.weight[vocabulary]  # quantised
    return rows.detach().to(model.base.dtype)


def share_of(head: DraftHead, layers: int, vocabulary: int) -> float:
    """Weights that a drafted token reads, of those that a dense pass reads."""
    width = head.join.out_features
    layer, join = (sum(p.numel() for p in module.parameters()) for module in (head.layer, head.join))
    return (layer + join + len(head.vocabulary) * width) / (layers * layer + vocabulary * width)
