// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package bench

// RaiseFileLimit does nothing where there is no such limit.
func RaiseFileLimit(n uint64) (uint64, error) { return n, nil }
