"""Which layers ran for which token: the record every report is made from."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """One text of a trace without its pads; every list has one entry per token."""

    pieces: list[str]
    depth: list[int]
    skipped: list[list[int]]
    starts: list[bool]  # a segment starts here (all False without segments)
    new_from: int | None  # generated text starts at this token

    @property
    def mean_depth(self) -> float:
        return sum(self.depth) / len(self.depth) if self.depth else math.nan


@dataclass(frozen=True, eq=False)
class Trace:
    """The layers each token ran. L layers, B rows, T tokens; pads never count.

    tokens: the decoded pieces, B lists of T (see `token_pieces`).
    run: bool [L, B, T], True where the layer ran for the token.
    valid: bool [B, T], False at pads.
    gate: float [L, B, T], router probability, NaN where a layer has no router.
    tau: the threshold of the gates, one number or [L].
    segments: int [B, T], the segment each token belongs to.
    new_from: for each row the index (pads included) where generated text starts.
    facts: what to print beside the numbers: model, plug-in, settings.

    Raises ValueError naming the field whose type, shape or range is wrong.
    """

    tokens: list[list[str]]
    run: Tensor
    valid: Tensor
    gate: Tensor | None = None
    tau: float | Tensor = 0.5
    segments: Tensor | None = None
    new_from: list[int] | None = None
    facts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        _check_run(self.run)
        _check_tokens(self.tokens, *self.run.shape[1:])
        _check_like("valid", self.valid, self.run.shape[1:], torch.bool)
        if self.gate is not None:
            _check_like("gate", self.gate, self.run.shape)
            _check_tau(self.tau, self.layers)
        if self.segments is not None:
            _check_like("segments", self.segments, self.run.shape[1:])
        if self.new_from is not None:
            _check_new_from(self.new_from, *self.run.shape[1:])

    @property
    def layers(self) -> int:
        return self.run.shape[0]

    @property
    def count(self) -> int:
        """Tokens that are not pads."""
        return int(self.valid.sum())

    @property
    def depth(self) -> Tensor:
        """Layers run by each token, int64 [B, T]. Pads hold a number too; use `valid` to leave them out."""
        return self.run.sum(0)

    @property
    def mean_depth(self) -> float:
        """Layers run per token, NaN when there is no token."""
        return float(self.depth[self.valid].double().mean())

    @property
    def skipped_share(self) -> float:
        """Share of the layers x tokens grid that was skipped, NaN when the grid is empty."""
        return 1 - self.mean_depth / self.layers if self.layers else math.nan

    @property
    def layer_rates(self) -> Tensor:
        """Share of tokens that run each layer, float64 [L], NaN when there is no token."""
        return self.run[:, self.valid].double().mean(-1)

    @property
    def routed(self) -> Tensor:
        """Layers that have a router, bool [L]; all of them when no gates were recorded."""
        if self.gate is None:
            return torch.ones(self.layers, dtype=torch.bool)
        return (~self.gate.isnan()).flatten(1).any(1)

    @property
    def margin(self) -> float | None:
        """The smallest |gate - tau| of any token: how near the nearest decision was. None without gates."""
        if self.gate is None:
            return None
        tau = torch.as_tensor(self.tau, dtype=torch.float64, device=self.gate.device).reshape(-1, 1)  # [L or 1, 1]
        distance = (self.gate[:, self.valid].double() - tau).abs()  # [L, tokens]
        known = distance[~distance.isnan()]
        return float(known.min()) if known.numel() else None

    def rows(self) -> list[Row]:
        """The texts one by one, pads left out."""
        return [self._row(b) for b in range(len(self.tokens))]

    def _row(self, b: int) -> Row:
        kept = self.valid[b].nonzero().flatten().tolist()
        ran = self.run[:, b, kept]  # [L, kept]
        new_from = None if self.new_from is None else sum(t < self.new_from[b] for t in kept)
        return Row(
            pieces=[self.tokens[b][t] for t in kept],
            depth=ran.sum(0).tolist(),
            skipped=[[layer for layer, on in enumerate(column) if not on] for column in ran.T.tolist()],
            starts=self._starts(b, kept),
            new_from=new_from,
        )

    def _starts(self, b: int, kept: list[int]) -> list[bool]:
        if self.segments is None:
            return [False] * len(kept)
        ids = self.segments[b, kept].tolist()
        return [i == 0 or ids[i] != ids[i - 1] for i in range(len(ids))]

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page and return its path."""
        from laval.report.html import page

        path = Path(path)
        path.write_text(page(self), encoding="utf-8")
        return path

    def to_json(self) -> str:
        """The trace as one JSON document; pads are left out, a number that does not exist is null."""
        return json.dumps(
            {
                "layers": self.layers,
                "tokens": self.count,
                "mean_depth": _number(self.mean_depth),
                "skipped_share": _number(self.skipped_share),
                "layer_rates": [_number(rate) for rate in self.layer_rates.tolist()],
                "margin": self.margin,
                "facts": self.facts,
                "rows": [vars(row) for row in self.rows()],
            }
        )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _check_run(run: Tensor):
    if not isinstance(run, Tensor) or run.dtype != torch.bool or run.dim() != 3:
        raise ValueError(f"run is {_described(run)}; expected a bool tensor [layers, rows, tokens]")


def _check_tokens(tokens: list[list[str]], rows: int, length: int):
    if len(tokens) != rows:
        raise ValueError(f"tokens has {len(tokens)} rows; run has {rows}. Give one list of pieces per row")
    for b, pieces in enumerate(tokens):
        if len(pieces) != length:
            raise ValueError(
                f"tokens[{b}] has {len(pieces)} pieces; run has {length}. Give one piece per token, pads too"
            )


def _check_like(name: str, value: Tensor, shape: torch.Size, dtype: torch.dtype | None = None):
    kind = "bool" if dtype is torch.bool else "float" if name == "gate" else "integer"
    fits = isinstance(value, Tensor) and value.shape == shape
    right = fits and (value.dtype == dtype if dtype else value.is_floating_point() == (name == "gate"))
    if not right:
        raise ValueError(f"{name} is {_described(value)}; expected a {kind} tensor {list(shape)}, to match run")


def _check_tau(tau: float | Tensor, layers: int):
    value = torch.as_tensor(tau, dtype=torch.float64)
    if value.dim() and value.shape != (layers,):
        raise ValueError(f"tau has shape {list(value.shape)}; expected one number, or one per layer: [{layers}]")
    if not bool(((value > 0) & (value < 1)).all()):
        raise ValueError(f"tau is {value.tolist()}; expected a probability between 0 and 1, both excluded")


def _check_new_from(new_from: list[int], rows: int, length: int):
    if len(new_from) != rows or any(not 0 <= start <= length for start in new_from):
        raise ValueError(f"new_from is {new_from}; expected {rows} indices from 0 to {length}, one per row")


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
