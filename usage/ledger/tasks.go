// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Outcomes of a task.
const (
	Success = "success"
	Failure = "failure"
)

// Tasks is what the tasks of an answer came to. A task belongs to a tenant: two
// tenants may use the same id.
type Tasks struct {
	Tasks     int64 `json:"tasks"`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed"`
	Unknown   int64 `json:"unknown"`  // nobody has said how they went
	Cost      Money `json:"cost"`     // of all of them, whatever became of them
	Unpriced  int64 `json:"unpriced"` // rows of them without a known cost
	// PerSuccess is the cost of all tasks for each that succeeded; nil: none did.
	PerSuccess *Money `json:"costPerSuccess"`
}

// SetOutcome notes how a task of a tenant went. The last word counts.
func (l *Ledger) SetOutcome(tenant, task, outcome string) error {
	switch {
	case task == "" || len(task) > maxText || cleanText(task) != task:
		return fmt.Errorf("%.64q is not the id of a task", task)
	case outcome != Success && outcome != Failure:
		return fmt.Errorf("the outcome of a task is success or failure, not %.64q", outcome)
	}
	l.put(item{outcome: &Row{
		Names: Names{What: OfOutcome, Tenant: tenant, Outcome: outcome},
		At:    time.Now().UnixMicro(), Task: task, Cost: Amount{Known: true},
	}})
	return nil
}

// lastOutcome is how the rows of a task say that it went: 1 for success, 2 for
// failure, 0 for nothing. The newest one that says something counts.
const lastOutcome = "coalesce(max(CASE n.outcome WHEN 'success' THEN r.at * 4 + 1 WHEN 'failure' THEN r.at * 4 + 2 END) % 4, 0)"

// tasks is what the tasks that q is about came to.
func (s *store) tasks(ctx context.Context, q *Query) (*Tasks, error) {
	var st statement
	st.text.WriteString(`SELECT count(*), coalesce(sum(CASE went WHEN 1 THEN 1 ELSE 0 END), 0), coalesce(sum(CASE went WHEN 2 THEN 1 ELSE 0 END), 0),
CAST(coalesce(sum(micro), 0) AS BIGINT), CAST(coalesce(sum(pico), 0) AS BIGINT), CAST(coalesce(sum(unpriced), 0) AS BIGINT) FROM (
SELECT ` + lastOutcome + ` AS went, coalesce(sum(r.cost / 1000000), 0) AS micro, coalesce(sum(r.cost % 1000000), 0) AS pico,
sum(CASE WHEN r.cost IS NULL THEN 1 ELSE 0 END) AS unpriced`)
	all := *q
	all.By, all.tasks = nil, true
	st.where(&all)
	st.text.WriteString(" GROUP BY n.tenant, r.task) AS t")
	t := &Tasks{}
	err := s.db.QueryRowContext(ctx, st.text.String(), st.args...).Scan(&t.Tasks, &t.Succeeded, &t.Failed, &t.Cost.Micro, &t.Cost.Pico, &t.Unpriced)
	if err != nil {
		return nil, s.wrap(err)
	}
	t.Unknown = t.Tasks - t.Succeeded - t.Failed
	if t.Succeeded > 0 {
		each := t.Cost.over(t.Succeeded)
		t.PerSuccess = &each
	}
	return t, nil
}

// outcomes says that rows that only tell how a task went have a place in q: they
// have a tenant and a task, and nothing else.
func (q *Query) outcomes() bool {
	if !q.byTask() {
		return false
	}
	for _, name := range q.By {
		if name != "tenant" && name != "org" && name != "task" {
			return false
		}
	}
	return true
}

// byTask says that q is about tasks, whose rows without one are left out.
func (q *Query) byTask() bool { return q.tasks || slices.Contains(q.By, "task") }
