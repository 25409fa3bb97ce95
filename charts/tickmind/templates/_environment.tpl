{{/* The environment of our containers, as a mapping by name: what comes later wins. */}}

{{/* (dict "root" $ "user" key "pooled" bool) */}}
{{- define "tickmind.env.database" -}}
{{- $root := .root -}}
{{- $pg := $root.Values.postgresql -}}
{{- $key := include "tickmind.postgresql.userKey" . -}}
{{- $pooled := and .pooled $pg.pgbouncer.enabled -}}
{{- if not $pooled }}
TICKMIND_DATABASE_HOST: {value: {{ include "tickmind.postgresql.host" $root | quote }}}
TICKMIND_DATABASE_PORT: {value: {{ include "tickmind.postgresql.port" $root | quote }}}
{{- else if eq $pg.mode "cloudnativepg" }}
TICKMIND_DATABASE_HOST: {value: {{ printf "%s-postgresql-pooler" (include "tickmind.fullname" $root) | quote }}}
TICKMIND_DATABASE_PORT: {value: "5432"}
TICKMIND_DATABASE_PGBOUNCER: {value: "true"}
{{- else }}
TICKMIND_DATABASE_HOST: {value: {{ required "postgresql.pgbouncer.host is needed where pgbouncer.enabled is true" $pg.pgbouncer.host | quote }}}
TICKMIND_DATABASE_PORT: {value: {{ include "tickmind.text" $pg.pgbouncer.port | quote }}}
TICKMIND_DATABASE_PGBOUNCER: {value: "true"}
{{- end }}
TICKMIND_DATABASE_NAME: {value: {{ $pg.database | quote }}}
TICKMIND_DATABASE_SSLMODE: {value: {{ include "tickmind.postgresql.sslmode" (dict "root" $root "pooled" $pooled) }}}
{{- if include "tickmind.postgresql.caSecret" $root }}
TICKMIND_DATABASE_CA_FILE: {value: /etc/tickmind/postgresql-ca/ca.crt}
{{- end }}
{{- include "tickmind.userEnv" (dict "name" "TICKMIND_DATABASE_USER" "password" "TICKMIND_DATABASE_PASSWORD" "user" (index $pg.users $key) "secret" (include "tickmind.postgresql.secret" (dict "root" $root "user" $key))) }}
{{- end -}}

{{/* (dict "root" $ "user" key) */}}
{{- define "tickmind.env.broker" -}}
{{- $mq := .root.Values.rabbitmq -}}
{{- if and $mq.tls.caSecret (not $mq.tls.enabled) -}}
{{- fail "rabbitmq.tls.caSecret names a CA, but rabbitmq.tls.enabled is false: nothing would look at it" -}}
{{- end -}}
TICKMIND_AMQP_HOST: {value: {{ include "tickmind.rabbitmq.host" .root | quote }}}
TICKMIND_AMQP_PORT: {value: {{ include "tickmind.rabbitmq.port" .root | quote }}}
TICKMIND_AMQP_VHOST: {value: {{ $mq.vhost | quote }}}
TICKMIND_AMQP_TLS: {value: {{ $mq.tls.enabled | quote }}}
{{- if and $mq.tls.enabled $mq.tls.caSecret }}
TICKMIND_AMQP_CA_FILE: {value: /etc/tickmind/rabbitmq-ca/ca.crt}
{{- end }}
{{- include "tickmind.userEnv" (dict "name" "TICKMIND_AMQP_USER" "password" "TICKMIND_AMQP_PASSWORD" "user" (index $mq.users .user) "secret" (include "tickmind.rabbitmq.secret" .)) }}
{{- end -}}

{{/* Only what was set: the rest is the service's default, or the profile's. */}}
{{- define "tickmind.env.embedding" -}}
{{- $e := .Values.embedding -}}
{{- if eq $e.mode "bundled" -}}
TICKMIND_EMBEDDING_BASE_URL: {value: "http://{{ include "tickmind.fullname" . }}-embedding:8090/v1"}
TICKMIND_EMBEDDING_MODEL: {value: multilingual-e5-small}
TICKMIND_EMBEDDING_DIMENSIONS: {value: "384"}
TICKMIND_EMBEDDING_DOCUMENT_PREFIX: {value: "passage: "}
TICKMIND_EMBEDDING_QUERY_PREFIX: {value: "query: "}
{{- else -}}
{{- range $name, $value := dict "PROFILE" $e.profile "PROVIDER" $e.provider "BASE_URL" $e.baseUrl "MODEL" $e.model "DIMENSIONS" $e.dimensions "ENCODING_FORMAT" $e.encodingFormat "DOCUMENT_PREFIX" $e.documentPrefix "QUERY_PREFIX" $e.queryPrefix "MAX_INPUTS" $e.maxInputs }}
{{- if $value }}
TICKMIND_EMBEDDING_{{ $name }}: {value: {{ include "tickmind.text" $value | quote }}}
{{- end }}
{{- end }}
{{- if kindIs "bool" $e.sendDimensions }}
TICKMIND_EMBEDDING_SEND_DIMENSIONS: {value: {{ $e.sendDimensions | quote }}}
{{- end }}
{{- with $e.limits }}
TICKMIND_EMBEDDING_LIMITS: {value: {{ . | quote }}}
{{- end }}
{{- if or $e.apiKey $e.existingSecret }}
TICKMIND_EMBEDDING_API_KEY:
  valueFrom:
    secretKeyRef:
      name: {{ default (printf "%s-embedding" (include "tickmind.fullname" .)) $e.existingSecret }}
      key: {{ if $e.existingSecret }}{{ $e.secretKey }}{{ else }}api-key{{ end }}
{{- end }}
{{- if and $e.existingSecret $e.nextSecretKey }}
TICKMIND_EMBEDDING_NEXT_API_KEY:
  valueFrom:
    secretKeyRef:
      name: {{ $e.existingSecret }}
      key: {{ $e.nextSecretKey }}
{{- end }}
{{- end }}
TICKMIND_EMBEDDING_TIMEOUT_S: {value: {{ include "tickmind.text" $e.timeoutSeconds | quote }}}
{{- end -}}

