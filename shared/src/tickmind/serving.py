"""How an embedding space is reached: by the settings that name it, else as it was last known.

What a space is (model, width, prefixes) never changes; how it is reached (endpoint, caps, limits,
price) may, and is kept beside it, so that recalls go on from a space whose settings are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from tickmind.errors import ConfigurationError
from tickmind.settings import EmbeddingSettings
from tickmind.store.spaces import Space

__all__ = [
    "ExplicitSettings",
    "difference",
    "endpoint_of",
    "name_of",
    "served_by",
    "settings_of",
    "space_of",
]

_PREFIX = "embedding_"
#: What the space is, and so stands in columns of its own.
_IDENTITY = frozenset(("model", "dimensions", "document_prefix", "query_prefix"))
#: Secrets are in the environment of those who call, and nowhere else.
_SECRETS = frozenset(("api_key", "next_api_key"))


class ExplicitSettings(EmbeddingSettings):
    """Settings as they are given, whatever the environment says."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def space_of(settings: EmbeddingSettings) -> Space:
    """The embedding space these settings name."""
    return Space(
        model=settings.embedding_model if settings.embedding_provider == "openai" else "hash",
        dimensions=settings.embedding_dimensions,
        document_prefix=settings.embedding_document_prefix,
        query_prefix=settings.embedding_query_prefix,
    )


def served_by(settings: EmbeddingSettings) -> dict[str, Any] | None:
    """How these settings reach their space, to be kept with it; None where that holds a secret."""
    if "@" in urlsplit(settings.embedding_base_url).netloc:
        return None
    names = (name.removeprefix(_PREFIX) for name in EmbeddingSettings.model_fields)
    kept = [name for name in names if name not in _IDENTITY | _SECRETS]
    return {name: getattr(settings, _PREFIX + name) for name in kept}


def settings_of(
    space: Space, served: Mapping[str, Any] | None, settings: EmbeddingSettings
) -> EmbeddingSettings:
    """How to reach a space: by our settings where they name it, else as it was kept with it.

    Of a space that nothing is kept of, it is taken that the model alone was changed. Our key goes
    to our endpoint only, any other gets `embedding_next_api_key`. Raises ConfigurationError where
    there is no way to it.
    """
    if space == space_of(settings):
        return settings
    given = served
    if given is None:
        if settings.embedding_provider == "hash" and space.model != "hash":
            msg = (
                f"nothing is known of how to reach {space.model}: name it by TICKMIND_EMBEDDING_*,"
                " or by `tickmind space add`"
            )
            raise ConfigurationError(msg)
        given = served_by(settings) or {"base_url": settings.embedding_base_url}
        given |= {"provider": "hash" if space.model == "hash" else "openai"}
    values = {_PREFIX + name: value for name, value in given.items()}
    values |= {
        "embedding_model": space.model,
        "embedding_dimensions": space.dimensions,
        "embedding_document_prefix": space.document_prefix,
        "embedding_query_prefix": space.query_prefix,
        "embedding_api_key": SecretStr(""),
    }
    try:
        found = ExplicitSettings(**values)
    except ValidationError as exc:
        wrong = ", ".join(str(error["loc"][0]) for error in exc.errors() if error["loc"])
        msg = (
            f"how to reach {space.model} was kept in a form that cannot be used ({wrong}): say it"
            " again with `tickmind space add`"
        )
        raise ConfigurationError(msg) from exc
    return found.model_copy(update={"embedding_api_key": _key(found, settings)})


def endpoint_of(settings: EmbeddingSettings) -> tuple[str, str]:
    """Scheme and host: whom a key is given to, and whose machine a call keeps busy."""
    url = urlsplit(settings.embedding_base_url)
    return url.scheme, url.netloc


def _key(found: EmbeddingSettings, settings: EmbeddingSettings) -> SecretStr:
    if endpoint_of(found) == endpoint_of(settings):
        return settings.embedding_api_key
    return settings.embedding_next_api_key


def name_of(space: Space) -> str:
    """A space in words."""
    return f"{space.model} in {space.dimensions} dimensions"


def difference(space: Space, settings: EmbeddingSettings) -> str | None:
    """What to say where settings name another space than recalls use; None: they name the same."""
    named = space_of(settings)
    if named == space:
        return None
    prefixes = "" if name_of(named) != name_of(space) else ", with other prefixes"
    return (
        f"recalls use {name_of(space)}, which TICKMIND_EMBEDDING_* do not name"
        f" ({name_of(named)}{prefixes}): `tickmind space add` and `tickmind space activate` change"
        " the space"
    )
