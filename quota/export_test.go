// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota

// Die ends what the limiter does in the background, as if its gateway had been
// killed: nothing that it holds is settled or renewed any more.
func (l *Limiter) Die() {
	k := l.keeper.Load()
	k.end.Do(func() { close(k.ending) })
}

// Retakes says that r was taken before.
func Retakes(r *Reservation) bool { return r.retake }
