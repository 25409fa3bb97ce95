"""The routes by which another process scripts the provider and reads its ledger.

POST   /control/faults   a list of rules, appended              -> {"ids": [1, 2]}
GET    /control/faults   the rules that can still strike        -> [rule, …]
DELETE /control/faults   ends them all, or ?id=N
POST   /control/release  lets what hangs go on
POST   /control/limits   {"limits": [limit, …], "time_scale": 0.1}
GET    /control/options, POST /control/options   all options; posted ones replace all
GET    /control/ledger   totals; ?since=&until= in seconds of CLOCK_MONOTONIC
GET    /control/calls    calls; ?first=N from that number on
GET    /control/texts    {text: times billed}
GET    /control/early    calls that came while told to stay away
POST   /control/reset    forgets calls and rules, keeps options
What cannot be understood is answered by 422 and a sentence per wrong field.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tickmind.local.provider.faults import rules_from_json, rules_to_json
from tickmind.local.provider.ledger import Call, Totals
from tickmind.local.provider.limits import Limit
from tickmind.local.provider.options import options_from_json, options_to_json
from tickmind.local.provider.state import ProviderState

__all__ = ["LimitsSetting", "calls_adapter", "control_routes", "limits_adapter", "totals_adapter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSetting:
    """Limits to enforce from now on; `time_scale` None keeps the one in force."""

    limits: tuple[Limit, ...]
    time_scale: float | None = None

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


calls_adapter: TypeAdapter[list[Call]] = TypeAdapter(list[Call])
limits_adapter: TypeAdapter[LimitsSetting] = TypeAdapter(LimitsSetting)
totals_adapter: TypeAdapter[Totals] = TypeAdapter(Totals)

_Handler = Callable[[Request], Awaitable[Response]]


def control_routes(state: ProviderState) -> list[Route]:
    """The routes, to be mounted under /control."""

    async def add_faults(request: Request) -> Response:
        return JSONResponse({"ids": state.faults.extend(rules_from_json(await request.body()))})

    async def list_faults(_: Request) -> Response:
        return _json(rules_to_json(state.faults.rules))

    async def end_faults(request: Request) -> Response:
        rule_id = request.query_params.get("id")
        if rule_id is None:
            state.faults.clear()
        else:
            state.faults.remove(int(rule_id))
        return JSONResponse({})

    async def release(_: Request) -> Response:
        state.faults.release()
        return JSONResponse({})

    async def set_limits(request: Request) -> Response:
        setting = limits_adapter.validate_json(await request.body())
        state.set_limits(setting.limits, setting.time_scale)
        return JSONResponse({})

    async def get_options(_: Request) -> Response:
        return _json(options_to_json(state.options))

    async def set_options(request: Request) -> Response:
        state.options = options_from_json(await request.body())
        return JSONResponse({})

    async def totals(request: Request) -> Response:
        since, until = request.query_params.get("since"), request.query_params.get("until")
        figures = state.ledger.totals(
            None if since is None else float(since), None if until is None else float(until)
        )
        return _json(totals_adapter.dump_json(figures))

    async def calls(request: Request) -> Response:
        first = int(request.query_params.get("first", "0"))
        return _json(calls_adapter.dump_json([c for c in state.ledger.calls if c.number >= first]))

    async def texts(_: Request) -> Response:
        return JSONResponse(dict(state.ledger.billed_texts))

    async def early(_: Request) -> Response:
        return _json(calls_adapter.dump_json(state.ledger.early_calls()))

    async def reset(_: Request) -> Response:
        state.reset()
        return JSONResponse({})

    handlers: list[tuple[str, str, _Handler]] = [
        ("POST", "/faults", add_faults),
        ("GET", "/faults", list_faults),
        ("DELETE", "/faults", end_faults),
        ("POST", "/release", release),
        ("POST", "/limits", set_limits),
        ("GET", "/options", get_options),
        ("POST", "/options", set_options),
        ("GET", "/ledger", totals),
        ("GET", "/calls", calls),
        ("GET", "/texts", texts),
        ("GET", "/early", early),
        ("POST", "/reset", reset),
    ]
    return [
        Route(path, _explaining(handler), methods=[method]) for method, path, handler in handlers
    ]


def _explaining(handler: _Handler) -> _Handler:
    """The handler, answering 422 with what was wrong with the input."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()
            ]
        except ValueError as error:
            problems = [str(error)]
        return JSONResponse({"problems": problems}, status_code=422)

    return handle


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
