// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
)

// message reads the blocks of one message; at is its path in errors.
func (l anthropicContent) message(role, at string, secret *sealer) (message, *problem) {
	m := message{role: role}
	for i, b := range l {
		at := fmt.Sprintf("%s.content.%d", at, i)
		if role == "system" {
			at = fmt.Sprintf("system.%d", i)
		}
		r := block{mark: b.Cache != nil}
		misplaced := role == "system" && b.Type != "text"
		switch b.Type {
		case "text":
			r.kind = "text"
			switch {
			case b.Text == nil:
				return m, invalidField(at, at+".text: Field required")
			case *b.Text == "":
				return m, invalidField(at, listOf(role)+": text content blocks must be non-empty")
			case strings.TrimSpace(*b.Text) == "":
				return m, invalidField(at, listOf(role)+": text content blocks must contain non-whitespace text")
			}
			r.text = *b.Text
		case "image", "document":
			misplaced = misplaced || role == "assistant"
			r.kind = map[string]string{"image": "image", "document": "file"}[b.Type]
			if b.Source == nil {
				return m, invalidField(at, at+"."+b.Type+".source: Field required")
			}
			r.text = b.Source.Data + b.Source.URL + b.Source.FileID
			if b.Type == "image" && b.Source.Type == "base64" &&
				!slices.Contains([]string{"image/jpeg", "image/png", "image/gif", "image/webp"}, b.Source.MediaType) {
				return m, invalidField(at, at+".image.source.base64.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'")
			}
			if r.text == "" {
				return m, invalidField(at, at+"."+b.Type+".source: Field required")
			}
		case "tool_use":
			misplaced = misplaced || role != "assistant"
			r.kind, r.id, r.name, r.text = "call", b.ID, b.Name, string(b.Input)
			if !strings.HasPrefix(r.text, "{") {
				return m, invalidField(at, at+".tool_use.input: Input should be a valid dictionary")
			}
			if !toolName.MatchString(b.ID) {
				return m, invalidField(at, at+".tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
			}
			if b.Name == "" {
				return m, invalidField(at, at+".tool_use.name: Field required")
			}
		case "tool_result":
			misplaced = misplaced || role != "user"
			r.kind, r.id = "result", b.ToolUseID
			if b.ToolUseID == "" {
				return m, invalidField(at, at+".tool_result.tool_use_id: Field required")
			}
			inner, bad := b.Content.message("user", at, secret)
			if bad != nil {
				return m, bad
			}
			for _, x := range inner.blocks {
				if x.kind != "text" {
					m.blocks = append(m.blocks, x)
					continue
				}
				r.text += x.text
			}
		case "thinking":
			misplaced = misplaced || role != "assistant"
			r.kind, r.text = "reasoning", b.Thinking
			if b.Signature == "" {
				return m, invalidField(at, at+".thinking.signature: Field required")
			}
			if !secret.verify(b.Thinking, b.Signature) {
				return m, invalidField(at, at+": Invalid `signature` in `thinking` block")
			}
		case "redacted_thinking":
			misplaced = misplaced || role != "assistant"
			text, err := secret.open(b.Data)
			if err != nil {
				return m, invalidField(at, at+": Invalid `data` in `redacted_thinking` block")
			}
			r.kind, r.text = "reasoning", text
		case "search_result", "server_tool_use", "web_search_tool_result", "container_upload":
			r.kind = "text"
		default:
			return m, invalidField(at, at+": Input tag '"+b.Type+"' found using 'type' does not match any of the expected tags")
		}
		if misplaced {
			return m, invalidField(at, fmt.Sprintf("%s: `%s` blocks are not permitted in %s messages", at, b.Type, role))
		}
		m.blocks = append(m.blocks, r)
	}
	return m, nil
}

// listOf is the list that an error of a text block names.
func listOf(role string) string {
	if role == "system" {
		return "system"
	}
	return "messages"
}

// merged are the messages with those of one role after another joined, as the
// API reads them; at are their places in the request.
func (req *anthropicRequest) merged() (all []anthropicMessage, at []int, bad *problem) {
	for i, m := range req.Messages {
		path := fmt.Sprintf("messages.%d", i)
		switch {
		case m.Role == "":
			return nil, nil, invalidField(path, path+".role: Field required")
		case m.Role != "user" && m.Role != "assistant":
			return nil, nil, invalidField(path, path+": Unexpected role \""+truncate(m.Role, 40)+"\". Allowed roles are \"user\" or \"assistant\"")
		case i == 0 && m.Role != "user":
			return nil, nil, invalidField("messages", "messages: first message must use the \"user\" role")
		case len(m.Content) == 0 && (i < len(req.Messages)-1 || m.Role == "user"):
			return nil, nil, invalidField(path, path+": all messages must have non-empty content except for the optional final assistant message")
		}
		if n := len(all); n > 0 && all[n-1].Role == m.Role {
			all[n-1].Content = slices.Concat(all[n-1].Content, m.Content)
			continue
		}
		all, at = append(all, m), append(at, i)
	}
	return all, at, nil
}

// conversation reads the messages and checks how they follow one another.
func (req *anthropicRequest) conversation(t *turn, secret *sealer) *problem {
	all, at, bad := req.merged()
	if bad != nil {
		return bad
	}
	var called []string // ids of the last message that wait for results
	path := ""
	for i, m := range all {
		path = fmt.Sprintf("messages.%d", at[i])
		read, bad := m.Content.message(m.Role, path, secret)
		if bad != nil {
			return bad
		}
		if bad := results(&called, read, path); bad != nil {
			return bad
		}
		for _, b := range read.blocks {
			if b.kind == "call" {
				if slices.Contains(called, b.id) {
					return invalidField(path, "messages: `tool_use` ids must be unique")
				}
				called = append(called, b.id)
			}
		}
		if t.thinking && read.role == "assistant" && len(read.blocks) > 0 && read.blocks[0].kind == "call" {
			return invalidField(path, path+".content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceding the lastmost set of `tool_use` and `tool_result` blocks).")
		}
		t.messages = append(t.messages, apart(read)...)
	}
	if len(called) > 0 {
		return unanswered(path, called)
	}
	if final := t.messages[len(t.messages)-1]; final.role == "assistant" && len(final.blocks) > 0 {
		if b := final.blocks[len(final.blocks)-1]; b.kind == "text" && strings.TrimRight(b.text, " \n\t") != b.text {
			return invalidField("messages", "messages: final assistant content cannot end with trailing whitespace")
		}
	}
	return nil
}

func unanswered(path string, called []string) *problem {
	return invalidField(path, path+": `tool_use` ids were found without `tool_result` blocks immediately after: "+strings.Join(called, ", ")+
		". Each `tool_use` block must have a corresponding `tool_result` block in the next message.")
}

// results checks the results of tools in a message against the calls that wait.
func results(called *[]string, m message, path string) *problem {
	other := false
	for k, b := range m.blocks {
		if b.kind != "result" {
			if b.kind == "text" {
				other = true
			}
			continue
		}
		i := slices.Index(*called, b.id)
		if i < 0 {
			return invalidField(path, fmt.Sprintf("%s.content.%d: unexpected `tool_use_id` found in `tool_result` blocks: %s. Each `tool_result` block must have a corresponding `tool_use` block in the previous message.", path, k, b.id))
		}
		if other {
			return unanswered(path, *called)
		}
		*called = slices.Delete(*called, i, i+1)
	}
	if len(*called) > 0 {
		return unanswered(path, *called)
	}
	return nil
}

// apart gives results of tools a message of their own.
func apart(m message) []message {
	i := slices.IndexFunc(m.blocks, func(b block) bool { return b.kind == "result" })
	if i < 0 {
		return []message{m}
	}
	tool, rest := message{role: "tool"}, message{role: m.role}
	for _, b := range m.blocks {
		if b.kind == "text" {
			rest.blocks = append(rest.blocks, b)
		} else {
			tool.blocks = append(tool.blocks, b)
		}
	}
	if len(rest.blocks) == 0 {
		return []message{tool}
	}
	return []message{tool, rest}
}
