"""What rendered Kubernetes objects say of their pods: environment, files, names. Nothing is run.

An object is a parsed YAML document. What we cannot do raises Unsupported, rather than be left out.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Manifests", "Object", "Pod", "Unsupported", "is_hook"]

Object = Mapping[str, Any]

#: Kinds that change nothing in how a container of ours runs: there is no scheduler, no controller
#: that scales and no network policy here.
_WITHOUT_EFFECT = frozenset(
    {
        *("ServiceAccount", "NetworkPolicy", "PodDisruptionBudget", "HorizontalPodAutoscaler"),
        *("Role", "RoleBinding", "ServiceMonitor", "PodMonitor", "PrometheusRule"),
        *("ScaledObject", "TriggerAuthentication"),
    }
)
_HOOK = "helm.sh/hook"
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)|\$\$")


class Unsupported(Exception):
    """The manifests ask for something that this runner does not do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod to be. `claims`: by volume, the name of the claim that outlives the pod.

    `attempts`: how often its containers may run to their end; None: they run on.
    """

    name: str
    namespace: str
    spec: Object
    labels: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)
    governing_service: str | None = None
    attempts: int | None = None

    def context(self, container: Object, option: str) -> Any:
        """An option of the security context: the container's own, else the pod's."""
        own = container.get("securityContext", {}).get(option)
        return own if own is not None else self.spec.get("securityContext", {}).get(option)


def is_hook(given: Object) -> bool:
    """Whether Helm would keep this object back for an occasion, such as `helm test`."""
    return _HOOK in (given["metadata"].get("annotations") or {})


class Manifests:
    """The objects of one namespace, by what they are for."""

    def __init__(self, objects: Iterable[Object], *, namespace: str) -> None:
        self.namespace = namespace
        self._pods: list[Pod] = []
        self._services: list[Object] = []
        self._secrets: dict[str, dict[str, bytes]] = {}
        self._configs: dict[str, dict[str, bytes]] = {}
        for given in objects:
            self._add(given)

    def _add(self, given: Object) -> None:
        name, kind = given["metadata"]["name"], given["kind"]
        if kind == "Secret":
            self._secrets[name] = _decoded(given.get("data")) | _encoded(given.get("stringData"))
        elif kind == "ConfigMap":
            self._configs[name] = _decoded(given.get("binaryData")) | _encoded(given.get("data"))
        elif kind == "Service":
            self._services.append(given)
        elif kind in ("Deployment", "StatefulSet", "Job", "Pod"):
            self._pods += self.pods_of(given)
        elif kind not in _WITHOUT_EFFECT:
            raise Unsupported(f"{kind} {name}")

    def pods_of(self, given: Object) -> Iterator[Pod]:
        """The pods that the object's controller would make."""
        metadata, spec, kind = given["metadata"], given["spec"], given["kind"]
        if kind == "Pod":
            yield self._pod(metadata["name"], given, attempts=1)
        elif kind == "Job":
            yield self._pod(
                f"{metadata['name']}-0", spec["template"], attempts=1 + spec.get("backoffLimit", 6)
            )
        else:
            selector = spec["selector"]["matchLabels"].items()
            if not selector <= spec["template"]["metadata"]["labels"].items():
                raise Unsupported(f"{kind} {metadata['name']}: does not select its own pods")
            for number in range(spec.get("replicas", 1)):
                name = f"{metadata['name']}-{number}"
                claims = {
                    claim["metadata"]["name"]: f"{claim['metadata']['name']}-{name}"
                    for claim in spec.get("volumeClaimTemplates", [])
                }
                yield self._pod(
                    name,
                    spec["template"],
                    claims=claims,
                    governing_service=spec.get("serviceName"),
                )

    def _pod(self, name: str, template: Object, **rest: Any) -> Pod:
        labels = template.get("metadata", {}).get("labels", {})
        return Pod(
            name=name, namespace=self.namespace, spec=template["spec"], labels=labels, **rest
        )

    @property
    def pods(self) -> Sequence[Pod]:
        return self._pods

    def aliases(self, pod: Pod) -> list[str]:
        """The names by which the pod is found in its cluster: those of the Services it is in."""
        found = []
        for service in self._services:
            selector = service["spec"].get("selector")
            if selector and selector.items() <= pod.labels.items():
                self._reaches(service, pod)
                name = service["metadata"]["name"]
                found += self._spelled(name)
                if pod.governing_service == name:
                    found += self._spelled(f"{pod.name}.{name}")
        return found

    def _spelled(self, name: str) -> list[str]:
        space = f"{name}.{self.namespace}"
        return [name, space, f"{space}.svc", f"{space}.svc.cluster.local"]

    def _reaches(self, service: Object, pod: Pod) -> None:
        """Raises Unsupported unless each port is the pod's own: there is no proxy between."""
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            if self.port(pod, target) != port["port"]:
                raise Unsupported(f"{service['metadata']['name']}: {port} is not the pod's port")

    def port(self, pod: Pod, wanted: int | str) -> int:
        """The number of a port that may be given by the name a container has for it."""
        if isinstance(wanted, int):
            return wanted
        for container in pod.spec["containers"]:
            for port in container.get("ports", []):
                if port.get("name") == wanted:
                    return int(port["containerPort"])
        raise Unsupported(f"pod {pod.name} has no port named {wanted}")

    def environment(self, pod: Pod, container: Object) -> dict[str, str]:
        """The container's variables, those included that a kubelet adds for every Service."""
        found = self._service_links() if pod.spec.get("enableServiceLinks", True) else {}
        for source in container.get("envFrom", []):
            values = self._values(source)
            found |= {source.get("prefix", "") + k: v.decode() for k, v in values.items()}
        for entry in container.get("env", []):
            if "valueFrom" in entry:
                value = self._value(pod, entry["valueFrom"])
                if value is None:
                    continue
                found[entry["name"]] = value
            else:
                found[entry["name"]] = expanded(entry.get("value", ""), found)
        return found

    def _service_links(self) -> dict[str, str]:
        """Such as RABBITMQ_PORT=tcp://10.96.0.1:5672 for a Service named rabbitmq (case 46)."""
        found = {}
        for number, service in enumerate(self._services, start=1):
            name = service["metadata"]["name"].upper().replace("-", "_")
            port, address = service["spec"]["ports"][0]["port"], f"10.96.0.{number}"
            found[f"{name}_SERVICE_HOST"] = address
            found[f"{name}_SERVICE_PORT"] = str(port)
            found[f"{name}_PORT"] = f"tcp://{address}:{port}"
        return found

    def _value(self, pod: Pod, source: Object) -> str | None:
        """What a variable is drawn from; None: an optional key that is not there."""
        if "fieldRef" in source:
            known = {"metadata.name": pod.name, "metadata.namespace": pod.namespace}
            path = source["fieldRef"]["fieldPath"]
            if path not in known:
                raise Unsupported(f"fieldRef {path}")
            return known[path]
        [(kind, reference)] = source.items()
        plural = {"secretKeyRef": "secretRef", "configMapKeyRef": "configMapRef"}
        if kind not in plural:
            raise Unsupported(f"valueFrom {kind}")
        value = self._values({plural[kind]: reference}).get(reference["key"])
        if value is None and not reference.get("optional"):
            raise Unsupported(f"{kind} {reference['name']}: has no key {reference['key']}")
        return None if value is None else value.decode()

    def _values(self, source: Object) -> dict[str, bytes]:
        """All of a Secret or ConfigMap; raises Unsupported where there is none of that name."""
        for kind, known in (("secretRef", self._secrets), ("configMapRef", self._configs)):
            if kind in source:
                reference = source[kind]
                if reference["name"] in known:
                    return known[reference["name"]]
                if reference.get("optional"):
                    return {}
                raise Unsupported(f"{kind} {reference['name']}: there is none")
        raise Unsupported(f"source {sorted(source)}")

    def files(self, volume: Object) -> dict[str, bytes] | None:
        """The files of a volume made of Secrets and ConfigMaps; None: it is of another kind."""
        if "projected" in volume:
            found: dict[str, bytes] = {}
            for source in volume["projected"]["sources"]:
                found |= self.files(source) or {}
            return found
        for kind, key, reference in (
            ("secret", "secretName", "secretRef"),
            ("configMap", "name", "configMapRef"),
        ):
            if kind in volume:
                given = volume[kind]
                name = given.get(key) or given["name"]
                wanted = {"name": name, "optional": given.get("optional", False)}
                values = self._values({reference: wanted})
                if "items" in given:
                    return {item["path"]: values[item["key"]] for item in given["items"]}
                return values
        return None


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where the variable is known, `$$` by one `$`, as a kubelet does it."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else environment.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def _encoded(values: Mapping[str, str] | None) -> dict[str, bytes]:
    return {key: value.encode() for key, value in (values or {}).items()}


def _decoded(values: Mapping[str, str] | None) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (values or {}).items()}
