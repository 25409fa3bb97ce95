"""The volumes of pods, as directories of this machine with the rights that a kubelet gives them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.containers.manifests import Manifests, Pod, Unsupported

__all__ = ["directory"]

#: The mode of files from Secrets and ConfigMaps.
_DEFAULT_MODE = 0o644


def directory(scratch: Path, manifests: Manifests, pod: Pod, name: str) -> Path:
    """The directory that is this volume of a pod, made and filled the first time it is asked for.

    Below `scratch`: claims/ is kept over the replacement of pods, pods/<name>/ goes with its pod.
    """
    [volume] = [v for v in pod.spec.get("volumes", []) if v["name"] == name] or [{}]
    claim = pod.claims.get(name) or volume.get("persistentVolumeClaim", {}).get("claimName")
    path = scratch / ("claims" if claim else f"pods/{pod.name}") / (claim or name)
    if path.exists():
        return path
    path.mkdir(parents=True)
    files = manifests.files(volume)
    if files is None and claim is None and "emptyDir" not in volume:
        raise Unsupported(f"{pod.name}: volume {name}: {sorted(volume)}")
    kind: Mapping[str, Any] = volume.get("secret") or volume.get("configMap") or {}
    for file, content in (files or {}).items():
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).write_bytes(content)
        (path / file).chmod(kind.get("defaultMode", _DEFAULT_MODE))
    # A kubelet gives volumes to the pod's group, which may then write to them; what it makes
    # empty is everybody's.
    path.chmod(0o777 if files is None and claim is None else 0o755)
    owner = pod.spec.get("securityContext", {}).get("fsGroup")
    if owner is not None:
        for part in (path, *path.rglob("*")):
            os.chown(part, -1, owner)
            part.chmod(part.stat().st_mode | (0o2770 if part.is_dir() else 0o440))
    return path
