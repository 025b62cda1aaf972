"""What a model has left behind of each stream of a batch: tensors with the batch first, in parts as the model has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from laval.blocks.reach import FREE, Reach
from laval.shorten.rows import Rows

Index = torch.Tensor | None


class Memory:
    """Keeps what is asked to keep. `fresh` until its part of the first call is over: then start rows have been laid.

    `tables`: what does not depend on the streams, one per layer.
    """

    def __init__(self):
        self.tensors: dict[str, torch.Tensor] = {}
        self.tables: dict[object, torch.Tensor] = {}
        self.parts: dict[str, Memory] = {}
        self.fresh = True

    def part(self, name: str) -> Memory:
        """The memory of one part of the model."""
        return self.parts.setdefault(name, Memory())

    def settle(self) -> None:
        """Its part of a call is over."""
        self.fresh = False

    def recall(self, name: str, batch: Index = None) -> torch.Tensor | None:
        """What was kept last for the streams `batch`; None before that."""
        found = self.tensors.get(name)
        return found if found is None or batch is None else found[batch]

    def keep(self, name: str, value: torch.Tensor, batch: Index = None) -> None:
        """Keep value [B, ...] for the streams `batch`."""
        known = self.tensors.get(name)
        self.tensors[name] = value if batch is None or known is None else known.index_copy(0, batch, value)

    def change(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Apply a function over the batch axis to everything: reordering, repeating, choosing."""
        self.tensors = {name: function(tensor) for name, tensor in self.tensors.items()}
        for part in self.parts.values():
            part.change(function)

    def reach(self, rows: Rows, asking: torch.Tensor | None = None, places: torch.Tensor | None = None) -> Reach:
        """The reach of queries at places `asking` [B, Q] over the keys of `rows` and those kept; by default their own.

        places [B, T]: of the keys, where they are not their numbers in the stream.
        """
        own = asking is None
        keys = torch.where(rows.real, rows.places if places is None else places, FREE)
        queries = rows.places if own else asking
        if "used" not in self.tensors:
            return FirstReach(self, rows, queries, keys, own)
        return LaterReach(self, rows, queries, keys)


class Nothing(Memory):
    """The memory of a call that nothing follows: it keeps nothing."""

    def part(self, name):
        return self

    def settle(self):
        """Nothing: every call is the first."""

    def keep(self, name, value, batch=None):
        """Nothing."""

    def reach(self, rows, asking=None, places=None):
        own = asking is None
        keys = torch.where(rows.real, rows.places if places is None else places, FREE)
        return Reach(rows.places if own else asking, keys, plain=own)


class Remembering(Reach):
    """A reach whose memory keeps tables, so that a step need not make them again; they double as they grow."""

    memory: Memory

    def table(self, layer, make):
        known, wanted = self.memory.tables.get(layer), self.furthest
        if known is None:
            known = make(0, wanted)
        elif (have := known.shape[-2]) < wanted:
            known = torch.cat((known, make(have, max(wanted, 2 * have))), -2)
        self.memory.tables[layer] = known.detach().contiguous()
        return known[..., :wanted, :]


class FirstReach(Remembering):
    """The first keys of all streams: written down, and read as they came."""

    def __init__(self, memory: Memory, rows: Rows, queries, keys, own: bool):
        super().__init__(queries, keys, plain=own)
        self.memory = memory
        memory.keep("used", rows.lengths)
        memory.keep("places", keys[:, None, :, None])

    def extend(self, layer, keys, values):
        self.memory.keep(f"keys {layer}", keys)
        self.memory.keep(f"values {layer}", values)
        return keys, values


class LaterReach(Remembering):
    """Keys behind those that are kept, in the next slots of each stream."""

    def __init__(self, memory: Memory, rows: Rows, queries, keys):
        self.memory, self.batch = memory, rows.batch
        used = memory.recall("used", rows.batch)
        self.slots = used[:, None] + torch.arange(keys.shape[1], device=used.device)  # [B, T]
        self.most = max(int((used + rows.lengths).max()), 1)  # no product over nothing: a free slot is there
        memory.keep("used", used + rows.lengths, rows.batch)
        super().__init__(queries, self.write("places", keys[:, None, :, None], FREE)[:, 0, :, 0])
        self.new = keys

    def extend(self, layer, keys, values):
        return self.write(f"keys {layer}", keys), self.write(f"values {layer}", values)

    def write(self, name: str, new: torch.Tensor, blank: float = 0) -> torch.Tensor:
        """Put new [B, H, T, Dh] into its slots; everything that these streams hold, [B, H, most, Dh].

        Slots beside features: a head's keys lie in one piece, and products take them without a copy.
        """
        store = self.memory.tensors[name] = roomy(self.memory.tensors[name], self.most + new.shape[2], blank)
        streams = torch.arange(len(store), device=store.device) if self.batch is None else self.batch
        store[streams[:, None], :, self.slots] = new.detach().transpose(1, 2)
        return store[:, :, : self.most] if self.batch is None else store[self.batch, :, : self.most]


def roomy(store: torch.Tensor, slots: int, blank: float = 0) -> torch.Tensor:
    """The store [B, H, C, Dh] with room for `slots`; it doubles, so that growing costs little per token."""
    have = store.shape[2]
    if slots <= have and not store.requires_grad and store.is_contiguous():
        return store
    more = max(slots, 2 * have) - have if slots > have else 0
    return F.pad(store.detach(), (0, 0, 0, more), value=blank).contiguous()
