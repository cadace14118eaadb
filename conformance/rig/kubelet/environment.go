// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
)

// environment is the variables of a container in the order of their definition.
type environment struct {
	names  []string
	values map[string]string
}

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

func (e *environment) list() []string {
	list := make([]string, 0, len(e.names))
	for _, name := range e.names {
		list = append(list, name+"="+e.values[name])
	}
	return list
}

// expand replaces $(NAME) by the variable and $$ by $; a name that is not
// defined stays as it is written.
func (e *environment) expand(s string) string {
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:i])
		s = s[i:]
		end := strings.IndexByte(s, ')')
		switch {
		case s[1] == '$':
			out.WriteByte('$')
			s = s[2:]
		case s[1] == '(' && end > 0:
			if value, ok := e.values[s[2:end]]; ok {
				out.WriteString(value)
			} else {
				out.WriteString(s[:end+1])
			}
			s = s[end+1:]
		default:
			out.WriteString(s[:1])
			s = s[1:]
		}
	}
}

// environment gathers the variables of a container. Of the Services only
// kubernetes is told by variables; others have names in the DNS.
func (w *worker) environment(pod *v1.Pod, c *v1.Container) (*environment, error) {
	e := &environment{values: map[string]string{}}
	e.set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	e.set("HOSTNAME", hostname(pod))
	e.set("KUBERNETES_SERVICE_HOST", w.k.API.Addr().String())
	e.set("KUBERNETES_SERVICE_PORT", strconv.Itoa(int(w.k.API.Port())))
	e.set("KUBERNETES_SERVICE_PORT_HTTPS", strconv.Itoa(int(w.k.API.Port())))
	for _, from := range c.EnvFrom {
		values, err := w.envFrom(from)
		if err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			e.set(from.Prefix+key, values[key])
		}
	}
	for _, v := range c.Env {
		value := e.expand(v.Value)
		if v.ValueFrom != nil {
			var ok bool
			var err error
			value, ok, err = w.envValue(pod, c, v.ValueFrom)
			if err != nil {
				return nil, fmt.Errorf("variable %s: %w", v.Name, err)
			}
			if !ok {
				continue
			}
		}
		e.set(v.Name, value)
	}
	return e, nil
}

func (w *worker) envFrom(from v1.EnvFromSource) (map[string]string, error) {
	values := map[string]string{}
	switch {
	case from.ConfigMapRef != nil:
		m, err := w.k.configMaps.ConfigMaps(w.namespace).Get(from.ConfigMapRef.Name)
		if err != nil {
			return values, unlessOptional(err, from.ConfigMapRef.Optional)
		}
		return m.Data, nil
	case from.SecretRef != nil:
		s, err := w.k.secrets.Secrets(w.namespace).Get(from.SecretRef.Name)
		if err != nil {
			return values, unlessOptional(err, from.SecretRef.Optional)
		}
		for key, value := range s.Data {
			values[key] = string(value)
		}
	}
	return values, nil
}

// envValue returns false when an optional source does not exist.
func (w *worker) envValue(pod *v1.Pod, c *v1.Container, from *v1.EnvVarSource) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		value, err := w.field(pod, from.FieldRef.FieldPath)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err := resourceField(pod, c.Name, from.ResourceFieldRef)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		m, err := w.k.configMaps.ConfigMaps(w.namespace).Get(ref.Name)
		if err != nil {
			return "", false, unlessOptional(err, ref.Optional)
		}
		value, ok := m.Data[ref.Key]
		if !ok {
			return "", false, unlessOptional(fmt.Errorf("ConfigMap %s has no key %q", ref.Name, ref.Key), ref.Optional)
		}
		return value, true, nil
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		s, err := w.k.secrets.Secrets(w.namespace).Get(ref.Name)
		if err != nil {
			return "", false, unlessOptional(err, ref.Optional)
		}
		value, ok := s.Data[ref.Key]
		if !ok {
			return "", false, unlessOptional(fmt.Errorf("Secret %s has no key %q", ref.Name, ref.Key), ref.Optional)
		}
		return string(value), true, nil
	}
	return "", false, fmt.Errorf("its source is of a kind that is not known here")
}

// unlessOptional lets what is optional be missing, but not unreadable.
func unlessOptional(err error, optional *bool) error {
	if optional != nil && *optional && (apierrors.IsNotFound(err) || apierrors.ReasonForError(err) == "") {
		return nil
	}
	return err
}

// field is a field of the pod by its path, for variables and files alike.
func (w *worker) field(pod *v1.Pod, path string) (string, error) {
	if name, ok := subscript(path, "metadata.labels"); ok {
		return pod.Labels[name], nil
	}
	if name, ok := subscript(path, "metadata.annotations"); ok {
		return pod.Annotations[name], nil
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return quotedLines(pod.Labels), nil
	case "metadata.annotations":
		return quotedLines(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return w.k.NodeIP.String(), nil
	case "status.podIP", "status.podIPs":
		return w.place.Addr.String(), nil
	}
	return "", fmt.Errorf("the field %q is not known here", path)
}

// subscript reads path as prefix['name'].
func subscript(path, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(path, prefix+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "']")
}

func quotedLines(m map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, m[key]))
	}
	return strings.Join(lines, "\n")
}

// resourceField is a request or limit in units of the divisor, rounded up.
// Without a limit it is what the node could give.
func resourceField(pod *v1.Pod, container string, ref *v1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" {
		container = ref.ContainerName
	}
	i := slices.IndexFunc(pod.Spec.Containers, func(c v1.Container) bool { return c.Name == container })
	if i < 0 {
		return "", fmt.Errorf("the pod has no container %q", container)
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	resources := pod.Spec.Containers[i].Resources
	list := resources.Limits
	if kind == "requests" {
		list = resources.Requests
	}
	quantity, ok := list[v1.ResourceName(name)]
	if !ok && kind == "limits" {
		quantity = resource.MustParse("16Gi")
		if name == string(v1.ResourceCPU) {
			quantity = resource.MustParse("2")
		}
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == string(v1.ResourceCPU) {
		return strconv.FormatInt(ceil(quantity.MilliValue(), divisor.MilliValue()), 10), nil
	}
	return strconv.FormatInt(ceil(quantity.Value(), divisor.Value()), 10), nil
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }
