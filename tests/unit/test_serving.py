"""How a space is reached, whatever the settings name by now."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tickmind.errors import ConfigurationError
from tickmind.serving import ExplicitSettings, difference, served_by, settings_of, space_of
from tickmind.settings import EmbeddingSettings
from tickmind.store.spaces import Space


def _settings(**given: Any) -> ExplicitSettings:
    return ExplicitSettings(**{f"embedding_{name}": value for name, value in given.items()})


OLD = _settings(profile="text-embedding-3-small", api_key="old-key", next_api_key="new-key")
NEW = _settings(profile="gemini-embedding-2", api_key="new-key", next_api_key="old-key", price=7)


def test_settings_that_name_the_space_are_the_way_to_it() -> None:
    kept = served_by(_settings(profile="text-embedding-3-small", price=99))
    assert settings_of(space_of(OLD), kept, OLD) is OLD


def test_space_that_the_settings_do_not_name_is_reached_as_it_was_kept() -> None:
    kept = json.loads(json.dumps(served_by(OLD)))
    found = settings_of(space_of(OLD), kept, NEW)
    expected = OLD.model_dump(exclude={"embedding_api_key", "embedding_next_api_key"})
    assert found.model_dump(exclude={"embedding_api_key", "embedding_next_api_key"}) == expected
    assert space_of(found) == space_of(OLD)
    assert found.budget_name() == OLD.budget_name()


def test_environment_does_not_change_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKMIND_EMBEDDING_MAX_INPUTS", "3")
    monkeypatch.setenv("TICKMIND_EMBEDDING_BASE_URL", "https://elsewhere.example/v1")
    found = settings_of(space_of(OLD), {"profile": "text-embedding-3-small"}, EmbeddingSettings())
    assert found.embedding_max_inputs == 2048
    assert found.embedding_base_url == OLD.embedding_base_url


def test_key_goes_to_its_own_endpoint_only() -> None:
    other = settings_of(space_of(NEW), served_by(NEW), OLD)
    assert other.embedding_api_key.get_secret_value() == "new-key"
    same_host = _settings(profile="text-embedding-3-large")
    found = settings_of(space_of(same_host), served_by(same_host), OLD)
    assert found.embedding_api_key.get_secret_value() == "old-key"
    plain = _settings(profile="text-embedding-3-large", base_url="http://api.openai.com/v1")
    found = settings_of(space_of(plain), served_by(plain), OLD)
    assert found.embedding_api_key.get_secret_value() == "new-key"  # not in clear


def test_what_is_kept_holds_no_secret() -> None:
    kept = json.dumps(served_by(OLD))
    assert "key" not in kept
    assert served_by(_settings(base_url="https://me:secret@host/v1")) is None


def test_space_that_nothing_is_kept_of_is_taken_for_another_model_of_the_same_provider() -> None:
    space = Space(model="text-embedding-ada-002", dimensions=1536, query_prefix="q: ")
    found = settings_of(space, None, OLD)
    assert space_of(found) == space
    assert found.embedding_base_url == OLD.embedding_base_url
    assert found.embedding_limits == OLD.embedding_limits
    assert found.embedding_api_key.get_secret_value() == "old-key"


def test_made_up_vectors_need_no_way() -> None:
    hashed = _settings(provider="hash", dimensions=64)
    assert settings_of(Space(model="hash", dimensions=8), None, OLD).embedding_provider == "hash"
    with pytest.raises(ConfigurationError, match="nothing is known of how to reach other"):
        settings_of(Space(model="other", dimensions=8), None, hashed)


def test_what_was_kept_by_another_release_is_used_as_far_as_it_is_known() -> None:
    kept = {**(served_by(OLD) or {}), "of_the_future": 1}
    assert settings_of(space_of(OLD), kept, NEW).embedding_price == OLD.embedding_price
    wrong = {**(served_by(OLD) or {}), "max_inputs": "many"}
    with pytest.raises(ConfigurationError, match=r"max_inputs.*tickmind space add") as told:
        settings_of(space_of(OLD), wrong, NEW)
    assert "\n" not in str(told.value)


def test_difference_is_told_where_there_is_one() -> None:
    assert difference(space_of(OLD), OLD) is None
    told = difference(space_of(OLD), NEW)
    assert told is not None
    for part in ("text-embedding-3-small", "gemini-embedding-2", "tickmind space activate"):
        assert part in told
    prefixed = _settings(profile="text-embedding-3-small", query_prefix="query: ")
    assert "other prefixes" in (difference(space_of(OLD), prefixed) or "")
