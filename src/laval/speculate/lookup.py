"""Drafts that cost nothing: what followed the same words before, in this text or in earlier answers of the model."""

from __future__ import annotations

from laval.speculate.proposal import Proposal
from laval.speculate.rates import Rates

ORDERS = (3, 2, 1)
LONGEST = 8  # matches beyond this length are all alike
UNLIKELY = 0.05  # a continuation that is this improbable as a whole is not carried on
ROOM = 300_000  # n-grams kept of earlier answers: some 60 MB


class Places:
    """Where each n-gram of a text was seen last (prompt lookup, Saxena 2023)."""

    def __init__(self):
        self.text: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}

    def add(self, token: int) -> None:
        text = self.text
        for order in ORDERS:
            if len(text) >= order:
                self.after[tuple(text[-order:])] = len(text)
        text.append(token)

    def find(self) -> tuple[int, int]:
        """The place that goes on from here, and how many tokens before it agree with the end of the text; (-1, 0)."""
        for order in ORDERS:
            place = self.after.get(tuple(self.text[-order:])) if len(self.text) >= order else None
            if place is not None:
                return place, self.agreeing(place, order)
        return -1, 0

    def agreeing(self, place: int, known: int) -> int:
        text, length = self.text, known
        while length < min(LONGEST, place) and text[place - 1 - length] == text[-1 - length]:
            length += 1
        return length


class Habits:
    """What the model usually writes after an n-gram: the winner of a running vote, with its lead."""

    def __init__(self):
        self.votes: dict[tuple[int, ...], list[int]] = {}

    def add(self, before: list[int], token: int) -> None:
        for order in ORDERS:
            if len(before) >= order:
                self.vote(tuple(before[-order:]), token)

    def vote(self, key: tuple[int, ...], token: int) -> None:
        found = self.votes.get(key)
        if found is None:
            if len(self.votes) >= ROOM:
                self.votes = {key: vote for key, vote in self.votes.items() if vote[1] > 1}
            self.votes[key] = [token, 1]
        elif found[0] == token:
            found[1] += 1
        elif found[1] > 1:
            found[1] -= 1
        else:
            found[0] = token

    def find(self, before: list[int]) -> tuple[int, str] | None:
        """The likely next token, and what to call this kind of guess."""
        for order in ORDERS:
            found = self.votes.get(tuple(before[-order:])) if len(before) >= order else None
            if found is not None:
                return found[0], f"memory {order}:{min(found[1], 4)}"
        return None


class Lookup:
    """Both together: the guess whose kind has been right more often goes first.

    Every token that the model writes is compared with what either would have guessed, so their rates are known
    without a single pass being spent on finding out.
    """

    name = "lookup"

    def __init__(self, habits: Habits, rates: Rates):
        self.places, self.habits, self.rates = Places(), habits, rates

    def read(self, ids: list[int]) -> None:
        """The prompt."""
        for token in ids:
            self.places.add(token)

    def add(self, token: int) -> None:
        """A token that the model wrote."""
        text = self.places.text
        for guess, kind in self.guesses(text[-max(ORDERS) :], *self.places.find(), ()):
            self.rates.note(kind, guess == token)
        self.habits.add(text[-max(ORDERS) :], token)
        self.places.add(token)

    def propose(self, most: int) -> tuple[Proposal, list[float]]:
        """Up to `most` tokens, and the probability that each is right if those before it are."""
        place, length = self.places.find()
        tail, tokens, kinds, likely = self.places.text[-max(ORDERS) :], [], [], []
        whole = 1.0
        while len(tokens) < most and whole > UNLIKELY:
            guesses = self.guesses(tail, place, length, tokens)
            if not guesses:
                break
            rate, token, kind = max((self.rates.rate(kind), token, kind) for token, kind in guesses)
            tokens.append(token)
            kinds.append(kind)
            likely.append(rate)
            whole *= rate
            place, length = self.follow(place, length, guesses, token)
            tail = [*tail[1 - max(ORDERS) :], token]
        return Proposal(tuple(tokens), tuple(kinds)), likely

    def guesses(self, tail: list[int], place: int, length: int, proposed) -> list[tuple[int, str]]:
        """Tokens with what to call the reasons for them, a place of this text last."""
        habit = self.habits.find(tail)
        if place < 0:
            return [] if habit is None else [habit]
        found = self.at(place, proposed)
        if habit is None or habit[0] != found:
            return [(found, f"lookup {length}")] if habit is None else [habit, (found, f"against {length}")]
        return [(found, f"both {length}, {habit[1]}")]

    def at(self, place: int, proposed) -> int:
        """The token at a place of the text, or of what is proposed after it: repetitions read themselves."""
        text = self.places.text
        return text[place] if place < len(text) else proposed[place - len(text)]

    def follow(self, place: int, length: int, guesses, token: int) -> tuple[int, int]:
        """One token further, as long as the place goes the same way."""
        if place < 0 or guesses[-1][0] != token:
            return -1, 0
        return place + 1, min(length + 1, LONGEST)
