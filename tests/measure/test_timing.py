import gc
import json

import pytest

from laval.measure import PairedTimes, paired


class Clock:
    """Time that passes only when told; functions made by `takes` advance it."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def __call__(self):
        return self.now

    def takes(self, name, seconds):
        times = iter(seconds)

        def call():
            self.calls.append(name)
            self.now += next(times)

        return call


def test_order_alternates_and_warmup_is_not_timed():
    clock = Clock()
    functions = {"a": clock.takes("a", [9, 1, 1]), "b": clock.takes("b", [9, 2, 4])}
    times = paired(functions, rounds=2, warmup=1, clock=clock)
    assert "".join(clock.calls) == "ab" + "ab" + "ba"
    assert times.seconds == {"a": (1, 1), "b": (2, 4)}
    assert (times.first, times.median("b"), times.best("b")) == ("a", 3, 2)


def test_ratio_is_taken_within_rounds():
    # the machine slows down tenfold half way: medians over all rounds would be far from the true 2
    times = PairedTimes({"dense": (2, 2, 2, 20, 20), "skip": (1, 1, 1, 10, 10)})
    assert times.ratio("skip").median == times.ratio("skip").low == times.ratio("skip").high == 2
    assert times.ratio("dense").median == 1


def test_interval_holds_the_median_and_repeats_with_the_seed():
    skip = tuple(1 + 0.1 * (i % 5) for i in range(20))
    ratio = PairedTimes({"dense": (2.0,) * 20, "skip": skip}, seed=3).ratio("skip")
    assert min(2 / s for s in skip) <= ratio.low < ratio.median < ratio.high <= 2
    assert ratio == PairedTimes({"dense": (2.0,) * 20, "skip": skip}, seed=3).ratio("skip")


def test_limit_ends_between_rounds_and_one_round_always_runs():
    clock = Clock()
    times = paired({"a": clock.takes("a", [3] * 9)}, rounds=9, warmup=0, seconds_limit=5, clock=clock)
    assert times.rounds == 2
    assert paired({"a": clock.takes("a", [3])}, rounds=9, warmup=0, seconds_limit=0, clock=clock).rounds == 1


@pytest.mark.parametrize("was_on", [True, False])
def test_collector_is_off_inside_and_left_as_found(was_on):
    seen = []

    def fails():
        seen.append(gc.isenabled())
        raise RuntimeError

    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(RuntimeError):
            paired({"a": fails}, rounds=1, warmup=0)
        assert seen == [False] and gc.isenabled() is was_on
    finally:
        gc.enable()


def test_json_holds_everything():
    record = json.loads(PairedTimes({"a": (1.0, 1.0), "b": (0.5, 0.5)}).to_json())
    assert record["first"] == "a" and record["rounds"] == 2
    assert record["functions"]["b"] == {
        "median": 0.5,
        "min": 0.5,
        "ratio": 2,
        "interval": [2, 2],
        "seconds": [0.5, 0.5],
    }


def test_nothing_to_time_is_an_error():
    with pytest.raises(ValueError, match="0 functions"):
        paired({})
