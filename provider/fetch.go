// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Fetcher gets images that clients name by URL, for dialects that take images
// only in the request itself. A client chooses the URL: nothing is sent to
// addresses that are not public, whatever a name stands for and wherever a
// redirect leads; nothing of the client's or the gateway's goes out.
type Fetcher struct {
	client  *http.Client
	limit   int64
	timeout time.Duration
	local   bool
}

// FetchOptions are the bounds of a Fetcher. The zero value works.
type FetchOptions struct {
	Limit   int64         // bytes of an image; 0: 20 MiB
	Timeout time.Duration // for one image; 0: 15s
	// Local allows loopback addresses, and http to them, for tests and trials on
	// one machine.
	Local bool
}

// NewFetcher makes a Fetcher, whose connections are not kept.
func NewFetcher(o FetchOptions) *Fetcher {
	f := &Fetcher{limit: o.Limit, timeout: o.Timeout, local: o.Local}
	if f.limit <= 0 {
		f.limit = 20 << 20
	}
	if f.timeout <= 0 {
		f.timeout = 15 * time.Second
	}
	public, here := newDialer(reach{}, 5*time.Second), newDialer(reach{loopback: true}, 5*time.Second)
	transport := public.transport()
	transport.DisableKeepAlives = true
	transport.MaxResponseHeaderBytes = 32 << 10
	transport.ResponseHeaderTimeout = f.timeout
	if f.local {
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			if host, _, err := net.SplitHostPort(address); err == nil && isLocal(host) {
				return here.DialContext(ctx, network, address)
			}
			return dial(ctx, network, address)
		}
	}
	f.client = &http.Client{Transport: transport, CheckRedirect: f.redirect}
	return f
}

// maxRedirects is how many redirects are followed for one image.
const maxRedirects = 3

func (f *Fetcher) redirect(r *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return errors.New("too many redirects")
	}
	r.Header.Del("Referer")
	return f.check(r.URL)
}

// check says what can be seen in the URL; addresses are checked when they are
// dialled.
func (f *Fetcher) check(u *url.URL) error {
	switch {
	case u.Hostname() == "" || u.Opaque != "":
		return errors.New("the URL names no server")
	case u.User != nil:
		return errors.New("the URL holds a credential")
	case u.Scheme == "https", u.Scheme == "http" && f.local && isLocal(u.Hostname()):
		return nil
	}
	return errors.New("the URL must begin with https://")
}

// maxURL bounds the URL of an image, in bytes.
const maxURL = 8 << 10

// Fetch gets the image at a URL. Its error is for the client: it tells nothing
// of addresses.
func (f *Fetcher) Fetch(ctx context.Context, address string) (mediaType string, data []byte, err error) {
	if len(address) > maxURL {
		return "", nil, errors.New("the image's URL is too long")
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", nil, errors.New("the image's URL is no URL")
	}
	if err := f.check(u); err != nil {
		return "", nil, fmt.Errorf("the image cannot be fetched: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return "", nil, errors.New("the image's URL is no URL")
	}
	r.Header.Set("Accept", "image/*")
	r.Header.Set("User-Agent", "penstock")
	res, err := f.client.Do(r)
	if err != nil {
		return "", nil, fetchError(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return "", nil, fmt.Errorf("the image cannot be fetched: its server answers %d", res.StatusCode)
	}
	mediaType, _, err = mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil || !strings.HasPrefix(mediaType, "image/") || mediaType == "image/svg+xml" {
		return "", nil, fmt.Errorf("the URL does not lead to an image: its type is %.64q", res.Header.Get("Content-Type"))
	}
	if res.Header.Get("Content-Encoding") != "" {
		return "", nil, errors.New("the image is compressed, which was not asked for")
	}
	if res.ContentLength > f.limit {
		return "", nil, fmt.Errorf("the image is larger than the limit of %d bytes", f.limit)
	}
	data, err = io.ReadAll(io.LimitReader(res.Body, f.limit+1))
	switch {
	case err != nil:
		return "", nil, fetchError(err)
	case int64(len(data)) > f.limit:
		return "", nil, fmt.Errorf("the image is larger than the limit of %d bytes", f.limit)
	case len(data) == 0:
		return "", nil, errors.New("the image is empty")
	}
	return mediaType, data, nil
}

// fetchError keeps to itself what a name stands for and which ports are open.
func fetchError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("the image's server took too long")
	}
	return errors.New("the image cannot be fetched: its server cannot be reached")
}
