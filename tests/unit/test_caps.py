"""What one request may hold, as it is learned from what a provider takes and refuses."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tickmind.caps import RequestCaps


@dataclass
class Server:
    """Takes requests of at most so many inputs and tokens."""

    inputs: int = 10**6
    tokens: int = 10**6
    refusals: int = 0
    sizes: list[int] = field(default_factory=list)

    def send(self, caps: RequestCaps, texts: list[int]) -> None:
        """Send texts of so many tokens each, halving what is refused, as the embedder does."""
        while texts:
            count = caps.fitting((1, tokens, 0) for tokens in texts)
            self._request(caps, texts[:count])
            texts = texts[count:]

    def _request(self, caps: RequestCaps, texts: list[int]) -> None:
        if len(texts) <= self.inputs and sum(texts) <= self.tokens:
            caps.passed(inputs=len(texts), tokens=sum(texts))
            self.sizes.append(len(texts))
            return
        self.refusals += 1
        assert len(texts) > 1
        middle = len(texts) // 2
        self.send(caps, texts[:middle])
        self.send(caps, texts[middle:])
        caps.too_large(inputs=len(texts), tokens=sum(texts))


@pytest.mark.parametrize(
    ("caps", "texts", "fits"),
    [
        (RequestCaps(inputs=3), [(1, 9, 9)] * 5, 3),
        (RequestCaps(inputs=3), [(2, 9, 9)] * 5, 1),
        (RequestCaps(inputs=9, tokens=20), [(1, 9, 9)] * 5, 2),
        (RequestCaps(inputs=9, size=30), [(1, 9, 10)] * 5, 3),
        (RequestCaps(inputs=2), [(7, 9, 10)] * 5, 1),  # one alone may take several requests
        (RequestCaps(inputs=9), [(1, 9, 10)] * 5, 5),
    ],
)
def test_texts_fit_as_the_settings_say(
    caps: RequestCaps, texts: list[tuple[int, int, int]], fits: int
) -> None:
    assert caps.fitting(texts) == fits


def test_told_cap_only_lowers() -> None:
    caps = RequestCaps(inputs=100)
    caps.take_at_most(10)
    caps.take_at_most(32)
    assert caps.inputs == 10
    caps.take_at_most(0)
    assert caps.inputs == 1


def test_untold_cap_of_inputs_is_kept_to_after_the_first_batches() -> None:
    server, caps = Server(inputs=10), RequestCaps(inputs=100)
    server.send(caps, [10] * 300)
    learned = server.refusals
    assert learned <= 10
    # Long texts show that it was not the tokens, and short ones that the inputs are limited.
    server.send(caps, [500] * 20 + [3] * 300)
    assert server.refusals <= learned + 6
    assert 5 <= caps.inputs <= 10
    refusals = server.refusals
    server.send(caps, [3, 80, 500] * 100)
    assert server.refusals == refusals
    assert sum(server.sizes[-30:]) / 30 >= 5


def test_untold_cap_of_tokens_is_kept_to_and_short_texts_share_requests() -> None:
    server, caps = Server(tokens=1000), RequestCaps(inputs=100)
    server.send(caps, [50] * 300)
    assert server.refusals <= 12
    refusals = server.refusals
    server.send(caps, [50] * 300)
    assert server.refusals == refusals
    server.sizes.clear()
    server.send(caps, [5] * 1000)
    assert max(server.sizes) == 100
    assert server.refusals == refusals


def test_cap_of_the_settings_is_never_exceeded_by_what_is_learned() -> None:
    server, caps = Server(inputs=10), RequestCaps(inputs=50, tokens=400)
    server.send(caps, [10] * 200)
    server.send(caps, [390, 390] + [3] * 100)
    assert caps.fitting([(1, 390, 0), (1, 390, 0)]) == 1
