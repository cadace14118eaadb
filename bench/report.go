// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Origin says what a report was made with.
type Origin struct {
	Version  string `json:"version"` // of the program, with the commit if known
	Go       string `json:"go"`
	Platform string `json:"platform"`
	CPUs     int    `json:"cpus"`
}

// ThisProgram is the Origin of what it measures.
func ThisProgram() Origin {
	o := Origin{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU()}
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return o
	}
	o.Version = b.Main.Version
	for _, s := range b.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			o.Version += " " + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			o.Version += "+dirty"
		}
	}
	return o
}

func (o Origin) String() string {
	return fmt.Sprintf("penstock %s, %s, %s, %d CPUs", o.Version, o.Go, o.Platform, o.CPUs)
}

// Format is how a report is written.
type Format string

// The formats.
const (
	Text     Format = "table"
	Markdown Format = "markdown"
	JSON     Format = "json"
)

// ParseFormat checks a format's name.
func ParseFormat(s string) (Format, error) {
	switch f := Format(s); f {
	case Text, Markdown, JSON:
		return f, nil
	}
	return "", fmt.Errorf("unknown output format %q; table, markdown and json are known", s)
}

// Table is a report in rows.
type Table struct {
	Title string
	Head  []string
	Rows  [][]string
}

// Write writes the table as aligned text or as Markdown: the first column to
// the left, the others to the right.
func (t *Table) Write(w io.Writer, f Format) error {
	width := make([]int, len(t.Head))
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	line := func(row []string) {
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			switch {
			case f == Markdown && i == 0:
				b.WriteString("| " + cell + pad + " |")
			case f == Markdown:
				b.WriteString(" " + pad + cell + " |")
			case i == 0:
				b.WriteString(cell + pad)
			default:
				b.WriteString("  " + pad + cell)
			}
		}
		b.WriteByte('\n')
	}
	if t.Title != "" {
		if f == Markdown {
			b.WriteString("### ")
		}
		b.WriteString(t.Title + "\n")
		if f == Markdown {
			b.WriteByte('\n')
		}
	}
	line(t.Head)
	if f == Markdown {
		b.WriteString("|" + strings.Repeat("---|", len(t.Head)) + "\n")
	}
	for _, row := range t.Rows {
		line(row)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes v indented.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// RaceReport is every result of a race.
type RaceReport struct {
	Origin  Origin    `json:"origin"`
	Preset  string    `json:"preset"`
	Seeds   []uint64  `json:"seeds"`
	Results []*Result `json:"results"`
}

// raceRow is one policy on one workload at one load, over the seeds.
type raceRow struct {
	policy  string
	results []*Result
}

func (r raceRow) mean(f func(*Result) float64) float64 {
	sum := 0.0
	for _, x := range r.results {
		sum += f(x)
	}
	return sum / float64(len(r.results))
}

// Write writes a summary over the workloads and a table for each workload and
// load: means over the seeds.
func (r *RaceReport) Write(w io.Writer, f Format) error {
	if f == JSON {
		return WriteJSON(w, r)
	}
	fmt.Fprintf(w, "%s; preset %s; seeds %s; virtual time\n\n", r.Origin, r.Preset, joinSeeds(r.Seeds))
	policies, workloads, loads := r.axes()
	if len(workloads) > 1 {
		for _, load := range loads {
			t := r.matrix(fmt.Sprintf("goodput %%, load %g", load), policies, workloads, load, func(x *Result) float64 { return 100 * x.Goodput() })
			if err := t.Write(w, f); err != nil {
				return err
			}
			t = r.matrix(fmt.Sprintf("TTFT p90 s, load %g", load), policies, workloads, load, func(x *Result) float64 { return x.TTFT.P90 })
			if err := t.Write(w, f); err != nil {
				return err
			}
		}
	}
	for _, name := range workloads {
		for _, load := range loads {
			if err := r.detail(policies, name, load).Write(w, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// axes are what occurs in the results, in the order of its first occurrence.
func (r *RaceReport) axes() (policies, workloads []string, loads []float64) {
	for _, x := range r.Results {
		if !slices.Contains(policies, x.Policy) {
			policies = append(policies, x.Policy)
		}
		if !slices.Contains(workloads, x.Workload) {
			workloads = append(workloads, x.Workload)
		}
		if !slices.Contains(loads, x.Load) {
			loads = append(loads, x.Load)
		}
	}
	return policies, workloads, loads
}

func (r *RaceReport) row(policy, workload string, load float64) raceRow {
	row := raceRow{policy: policy}
	for _, x := range r.Results {
		if x.Policy == policy && x.Workload == workload && x.Load == load {
			row.results = append(row.results, x)
		}
	}
	return row
}

// matrix is policies by workloads, with the mean and the worst of each policy.
func (r *RaceReport) matrix(title string, policies, workloads []string, load float64, f func(*Result) float64) *Table {
	t := &Table{Title: title, Head: append([]string{"policy", "mean"}, workloads...)}
	for _, p := range policies {
		var cells []string
		sum := 0.0
		for _, name := range workloads {
			row := r.row(p, name, load)
			if len(row.results) == 0 {
				cells = append(cells, "-")
				continue
			}
			v := row.mean(f)
			sum += v
			cells = append(cells, decimals(v))
		}
		t.Rows = append(t.Rows, append([]string{p, decimals(sum / float64(len(workloads)))}, cells...))
	}
	return t
}

func (r *RaceReport) detail(policies []string, workload string, load float64) *Table {
	t := &Table{
		Title: fmt.Sprintf("%s, load %g", workload, load),
		Head: []string{"policy", "goodput %", "min..max", "success %", "TTFT p50 s", "p90", "p99", "TPOT p50 ms", "p90",
			"hit %", "out tok/s", "max/median", "max queue", "requests"},
	}
	for _, p := range policies {
		row := r.row(p, workload, load)
		if len(row.results) == 0 {
			continue
		}
		low, high := 1.0, 0.0
		for _, x := range row.results {
			low, high = min(low, x.Goodput()), max(high, x.Goodput())
		}
		t.Rows = append(t.Rows, []string{
			p,
			decimals(100 * row.mean((*Result).Goodput)),
			fmt.Sprintf("%.0f..%.0f", 100*low, 100*high),
			decimals(100 * row.mean(func(x *Result) float64 { return ratio(x.Answered, x.Offered) })),
			decimals(row.mean(func(x *Result) float64 { return x.TTFT.P50 })),
			decimals(row.mean(func(x *Result) float64 { return x.TTFT.P90 })),
			decimals(row.mean(func(x *Result) float64 { return x.TTFT.P99 })),
			decimals(1000 * row.mean(func(x *Result) float64 { return x.TPOT.P50 })),
			decimals(1000 * row.mean(func(x *Result) float64 { return x.TPOT.P90 })),
			decimals(100 * row.mean((*Result).HitRate)),
			fmt.Sprintf("%.0f", row.mean(func(x *Result) float64 { return x.OutputRate })),
			fmt.Sprintf("%.2f", row.mean(func(x *Result) float64 { return x.Balance })),
			fmt.Sprintf("%.0f", row.mean(func(x *Result) float64 { return float64(x.MaxQueue) })),
			fmt.Sprintf("%.0f", row.mean(func(x *Result) float64 { return float64(x.Offered) })),
		})
	}
	return t
}

// decimals is a number with three digits or so.
func decimals(v float64) string {
	switch {
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

func joinSeeds(seeds []uint64) string {
	var s []string
	for _, x := range seeds {
		s = append(s, strconv.FormatUint(x, 10))
	}
	return strings.Join(s, ",")
}

// LoadReport is the result of a [Load].
type LoadReport struct {
	Origin Origin `json:"origin"`
	*LoadResult
}

// Write writes it.
func (r *LoadReport) Write(w io.Writer, f Format) error {
	if f == JSON {
		return WriteJSON(w, r)
	}
	fmt.Fprintf(w, "%s; %s; workload %s; seed %d; stream %t\n\n", r.Origin, r.URL, r.Workload, r.Seed, r.Stream)
	t := Table{Head: []string{"requests", "ok", "failed", "untruthful", "seconds", "req/s", "out tok/s", "prompt tok", "cached tok", "hit %"}}
	t.Rows = [][]string{{
		strconv.Itoa(r.Requests), strconv.Itoa(r.Succeeded), strconv.Itoa(r.Requests - r.Succeeded), strconv.Itoa(r.Untruthful),
		decimals(r.Seconds), decimals(r.RequestRate), decimals(r.OutputRate),
		strconv.Itoa(r.PromptTokens), strconv.Itoa(r.CachedTokens), decimals(100 * ratio(r.CachedTokens, r.PromptTokens)),
	}}
	if err := t.Write(w, f); err != nil {
		return err
	}
	t = Table{Head: []string{"time", "p50", "p90", "p99"}}
	for _, x := range []struct {
		name   string
		q      Quantiles
		factor float64
	}{{"TTFT s", r.TTFT, 1}, {"TPOT ms", r.TPOT, 1000}, {"total s", r.Total, 1}} {
		row := []string{x.name, "-", "-", "-"}
		if x.q != (Quantiles{}) { // else there was nothing to measure
			row = []string{x.name, decimals(x.q.P50 * x.factor), decimals(x.q.P90 * x.factor), decimals(x.q.P99 * x.factor)}
		}
		t.Rows = append(t.Rows, row)
	}
	if err := t.Write(w, f); err != nil {
		return err
	}
	return writeFailures(w, f, r.Failures, r.Example)
}

func writeFailures(w io.Writer, f Format, failures map[Failure]int, example string) error {
	if len(failures) == 0 {
		return nil
	}
	t := Table{Head: []string{"failure", "count"}}
	for kind, n := range failures {
		t.Rows = append(t.Rows, []string{string(kind), strconv.Itoa(n)})
	}
	slices.SortFunc(t.Rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	if err := t.Write(w, f); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "first failure: %s\n", example)
	return err
}

// StreamsReport is the result of [Streams].
type StreamsReport struct {
	Origin Origin `json:"origin"`
	*StreamsResult
}

// Write writes it.
func (r *StreamsReport) Write(w io.Writer, f Format) error {
	if f == JSON {
		return WriteJSON(w, r)
	}
	fmt.Fprintf(w, "%s\n\n", r.Origin)
	t := Table{Head: []string{"asked", "opened", "held", "finished", "chunks", "opened in s"}, Rows: [][]string{{
		strconv.Itoa(r.Asked), strconv.Itoa(r.Opened), strconv.Itoa(r.Held), strconv.Itoa(r.Finished),
		strconv.FormatInt(r.Chunks, 10), decimals(r.OpenedIn)}}}
	if err := t.Write(w, f); err != nil {
		return err
	}
	return writeFailures(w, f, r.Failures, r.Example)
}

// SystemReport is the result of the system benches.
type SystemReport struct {
	Origin  Origin   `json:"origin"`
	Figures []Figure `json:"figures"`
}

// Over says whether a figure is beyond its budget.
func (r *SystemReport) Over() bool {
	return slices.ContainsFunc(r.Figures, func(f Figure) bool { return f.Over })
}

// Write writes it.
func (r *SystemReport) Write(w io.Writer, f Format) error {
	if f == JSON {
		return WriteJSON(w, r)
	}
	fmt.Fprintf(w, "%s\n\n", r.Origin)
	t := Table{Head: []string{"measure", "proxy", "value", "unit", "ratio", "budget", "verdict", "note"}}
	for _, x := range r.Figures {
		ratio, verdict := "", ""
		if x.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", x.Ratio)
		}
		if x.Budget != "" {
			verdict = "pass"
			if x.Over {
				verdict = "FAIL"
			}
		}
		t.Rows = append(t.Rows, []string{x.Measure, x.Proxy, decimals(x.Value), x.Unit, ratio, x.Budget, verdict, x.Note})
	}
	return t.Write(w, f)
}
