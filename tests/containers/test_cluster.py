"""The runner of rendered manifests does what a kubelet does, as far as it claims to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.containers.cluster import cluster
from tests.containers.engine import Engine
from tests.containers.manifests import Manifests, Object, Unsupported, expanded, is_hook

_IMAGE = "python:3.13-slim"

#: Two servers that tell over HTTP what they see of their environment, files and rights, and a Job
#: that asks one of them by the name of its Service.
_MANIFESTS = """
apiVersion: v1
kind: Secret
metadata: {name: keys}
data: {password: fiwmJCM=}
stringData: {user: alice}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: code}
data:
  serve.py: |
    import http.server, json, os, pathlib
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status = pathlib.Path("/proc/self/status").read_text().split("CapEff:")[1]
            seen = {
                "env": dict(os.environ), "host": os.uname().nodename, "uid": os.getuid(),
                "groups": os.getgroups(), "capabilities": int(status.split()[0], 16),
                "grown": pathlib.Path("/data/count").read_text(),
                "secret": pathlib.Path("/keys/word").read_text(),
                "writable": [p for p in ("/", "/data", "/keys", "/tmp") if os.access(p, os.W_OK)],
                "memory": pathlib.Path(MEMORY[0]).read_text().strip(),
            }
            body = json.dumps(seen).encode()
            self.send_response(200); self.end_headers(); self.wfile.write(body)
    MEMORY = [p for p in ("/sys/fs/cgroup/memory.max",
                          "/sys/fs/cgroup/memory/memory.limit_in_bytes") if os.path.exists(p)]
    http.server.HTTPServer(("", 8080), Handler).serve_forever()
---
apiVersion: v1
kind: Service
metadata: {name: talker}
spec:
  selector: {app: talker}
  ports: [{port: 8080, targetPort: http}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: talker}
spec:
  serviceName: talker
  replicas: 1
  selector: {matchLabels: {app: talker}}
  template:
    metadata: {labels: {app: talker}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {runAsUser: 4711, runAsGroup: 4712, runAsNonRoot: true, fsGroup: 4713}
      initContainers:
        - name: count
          image: IMAGE
          command: [sh, -c]
          args: ['echo "$(POD) started" >> /data/count']
          env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
          volumeMounts: [{name: data, mountPath: /data}]
      containers:
        - name: server
          image: IMAGE
          command: [python, /code/serve.py]
          securityContext:
            readOnlyRootFilesystem: true
            allowPrivilegeEscalation: false
            capabilities: {drop: [ALL]}
          envFrom: [{secretRef: {name: keys}, prefix: FROM_}]
          env:
            - {name: PASSWORD, valueFrom: {secretKeyRef: {name: keys, key: password}}}
            - {name: URL, value: "http://$(PASSWORD)@host/$$(PASSWORD)/$(UNKNOWN)"}
            - {name: ABSENT, valueFrom: {secretKeyRef: {name: keys, key: other, optional: true}}}
          ports: [{name: http, containerPort: 8080}]
          resources: {limits: {memory: 64Mi, cpu: 500m}}
          readinessProbe: {httpGet: {path: /, port: http}}
          livenessProbe: {tcpSocket: {port: http}}
          volumeMounts:
            - {name: data, mountPath: /data}
            - {name: code, mountPath: /code, readOnly: true}
            - {name: keys, mountPath: /keys, readOnly: true}
            - {name: tmp, mountPath: /tmp}
      volumes:
        - {name: code, configMap: {name: code}}
        - {name: keys, secret: {secretName: keys, items: [{key: user, path: word}]}}
        - {name: tmp, emptyDir: {}}
  volumeClaimTemplates: [{metadata: {name: data}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: ask, annotations: {helm.sh/hook: test}}
spec:
  backoffLimit: 20
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: ask
          image: IMAGE
          command: [python, -c]
          args: ["import urllib.request as u; print(u.urlopen('http://talker.ns.svc:8080').read().decode())"]
""".replace("IMAGE", _IMAGE)


async def test_rendered_objects_run_as_a_kubelet_would_run_them(
    engine: Engine, scratch: Path
) -> None:
    objects = list(yaml.safe_load_all(_MANIFESTS))
    [job] = [given for given in objects if is_hook(given)]
    there = [given for given in objects if not is_hook(given)]
    place = scratch / "talker"
    async with cluster(
        engine, there, name="tickmind-talker", namespace="ns", scratch=place, idle=_IMAGE
    ) as running:
        await running.ready()
        [pod] = running.pods("talker")
        assert await running.probe(pod, "livenessProbe")
        seen = json.loads((await running.complete(job)).out)
        assert seen["host"] == "talker-0"
        assert (seen["uid"], seen["capabilities"]) == (4711, 0)
        assert {4712, 4713} >= set(seen["groups"]) >= {4713}
        assert seen["writable"] == ["/data", "/tmp"]
        assert seen["memory"] == str(64 * 1024 * 1024)
        assert seen["secret"] == "alice"
        assert seen["env"]["FROM_user"] == "alice"
        assert seen["env"]["PASSWORD"] == "~,&$#"
        assert seen["env"]["URL"] == "http://~,&$#@host/$(PASSWORD)/$(UNKNOWN)"
        assert "ABSENT" not in seen["env"]
        assert seen["env"]["TALKER_PORT"].startswith("tcp://")
        assert seen["grown"] == "talker-0 started\n"
        await running.replace(pod)
        await running.ready()
        states = await running.states()
        assert [state["RestartCount"] for state in states.values()] == [0]
    left = await engine.docker("network", "ls", "--quiet", "--filter", "name=tickmind-talker")
    assert left.out == ""


def _environments(given: Object) -> list[dict[str, str]]:
    made = Manifests([given], namespace="n")
    return [made.environment(pod, part) for pod in made.pods for part in pod.spec["containers"]]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"kind": "Ingress"}, "Ingress x"),
        (
            {
                "kind": "Pod",
                "spec": {"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "no"}}]}]},
            },
            "secretRef no: there is none",
        ),
    ],
)
def test_what_cannot_be_done_is_never_left_out(given: dict[str, object], what: str) -> None:
    with pytest.raises(Unsupported, match=what):
        _environments({"metadata": {"name": "x"}, **given})


def test_references_are_expanded_where_they_are_known() -> None:
    assert expanded("$(A)-$(B)-$$(A)-$A", {"A": "1"}) == "1-$(B)-$(A)-$A"
