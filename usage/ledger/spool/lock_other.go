// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package spool

import (
	"fmt"
	"os"
	"path/filepath"
)

// lockDirectory only opens the file: that dir is this process's alone is not
// checked here.
func lockDirectory(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	return f, nil
}
