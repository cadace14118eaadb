// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import "reflect"

// ParseMembers reads a members file (see [Members].File): a YAML list whose
// entries are "host:port" or {address: …, labels: {…}}. name stands for the
// file in positions. The list may be empty: every member has gone.
func ParseMembers(name string, text []byte) ([]Member, error) {
	root, ps := readTree(name, text)
	if root == nil {
		return nil, ps
	}
	d := newDecoder(name, nil)
	var list []Member
	d.decode(root, reflect.ValueOf(&list).Elem(), scope{})
	if len(d.problems) > 0 {
		return nil, d.problems
	}
	ps = checkMembers(list)
	for _, p := range ps {
		p.File = name
		p.Line, p.Col = root.place(p.Path)
	}
	if len(ps) > 0 {
		return nil, ps
	}
	return list, nil
}

// Equal says whether two pools are configured alike.
func (p Pool) Equal(q Pool) bool { return reflect.DeepEqual(p, q) }

// PickerSet is the name of the set of endpoints of a pool's remote picker, as
// the pool's own name is that of its members: sets come from the control plane
// by name (see [Members].External and [RemotePicker].External).
func PickerSet(pool string) string { return pool + "/picker" }
