// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package proxy

import "math"

func fileLimit() int64 { return math.MaxInt32 }
