{{- /* Parts of the pods of several steps. */ -}}
{{- define "robocache.security" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end -}}
{{- define "robocache.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
workingDir: /data
{{- end -}}
{{- define "robocache.ray" -}}
spec:
  {{- include "robocache.security" .top | nindent 2 }}
  containers:
    - name: {{ .name }}
      image: {{ .top.Values.ray.image | quote }}
      {{- include "robocache.container" .top | nindent 6 }}
      resources: {{ .top.Values.resources | toJson }}
      volumeMounts:
        - {name: data, mountPath: /data}
        - {name: program, mountPath: /program}
  volumes:
    - name: data
      persistentVolumeClaim: {claimName: {{ .top.Values.volume | quote }}}
    - name: program
      configMap: {name: {{ .program | quote }}}
{{- end -}}
