// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package auth

// raced says that the race detector is on, under which pools forget.
const raced = true
