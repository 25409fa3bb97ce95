{{/* Names: the release and the chart, short enough that every object's own suffix fits in 63. */}}
{{- define "tickmind.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What never changes in an object's life: it stands in selectors. (dict "root" $ "component" name) */}}
{{- define "tickmind.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* All labels of an object; those of volume claims and selectors are the three above. */}}
{{- define "tickmind.labels" -}}
{{ include "tickmind.selector" . }}
app.kubernetes.io/part-of: tickmind
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of a pod: no version among them, so that a chart that changes nothing restarts nothing. */}}
{{- define "tickmind.podLabels" -}}
{{ include "tickmind.selector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata of an object named <fullname>-<component>. */}}
{{- define "tickmind.metadata" -}}
name: {{ include "tickmind.fullname" .root }}-{{ .component }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "tickmind.labels" . | nindent 2 }}
{{- end -}}

{{- define "tickmind.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tickmind.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Reference of an image. (dict "root" $ "image" .Values.x.image) */}}
{{- define "tickmind.image" -}}
{{- $registry := default .root.Values.global.imageRegistry .image.registry -}}
{{- if $registry }}{{ trimSuffix "/" $registry }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest -}}
@{{ .image.digest }}
{{- else -}}
:{{ include "tickmind.text" (default .root.Chart.AppVersion .image.tag) }}
{{- end -}}
{{- end -}}

{{/* A number as it was written: Helm reads all of them as floats. */}}
{{- define "tickmind.text" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* A password: given, or that of the Secret in the cluster, or a new one.
     (dict "root" $ "secret" name "given" text) */}}
{{- define "tickmind.password" -}}
{{- if .given -}}
{{- .given -}}
{{- else -}}
{{- $found := lookup "v1" "Secret" .root.Release.Namespace .secret -}}
{{- if and $found (index (default dict $found.data) "password") -}}
{{- index $found.data "password" | b64dec -}}
{{- else -}}
{{- randAlphaNum 32 -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What every pod has in common: no token, no variables of other Services, restricted. */}}
{{- define "tickmind.pod" -}}
serviceAccountName: {{ include "tickmind.serviceAccountName" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* securityContext of a pod running as this user. */}}
{{- define "tickmind.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tickmind.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Scheduling of a service's pods. (dict "root" $ "component" name "values" .Values.x) */}}
{{- define "tickmind.scheduling" -}}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
topologySpreadConstraints:
{{- if .values.topologySpreadConstraints }}
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else }}
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tickmind.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}
