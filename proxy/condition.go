// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"cel.dev/cel-go/cel"
	"github.com/penstock/penstock/config"
)

// condition is a CEL expression of a target, compiled. It sees what the scan of
// the request found, never a decoded body. The zero value is always true.
type condition struct {
	text    string
	program cel.Program
}

// conditionVariables are what an expression may name, with their types.
func conditionVariables() []cel.EnvOption {
	text := func(name string) cel.EnvOption { return cel.Variable(name, cel.StringType) }
	number := func(name string) cel.EnvOption { return cel.Variable(name, cel.IntType) }
	truth := func(name string) cel.EnvOption { return cel.Variable(name, cel.BoolType) }
	return []cel.EnvOption{
		text("identity.tenant"), text("identity.tier"), text("identity.key"),
		text("request.model"), text("request.operation"), text("request.listener"), text("request.class"), text("request.region"), text("request.user"),
		number("request.tokens"), number("request.maxTokens"), number("request.tools"), number("request.images"),
		truth("request.stream"), truth("request.structured"), truth("request.reasoning"),
		cel.Variable("request.cost", cel.DoubleType),
		cel.Variable("request.headers", cel.MapType(cel.StringType, cel.StringType)),
	}
}

// Headers by which a client says what it is about to do; expressions see them as
// request.class and request.region. They go no further.
const (
	classHeader  = "X-Penstock-Class"
	regionHeader = "X-Penstock-Region"
)

// conditionCost bounds one evaluation, in CEL's units: a comparison is one.
const conditionCost = 10_000

// compiler compiles conditions. It is made once per configuration.
type compiler struct{ env *cel.Env }

func newCompiler() (*compiler, error) {
	env, err := cel.NewEnv(conditionVariables()...)
	return &compiler{env}, err
}

// compile checks an expression: its syntax, its names, and that it is true or
// false.
func (c *compiler) compile(text string) (condition, error) {
	if text == "" {
		return condition{}, nil
	}
	ast, issues := c.env.Compile(text)
	if issues.Err() != nil {
		e := issues.Errors()[0]
		return condition{}, fmt.Errorf("line %d, column %d: %s", e.Location.Line(), e.Location.Column()+1, e.Message)
	}
	if ast.OutputType() != cel.BoolType {
		return condition{}, fmt.Errorf("gives %s, not true or false", ast.OutputType())
	}
	p, err := c.env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(conditionCost))
	return condition{text, p}, err
}

// holds evaluates the condition. One that fails, as one that reads a header
// that is not there, does not hold.
func (c *condition) holds(v *view) (bool, error) {
	if c.program == nil {
		return true, nil
	}
	out, _, err := c.program.Eval(v)
	if err != nil {
		return false, err
	}
	yes, ok := out.Value().(bool)
	if !ok {
		return false, errors.New("gives neither true nor false")
	}
	return yes, nil
}

// view is what conditions see of an exchange (cel.Activation).
type view struct {
	x  *exchange
	tg *target // that it is asked for; nil: another model
}

// ResolveName gives the value of a variable.
func (v *view) ResolveName(name string) (any, bool) {
	x := v.x
	switch name {
	case "identity.tenant":
		return x.identity.Tenant, true
	case "identity.tier":
		return x.identity.Tier, true
	case "identity.key":
		return x.identity.Key, true
	case "request.model":
		return x.req.Model, true
	case "request.operation":
		return x.op.String(), true
	case "request.listener":
		return x.listener.name, true
	case "request.class":
		return x.r.Header.Get(classHeader), true
	case "request.region":
		return x.r.Header.Get(regionHeader), true
	case "request.user":
		return x.req.User, true
	case "request.tokens":
		return int64(x.estimate(v.tg)), true
	case "request.cost":
		return x.estimatedCost(v.tg), true
	case "request.maxTokens":
		return int64(x.req.MaxTokens), true
	case "request.tools":
		return int64(x.req.Tools), true
	case "request.images":
		return int64(x.req.Images), true
	case "request.stream":
		return x.req.Stream, true
	case "request.structured":
		return x.req.Structured, true
	case "request.reasoning":
		return x.req.Reasoning, true
	case "request.headers":
		if x.plan.headers == nil {
			x.plan.headers = shownHeaders(x.r.Header)
		}
		return x.plan.headers, true
	}
	return nil, false
}

// Parent is nil: there are no variables but those of the view.
func (v *view) Parent() cel.Activation { return nil }

// shownHeaders are the request's headers in lower case, without credentials.
func shownHeaders(h http.Header) map[string]string {
	out := make(map[string]string, len(h))
	for name, values := range h {
		if !private(name) {
			out[strings.ToLower(name)] = strings.Join(values, ", ")
		}
	}
	return out
}

// CheckConditions says what is wrong with the expressions of a configuration.
func CheckConditions(cfg *config.Config) []*config.Problem {
	var problems []*config.Problem
	c, err := newCompiler()
	if err != nil {
		return []*config.Problem{{Path: "models", What: "conditions cannot be checked: " + err.Error()}}
	}
	check := func(path, text string) {
		if _, err := c.compile(text); err != nil {
			problems = append(problems, &config.Problem{Path: path, What: "is not a condition: " + err.Error(), Hint: "an expression in CEL, such as identity.tier == 'paid' && request.tokens < 8000"})
		}
	}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		for j := range m.Targets {
			check(fmt.Sprintf("models[%d].targets[%d].when", i, j), m.Targets[j].When)
		}
		for j := range m.Fallbacks {
			check(fmt.Sprintf("models[%d].fallbacks[%d].when", i, j), m.Fallbacks[j].When)
		}
	}
	return problems
}
