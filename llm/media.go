// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"encoding/base64"
	"strings"
)

// This file knows the media types of what a conversation holds besides text.

// mediaByEnding are the types of files by the ends of their names.
var mediaByEnding = map[string]string{
	"pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "html": "text/html", "csv": "text/csv",
	"json": "application/json", "doc": "application/msword", "xls": "application/vnd.ms-excel",
	"docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
	"xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
	"png":  "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
	"mp3": "audio/mpeg", "wav": "audio/wav", "mp4": "video/mp4",
}

// mediaOfName is the type of a file by its name; a PDF if that does not tell.
func mediaOfName(name string) string {
	if media := mediaByEnding[strings.ToLower(ending(name))]; media != "" {
		return media
	}
	return "application/pdf"
}

// ending of a file's name, without the dot.
func ending(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// fetch gets the data of a part that is a URL, for servers that take data only.
// It says no, and the request is refused, where that cannot be.
func (w *requestWriter) fetch(p *part) bool {
	if w.err != nil {
		return false
	}
	if w.backend.Images == nil || !isWeb(p.url) {
		w.refuse(cannot(w.path(p.place), "is a URL, but this server takes data only"))
		return false
	}
	media, data, err := w.backend.Images(p.url.String())
	if err != nil {
		refused := InvalidRequest(w.path(p.place), w.path(p.place)+" could not be fetched: "+err.Error())
		refused.Code = "invalid_image_url"
		w.refuse(refused)
		return false
	}
	media, _, _ = strings.Cut(media, ";")
	p.media = strings.ToLower(strings.TrimSpace(media))
	p.data = base64.StdEncoding.AppendEncode(nil, data)
	return true
}

// unnamed notes that the name of a file is lost.
func (w *requestWriter) unnamed(p *part) {
	if len(p.name) == 0 {
		return
	}
	switch w.dialect {
	case DialectAnthropic:
		w.drop("messages.content.title")
	case DialectGemini:
		w.drop("contents.parts.displayName")
	case DialectResponses:
		w.drop("input.content.filename")
	default:
		w.drop("messages.content.file.filename")
	}
}
