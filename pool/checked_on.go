// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package pool

// checked turns the invariant checks on.
const checked = true
