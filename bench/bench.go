// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package bench measures: workloads with seeds, a race of picking policies in
// virtual time over simulated engines, a load generator over real HTTP, and
// comparisons of whole processes in one run.
//
// It knows nothing of Penstock, only package sim, so that a fault of the
// product cannot hide in its own measurement: what is to be measured comes in
// through [Chooser] or through a socket. Start reading at [Run.Do] for the
// race and at [Load.Do] for the generator.
//
// Always true: equal seeds give equal sessions under every policy; percentiles
// are exact, from the sorted samples; a request that failed counts.
package bench
