"""An environment for each peer, made once and kept: its pins never meet ours."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
from pathlib import Path

from tickmind.errors import PermanentError

__all__ = ["NotInstallable", "python_of"]

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
#: Forty small packages, over a slow line.
_TIMEOUT_S = 600.0


class NotInstallable(PermanentError):
    """A peer's environment cannot be made here; the message says why."""

    reason = "not_installable"


async def python_of(peer: str) -> Path:
    """The interpreter of the peer's environment, made where it is not there yet, in the user's
    cache (XDG_CACHE_HOME). Raises NotInstallable."""
    requirements = _HERE / f"requirements-{peer}.txt"
    wanted = requirements.read_bytes() + sys.version.encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tickmind" / "peers"
    place = cache / f"{peer}-{hashlib.sha256(wanted).hexdigest()[:12]}"
    python = place / "bin" / "python"
    complete = place / "complete"
    if complete.exists():
        return python
    uv = _uv()
    await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
    place.mkdir(parents=True)
    await _run(
        place, uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(place)
    )
    await _run(
        place,
        *(uv, "pip", "install", "--quiet", "--python", str(python)),
        *("--no-deps", "--requirements", str(requirements)),
    )
    complete.touch()
    return python


def _uv() -> str:
    """The uv that runs us, one on PATH, or the one `./dev` brought."""
    brought = _ROOT / ".uv" / "bin" / "uv"
    found = os.environ.get("UV") or shutil.which("uv") or (str(brought) if brought.exists() else "")
    if not found:
        raise NotInstallable("there is no uv: run it by ./dev bench peers")
    return found


async def _run(place: Path, *command: str) -> None:
    # Not from here: uv would hold the peer to the versions our own pyproject.toml pins.
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=place,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, errors = await process.communicate()
    except TimeoutError as exc:
        raise NotInstallable(f"{command[1]} took longer than {_TIMEOUT_S:.0f} s") from exc
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no word why"]
        raise NotInstallable(f"uv {command[1]}: {lines[-1]}")
