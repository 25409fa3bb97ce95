{{/* One of the three services, which are alike. (dict "root" $ "component" name) */}}

{{- define "tickmind.deployment" -}}
{{- $values := index .root.Values .component -}}
{{- if and (eq .component "embedder") (le (float64 $values.terminationGracePeriodSeconds) (float64 .root.Values.embedding.timeoutSeconds)) -}}
{{- fail "embedder.terminationGracePeriodSeconds must be above embedding.timeoutSeconds: a call in flight is finished" -}}
{{- end -}}
{{- $context := dict "root" .root "component" .component "values" $values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "tickmind.metadata" . | nindent 2 }}
spec:
  {{- if eq $values.autoscaling.type "none" }}
  replicas: {{ $values.replicas }}
  {{- end }}
  revisionHistoryLimit: 5
  selector:
    matchLabels:
      {{- include "tickmind.selector" . | nindent 6 }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  template:
    metadata:
      labels:
        {{- include "tickmind.podLabels" . | nindent 8 }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/config: {{ include "tickmind.checksum" . }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "tickmind.pod" .root | nindent 6 }}
      securityContext:
        {{- include "tickmind.podSecurity" 10001 | nindent 8 }}
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      {{- include "tickmind.scheduling" $context | nindent 6 }}
      containers:
        - name: {{ .component }}
          image: {{ include "tickmind.image" (dict "root" .root "image" .root.Values.image) | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: [tickmind]
          args: [{{ .component }}]
          securityContext:
            {{- include "tickmind.containerSecurity" . | nindent 12 }}
          env:
            {{- include "tickmind.env.service" . | nindent 12 }}
          ports:
            - name: http
              containerPort: 8080
              protocol: TCP
          # The process alone: a database that is down makes a pod unready, never restart.
          livenessProbe:
            httpGet: {path: /livez, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          volumeMounts:
            - name: tmp
              mountPath: /tmp
            {{- include "tickmind.caMounts" (dict "root" .root "broker" true) | nindent 12 }}
            {{- if and (eq .component "recorder") $values.policy }}
            - name: policy
              mountPath: /etc/tickmind/policy
              readOnly: true
            {{- end }}
      volumes:
        - name: tmp
          emptyDir: {}
        {{- include "tickmind.caVolumes" (dict "root" .root "broker" true) | nindent 8 }}
        {{- if and (eq .component "recorder") $values.policy }}
        - name: policy
          configMap:
            name: {{ include "tickmind.fullname" .root }}-policy
        {{- end }}
{{- end -}}

{{- define "tickmind.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "tickmind.metadata" . | nindent 2 }}
spec:
  type: ClusterIP
  selector:
    {{- include "tickmind.selector" . | nindent 4 }}
  ports:
    - name: http
      port: 8080
      targetPort: http
      protocol: TCP
{{- end -}}

{{- define "tickmind.podDisruptionBudget" -}}
{{- $values := index .root.Values .component -}}
{{- if $values.podDisruptionBudget.enabled -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "tickmind.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ $values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "tickmind.selector" . | nindent 6 }}
{{- end -}}
{{- end -}}

{{/* HPA or KEDA, as autoscaling.type says: one or the other. (… "triggers" yaml) */}}
{{- define "tickmind.scaling" -}}
{{- $scaling := (index .root.Values .component).autoscaling -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "%s.autoscaling.minReplicas is above maxReplicas" .component) -}}
{{- end -}}
{{- if eq $scaling.type "hpa" -}}
{{- if lt (int $scaling.minReplicas) 1 -}}
{{- fail (printf "%s.autoscaling.minReplicas 0 needs autoscaling.type keda" .component) -}}
{{- end -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "tickmind.metadata" . | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ include "tickmind.fullname" .root }}-{{ .component }}
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ $scaling.cpuPercent }}
{{- else if eq $scaling.type "keda" -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  {{- include "tickmind.metadata" . | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ include "tickmind.fullname" .root }}-{{ .component }}
  minReplicaCount: {{ $scaling.minReplicas }}
  maxReplicaCount: {{ $scaling.maxReplicas }}
  pollingInterval: {{ $scaling.pollingSeconds }}
  cooldownPeriod: {{ $scaling.cooldownSeconds }}
  triggers:
    {{- .triggers | nindent 4 }}
{{- end -}}
{{- end -}}

{{/* A trigger on a queue, by the management API: only that one counts what is unacknowledged.
     KEDA encodes the virtual host itself. (dict "root" $ "queue" name "mode" … "target" n) */}}
{{- define "tickmind.queueTrigger" -}}
- type: rabbitmq
  metadata:
    protocol: http
    host: {{ include "tickmind.rabbitmq.managementUrl" .root }}
    vhostName: {{ .root.Values.rabbitmq.vhost | quote }}
    queueName: {{ .queue }}
    mode: {{ .mode }}
    value: {{ include "tickmind.text" .target | quote }}
    activationValue: "0"
    excludeUnacknowledged: "false"
  authenticationRef:
    name: {{ include "tickmind.fullname" .root }}-rabbitmq
{{- end -}}

{{/* What a service's pods reach and are reached by. (dict "root" $ "component" name) */}}
{{- define "tickmind.networkPolicy" -}}
{{- $root := .root -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- if $policy.enabled -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "tickmind.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "tickmind.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    - ports:
        - port: 8080
          protocol: TCP
      {{- with $policy.metricsFrom }}
      from:
        {{- toYaml . | nindent 8 }}
      {{- end }}
  egress:
    {{- include "tickmind.egress.dns" . | nindent 4 }}
    {{- include "tickmind.egress.postgresql" $root | nindent 4 }}
    {{- include "tickmind.egress.rabbitmq" $root | nindent 4 }}
    {{- if ne .component "recorder" }}
    {{- include "tickmind.egress.embedding" $root | nindent 4 }}
    {{- end }}
    {{- with $policy.extraEgress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
{{- end -}}

{{- define "tickmind.egress.dns" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{- end -}}

{{- define "tickmind.egress.postgresql" -}}
{{- $pg := .Values.postgresql -}}
- ports:
    - port: {{ include "tickmind.postgresql.port" . }}
      protocol: TCP
    {{- if and $pg.pgbouncer.enabled (eq $pg.mode "external") }}
    - port: {{ include "tickmind.text" $pg.pgbouncer.port }}
      protocol: TCP
    {{- end }}
  {{- if eq $pg.mode "bundled" }}
  to:
    - podSelector:
        matchLabels:
          {{- include "tickmind.selector" (dict "root" . "component" "postgresql") | nindent 10 }}
  {{- end }}
{{- end -}}

{{- define "tickmind.egress.rabbitmq" -}}
- ports:
    - port: {{ include "tickmind.rabbitmq.port" . }}
      protocol: TCP
  {{- if eq .Values.rabbitmq.mode "bundled" }}
  to:
    - podSelector:
        matchLabels:
          {{- include "tickmind.selector" (dict "root" . "component" "rabbitmq") | nindent 10 }}
  {{- end }}
{{- end -}}

{{- define "tickmind.egress.embedding" -}}
{{- if eq .Values.embedding.mode "bundled" -}}
- ports:
    - port: 8090
      protocol: TCP
  to:
    - podSelector:
        matchLabels:
          {{- include "tickmind.selector" (dict "root" . "component" "embedding") | nindent 10 }}
{{- else -}}
{{- $url := urlParse (default "https://default" .Values.embedding.baseUrl) -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
- ports:
    - port: {{ $port | default (ternary "80" "443" (eq $url.scheme "http")) }}
      protocol: TCP
{{- end -}}
{{- end -}}
