// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// report writes the status whenever it is dirty.
func (w *worker) report(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.dirty:
		}
		err := w.writeStatus(ctx)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || ctx.Err() != nil {
			continue // the object is gone, or another pod has its name
		}
		w.k.Log.Warn("write the status of a pod", "pod", w.current().Name, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
			signal(w.dirty)
		}
	}
}

// writeStatus patches the fields that belong to the kubelet. Conditions of
// others stay, because a strategic merge goes by their type.
func (w *worker) writeStatus(ctx context.Context) error {
	pod := w.current()
	status := w.status(pod)
	if equality.Semantic.DeepEqual(status, &pod.Status) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, // another pod of the same name is not meant
		"status":   status,
	})
	if err != nil {
		return err
	}
	_, err = w.k.Client.CoreV1().Pods(pod.Namespace).
		Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// status says how the pod is.
func (w *worker) status(pod *v1.Pod) *v1.PodStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &v1.PodStatus{
		ObservedGeneration: pod.Generation,
		HostIP:             w.k.NodeIP.String(), HostIPs: []v1.HostIP{{IP: w.k.NodeIP.String()}},
		StartTime: &w.started, QOSClass: pod.Status.QOSClass,
	}
	if w.place != nil {
		s.PodIP = w.place.Addr.String()
		s.PodIPs = []v1.PodIP{{IP: s.PodIP}}
	}
	for _, c := range w.inits {
		s.InitContainerStatuses = append(s.InitContainerStatuses, c.status(w.problem))
	}
	for _, c := range w.mains {
		s.ContainerStatuses = append(s.ContainerStatuses, c.status(w.problem))
	}
	s.Phase = w.phase(pod, s)

	over := s.Phase == v1.PodSucceeded || s.Phase == v1.PodFailed
	unready := ""
	for i, c := range s.ContainerStatuses {
		if !c.Ready {
			unready += " " + s.ContainerStatuses[i].Name
		}
	}
	ready := w.initDone && unready == "" && !over
	for i, c := range w.inits {
		ready = ready && (!c.sidecar() || s.InitContainerStatuses[i].Ready)
	}
	condition := func(kind v1.PodConditionType, ok bool, reason, message string) {
		c := v1.PodCondition{Type: kind, Status: v1.ConditionTrue, ObservedGeneration: pod.Generation, LastTransitionTime: metav1.Now()}
		if !ok {
			c.Status, c.Reason, c.Message = v1.ConditionFalse, reason, message
		}
		i := slices.IndexFunc(pod.Status.Conditions, func(old v1.PodCondition) bool { return old.Type == kind })
		if i >= 0 && pod.Status.Conditions[i].Status == c.Status {
			c.LastTransitionTime = pod.Status.Conditions[i].LastTransitionTime
		}
		s.Conditions = append(s.Conditions, c)
	}
	reason, message := "ContainersNotReady", fmt.Sprintf("containers with unready status: [%s]", trimmed(unready))
	if over {
		reason, message = "PodCompleted", ""
	}
	condition(v1.PodReadyToStartContainers, w.place != nil && !over, "", "")
	condition(v1.PodScheduled, true, "", "")
	condition(v1.PodInitialized, w.initDone, "ContainersNotInitialized", "init containers have not all ended")
	condition(v1.ContainersReady, ready, reason, message)
	condition(v1.PodReady, ready, reason, message)
	return s
}

func trimmed(s string) string {
	if s == "" {
		return s
	}
	return s[1:]
}

// phase follows from the containers: a pod is over when none of its containers
// will run again.
func (w *worker) phase(pod *v1.Pod, s *v1.PodStatus) v1.PodPhase {
	if phase := pod.Status.Phase; phase == v1.PodSucceeded || phase == v1.PodFailed {
		return phase
	}
	deleting := pod.DeletionTimestamp != nil
	for i, c := range w.inits {
		t := s.InitContainerStatuses[i].State.Terminated
		if t != nil && t.ExitCode != 0 && !c.sidecar() && (deleting || pod.Spec.RestartPolicy == v1.RestartPolicyNever) {
			return v1.PodFailed
		}
	}
	if !w.initDone {
		return v1.PodPending
	}
	failed := false
	for i, c := range w.mains {
		t := s.ContainerStatuses[i].State.Terminated
		switch {
		case t == nil && s.ContainerStatuses[i].State.Running == nil && s.ContainerStatuses[i].LastTerminationState.Terminated == nil && !deleting:
			return v1.PodPending
		case t == nil, !deleting && c.restartsAfter(pod, t.ExitCode):
			return v1.PodRunning
		}
		failed = failed || t.ExitCode != 0
	}
	if failed {
		return v1.PodFailed
	}
	return v1.PodSucceeded
}

func (c *container) status(problem string) v1.ContainerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	started := c.isStarted
	s := v1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image,
		ContainerID: "rig://" + string(c.w.pod.UID) + "/" + c.spec.Name,
		State:       c.state, LastTerminationState: c.last,
		Ready: c.ready, Started: &started, RestartCount: c.restarts,
	}
	if c.init && !c.sidecar() && c.state.Terminated != nil {
		s.Ready = c.state.Terminated.ExitCode == 0
	}
	if problem != "" && s.State.Waiting != nil {
		waiting := *s.State.Waiting
		waiting.Message = problem
		s.State.Waiting = &waiting
	}
	return s
}
