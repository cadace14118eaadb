// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/penstock/penstock/xds"
)

// Reviewer asks the API server whose a token is.
type Reviewer struct{ api *api }

// Reviewer is for the [xds.Server].
func (c *Cluster) Reviewer() *Reviewer { return &Reviewer{c.api} }

// Review is that of [xds.TokenReviewer]. Only tokens of service accounts count.
func (r *Reviewer) Review(ctx context.Context, token, audience string) (xds.Account, error) {
	out := &authenticationv1.TokenReview{}
	err := r.api.create(ctx, authenticationv1.SchemeGroupVersion.WithResource("tokenreviews"), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}},
	}, out)
	if err != nil {
		return xds.Account{}, fmt.Errorf("TokenReview: %w", err)
	}
	return accountOf(out.Status, audience)
}

// accountOf reads the answer. An API server that does not know audiences names
// none: the token is then one for the API server itself, and not accepted.
func accountOf(s authenticationv1.TokenReviewStatus, audience string) (xds.Account, error) {
	switch {
	case !s.Authenticated:
		return xds.Account{}, fmt.Errorf("%w: it is not valid, or not for the audience %q", xds.ErrToken, audience)
	case !slices.Contains(s.Audiences, audience):
		return xds.Account{}, fmt.Errorf("%w: it is not for the audience %q", xds.ErrToken, audience)
	}
	parts := strings.Split(s.User.Username, ":") // system:serviceaccount:NAMESPACE:NAME
	if len(parts) != 4 || parts[0] != "system" || parts[1] != "serviceaccount" || parts[2] == "" || parts[3] == "" {
		return xds.Account{}, fmt.Errorf("%w: %q is no service account", xds.ErrToken, s.User.Username)
	}
	a := xds.Account{Namespace: parts[2], Name: parts[3]}
	if pod := s.User.Extra["authentication.kubernetes.io/pod-name"]; len(pod) == 1 {
		a.Pod = pod[0]
	}
	return a, nil
}

// SecretStore keeps the authority in a Secret of the controller's namespace.
type SecretStore struct {
	api  *api
	name types.NamespacedName
}

// AuthoritySecret is the name of the Secret.
const AuthoritySecret = "penstock-authority"

const authorityKey = "authority.pem"

// Store is for [xds.AuthorityOptions].
func (c *Cluster) Store(namespace string) *SecretStore {
	return &SecretStore{c.api, types.NamespacedName{Namespace: namespace, Name: AuthoritySecret}}
}

func (s *SecretStore) read(ctx context.Context) (*corev1.Secret, error) {
	o := &corev1.Secret{}
	err := s.api.get(ctx, corev1.SchemeGroupVersion.WithResource("secrets"), s.name, o)
	return o, err
}

// Load returns what is kept, nil if nothing is.
func (s *SecretStore) Load(ctx context.Context) ([]byte, error) {
	o, err := s.read(ctx)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return o.Data[authorityKey], nil
}

// Save replaces old by new, or is [xds.ErrConflict].
func (s *SecretStore) Save(ctx context.Context, old, new []byte) error {
	gvr := corev1.SchemeGroupVersion.WithResource("secrets")
	o, err := s.read(ctx)
	switch {
	case apierrors.IsNotFound(err):
		if len(old) > 0 {
			return xds.ErrConflict
		}
		err = s.api.create(ctx, gvr, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.name.Namespace, Name: s.name.Name, Labels: map[string]string{managedBy: managedByUs}},
			Type:       "penstock.dev/authority", Data: map[string][]byte{authorityKey: new},
		}, &corev1.Secret{})
	case err != nil:
		return err
	case !bytes.Equal(o.Data[authorityKey], old):
		return xds.ErrConflict
	default:
		if o.Data == nil {
			o.Data = map[string][]byte{}
		}
		o.Data[authorityKey] = new
		err = s.api.update(ctx, gvr, o)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return xds.ErrConflict
	}
	return err
}
