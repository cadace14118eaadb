// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
)

// The bodies of requests and the lists of answers. Their keys are read and
// written by package config, as those of a configuration are.
type (
	// NewTenant is a tenant that is to be made.
	NewTenant struct {
		Path string          `yaml:"path"`
		Spec auth.TenantSpec `yaml:"spec"`
	}
	// TenantChange replaces what is said of a tenant.
	TenantChange struct {
		Spec auth.TenantSpec `yaml:"spec"`
	}
	// NewKey is a key that is to be made.
	NewKey struct {
		Tenant string       `yaml:"tenant"`
		Name   string       `yaml:"name"`
		Spec   auth.KeySpec `yaml:"spec"`
	}
	// KeyChange replaces what is said of a key.
	KeyChange struct {
		Spec auth.KeySpec `yaml:"spec"`
	}
	// Rotation draws a new secret.
	Rotation struct {
		Grace config.Duration `yaml:"grace" default:"24h" min:"0s" max:"2160h"` // that the older ones are taken
	}
	// TenantList is a page of tenants.
	TenantList struct {
		Items []auth.Tenant `yaml:"items"`
		Next  string        `yaml:"next"` // cursor of the next page; empty: there is none
	}
	// KeyList is a page of keys.
	KeyList struct {
		Items []auth.Key `yaml:"items"`
		Next  string     `yaml:"next"`
	}
	// AuditList is a page of edits, newest first.
	AuditList struct {
		Items []auth.AuditRow `yaml:"items"`
		Next  string          `yaml:"next"`
	}
)

const (
	tenantsPath = "/api/v1/tenants"
	tenantPath  = "/api/v1/tenants/{path...}"
	keysPath    = "/api/v1/keys"
	keyPath     = "/api/v1/keys/{id}"
)

