// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
)

// converseBlock is a union: one member is set.
type converseBlock struct {
	Text  *string `json:"text"`
	Image *struct {
		Format string       `json:"format"`
		Source bedrockBytes `json:"source"`
	} `json:"image"`
	Document *struct {
		Format string       `json:"format"`
		Name   string       `json:"name"`
		Source bedrockBytes `json:"source"`
	} `json:"document"`
	ToolUse *struct {
		ID    string          `json:"toolUseId"`
		Name  string          `json:"name"`
		Input json.RawMessage `json:"input"`
	} `json:"toolUse"`
	ToolResult *struct {
		ID      string          `json:"toolUseId"`
		Content []converseBlock `json:"content"`
		Status  string          `json:"status"`
	} `json:"toolResult"`
	Reasoning *struct {
		Text *struct {
			Text      string `json:"text"`
			Signature string `json:"signature"`
		} `json:"reasoningText"`
		Redacted *string `json:"redactedContent"`
	} `json:"reasoningContent"`
	JSON       json.RawMessage `json:"json"`
	CachePoint *struct {
		Type string `json:"type"`
	} `json:"cachePoint"`
	Guard *struct{} `json:"guardContent"`
}

type bedrockBytes struct {
	Bytes string `json:"bytes"`
	S3    *struct {
		URI string `json:"uri"`
	} `json:"s3Location"`
}

func (b *bedrockBytes) read(at string) (string, *problem) {
	if b.S3 != nil && b.S3.URI != "" {
		return b.S3.URI, nil
	}
	if b.Bytes == "" {
		return "", validation("The value at %s.source is empty.", at)
	}
	if _, err := base64.StdEncoding.DecodeString(b.Bytes); err != nil {
		return "", validation("The value at %s.source.bytes is not base64.", at)
	}
	return b.Bytes, nil
}

// converseMessage reads one message; at is its path in errors.
func converseMessage(role, at string, blocks []converseBlock, secret *sealer) (message, *problem) {
	m := message{role: role}
	if len(blocks) == 0 {
		return m, validation("The content field in the Message object at %s is empty. Add a ContentBlock object to the content field and try again.", at)
	}
	for i, b := range blocks {
		at := at + ".content." + string(encode(i))
		r := block{}
		var bad *problem
		misplaced := role == "system" && b.Text == nil && b.CachePoint == nil && b.Guard == nil
		switch {
		case b.Text != nil:
			r.kind, r.text = "text", *b.Text
			if strings.TrimSpace(r.text) == "" {
				bad = validation("The text field in the ContentBlock object at %s is blank. Add text to the text field, and try again.", at)
			}
		case b.Image != nil:
			misplaced = misplaced || role != "user"
			r.kind = "image"
			if !slices.Contains([]string{"png", "jpeg", "gif", "webp"}, b.Image.Format) {
				bad = validation("1 validation error detected: Value '%s' at '%s.image.format' failed to satisfy constraint: Member must satisfy enum value set: [png, jpeg, gif, webp]", b.Image.Format, at)
				break
			}
			r.text, bad = b.Image.Source.read(at + ".image")
		case b.Document != nil:
			misplaced = misplaced || role != "user"
			r.kind = "file"
			if b.Document.Name == "" {
				bad = validation("The name of the document at %s is missing.", at)
				break
			}
			r.text, bad = b.Document.Source.read(at + ".document")
		case b.ToolUse != nil:
			misplaced = misplaced || role != "assistant"
			r.kind, r.id, r.name, r.text = "call", b.ToolUse.ID, b.ToolUse.Name, string(b.ToolUse.Input)
			switch {
			case !strings.HasPrefix(r.text, "{"):
				bad = validation("The format of the value at %s.toolUse.input is invalid. Provide a json object for the field and try again.", at)
			case !toolName.MatchString(r.id) || len(r.id) > 64:
				bad = validation("1 validation error detected: Value '%s' at '%s.toolUse.toolUseId' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+", r.id, at)
			}
		case b.ToolResult != nil:
			misplaced = misplaced || role != "user"
			r.kind, r.id = "result", b.ToolResult.ID
			if s := b.ToolResult.Status; s != "" && s != "success" && s != "error" {
				bad = validation("1 validation error detected: Value '%s' at '%s.toolResult.status' failed to satisfy constraint: Member must satisfy enum value set: [success, error]", s, at)
				break
			}
			if len(b.ToolResult.Content) == 0 {
				break
			}
			var inner message
			if inner, bad = converseMessage("user", at, b.ToolResult.Content, secret); bad != nil {
				break
			}
			for _, x := range inner.blocks {
				if x.kind != "text" {
					m.blocks = append(m.blocks, x)
					continue
				}
				r.text += x.text
			}
		case b.Reasoning != nil:
			misplaced = misplaced || role != "assistant"
			r.kind = "reasoning"
			switch {
			case b.Reasoning.Text != nil && !secret.verify(b.Reasoning.Text.Text, b.Reasoning.Text.Signature):
				bad = validation("The model returned the following errors: %s: Invalid `signature` in `thinking` block", at)
			case b.Reasoning.Redacted != nil:
				if _, err := secret.open(*b.Reasoning.Redacted); err != nil {
					bad = validation("The model returned the following errors: %s: Invalid `data` in `redacted_thinking` block", at)
				}
			}
		case len(b.JSON) > 0:
			r.kind, r.text = "text", string(b.JSON)
		case b.CachePoint != nil:
			if len(m.blocks) > 0 {
				m.blocks[len(m.blocks)-1].mark = true
			}
			continue
		case b.Guard != nil:
			r.kind = "text"
		default:
			bad = validation("The provided request is not valid: %s: no member of the union is set", at)
		}
		if misplaced && bad == nil {
			bad = validation("The block at %s is not permitted in a message of the role %s.", at, role)
		}
		if bad != nil {
			return m, bad
		}
		m.blocks = append(m.blocks, r)
	}
	return m, nil
}

