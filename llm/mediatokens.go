// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
)

// MediaRule is how a family of models counts images and sound, by what its maker
// has published.
type MediaRule uint8

// The rules; MediaPlain is [MediaTokens] for each.
const (
	MediaPlain MediaRule = iota
	MediaOpenAI
	MediaAnthropic
	MediaGemini
)

// TokensBy is Tokens with images and sound counted by a rule, as far as they are in
// the body: what is fetched by a URL or an id is taken for a picture of a common
// size.
func (p *Prompt) TokensBy(rule MediaRule) int {
	n := p.Tokens()
	if rule == MediaPlain || p.media == 0 {
		return n
	}
	for i := range p.pieces {
		switch piece := &p.pieces[i]; {
		case piece.kind != pieceMedia:
		case piece.low && rule == MediaOpenAI:
			n += openAILow - MediaTokens
		default:
			n += mediaTokens(piece.text.Of(p.body), rule) - MediaTokens
		}
	}
	return n
}

// openAILow is what a picture in low detail counts with OpenAI, of any size; the
// others have no such choice.
const openAILow = 85

// maxHead is how much of a medium is decoded to find its size: the size of a JPEG
// may stand behind a preview.
const maxHead = 64 << 10

// mediaTokens is what one medium counts: base64, alone or in a data URL, or where
// it is to be had.
func mediaTokens(text []byte, rule MediaRule) int {
	const width, height = 1024, 1024 // of what is elsewhere
	if i := bytes.Index(text[:min(len(text), 128)], []byte(";base64,")); i >= 0 {
		text = text[i+len(";base64,"):]
	} else if bytes.Contains(text[:min(len(text), 32)], []byte("://")) || len(text) < 64 {
		return imageTokens(width, height, rule)
	}
	head := make([]byte, base64.StdEncoding.DecodedLen(min(len(text), maxHead)/4*4))
	got, _ := base64.StdEncoding.Decode(head, text[:min(len(text), maxHead)/4*4])
	head = head[:got]
	if seconds := audioSeconds(head, len(text)/4*3); seconds > 0 {
		if rule == MediaGemini {
			return 32 * seconds
		}
		return 10 * seconds
	}
	if w, h := imageSize(head); w > 0 && h > 0 {
		return imageTokens(w, h, rule)
	}
	return imageTokens(width, height, rule)
}

// imageTokens is what an image counts. OpenAI's are those of a picture in high
// detail: fit into 2,048 pixels, the short side to 768, tiles of 512.
func imageTokens(w, h int, rule MediaRule) int {
	const most = 1 << 16 // pixels: beyond any format, and no product overflows
	w, h = min(w, most), min(h, most)
	switch rule {
	case MediaOpenAI:
		if long := max(w, h); long > 2048 {
			w, h = max(1, w*2048/long), max(1, h*2048/long)
		}
		if short := min(w, h); short > 768 {
			w, h = w*768/short, h*768/short
		}
		return 85 + 170*((w+511)/512)*((h+511)/512)
	case MediaAnthropic:
		return min(max(1, w*h/750), 1600)
	case MediaGemini:
		if w <= 384 && h <= 384 {
			return 258
		}
		return 258 * ((w + 767) / 768) * ((h + 767) / 768)
	}
	return MediaTokens
}

// imageSize reads the size of a picture from its beginning; 0: not known.
func imageSize(head []byte) (w, h int) {
	var c image.Config
	var err error
	switch r := bytes.NewReader(head); {
	case bytes.HasPrefix(head, []byte("\x89PNG")):
		c, err = png.DecodeConfig(r)
	case bytes.HasPrefix(head, []byte("\xff\xd8")):
		c, err = jpeg.DecodeConfig(r)
	case bytes.HasPrefix(head, []byte("GIF8")):
		c, err = gif.DecodeConfig(r)
	case len(head) >= 30 && bytes.HasPrefix(head, []byte("RIFF")) && string(head[8:12]) == "WEBP":
		return webpSize(head)
	}
	if err != nil {
		return 0, 0
	}
	return c.Width, c.Height
}

// webpSize reads the size from the first chunk of a WebP.
func webpSize(head []byte) (w, h int) {
	switch string(head[12:16]) {
	case "VP8X":
		at := func(i int) int { return int(head[i]) | int(head[i+1])<<8 | int(head[i+2])<<16 }
		return at(24) + 1, at(27) + 1
	case "VP8 ":
		return int(binary.LittleEndian.Uint16(head[26:])) & 0x3fff, int(binary.LittleEndian.Uint16(head[28:])) & 0x3fff
	case "VP8L":
		bits := binary.LittleEndian.Uint32(head[21:])
		return int(bits&0x3fff) + 1, int(bits>>14&0x3fff) + 1
	}
	return 0, 0
}

// audioSeconds is how long a sound of so many bytes takes, rounded up: a WAV says
// so, an MP3 is taken for one of 128 kbit/s. 0: it is no sound that is known.
func audioSeconds(head []byte, size int) int {
	rate := 0
	switch {
	case len(head) >= 32 && bytes.HasPrefix(head, []byte("RIFF")) && string(head[8:12]) == "WAVE":
		if rate = int(binary.LittleEndian.Uint32(head[28:])); rate < 1000 || rate > 10_000_000 {
			rate = 32_000 // 16 kHz of 16 bits
		}
	case bytes.HasPrefix(head, []byte("ID3")), len(head) > 1 && head[0] == 0xff && head[1]&0xe0 == 0xe0 && head[1] != 0xff && head[1] != 0xd8:
		rate = 16_000
	default:
		return 0
	}
	return (size + rate - 1) / rate
}
