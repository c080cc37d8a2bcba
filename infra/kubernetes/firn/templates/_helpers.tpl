{{- define "firn.name" -}}
{{- if eq .Release.Name .Chart.Name }}{{ .Chart.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "firn.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "firn.labels" -}}
{{ include "firn.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "firn.account" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "firn.name" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end -}}
{{- end }}

{{- define "firn.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}{{ end -}}
{{- end }}

{{- /* The host that a broker advertises; the shell or the kubelet puts the pod's address in. */ -}}
{{- define "firn.host" -}}
{{- if eq .Values.advertise "podDNS" }}$(POD_NAME_IN_DNS).{{ .Release.Namespace }}.pod.{{ .Values.clusterDomain }}{{ else }}$(POD_IP){{ end -}}
{{- end }}

{{- define "firn.allowedHosts" -}}
{{- $name := include "firn.name" . -}}
{{- $service := printf "%s.%s" $name .Release.Namespace -}}
{{- concat (list $name $service (printf "%s.svc" $service) (printf "%s.svc.%s" $service .Values.clusterDomain)) .Values.http.allowedHosts | join "," -}}
{{- end }}
