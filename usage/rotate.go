// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// turn sets the file aside as path.1 when it is large enough, the one before as
// path.2 and so on, and begins a new one. A file that was turned ends with a whole
// record. When that fails the old file stays in use, and grows.
func (l *Log) turn() error {
	if l.file == nil || l.rotate.Size == 0 || l.size < int64(l.rotate.Size) {
		return nil
	}
	if st, err := l.file.Stat(); err != nil || !st.Mode().IsRegular() {
		return err // a pipe has no size
	}
	name := func(i int) string { return fmt.Sprintf("%s.%d", l.path, i) }
	for i := l.rotate.Keep; i > 1; i-- {
		if err := os.Rename(name(i-1), name(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(l.path, name(1)); err != nil {
		return err
	}
	f, _, err := openFile(l.path)
	if err != nil {
		return err // what is written goes on into path.1
	}
	l.file.Close()
	l.file, l.out, l.torn, l.size = f, f, false, 0
	return nil
}

// sizeOf is the size of f, 0 if nobody can say.
func sizeOf(f *os.File) int64 {
	st, err := f.Stat()
	if err != nil {
		return 0
	}
	return st.Size()
}