// conversation reads the messages and checks how they follow one another.
func (req *converseRequest) conversation(t *turn, secret *sealer) *problem {
	if len(req.Messages) == 0 {
		return validation("The messages field is empty. Provide a conversation and try again.")
	}
	var called []string
	for i, m := range req.Messages {
		at := "messages." + string(encode(i))
		switch {
		case m.Role != "user" && m.Role != "assistant":
			return validation("1 validation error detected: Value '%s' at 'messages.%d.member.role' failed to satisfy constraint: Member must satisfy enum value set: [user, assistant]", m.Role, i+1)
		case i == 0 && m.Role != "user":
			return validation("A conversation must start with a user message. Try again with a conversation that starts with a user message.")
		case i > 0 && m.Role == req.Messages[i-1].Role:
			return validation("A conversation must alternate between user and assistant roles. Make sure the conversation alternates between user and assistant roles and try again.")
		}
		read, bad := converseMessage(m.Role, at, m.Content, secret)
		if bad != nil {
			return bad
		}
		got := 0
		for _, b := range read.blocks {
			if b.kind != "result" {
				continue
			}
			got++
			k := slices.Index(called, b.id)
			if k < 0 {
				return validation("The number of toolResult blocks at %s.content exceeds the number of toolUse blocks of previous turn.", at)
			}
			called = slices.Delete(called, k, k+1)
		}
		if len(called) > 0 {
			return validation("Expected toolResult blocks at %s.content for the following Ids: %s", at, strings.Join(called, ", "))
		}
		for _, b := range read.blocks {
			if b.kind == "call" {
				called = append(called, b.id)
				got++
			}
		}
		if got > 0 && req.ToolConfig == nil {
			return validation("The toolConfig field must be defined when using toolUse and toolResult content blocks.")
		}
		t.messages = append(t.messages, apart(read)...)
	}
	if len(called) > 0 {
		return validation("Expected toolResult blocks at messages.%d.content for the following Ids: %s", len(req.Messages), strings.Join(called, ", "))
	}
	return nil
}
