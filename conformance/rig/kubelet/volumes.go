// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/penstock/penstock/conformance/rig/sandbox"
)

// volumes holds the files of a pod's volumes and renews them when their sources
// change.
type volumes struct {
	w       *worker
	written map[string]fileSet // by volume: what its folder holds
	tokens  map[tokenKey]*token
}

// unsupportedError is a volume that will never be there.
type unsupportedError struct{ volume string }

func (e *unsupportedError) Error() string {
	return fmt.Sprintf("volume %s: a rig has only secret, configMap, downwardAPI, projected and emptyDir volumes", e.volume)
}

func newVolumes(w *worker) *volumes {
	return &volumes{w: w, written: map[string]fileSet{}, tokens: map[tokenKey]*token{}}
}

// keepCurrent renews the files when a source or the pod changes, and tokens
// before they expire.
func (v *volumes) keepCurrent(ctx context.Context) {
	const retry = 5 * time.Second
	for {
		wait := time.NewTimer(v.nextRenewal())
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-v.w.sources:
		case <-v.w.updates:
		case <-wait.C:
		}
		wait.Stop()
		if err := v.refresh(ctx); err != nil && ctx.Err() == nil {
			// The files stay as they were, as on a real node: a Secret that is
			// gone does not take a running pod's certificate away.
			v.w.k.Log.Debug("refresh the volumes of a pod", "pod", v.w.current().Name, "err", err)
			select {
			case <-ctx.Done():
			case <-v.w.sources:
				signal(v.w.sources)
			case <-time.After(retry):
				signal(v.w.sources)
			}
		}
	}
}

// refresh brings every volume up to date.
func (v *volumes) refresh(ctx context.Context) error {
	pod := v.w.current()
	group := -1
	if s := pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		group = int(*s.FSGroup)
	}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		dir := v.w.volumeFolder(pod, volume.Name)
		if volume.EmptyDir != nil {
			if err := makeEmptyDir(dir, group); err != nil {
				return err
			}
			continue
		}
		files, err := v.files(ctx, pod, volume)
		if err != nil {
			return fmt.Errorf("volume %s: %w", volume.Name, err)
		}
		if held, ok := v.written[volume.Name]; ok && held.equal(files) {
			continue
		}
		if err := replaceFiles(dir, files, group); err != nil {
			return err
		}
		v.written[volume.Name] = files
	}
	return nil
}

// makeEmptyDir makes a folder for everybody in the pod. The rig's files are in
// memory anyway, so medium Memory is nothing special.
func makeEmptyDir(dir string, group int) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	mode := fs.FileMode(0o777)
	if group >= 0 {
		if err := os.Chown(dir, -1, group); err != nil {
			return err
		}
		mode |= fs.ModeSetgid
	}
	return os.Chmod(dir, mode) // MkdirAll's mode passes the umask
}

// files gathers what the volume shall hold.
func (v *volumes) files(ctx context.Context, pod *v1.Pod, volume *v1.Volume) (fileSet, error) {
	files := fileSet{}
	switch {
	case volume.Secret != nil:
		s := volume.Secret
		return files, v.addSecret(files, s.SecretName, s.Items, mode(s.DefaultMode), s.Optional)
	case volume.ConfigMap != nil:
		m := volume.ConfigMap
		return files, v.addConfigMap(files, m.Name, m.Items, mode(m.DefaultMode), m.Optional)
	case volume.DownwardAPI != nil:
		return files, v.addDownward(files, pod, volume.DownwardAPI.Items, mode(volume.DownwardAPI.DefaultMode))
	case volume.Projected != nil:
		all := mode(volume.Projected.DefaultMode)
		for i := range volume.Projected.Sources {
			if err := v.addProjection(ctx, files, pod, volume.Name, &volume.Projected.Sources[i], all); err != nil {
				return nil, err
			}
		}
		return files, nil
	}
	return nil, &unsupportedError{volume.Name}
}

func (v *volumes) addProjection(ctx context.Context, files fileSet, pod *v1.Pod, name string, source *v1.VolumeProjection, all fs.FileMode) error {
	switch {
	case source.Secret != nil:
		return v.addSecret(files, source.Secret.Name, source.Secret.Items, all, source.Secret.Optional)
	case source.ConfigMap != nil:
		return v.addConfigMap(files, source.ConfigMap.Name, source.ConfigMap.Items, all, source.ConfigMap.Optional)
	case source.DownwardAPI != nil:
		return v.addDownward(files, pod, source.DownwardAPI.Items, all)
	case source.ServiceAccountToken != nil:
		value, err := v.token(ctx, pod, name, source.ServiceAccountToken)
		if err != nil {
			return err
		}
		files[source.ServiceAccountToken.Path] = file{[]byte(value), all}
		return nil
	}
	return &unsupportedError{name}
}

func (v *volumes) addSecret(files fileSet, name string, items []v1.KeyToPath, all fs.FileMode, optional *bool) error {
	s, err := v.w.k.secrets.Secrets(v.w.namespace).Get(name)
	if err != nil {
		return unlessOptional(err, optional)
	}
	return addItems(files, "Secret "+name, s.Data, items, all, optional)
}

