"""Provider profiles in the settings: named once, overridden field by field; and keys kept quiet."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tickmind.embedding import Embedder
from tickmind.embedding_api import OpenAIProvider
from tickmind.errors import ConfigurationError, EmbeddingUnavailable
from tickmind.limits import Limit
from tickmind.profiles import ANY_SERVER, PROFILES, Profile
from tickmind.settings import EmbeddingSettings, load
from tickmind_embedder.settings import EmbedderSettings
from tickmind_retriever.settings import RetrieverSettings

SECRET = "sk-geheim-0123456789"

#: A value of each field that no profile has, as an environment holds it, and as it is read.
OTHER: dict[str, tuple[str, Any]] = {
    "base_url": ("http://gpu:9/v1", "http://gpu:9/v1"),
    "model": ("another", "another"),
    "dimensions": ("77", 77),
    "encoding_format": ("base64", "base64"),
    "document_prefix": ("text: ", "text: "),
    "query_prefix": ("ask: ", "ask: "),
    "max_inputs": ("17", 17),
    "max_tokens": ("1234", 1234),
    "max_bytes": ("4321", 4321),
    "max_chars": ("999", 999),
    "max_text_tokens": ("333", 333),
    "limits": ("7 calls/s", "7 calls/s"),
    "price": ("0.5", 0.5),
}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in EmbeddingSettings.model_fields:
        monkeypatch.delenv(f"TICKMIND_{field.upper()}", raising=False)


def profile_of(settings: EmbeddingSettings) -> Profile:
    """The profile that these settings amount to."""
    return Profile(**{name: getattr(settings, f"embedding_{name}") for name in Profile.__slots__})


@pytest.mark.parametrize("name", sorted(PROFILES))
@pytest.mark.parametrize("kind", [EmbedderSettings, RetrieverSettings])
def test_profile_fills_in_what_nobody_set(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: type[EmbeddingSettings]
) -> None:
    monkeypatch.setenv("TICKMIND_EMBEDDING_PROFILE", name)
    settings = load(kind)
    assert settings.embedding_profile == name
    assert profile_of(settings) == PROFILES[name]


@pytest.mark.parametrize("name", sorted(PROFILES))
@pytest.mark.parametrize("field", Profile.__slots__)
def test_every_field_of_a_profile_can_be_overridden(
    monkeypatch: pytest.MonkeyPatch, name: str, field: str
) -> None:
    """And no other field changes for it."""
    profile = PROFILES[name]
    other = {
        **OTHER,
        "send_dimensions": (str(not profile.send_dimensions).lower(), not profile.send_dimensions),
    }
    if profile.encoding_format == "base64":
        other["encoding_format"] = ("float", "float")
    text, value = other[field]
    monkeypatch.setenv("TICKMIND_EMBEDDING_PROFILE", name)
    monkeypatch.setenv(f"TICKMIND_EMBEDDING_{field.upper()}", text)
    settings = load(EmbeddingSettings)
    expected = {name: getattr(profile, name) for name in Profile.__slots__} | {field: value}
    assert profile_of(settings) == Profile(**expected)
    assert getattr(profile, field) != value


def test_empty_value_overrides_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile's limits are not wanted, nor its prefix."""
    monkeypatch.setenv("TICKMIND_EMBEDDING_PROFILE", "tei")
    monkeypatch.setenv("TICKMIND_EMBEDDING_DOCUMENT_PREFIX", "")
    assert load(EmbeddingSettings).embedding_document_prefix == ""
    monkeypatch.setenv("TICKMIND_EMBEDDING_PROFILE", "gemini-embedding-2")
    monkeypatch.setenv("TICKMIND_EMBEDDING_LIMITS", "")
    assert load(EmbeddingSettings).limits() == ()


def test_unknown_profile_is_named_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKMIND_EMBEDDING_PROFILE", "gemini")
    with pytest.raises(ConfigurationError) as told:
        load(EmbeddingSettings)
    assert str(told.value).startswith("TICKMIND_EMBEDDING_PROFILE: there is no 'gemini'")
    assert all(name in str(told.value) for name in PROFILES)


def test_another_endpoint_is_not_taken_for_the_default_profiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its limits and price are not those of somebody else; and a profile that is named stays."""
    monkeypatch.setenv("TICKMIND_EMBEDDING_BASE_URL", "http://gpu:9/v1")
    settings = load(EmbeddingSettings)
    assert settings.embedding_profile == ANY_SERVER
    assert (settings.limits(), settings.embedding_price) == ((), 0.0)
    monkeypatch.setenv("TICKMIND_EMBEDDING_PROFILE", "gemini-embedding-001")
    assert load(EmbeddingSettings).limits() != ()


def test_limits_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKMIND_EMBEDDING_LIMITS", "500 texts/10s, 2M tokens/day")
    assert load(EmbeddingSettings).limits() == (
        Limit(amount=500, unit="texts", window_s=10),
        Limit(amount=2_000_000, unit="tokens", window_s=86_400),
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LIMITS", "3000"),
        ("LIMITS", "10 calls/s, many texts/min"),
        ("DIMENSIONS", "3072"),
        ("MAX_INPUTS", "0"),
        ("ENCODING_FORMAT", "int8"),
        ("PRICE", "-1"),
        ("MAX_TEXT_TOKENS", "-5"),
    ],
)
def test_wrong_value_is_told_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"TICKMIND_EMBEDDING_{variable}", value)
    with pytest.raises(ConfigurationError, match=f"^TICKMIND_EMBEDDING_{variable}: "):
        load(EmbeddingSettings)


# --- Budgets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "generativelanguage.googleapis.com gemini-embedding-001"),
        ({"embedding_base_url": "http://a:8080/v1", "embedding_model": "m"}, "a:8080 m"),
        ({"embedding_base_url": f"http://me:{SECRET}@a/v1", "embedding_model": "m"}, "a m"),
        ({"embedding_budget": "project 7"}, "project 7"),
    ],
)
def test_budget_is_named_by_project_or_by_host_and_model(given: dict[str, Any], name: str) -> None:
    assert EmbeddingSettings(**given).budget_name() == name


# --- Keys -------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [SECRET, f"  {SECRET}\n", f"\r\n{SECRET}\t"])
@pytest.mark.parametrize("from_file", [False, True])
def test_key_is_trimmed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, from_file: bool
) -> None:
    if from_file:
        (tmp_path / "key").write_text(given, encoding="utf-8")
        monkeypatch.setenv("TICKMIND_EMBEDDING_API_KEY_FILE", str(tmp_path / "key"))
    else:
        monkeypatch.setenv("TICKMIND_EMBEDDING_API_KEY", given)
    assert load(EmbeddingSettings).embedding_api_key.get_secret_value() == SECRET


@pytest.mark.parametrize("middle", ["\n", "\r\n", "\r", "\x00", "\x1b", "\u2028"])
def test_key_with_a_line_break_inside_is_refused_without_being_told(
    monkeypatch: pytest.MonkeyPatch, middle: str, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(f"{SECRET}{middle}{SECRET}", encoding="utf-8", newline="")
    monkeypatch.setenv("TICKMIND_EMBEDDING_API_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(ConfigurationError, match=r"^TICKMIND_EMBEDDING_API_KEY: ") as told:
        load(EmbeddingSettings)
    assert "paste the key alone" in str(told.value)
    assert SECRET not in "".join(traceback.format_exception(told.value))


async def test_key_is_in_no_representation_and_no_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at any level, and not for a call that fails."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TICKMIND_EMBEDDING_API_KEY", SECRET)
    monkeypatch.setenv("TICKMIND_EMBEDDING_BASE_URL", "http://127.0.0.1:9/v1")
    settings = load(EmbedderSettings)
    async with Embedder(settings) as embedder:
        with pytest.raises(EmbeddingUnavailable, match=r"127\.0\.0\.1:9") as told:
            await embedder.embed(["fish"], "document")
    provider = OpenAIProvider(settings)
    shown = [
        *(f"{thing!r} {thing}" for thing in (settings, embedder, provider, vars(provider))),
        str(settings.model_dump()),
        settings.model_dump_json(),
        *traceback.format_exception(told.value),
        caplog.text,
    ]
    await provider.close()
    assert caplog.records
    assert not [text for text in shown if SECRET in text]


def test_key_that_no_header_can_hold_is_told_in_one_sentence() -> None:
    with pytest.raises(ConfigurationError, match="TICKMIND_EMBEDDING_API_KEY") as told:
        OpenAIProvider(EmbeddingSettings(embedding_api_key=SecretStr(f"{SECRET}é")))
    assert SECRET not in str(told.value)
