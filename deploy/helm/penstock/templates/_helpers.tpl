{{- define "penstock.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels of an object. (list $ NAME) */}}
{{- define "penstock.labels" -}}
{{- $root := index . 0 -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ $root.Values.image.tag | default $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: penstock
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- with $root.Values.common.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels by which pods are selected; they never change. (list $ NAME) */}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end }}

{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What every pod of the chart has. (list $ NAME ANNOTATIONS) */}}
{{- define "penstock.podMeta" -}}
labels:
  {{- include "penstock.labels" . | nindent 2 }}
{{- with index . 2 }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "penstock.scheduling" -}}
{{- $root := index . 0 -}}
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.common.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.common.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.common.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "penstock.selector" . | nindent 8 }}
{{- end }}

{{/* The ops port: liveness, readiness and start. (PORT NAME) */}}
{{- define "penstock.httpProbes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 1
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 2
  failureThreshold: 6
{{- end }}

{{/* Egress to the API server and to DNS, and ingress of whoever scrapes. */}}
{{- define "penstock.egress" -}}
- to:
    {{- range .Values.networkPolicy.apiServer.cidrs }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  ports:
    {{- range .Values.networkPolicy.apiServer.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
- to: [{namespaceSelector: {}}]
  ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
{{- end }}

{{- define "penstock.scrapers" -}}
- namespaceSelector:
    {{- if .Values.networkPolicy.monitoringNamespaceLabels }}
    matchLabels:
      {{- toYaml .Values.networkPolicy.monitoringNamespaceLabels | nindent 6 }}
    {{- else }} {}
    {{- end }}
{{- end }}

{{/* Rules that the controller and the all-in-one share: package kube, access.go. */}}
{{- define "penstock.readRules" -}}
- apiGroups: [gateway.networking.k8s.io]
  resources: [gatewayclasses, gateways, httproutes, grpcroutes, listenersets, backendtlspolicies]
  verbs: [get, list, watch]
- apiGroups: [gateway.networking.k8s.io]
  resources: [gatewayclasses/status, gateways/status, httproutes/status, grpcroutes/status, listenersets/status, backendtlspolicies/status]
  verbs: [update]
- apiGroups: [gateway.networking.k8s.io]
  resources: [referencegrants]
  verbs: [list, watch]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, watch]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools/status]
  verbs: [update]
- apiGroups: [penstock.dev]
  resources: [models, gatewaypolicies, providers, tenants, keys]
  verbs: [get, list, watch]
- apiGroups: [penstock.dev]
  resources: [models/status, gatewaypolicies/status, providers/status, tenants/status, keys/status]
  verbs: [update]
# Secrets hold the certificates of listeners. To narrow this to some namespaces
# is the task of an admission policy: roles cannot.
- apiGroups: [""]
  resources: [namespaces, services, secrets, configmaps, pods]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [gatewayclasses.gateway.networking.k8s.io]
  verbs: [get]
{{- end }}
