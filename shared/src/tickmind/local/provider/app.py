"""The provider as one ASGI application: the API under /v1, its strings under /control."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from tickmind.local.provider.control import control_routes
from tickmind.local.provider.endpoint import EmbeddingsEndpoint
from tickmind.local.provider.state import ProviderState

__all__ = ["create_app"]


def create_app(state: ProviderState) -> Starlette:
    """Wire the routes to the state. Faults strike /v1/embeddings only."""

    async def models(_: Request) -> JSONResponse:
        name = state.options.model
        data = [] if name is None else [{"id": name, "object": "model", "owned_by": "tickmind"}]
        return JSONResponse({"object": "list", "data": data})

    return Starlette(
        routes=[
            Route("/v1/embeddings", EmbeddingsEndpoint(state), methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Mount("/control", routes=control_routes(state)),
        ]
    )