// routes are the operations of the API, those alone that there is something for.
func routes(o *Options) []route {
	tenant, key := reflect.TypeFor[auth.Tenant](), reflect.TypeFor[auth.Key]()
	list := []route{
		{method: http.MethodGet, path: tenantsPath, id: "listTenants", summary: "tenants by path; under: those at and below one", role: Viewer,
			query: []string{"under", "limit", "cursor"}, status: http.StatusOK, answer: reflect.TypeFor[TenantList](), do: listTenants},
		{method: http.MethodPost, path: tenantsPath, id: "createTenant", summary: "make a tenant", role: Admin,
			query: []string{"dryRun"}, body: reflect.TypeFor[NewTenant](), status: http.StatusCreated, answer: tenant, do: createTenant},
		{method: http.MethodGet, path: tenantPath, id: "getTenant", summary: "one tenant", role: Viewer,
			status: http.StatusOK, answer: tenant, do: getTenant},
		{method: http.MethodPut, path: tenantPath, id: "updateTenant", summary: "replace what is said of a tenant", role: Admin, guarded: true,
			query: []string{"dryRun"}, body: reflect.TypeFor[TenantChange](), status: http.StatusOK, answer: tenant, do: updateTenant},
		{method: http.MethodDelete, path: tenantPath, id: "deleteTenant", summary: "delete a tenant with nothing below it", role: Admin, guarded: true,
			query: []string{"dryRun"}, status: http.StatusNoContent, do: deleteTenant},
		{method: http.MethodGet, path: keysPath, id: "listKeys", summary: "keys that are not revoked; tenant: those of one and below it", role: Viewer,
			query: []string{"tenant", "limit", "cursor"}, status: http.StatusOK, answer: reflect.TypeFor[KeyList](), do: listKeys},
		{method: http.MethodPost, path: keysPath, id: "createKey", summary: "make a key; its secret is in this answer and nowhere else", role: Operator,
			query: []string{"dryRun"}, body: reflect.TypeFor[NewKey](), status: http.StatusCreated, answer: key, do: createKey},
		{method: http.MethodGet, path: keyPath, id: "getKey", summary: "one key, by its id or TENANT:NAME", role: Viewer,
			status: http.StatusOK, answer: key, do: getKey},
		{method: http.MethodPut, path: keyPath, id: "updateKey", summary: "replace what is said of a key", role: Operator, guarded: true,
			query: []string{"dryRun"}, body: reflect.TypeFor[KeyChange](), status: http.StatusOK, answer: key, do: updateKey},
		{method: http.MethodPost, path: keyPath + "/rotate", id: "rotateKey", summary: "draw a further secret; the older ones end after the grace", role: Operator,
			query: []string{"dryRun"}, body: reflect.TypeFor[Rotation](), status: http.StatusOK, answer: key, do: rotateKey},
		{method: http.MethodPost, path: keyPath + "/revoke", id: "revokeKey", summary: "end a key for good", role: Operator,
			query: []string{"dryRun"}, status: http.StatusOK, answer: key, do: act(auth.RevokeKey)},
		{method: http.MethodPost, path: keyPath + "/disable", id: "disableKey", summary: "take a key no more until it is enabled", role: Operator,
			query: []string{"dryRun"}, status: http.StatusOK, answer: key, do: act(auth.DisableKey)},
		{method: http.MethodPost, path: keyPath + "/enable", id: "enableKey", summary: "take a disabled key again", role: Operator,
			query: []string{"dryRun"}, status: http.StatusOK, answer: key, do: act(auth.EnableKey)},
		{method: http.MethodGet, path: "/api/v1/audit", id: "listAudit", summary: "edits that were made, newest first", role: Admin,
			query: []string{"limit", "cursor"}, status: http.StatusOK, answer: reflect.TypeFor[AuditList](), do: listAudit},
	}
	if o.Limits != nil {
		list = append(list, route{method: http.MethodGet, path: "/api/v1/limits", id: "listLimits", role: Viewer,
			summary: "limits with what of them is in use and left; a page has those of at most limit nodes",
			query:   []string{"tenant", "unit", "limit", "cursor"}, status: http.StatusOK, answer: reflect.TypeFor[LimitList](), do: listLimits})
	}
	if o.Prices != nil {
		list = append(list, route{method: http.MethodGet, path: "/api/v1/prices", id: "getPrices", summary: "prices in force", role: Viewer,
			query: o.PricesQuery, status: http.StatusOK, answer: reflect.TypeFor[any](), do: func(c *call) (any, error) { return asked(c, o.Prices) }})
	}
	if o.Usage != nil {
		list = append(list, route{method: http.MethodGet, path: "/api/v1/usage", id: "getUsage", summary: "usage from the ledger", role: Viewer,
			query: o.UsageQuery, status: http.StatusOK, answer: reflect.TypeFor[any](), do: func(c *call) (any, error) { return asked(c, o.Usage) }})
	}
	return list
}

// asked answers with what a function of the options gives.
func asked(c *call, f Asked) (any, error) {
	v, err := f(c.r.Context(), c.query)
	var bad *BadQuery
	if errors.As(err, &bad) {
		return nil, invalid("", bad.Message, "")
	}
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(v)
	return json.RawMessage(raw), err
}

func listTenants(c *call) (any, error) {
	p, err := c.page()
	if err != nil {
		return nil, err
	}
	p.Tenant, p.Limit = c.query.Get("under"), p.Limit+1 // one more tells whether there is a next page
	items, err := c.tenancy.Tenants(c.r.Context(), p)
	if err != nil {
		return nil, err
	}
	out := TenantList{Items: items}
	if len(items) == p.Limit {
		out.Items = items[:p.Limit-1]
		out.Next = cursor(out.Items[len(out.Items)-1].Path)
	}
	if out.Items == nil {
		out.Items = []auth.Tenant{}
	}
	return out, nil
}

func getTenant(c *call) (any, error) {
	t, err := c.tenancy.Tenant(c.r.Context(), c.r.PathValue("path"))
	if err != nil {
		return nil, err
	}
	c.tag(t.Revision)
	return t, nil
}

// tenantEdit makes an edit of a tenant and answers with what there is then.
func (c *call) tenantEdit(e auth.Edit) (any, error) {
	out, err := c.edit(e)
	if err != nil {
		return nil, err
	}
	c.tag(out.Tenant.Revision)
	return out.Tenant, nil
}

