// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package spool

import "os"

// pagesOf says that segments are written by calls here.
func pagesOf(*os.File) ([]byte, error) { return nil, nil }

func unmap([]byte) error { return nil }
