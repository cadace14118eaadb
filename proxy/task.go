// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"strings"

	"github.com/penstock/penstock/llm"
)

// The bounds of what a client may say of a task.
const maxTask = 128

// readTask notes the task that the request is part of, and how the task went if
// the request says so.
func (x *exchange) readTask() *llm.Error {
	name := x.table.cfg.Ledger.TaskHeader
	if name == "" {
		return nil
	}
	id, outcome := x.r.Header.Get(name), x.r.Header.Get(name+"-Outcome")
	if id == "" && outcome == "" {
		return nil
	}
	switch {
	case id == "":
		return badTask(name + "-outcome is the outcome of a task, and " + name + " does not name one")
	case !plainTask(id):
		return badTask(name + " must be up to 128 letters, digits and the signs - _ . : / + =")
	case outcome != "" && outcome != "success" && outcome != "failure":
		return badTask(name + "-outcome must be success or failure")
	}
	x.record.Task, x.record.Outcome = id, outcome
	return nil
}

func badTask(message string) *llm.Error {
	return &llm.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "invalid_task", Message: message}
}

func plainTask(id string) bool {
	if len(id) > maxTask {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && strings.IndexByte("-_.:/+=", c) < 0 {
			return false
		}
	}
	return true
}

// ofTask says that a request header, its underscores read as dashes, is about
// tasks, and so never reaches a server.
func (x *exchange) ofTask(name string) bool {
	task := x.table.cfg.Ledger.TaskHeader
	if len(name) < len(task) || !strings.EqualFold(name[:len(task)], task) {
		return false
	}
	rest := name[len(task):]
	return rest == "" || strings.EqualFold(rest, "-outcome")
}