func createTenant(c *call) (any, error) {
	in := c.body.(*NewTenant)
	if in.Path == "" {
		return nil, invalid("path", "is missing", "name the tenant below those above it: acme, or acme/search")
	}
	c.w.Header().Set("Location", tenantsPath+"/"+in.Path)
	return c.tenantEdit(auth.Edit{Action: auth.CreateTenant, Target: in.Path, Tenant: &in.Spec})
}

func updateTenant(c *call) (any, error) {
	in := c.body.(*TenantChange)
	return c.tenantEdit(auth.Edit{Action: auth.UpdateTenant, Target: c.r.PathValue("path"), Tenant: &in.Spec})
}

func deleteTenant(c *call) (any, error) {
	_, err := c.edit(auth.Edit{Action: auth.DeleteTenant, Target: c.r.PathValue("path")})
	return nil, err
}

func listKeys(c *call) (any, error) {
	p, err := c.page()
	if err != nil {
		return nil, err
	}
	p.Tenant, p.Limit = c.query.Get("tenant"), p.Limit+1
	items, err := c.tenancy.Keys(c.r.Context(), p)
	if err != nil {
		return nil, err
	}
	out := KeyList{Items: items}
	if len(items) == p.Limit {
		out.Items = items[:p.Limit-1]
		out.Next = cursor(out.Items[len(out.Items)-1].ID)
	}
	if out.Items == nil {
		out.Items = []auth.Key{}
	}
	return out, nil
}

func getKey(c *call) (any, error) {
	k, err := c.tenancy.Key(c.r.Context(), c.r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	c.tag(k.Revision)
	return k, nil
}

func (c *call) keyEdit(e auth.Edit) (any, error) {
	out, err := c.edit(e)
	if err != nil {
		return nil, err
	}
	c.tag(out.Key.Revision)
	return out.Key, nil
}

func createKey(c *call) (any, error) {
	in := c.body.(*NewKey)
	switch "" {
	case in.Tenant:
		return nil, invalid("tenant", "is missing", "name the tenant whose key it is, by its path")
	case in.Name:
		return nil, invalid("name", "is missing", "name the key, for records and lists")
	}
	return c.keyEdit(auth.Edit{Action: auth.CreateKey, Target: in.Tenant, Name: in.Name, Key: &in.Spec})
}

func updateKey(c *call) (any, error) {
	in := c.body.(*KeyChange)
	return c.keyEdit(auth.Edit{Action: auth.UpdateKey, Target: c.r.PathValue("id"), Key: &in.Spec})
}

func rotateKey(c *call) (any, error) {
	grace := c.body.(*Rotation).Grace.D()
	if grace < 0 || grace > 90*24*time.Hour {
		return nil, invalid("grace", "must be between 0s and 2160h", "")
	}
	return c.keyEdit(auth.Edit{Action: auth.RotateKey, Target: c.r.PathValue("id"), Grace: grace})
}

// act is an edit that needs no body.
func act(a auth.Action) func(*call) (any, error) {
	return func(c *call) (any, error) { return c.keyEdit(auth.Edit{Action: a, Target: c.r.PathValue("id")}) }
}

func listAudit(c *call) (any, error) {
	p, err := c.page()
	if err != nil {
		return nil, err
	}
	before := 0
	if p.After != "" {
		if before, err = strconv.Atoi(p.After); err != nil || before < 1 {
			return nil, invalid("cursor", "is none that was given out", "take next from the answer before, or leave it out")
		}
	}
	items, err := c.tenancy.Audit(c.r.Context(), before, p.Limit+1)
	if err != nil {
		return nil, err
	}
	out := AuditList{Items: items}
	if len(items) > p.Limit {
		out.Items = items[:p.Limit]
		out.Next = cursor(strconv.Itoa(out.Items[p.Limit-1].Seq))
	}
	if out.Items == nil {
		out.Items = []auth.AuditRow{}
	}
	return out, nil
}
