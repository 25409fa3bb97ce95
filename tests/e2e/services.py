"""The three services on a test's own database and broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.running import running, settings_for
from tickmind.service import App
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings

__all__ = ["serving"]


@asynccontextmanager
async def serving(database: DatabaseSettings, broker: BrokerSettings) -> AsyncIterator[App]:
    """Run all three until the block ends; gives the recorder, for what it counts."""
    recorder = create_recorder(settings_for(RecorderSettings, database, broker))
    embedder = create_embedder(settings_for(EmbedderSettings, database, broker))
    retriever = create_retriever(settings_for(RetrieverSettings, database, broker))
    async with running(recorder, embedder, retriever):
        yield recorder