func (v *volumes) addConfigMap(files fileSet, name string, items []v1.KeyToPath, all fs.FileMode, optional *bool) error {
	m, err := v.w.k.configMaps.ConfigMaps(v.w.namespace).Get(name)
	if err != nil {
		return unlessOptional(err, optional)
	}
	data := map[string][]byte{}
	for key, value := range m.Data {
		data[key] = []byte(value)
	}
	for key, value := range m.BinaryData {
		data[key] = value
	}
	return addItems(files, "ConfigMap "+name, data, items, all, optional)
}

func addItems(files fileSet, source string, data map[string][]byte, items []v1.KeyToPath, all fs.FileMode, optional *bool) error {
	if items == nil {
		for key, value := range data {
			files[key] = file{value, all}
		}
		return nil
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok {
			if optional != nil && *optional {
				continue
			}
			return fmt.Errorf("%s has no key %q", source, item.Key)
		}
		files[item.Path] = file{value, itemMode(item.Mode, all)}
	}
	return nil
}

func (v *volumes) addDownward(files fileSet, pod *v1.Pod, items []v1.DownwardAPIVolumeFile, all fs.FileMode) error {
	for _, item := range items {
		var value string
		var err error
		if item.FieldRef != nil {
			value, err = v.w.field(pod, item.FieldRef.FieldPath)
		} else {
			value, err = resourceField(pod, "", item.ResourceFieldRef)
		}
		if err != nil {
			return err
		}
		files[item.Path] = file{[]byte(value), itemMode(item.Mode, all)}
	}
	return nil
}

func mode(m *int32) fs.FileMode {
	if m == nil {
		return 0o644
	}
	return fs.FileMode(*m) & fs.ModePerm
}

func itemMode(m *int32, all fs.FileMode) fs.FileMode {
	if m == nil {
		return all
	}
	return mode(m)
}

// tokenKey tells the tokens of a pod apart.
type tokenKey struct{ volume, path string }

type token struct {
	value string
	renew time.Time
}

// token asks for a token that is bound to the pod, or returns the one it has
// while that is good for a while.
func (v *volumes) token(ctx context.Context, pod *v1.Pod, volume string, p *v1.ServiceAccountTokenProjection) (string, error) {
	key := tokenKey{volume, p.Path}
	if t := v.tokens[key]; t != nil && time.Now().Before(t.renew) {
		return t.value, nil
	}
	request := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		ExpirationSeconds: p.ExpirationSeconds,
		BoundObjectRef:    &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	if p.Audience != "" {
		request.Spec.Audiences = []string{p.Audience}
	}
	answer, err := v.w.k.Client.CoreV1().ServiceAccounts(pod.Namespace).
		CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token for the service account %s: %w", pod.Spec.ServiceAccountName, err)
	}
	now := time.Now()
	v.tokens[key] = &token{answer.Status.Token, renewal(now, answer.Status.ExpirationTimestamp.Time)}
	return answer.Status.Token, nil
}

// renewal is when a token is replaced: at four fifths of its life, as a real
// kubelet does, and at the latest after a day.
func renewal(now, expires time.Time) time.Time {
	return now.Add(min(expires.Sub(now)*4/5, 24*time.Hour))
}

// nextRenewal is how long until the first token must be renewed.
func (v *volumes) nextRenewal() time.Duration {
	next := 24 * time.Hour
	for _, t := range v.tokens {
		next = min(next, time.Until(t.renew))
	}
	return max(next, time.Second)
}

func (w *worker) volumeFolder(pod *v1.Pod, name string) string {
	return filepath.Join(w.k.podFolder(pod.UID), "volumes", name)
}

// mounts is what a container sees besides its root folder.
func (w *worker) mounts(pod *v1.Pod, c *v1.Container, env *environment) ([]sandbox.Mount, error) {
	var mounts []sandbox.Mount
	for _, name := range []string{"resolv.conf", "hosts", "hostname", "passwd", "group"} {
		mounts = append(mounts, sandbox.Mount{
			Source: filepath.Join(w.k.podFolder(pod.UID), "etc", name), Target: "/etc/" + name, ReadOnly: true,
		})
	}
	kinds := map[string]*v1.Volume{}
	for i := range pod.Spec.Volumes {
		kinds[pod.Spec.Volumes[i].Name] = &pod.Spec.Volumes[i]
	}
	for _, m := range c.VolumeMounts {
		volume := kinds[m.Name]
		if volume == nil {
			return nil, fmt.Errorf("the pod has no volume %q", m.Name)
		}
		source := w.volumeFolder(pod, m.Name)
		sub := m.SubPath
		if m.SubPathExpr != "" {
			sub = env.expand(m.SubPathExpr)
		}
		if sub != "" {
			if !filepath.IsLocal(sub) {
				return nil, fmt.Errorf("subPath %q leaves its volume", sub)
			}
			source = filepath.Join(source, sub)
			if volume.EmptyDir != nil {
				if err := os.MkdirAll(source, 0o777); err != nil {
					return nil, err
				}
			}
			// A link would be followed each time; a file mounted alone stays the
			// one that it was at the start.
			resolved, err := filepath.EvalSymlinks(source)
			if err != nil {
				return nil, err
			}
			source = resolved
		}
		mounts = append(mounts, sandbox.Mount{
			Source: source, Target: m.MountPath,
			ReadOnly: m.ReadOnly || volume.EmptyDir == nil, // only emptyDir can be written
		})
	}
	return mounts, nil
}