{{/* `config` as variables. */}}
{{- define "tickmind.env.config" -}}
{{- range $name, $value := . }}
TICKMIND_{{ $name }}: {value: {{ include "tickmind.text" $value | quote }}}
{{- end }}
{{- end -}}

{{/* A list for a container: the mappings' last word on each name, extraEnv's above all.
     (dict "layers" (list yaml…) "extra" (list env…)) */}}
{{- define "tickmind.env.list" -}}
{{- $all := dict -}}
{{- range .layers -}}
{{- range $name, $entry := fromYaml . -}}
{{- $_ := set $all $name $entry -}}
{{- end -}}
{{- end -}}
{{- range .extra -}}
{{- $_ := set $all .name (omit . "name") -}}
{{- end -}}
{{- range $name, $entry := $all }}
- {{ merge (dict "name" $name) $entry | toJson }}
{{- end }}
{{- end -}}

{{/* The environment of a service. (dict "root" $ "component" name) */}}
{{- define "tickmind.env.service" -}}
{{- $root := .root -}}
{{- $own := index $root.Values .component -}}
{{- $layers := list (include "tickmind.env.database" (dict "root" $root "user" .component "pooled" true)) (include "tickmind.env.broker" (dict "root" $root "user" .component)) -}}
{{- if ne .component "recorder" -}}
{{- $layers = append $layers (include "tickmind.env.embedding" $root) -}}
{{- else if $own.policy -}}
{{- $layers = append $layers "TICKMIND_RECORDER_POLICY_FILE: {value: /etc/tickmind/policy/policy.yaml}" -}}
{{- end -}}
{{- $layers = append $layers (include "tickmind.env.config" $root.Values.config) -}}
{{- $layers = append $layers (include "tickmind.env.config" $own.config) -}}
{{- include "tickmind.env.list" (dict "layers" $layers "extra" (concat $root.Values.extraEnv $own.extraEnv)) -}}
{{- end -}}

{{/* Mounts of the CAs, and their volumes. (dict "root" $ "broker" bool) */}}
{{- define "tickmind.caMounts" -}}
{{- if include "tickmind.postgresql.caSecret" .root }}
- name: postgresql-ca
  mountPath: /etc/tickmind/postgresql-ca
  readOnly: true
{{- end }}
{{- if and .broker .root.Values.rabbitmq.tls.enabled .root.Values.rabbitmq.tls.caSecret }}
- name: rabbitmq-ca
  mountPath: /etc/tickmind/rabbitmq-ca
  readOnly: true
{{- end }}
{{- end -}}

{{- define "tickmind.caVolumes" -}}
{{- with include "tickmind.postgresql.caSecret" .root }}
- name: postgresql-ca
  secret:
    secretName: {{ . }}
    items:
      - key: {{ $.root.Values.postgresql.tls.caKey }}
        path: ca.crt
{{- end }}
{{- if and .broker .root.Values.rabbitmq.tls.enabled .root.Values.rabbitmq.tls.caSecret }}
- name: rabbitmq-ca
  secret:
    secretName: {{ .root.Values.rabbitmq.tls.caSecret }}
    items:
      - key: {{ .root.Values.rabbitmq.tls.caKey }}
        path: ca.crt
{{- end }}
{{- end -}}

{{/* Changes with what a pod reads at its start and its template does not hold: the policy, and
     passwords that values give. Generated ones never change by themselves.
     (dict "root" $ "component" name) */}}
{{- define "tickmind.checksum" -}}
{{- $values := .root.Values -}}
{{- $key := include "tickmind.postgresql.userKey" (dict "root" .root "user" .component) -}}
{{- $read := list (index $values.postgresql.users $key).password (index $values.rabbitmq.users .component).password -}}
{{- if eq .component "recorder" -}}
{{- $read = append $read $values.recorder.policy -}}
{{- else -}}
{{- $read = append $read $values.embedding.apiKey -}}
{{- end -}}
{{- toJson $read | sha256sum -}}
{{- end -}}
