// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
)

// setDefaults fills a fresh struct from its default tags, sections below it
// included. The decoder writes over it, so that a zero that was written stays.
func setDefaults(v reflect.Value) { fill(v, false) }

// SetDefaults fills every field of c that is zero and has a default: for
// sources other than a file, in which zero means unset.
func (c *Config) SetDefaults() {
	fill(reflect.ValueOf(c).Elem(), true)
	c.derive()
}

// fill sets zero fields that have a default. deep follows lists and pointers.
func fill(v reflect.Value, deep bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if deep && !v.IsNil() {
			fill(v.Elem(), deep)
		}
	case reflect.Slice:
		if deep {
			for i := range v.Len() {
				fill(v.Index(i), deep)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.Tag.Get("unset") == "inherit" {
				continue
			}
			if def, ok := f.Tag.Lookup("default"); ok && v.Field(i).IsZero() {
				if p := setScalar(v.Field(i), def); p != nil {
					panic(fmt.Sprintf("config: default of %s.%s: %v", v.Type(), f.Name, p))
				}
				continue
			}
			fill(v.Field(i), deep)
		}
	}
}

// derive sets what depends on another field.
func (c *Config) derive() {
	for i := range c.Pools {
		if c.Pools[i].Plain {
			c.Pools[i].Metrics.Off = true // there is nothing to be scraped
		}
		if p := &c.Pools[i]; p.Metrics.Path == "" {
			p.Metrics.Path = "/metrics"
			if p.Engine == TRTLLM {
				p.Metrics.Path = "/prometheus/metrics"
			}
		}
	}
	for i := range c.Providers {
		c.Providers[i].deriveBaseURL()
	}
	for i := range c.Models {
		if m := &c.Models[i]; m.ReportModel == "" && m.Alias == "" {
			m.ReportModel = "asked"
		}
	}
}
