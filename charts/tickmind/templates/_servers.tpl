{{/* Where PostgreSQL and RabbitMQ are, and as whom they are used. */}}

{{/* Host for the migration, the scaler and, without PgBouncer, the services. */}}
{{- define "tickmind.postgresql.host" -}}
{{- $pg := .Values.postgresql -}}
{{- if eq $pg.mode "external" -}}
{{- required "postgresql.external.host is needed in postgresql.mode external" $pg.external.host -}}
{{- else if eq $pg.mode "cloudnativepg" -}}
{{- include "tickmind.fullname" . }}-postgresql-rw
{{- else -}}
{{- include "tickmind.fullname" . }}-postgresql
{{- end -}}
{{- end -}}

{{- define "tickmind.postgresql.port" -}}
{{- if eq .Values.postgresql.mode "external" }}{{ include "tickmind.text" .Values.postgresql.external.port }}{{ else }}5432{{ end -}}
{{- end -}}

{{/* sslmode; `pooled`: of a connection through PgBouncer. (dict "root" $ "pooled" bool) */}}
{{- define "tickmind.postgresql.sslmode" -}}
{{- $pg := .root.Values.postgresql -}}
{{- if $pg.tls.mode -}}
{{- $pg.tls.mode -}}
{{- else if eq $pg.mode "bundled" -}}
disable
{{- else if eq $pg.mode "cloudnativepg" -}}
{{- if .pooled }}verify-ca{{ else }}verify-full{{ end -}}
{{- else if $pg.tls.caSecret -}}
verify-full
{{- else -}}
prefer
{{- end -}}
{{- end -}}

{{- define "tickmind.postgresql.caSecret" -}}
{{- if .Values.postgresql.tls.caSecret -}}
{{- .Values.postgresql.tls.caSecret -}}
{{- else if eq .Values.postgresql.mode "cloudnativepg" -}}
{{- include "tickmind.fullname" . }}-postgresql-ca
{{- end -}}
{{- end -}}

{{/* The user whose rights a service has: its own, or in mode external the owner's where it was
     given none. (dict "root" $ "user" key) */}}
{{- define "tickmind.postgresql.userKey" -}}
{{- $pg := .root.Values.postgresql -}}
{{- $user := index $pg.users .user -}}
{{- if and (eq $pg.mode "external") (not $user.password) (not $user.existingSecret) .root.Values.secrets.create -}}
owner
{{- else -}}
{{- .user -}}
{{- end -}}
{{- end -}}

{{- define "tickmind.postgresql.secret" -}}
{{- $user := index .root.Values.postgresql.users .user -}}
{{- default (printf "%s-postgresql-%s" (include "tickmind.fullname" .root) .user) $user.existingSecret -}}
{{- end -}}

{{- define "tickmind.rabbitmq.secret" -}}
{{- $user := dict -}}
{{- if eq .user "admin" -}}
{{- $user = .root.Values.rabbitmq.bundled.admin -}}
{{- else -}}
{{- $user = index .root.Values.rabbitmq.users .user -}}
{{- end -}}
{{- default (printf "%s-rabbitmq-%s" (include "tickmind.fullname" .root) .user) $user.existingSecret -}}
{{- end -}}

{{- define "tickmind.rabbitmq.host" -}}
{{- if eq .Values.rabbitmq.mode "external" -}}
{{- required "rabbitmq.external.host is needed in rabbitmq.mode external" .Values.rabbitmq.external.host -}}
{{- else -}}
{{- include "tickmind.fullname" . }}-rabbitmq
{{- end -}}
{{- end -}}

{{- define "tickmind.rabbitmq.port" -}}
{{- $given := int .Values.rabbitmq.external.port -}}
{{- if and (eq .Values.rabbitmq.mode "external") $given -}}
{{- $given -}}
{{- else if .Values.rabbitmq.tls.enabled -}}
5671
{{- else -}}
5672
{{- end -}}
{{- end -}}

{{- define "tickmind.rabbitmq.managementUrl" -}}
{{- if eq .Values.rabbitmq.mode "external" -}}
{{- required "rabbitmq.external.managementUrl is needed for KEDA in rabbitmq.mode external" .Values.rabbitmq.external.managementUrl -}}
{{- else if .Values.rabbitmq.tls.enabled -}}
https://{{ include "tickmind.rabbitmq.host" . }}.{{ .Release.Namespace }}.svc:15671
{{- else -}}
http://{{ include "tickmind.rabbitmq.host" . }}.{{ .Release.Namespace }}.svc:15672
{{- end -}}
{{- end -}}

{{/* Name of a user and of its password, as entries of an environment.
     (dict "name" NAME "password" NAME "user" values "secret" name) */}}
{{- define "tickmind.userEnv" -}}
{{- if .user.usernameKey }}
{{ .name }}:
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .user.usernameKey }}
{{- else }}
{{ .name }}:
  value: {{ .user.name | quote }}
{{- end }}
{{ .password }}:
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ if .user.existingSecret }}{{ .user.passwordKey }}{{ else }}password{{ end }}
{{- end -}}
